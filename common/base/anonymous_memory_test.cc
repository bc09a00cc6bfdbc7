#include "common/base/anonymous_memory.h"

#include <utility>

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
