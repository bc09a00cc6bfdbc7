#include "common/tensor/to_floats.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/types/span.h"
#include "common/numeric/bf16.h"
#include "common/numeric/fp16.h"
#include "common/tensor/dtype.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

template <typename T>
std::vector<std::byte> BytesOf(const std::vector<T>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

TEST(ToFloatsTest, EveryTypeIsReadAtAnyAddress) {
  const std::vector<float> want = {0, -1.5f, 0.25f, 1024};  // which all of them have
  std::vector<uint16_t> bf16, fp16;
  for (const float value : want) {
    bf16.push_back(ToBf16(value).bits);
    fp16.push_back(ToFp16(value).bits);
  }
  const auto read = [](std::vector<std::byte> bytes, Dtype dtype) {
    bytes.insert(bytes.begin(), std::byte{0x5A});
    return ToFloats(absl::MakeConstSpan(bytes).subspan(1), dtype);
  };
  EXPECT_EQ(read(BytesOf(want), Dtype::kF32), want);
  EXPECT_EQ(read(BytesOf(bf16), Dtype::kBf16), want);
  EXPECT_EQ(read(BytesOf(fp16), Dtype::kF16), want);
  EXPECT_TRUE(ToFloats({}, Dtype::kF32).empty());
  EXPECT_TRUE(ToFloats({}, Dtype::kBf16).empty());
}

}  // namespace
}  // namespace eps
