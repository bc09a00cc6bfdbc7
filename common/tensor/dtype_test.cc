#include "common/tensor/dtype.h"

#include "gtest/gtest.h"

namespace eps {
namespace {

TEST(DtypeTest, ValuesAreThoseOfTheChunkHeader) {
  EXPECT_EQ(static_cast<int>(Dtype::kF32), 1);
  EXPECT_EQ(static_cast<int>(Dtype::kBf16), 2);
}

TEST(DtypeTest, SizesAndNames) {
  EXPECT_EQ(SizeOf(Dtype::kF32), 4);
  EXPECT_EQ(SizeOf(Dtype::kBf16), 2);
  EXPECT_EQ(DtypeName(Dtype::kF32), "F32");
  EXPECT_EQ(DtypeName(Dtype::kBf16), "BF16");
}

}  // namespace
}  // namespace eps
