#include "common/formats/tensor_file_writer.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/formats/safetensors.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using testing::AllOf;

TensorSpec Tensor(std::vector<int64_t> shape) { return {.name = "its own", .shape = std::move(shape)}; }

// One of 100 ones, but for element 77.
absl::Status WriteOne(const std::string& path, const std::string& dtype, float value) {
  const TensorSpec tensor = Tensor({4, 25});
  return WriteTensorFile(path, {{.name = "in the file", .tensor = &tensor}}, dtype,
                         [&](const TensorSpec&, int64_t, absl::Span<float> values) {
                           std::fill(values.begin(), values.end(), 1.0f);
                           values[77] = value;
                           return absl::OkStatus();
                         });
}

TEST(TensorFileWriterTest, TensorsAreAskedForInOrderInPartsAndWrittenByTheirNames) {
  TempDir dir;
  const TensorSpec large = Tensor({2, kChunkElems}), small = Tensor({3});
  std::vector<int64_t> firsts;
  const auto count = [&](const TensorSpec& tensor, int64_t first, absl::Span<float> values) {
    firsts.push_back(first);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>((first + static_cast<int64_t>(i)) % 251) * (&tensor == &large ? 1.0f : -1.0f);
    }
    return absl::OkStatus();
  };
  for (const std::string dtype : {"F32", "F16", "BF16"}) {
    firsts.clear();
    ASSERT_OK(WriteTensorFile(dir.File(dtype), {{"large", &large}, {"small", &small}}, dtype, count));
    EXPECT_THAT(firsts, testing::ElementsAre(0, kChunkElems, 0));
    ASSERT_OK_AND_ASSIGN(const auto file, SafetensorsReader::Open(dir.File(dtype)));
    EXPECT_EQ(file->metadata(), (std::map<std::string, std::string>{{"format", "pt"}}));
    EXPECT_EQ(file->Find("small")->dtype, dtype);
    EXPECT_EQ(file->Find("large")->shape, large.shape);
    std::vector<float> values(2), few(3);
    ASSERT_OK(file->ReadFloatsAt(*file->Find("large"), kChunkElems + 5, absl::MakeSpan(values)));
    EXPECT_EQ(values[1], static_cast<float>((kChunkElems + 6) % 251));
    ASSERT_OK(file->ReadFloats(*file->Find("small"), absl::MakeSpan(few)));
    EXPECT_EQ(few, (std::vector<float>{0, -1, -2}));
  }
}

TEST(TensorFileWriterTest, ADtypeIsOneOfThree) {
  for (const char* dtype : {"F32", "F16", "BF16"}) EXPECT_OK(CheckTensorDtype(dtype));
  EXPECT_THAT(CheckTensorDtype("F64"), StatusIs(kInvalid, "F64"));
  EXPECT_EQ(TensorElemBytes("F32"), 4);
  EXPECT_EQ(TensorElemBytes("F16"), 2);
  EXPECT_EQ(TensorElemBytes("BF16"), 2);
}

TEST(TensorFileWriterTest, WhatIsNoNumberIsWrittenInNoDtype) {
  TempDir dir;
  for (const float wrong : {std::numeric_limits<float>::infinity(), std::bit_cast<float>(0x7FFFFFFFu)}) {
    for (const std::string dtype : {"F32", "F16", "BF16"}) {
      EXPECT_THAT(WriteOne(dir.File("file"), dtype, wrong),
                  AllOf(StatusIs(kInvalid, "its own, element 77: "), StatusIs(kInvalid, ", must be finite")))
          << dtype;
    }
  }
}

TEST(TensorFileWriterTest, AFiniteValueThatIsTooLargeForADtypeIsRefusedByTensorAndElement) {
  struct Case {
    std::string dtype;
    float largest, too_large;  // what still rounds to the largest number, and what does not
    std::string error;
  };
  const float largest_bf16 = 0x1.FEFFFEp127f;
  for (const Case& c : {Case{"F16", 65519.996f, 65520,
                             "element 77: -65520 is too large for F16, whose largest number is 65504; take BF16"},
                        Case{"F16", 65504, 1e6f, "element 77: -1e+06 is too large for F16"},
                        Case{"BF16", largest_bf16, 0x1.FFp127f,
                             "is too large for BF16, whose largest number is 3.3895e38; take F32"}}) {
    TempDir dir;
    EXPECT_OK(WriteOne(dir.File("out"), c.dtype, -c.largest)) << c.dtype;
    EXPECT_THAT(WriteOne(dir.File("none"), c.dtype, -c.too_large),
                AllOf(StatusIs(kInvalid, "its own, "), StatusIs(kInvalid, c.error)));
    EXPECT_OK(WriteOne(dir.File("none"), "F32", -c.too_large));
  }
}

TEST(TensorFileWriterTest, AnErrorOfTheReaderIsTheWriters) {
  TempDir dir;
  const TensorSpec tensor = Tensor({3});
  const auto fail = [](const TensorSpec&, int64_t, absl::Span<float>) { return absl::DataLossError("no"); };
  EXPECT_THAT(WriteTensorFile(dir.File("file"), {{"name", &tensor}}, "F32", fail),
              StatusIs(absl::StatusCode::kDataLoss, "no"));
}

}  // namespace
}  // namespace eps
