#include "common/base/stream_copy.h"

#include <cstddef>
#include <vector>

#include "gtest/gtest.h"

namespace eps {
namespace {

TEST(StreamCopyTest, CopiesWhatItIsGivenAndNothingBeside) {
  constexpr size_t kRoom = 1024;
  std::vector<std::byte> source(kRoom);
  for (size_t i = 0; i < kRoom; ++i) source[i] = static_cast<std::byte>(i * 7 + 1);
  for (const size_t to : {0u, 1u, 16u, 63u, 64u, 100u}) {
    for (const size_t from : {0u, 3u, 64u}) {
      for (const size_t num_bytes : {0u, 1u, 63u, 64u, 65u, 128u, 500u}) {
        std::vector<std::byte> destination(kRoom, std::byte{0});
        StreamCopy(destination.data() + to, source.data() + from, num_bytes);
        for (size_t i = 0; i < kRoom; ++i) {
          const bool copied = i >= to && i < to + num_bytes;
          ASSERT_EQ(destination[i], copied ? source[from + i - to] : std::byte{0})
              << num_bytes << " bytes from " << from << " to " << to << ", at " << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace eps
