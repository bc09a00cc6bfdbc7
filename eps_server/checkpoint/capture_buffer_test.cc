#include "eps_server/checkpoint/capture_buffer.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace eps::server {
namespace {

TEST(CaptureBufferTest, TakesWhatFitsAndNoMore) {
  ASSERT_OK_AND_ASSIGN(const auto buffer, CaptureBuffer::Create(10));
  EXPECT_EQ(buffer->num_bytes(), 10);
  EXPECT_EQ(buffer->Push(11), nullptr);
  std::byte* const all = buffer->Push(10);
  ASSERT_NE(all, nullptr);
  std::fill_n(all, 10, std::byte{1});
  EXPECT_EQ(buffer->Push(1), nullptr);
  buffer->Pop();
  EXPECT_NE(buffer->Push(4), nullptr);
  EXPECT_NE(buffer->Push(6), nullptr);
  EXPECT_EQ(buffer->Push(1), nullptr);
}

TEST(CaptureBufferTest, RoomAtTheStartIsUsedAgainAndNothingIsOverwritten) {
  ASSERT_OK_AND_ASSIGN(const auto buffer, CaptureBuffer::Create(101));
  std::deque<std::pair<std::byte*, std::vector<std::byte>>> held;
  uint32_t random = 1;
  int pushed = 0, wrapped = 0;
  for (int i = 0; i < 20000; ++i) {
    random = random * 1664525 + 1013904223;
    const size_t num_bytes = 1 + (random >> 20) % 40;
    if (std::byte* const array = (random >> 30) != 0 ? buffer->Push(num_bytes) : nullptr; array != nullptr) {
      wrapped += !held.empty() && array < held.back().first;
      std::vector<std::byte> values(num_bytes);
      for (std::byte& value : values) value = static_cast<std::byte>(++pushed);
      std::copy(values.begin(), values.end(), array);
      held.emplace_back(array, std::move(values));
    } else if (!held.empty()) {
      const auto& [begin, values] = held.front();
      ASSERT_TRUE(std::equal(values.begin(), values.end(), begin)) << i;
      held.pop_front();
      buffer->Pop();
    }
  }
  EXPECT_GT(wrapped, 100);
}

TEST(CaptureBufferTest, IsEmptyAfterClear) {
  ASSERT_OK_AND_ASSIGN(const auto buffer, CaptureBuffer::Create(10));
  ASSERT_NE(buffer->Push(7), nullptr);
  buffer->Clear();
  EXPECT_NE(buffer->Push(10), nullptr);
}

TEST(CaptureBufferTest, MemoryThatIsNotThereIsRefusedByName) {
  EXPECT_THAT(CaptureBuffer::Create(int64_t{1} << 50).status(),
              StatusIs(absl::StatusCode::kResourceExhausted, "checkpoint.buffer_bytes: 1125899906842624 bytes"));
}

}  // namespace
}  // namespace eps::server
