#include "common/base/anonymous_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "common/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

TEST(AnonymousMemoryTest, IsZeroAndMoves) {
  ASSERT_OK_AND_ASSIGN(AnonymousMemory memory, AnonymousMemory::Map(100'001, "a test"));
  EXPECT_EQ(memory.base()[100'000], std::byte{0});
  memory.base()[7] = std::byte{3};
  AnonymousMemory moved = std::move(memory);
  EXPECT_EQ(moved.base()[7], std::byte{3});
  EXPECT_EQ(moved.num_bytes(), 100'001);
}

TEST(AnonymousMemoryTest, PopulatedItHasAllItsPages) {
  constexpr int64_t kPage = 4096, kBytes = (int64_t{130} << 20) + 1;  // two pieces and a bit
  ASSERT_OK_AND_ASSIGN(const AnonymousMemory memory, AnonymousMemory::Map(kBytes, "a test"));
  std::vector<unsigned char> pages(static_cast<size_t>(kBytes / kPage + 1));
  ASSERT_EQ(mincore(memory.base(), kBytes, pages.data()), 0);
  EXPECT_LT(std::count_if(pages.begin(), pages.end(), [](unsigned char page) { return (page & 1) != 0; }), 10);
  memory.base()[5] = std::byte{7};
  memory.Populate();
  EXPECT_EQ(memory.base()[5], std::byte{7});
  ASSERT_EQ(mincore(memory.base(), kBytes, pages.data()), 0);
  EXPECT_TRUE(std::all_of(pages.begin(), pages.end(), [](unsigned char page) { return (page & 1) != 0; }));
  EXPECT_EQ(memory.base()[kBytes - 1], std::byte{0});
}

TEST(AnonymousMemoryTest, NothingIsNone) {
  ASSERT_OK_AND_ASSIGN(const AnonymousMemory memory, AnonymousMemory::Map(0, "a test"));
  EXPECT_EQ(memory.base(), nullptr);
}

TEST(AnonymousMemoryTest, WhatIsNotThereIsRefusedByName) {
  EXPECT_THAT(AnonymousMemory::Map(int64_t{1} << 50, "the model").status(),
              StatusIs(absl::StatusCode::kResourceExhausted, "the model: 1125899906842624 bytes"));
}

}  // namespace
}  // namespace eps
