#include "common/tensor/dtype.h"

#include "gtest/gtest.h"

namespace eps {
namespace {

TEST(DtypeTest, ValuesAreThoseOfTheChunkHeader) {
  EXPECT_EQ(static_cast<int>(Dtype::kF32), 1);
  EXPECT_EQ(static_cast<int>(Dtype::kBf16), 2);
  EXPECT_EQ(static_cast<int>(Dtype::kF16), 3);
  for (const int value : {1, 2, 3}) EXPECT_TRUE(IsDtype(value));
  for (const int value : {-1, 0, 4, 257}) EXPECT_FALSE(IsDtype(value));
}

TEST(DtypeTest, SizesAndNames) {
  EXPECT_EQ(SizeOf(Dtype::kF32), 4);
  EXPECT_EQ(SizeOf(Dtype::kBf16), 2);
  EXPECT_EQ(SizeOf(Dtype::kF16), 2);
  EXPECT_EQ(DtypeName(Dtype::kF32), "F32");
  EXPECT_EQ(DtypeName(Dtype::kBf16), "BF16");
  EXPECT_EQ(DtypeName(Dtype::kF16), "F16");
}

}  // namespace
}  // namespace eps
