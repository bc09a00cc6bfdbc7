// The fused cross-entropy against plain fp64 loops and finite differences.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gpu_worker/device/conformance_cases.h"
#include "gpu_worker/device/conformance_memory.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/device/device_conformance.h"
#include "gpu_worker/device/reference_kernels.h"
#include "gtest/gtest.h"

namespace eps::worker {
namespace {

using conformance::ActEps;
using conformance::Array;
using conformance::kEps;
using conformance::LossCase;
using conformance::LossInputs;
using conformance::LossOutputs;
using conformance::MakeLossInputs;
using conformance::RunLoss;
using conformance::Slope;

TEST_P(DeviceConformanceTest, CrossEntropyInChunksAgreesWithFp64) {
  for (const LossCase& t : {LossCase{7, 256, 256}, LossCase{65, 1000, 300}, LossCase{33, 37, 10}, LossCase{1, 1, 1},
                            LossCase{40, 500, 128, 60.0}, LossCase{40, 100, 7, 1000.0},
                            LossCase{4100, 9, 9},  // more rows than a block of a GPU looks at in one round
                            // Of odd columns, in rows that are aligned and in others.
                            LossCase{33, 411, 137, 4.0, 7}, LossCase{33, 37, 10, 4.0, 3}}) {
    SCOPED_TRACE(std::to_string(t.V) + " by " + std::to_string(t.chunk) + " and " + std::to_string(t.extra));
    ConformanceMemory memory(device());
    const LossInputs in = MakeLossInputs(t);
    const double scale = 1.0 / static_cast<double>(t.M);
    const LossOutputs out = RunLoss(memory, t, in, scale);
    int64_t counted = 2;
    for (const int32_t label : in.labels) counted += label >= 0 && label < t.V;
    EXPECT_EQ(out.record.counted, counted);
    EXPECT_EQ(out.record.finite, 1);
    // A row's loss: roundings of logits - max (size 2 range) and of the sum, a few ulp each.
    const double row = (16 + 4 * t.range) * kEps + ActEps(memory) * t.range;
    EXPECT_NEAR(out.record.loss_sum, 0.5 + reference::CrossEntropy(in.logits, in.labels, t.M, t.V),
                row * static_cast<double>(t.M));
    ExpectNear(out.dlogits, reference::CrossEntropyGradient(in.logits, in.labels, t.M, t.V, scale), scale * row,
               4 * ActEps(memory), "dlogits");
    for (int64_t i = 0; i < t.M * t.V; ++i) {
      if (in.labels[i / t.V] < 0 || in.labels[i / t.V] >= t.V) {
        ASSERT_EQ(out.dlogits[i], 0.0) << "of a row that does not count";
      }
    }
  }
}

TEST_P(DeviceConformanceTest, CorrectRowsAreThoseWhoseLabelIsTheFirstOfTheLargestLogits) {
  struct Row {
    std::vector<int> largest;  // columns; others have less
    int32_t label;
    bool is_correct;
  };
  const std::vector<Row> rows = {
      {{3}, 3, true},           // in the first chunk
      {{39}, 39, true},         // in the last
      {{20}, 21, false},        // another's
      {{5, 30}, 30, false},     // as large before it, in an earlier chunk
      {{5, 30}, 5, true},       // behind it, in a later chunk
      {{17, 31}, 31, false},    // before it, in its chunk
      {{16, 17}, 17, false},    // next to it
      {{17, 31}, 17, true},     // behind it, in its chunk
      {{16, 17}, 16, true},     // its chunk's first
      {{2, 9}, 9, false},       // before it, with chunks behind that have less
      {{1, 14, 38}, 14, false}  // on both sides
  };
  const auto num_rows = static_cast<int64_t>(rows.size());
  const LossCase t = {num_rows + 2, 40, 16};
  LossInputs in{Array(t.M * t.V, -1.0), {}};
  int64_t correct = 0;
  for (int64_t row = 0; row < num_rows; ++row) {
    const Row& wanted = rows[static_cast<size_t>(row)];
    for (const int column : wanted.largest) in.logits[row * t.V + column] = 2;
    in.labels.push_back(wanted.label);
    correct += wanted.is_correct;
  }
  for (const int32_t uncounted : {-100, 40}) in.labels.push_back(uncounted);
  EXPECT_EQ(reference::CorrectRows(in.logits, in.labels, t.M, t.V), correct);
  ConformanceMemory memory(device());
  const LossOutputs out = RunLoss(memory, t, in, 1.0);
  EXPECT_EQ(out.record.counted, 2 + num_rows);
  EXPECT_EQ(out.record.correct, 1 + correct);  // the record began with 1
}

// Of logits of few values, whose largest has many columns.
TEST_P(DeviceConformanceTest, CorrectRowsAgreeWithTheReferenceWhereLogitsAreTheSame) {
  for (const LossCase& t : {LossCase{200, 6, 6}, LossCase{200, 37, 10, 4.0, 3}, LossCase{200, 411, 137, 4.0, 7},
                            LossCase{100, 600, 256}, LossCase{50, 4000, 4000}, LossCase{4100, 9, 9}}) {
    for (const int64_t values : {1, 3}) {
      SCOPED_TRACE(std::to_string(t.V) + " by " + std::to_string(t.chunk) + " of " + std::to_string(values));
      LossInputs in = MakeLossInputs(t);
      for (size_t i = 0; i < in.logits.size(); ++i) {
        // Few columns have the largest, so that it is often the label's.
        const bool is_rare = values > 1 && i % 7 != 0;
        in.logits[i] = is_rare ? -1 : static_cast<double>(static_cast<int64_t>(i * i / 7) % values);
      }
      for (int64_t row = 0; row < t.M; ++row) {
        if (row % 3 == 0 && row % 5 != 3) in.labels[row] = static_cast<int32_t>(row % std::min<int64_t>(t.V, 20));
      }
      ConformanceMemory memory(device());
      EXPECT_EQ(RunLoss(memory, t, in, 1.0).record.correct, 1 + reference::CorrectRows(in.logits, in.labels, t.M, t.V));
    }
  }
}

TEST_P(DeviceConformanceTest, CrossEntropyGradientAgreesWithFiniteDifferences) {
  const LossCase t = {20, 50, 16};
  ConformanceMemory memory(device());
  const LossInputs in = MakeLossInputs(t);
  const LossOutputs out = RunLoss(memory, t, in, 1.0);
  std::mt19937 random(3);
  const Array u = RandomArray(random, t.M * t.V);
  const double slope =
      Slope([&](const Array& x) { return reference::CrossEntropy(x, in.labels, t.M, t.V); }, in.logits, u);
  EXPECT_NEAR(Dot(out.dlogits, u), slope, 1e-5 + 100 * ActEps(memory) * (1 + std::abs(slope)));
}

TEST_P(DeviceConformanceTest, LossSaysWhenItIsNotFinite) {
  const LossCase t = {10, 40, 16};
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    ConformanceMemory memory(device());
    LossInputs in = MakeLossInputs(t);
    in.logits[2 * t.V + 20] = bad;  // of a counted row, not its label
    in.labels[2] = 5;
    EXPECT_EQ(RunLoss(memory, t, in, 1.0).record.finite, 0) << bad;
  }
  ConformanceMemory memory(device());
  LossInputs in = MakeLossInputs(t);
  in.logits[3 * t.V + 20] = std::numeric_limits<double>::quiet_NaN();  // row 3 does not count
  EXPECT_EQ(RunLoss(memory, t, in, 1.0).record.finite, 1);
}

}  // namespace
}  // namespace eps::worker
