#include "common/numeric/philox.h"

#include <array>
#include <cstdint>
#include <set>
#include <utility>

#include "gtest/gtest.h"

namespace eps {
namespace {

using Block = std::array<uint32_t, 4>;

// The known answers that come with the authors' Random123 library.
TEST(PhiloxTest, KnownAnswersCome) {
  EXPECT_EQ(Philox({0, 0}, {0, 0, 0, 0}), (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox({0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}),
            (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox({0xa4093822, 0x299f31d0}, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}),
            (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(PhiloxTest, Mix64IsSplitMix64) {
  EXPECT_EQ(Mix64(0), 0xE220A8397B1DCDAFu);  // the generator's first number from state 0
  EXPECT_NE(Mix64(1), Mix64(2));
}

TEST(PhiloxTest, EveryPartOfARandomKeyChangesIt) {
  const RandomKey base{.seed = 1, .step = 2, .vnode = 3, .layer = 4, .use = 5};
  std::set<std::pair<uint32_t, uint32_t>> keys;
  const auto add = [&](const RandomKey& key) { keys.insert({key.philox().k0, key.philox().k1}); };
  add(base);
  RandomKey key = base;
  key.seed = 9;
  add(key);
  key = base;
  key.step = 9;
  add(key);
  key = base;
  key.vnode = 9;
  add(key);
  key = base;
  key.layer = 9;
  add(key);
  key = base;
  key.use = 9;
  add(key);
  key = base;
  std::swap(key.vnode, key.layer);
  add(key);
  EXPECT_EQ(keys.size(), 7u);
}

}  // namespace
}  // namespace eps
