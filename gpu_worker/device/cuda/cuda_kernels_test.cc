#include "gpu_worker/device/cuda/cuda_kernels.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "common/numeric/philox.h"
#include "common/tensor/dtype.h"
#include "common/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gpu_worker/device/cuda/device_dropout.h"
#include "gpu_worker/device/cuda/elementwise.h"
#include "gpu_worker/device/cuda/emulator/emulated_runtime.h"
#include "gpu_worker/device/cuda/emulator/grid.h"
#include "gpu_worker/device/cuda/experts.h"
#include "gpu_worker/device/cuda/gpu_runtime.h"
#include "gpu_worker/device/cuda/launch.h"
#include "gpu_worker/device/cuda/matmul_problem.h"
#include "gpu_worker/device/cuda/sdpa_problem.h"
#include "gpu_worker/device/dropout_plan.h"
#include "gpu_worker/device/kernels.h"
#include "gtest/gtest.h"

namespace eps::worker::cuda {
namespace {

using ::testing::ElementsAre;

// Writes down what it is asked for.
class RecordingQueue : public ComputeQueue {
 public:
  void Launch(KernelCall call) override { calls.push_back(call.name); }
  void MatMul(const MatMulProblem& asked_for) override {
    calls.push_back("MatMul");
    product = asked_for;
  }
  const PhiloxKey* DropoutKey(PhiloxKey asked_for) override {
    key = asked_for;
    return &key;
  }
  bool TakesAttention(const SdpaProblem& problem) override {
    asked.push_back(problem);
    return takes;
  }
  void Attention(const SdpaProblem& problem, const SdpaArrays& arrays) override {
    calls.push_back("Attention");
    Keep(problem, arrays);
  }
  void AttentionBackward(const SdpaProblem& problem, const SdpaArrays& arrays) override {
    calls.push_back("AttentionBackward");
    Keep(problem, arrays);
  }

  bool takes = true;
  std::vector<std::string> calls;
  std::vector<SdpaProblem> asked;
  SdpaProblem problem;
  SdpaArrays arrays;
  MatMulProblem product;
  PhiloxKey key;

 private:
  void Keep(const SdpaProblem& p, const SdpaArrays& a) {
    problem = p;
    arrays = a;
  }
};

struct Arrays {
  float qkv[96], o[32], lse[4], d_o[32], dqkv[96], scratch[4];

  // Two positions of two heads.
  AttentionArgs forward() { return {.B = 1, .T = 2, .H = 2, .kv_heads = 2, .D = 8, .qkv = qkv, .o = o, .lse = lse}; }
  AttentionBackwardArgs backward() {
    return {.B = 1,
            .T = 2,
            .H = 2,
            .kv_heads = 2,
            .D = 8,
            .qkv = qkv,
            .o = o,
            .lse = lse,
            .d_o = d_o,
            .dqkv = dqkv,
            .scratch = scratch};
  }
};
SdpaProblem ProblemOfArrays(Dtype act) { return {.B = 1, .T = 2, .H = 2, .kv_heads = 2, .D = 8, .act = act}; }

TEST(CudaKernelsTest, ProductsAreOfTheComputeDtypeAndOfTf32WhereTheRunSaysSo) {
  RecordingQueue queue;
  CudaKernels(Dtype::kF16, &queue).MatMul({.M = 1, .N = 1, .K = 1});
  EXPECT_EQ(queue.product.operand_dtype, Dtype::kF16);
  EXPECT_EQ(queue.product.result_dtype, Dtype::kF16);
  EXPECT_FALSE(queue.product.tf32);
  CudaKernels(Dtype::kF32, &queue, /*tf32=*/true).MatMul({.M = 1, .N = 1, .K = 1, .c_is_gradient = true});
  EXPECT_EQ(queue.product.operand_dtype, Dtype::kF32);
  EXPECT_TRUE(queue.product.tf32);
}

// What is limited by the memory's bandwidth reads its arrays once: gradients of parameters come from the same pass.
TEST(CudaKernelsTest, BackwardPassesAreOnePassOverTheirArrays) {
  RecordingQueue queue;
  CudaKernels kernels(Dtype::kBf16, &queue);
  float bias[8];
  kernels.LayerNormBackward({.M = 2, .C = 8});
  EXPECT_THAT(queue.calls, ElementsAre("LayerNormBackward", "AddPartials"));
  queue.calls.clear();
  kernels.RmsNormBackward({.M = 2, .C = 8, .lddy = 8, .ldx = 8, .lddx = 8});
  EXPECT_THAT(queue.calls, ElementsAre("RmsNormBackward", "AddPartials"));
  queue.calls.clear();
  kernels.ActivationBackward({.M = 2, .N = 8, .dbias = bias});
  EXPECT_THAT(queue.calls, ElementsAre("ActivationBackwardColumns", "AddPartials"));
  queue.calls.clear();
  kernels.ActivationBackward({.M = 2, .N = 8});
  EXPECT_THAT(queue.calls, ElementsAre("ActivationBackward"));
}

// What an expert gets only the device knows: the launches are the same for every routing.
TEST(CudaKernelsTest, ExpertsTakeAsManyLaunchesHoweverManyTheyAre) {
  RecordingQueue queue;
  CudaKernels kernels(Dtype::kBf16, &queue);
  kernels.Route({.M = 100, .E = 256, .K = 8});
  EXPECT_THAT(queue.calls, ElementsAre("ChooseExperts", "SortCount", "SortScan", "SortScatter", "RouteRows"));
  queue.calls.clear();
  kernels.RouteBackward({.M = 100, .E = 256, .K = 8});
  kernels.GatherRows({.R = 800, .C = 64});
  kernels.ExpertMatMul({.E = 256, .R = 800, .N = 64, .K = 64, .lda = 64, .ldb = 64, .b_stride = 4096, .ldc = 64});
  kernels.ExpertGradient({.E = 256, .R = 800, .M = 64, .N = 64, .lda = 64, .ldb = 64, .c_stride = 4096});
  kernels.SumRows({.M = 100, .K = 8, .C = 64});
  EXPECT_THAT(queue.calls, ElementsAre("RouteBackward", "GatherRows", "ExpertMatMul", "ExpertGradient", "SumRows"));
  queue.calls.clear();
  float weight[2];
  kernels.SwigluBackward({.M = 2, .F = 8, .weight = weight});
  EXPECT_THAT(queue.calls, ElementsAre("WeightedSwigluBackward"));
}

TEST(CudaKernelsTest, AttentionIsTheLibrarysWhereItTakesIt) {
  RecordingQueue queue;
  CudaKernels kernels(Dtype::kBf16, &queue);
  Arrays a;
  AttentionArgs forward = a.forward();
  forward.scale = 0.5;
  kernels.Attention(forward);
  SdpaProblem want = ProblemOfArrays(Dtype::kBf16);
  want.scale = 0.5;
  EXPECT_EQ(queue.problem, want);
  EXPECT_EQ(queue.arrays.qkv, a.qkv);
  EXPECT_EQ(queue.arrays.o, a.o);
  EXPECT_EQ(queue.arrays.lse, a.lse);

  AttentionBackwardArgs backward = a.backward();
  backward.scale = 0.5;
  kernels.AttentionBackward(backward);
  EXPECT_EQ(queue.problem, want);
  EXPECT_EQ(queue.arrays.qkv, a.qkv);
  EXPECT_EQ(queue.arrays.o, a.o);
  EXPECT_EQ(queue.arrays.lse, a.lse);
  EXPECT_EQ(queue.arrays.d_o, a.d_o);
  EXPECT_EQ(queue.arrays.dqkv, a.dqkv);
  EXPECT_EQ(queue.arrays.delta, a.scratch);
  EXPECT_THAT(queue.calls, ElementsAre("Attention", "AttentionBackward"));
  EXPECT_THAT(queue.asked, ElementsAre(want, want));
}

// Forward and backward ask about the same problem, so that both get the same answer.
TEST(CudaKernelsTest, AttentionIsThePlainKernelInBothDirectionsWhereTheLibraryDoesNotTakeIt) {
  RecordingQueue queue;
  queue.takes = false;
  CudaKernels kernels(Dtype::kF32, &queue);
  Arrays a;
  AttentionArgs forward = a.forward();
  AttentionBackwardArgs backward = a.backward();
  forward.dropout = backward.dropout = {.rate = 0.25};
  kernels.Attention(forward);
  kernels.AttentionBackward(backward);
  EXPECT_THAT(queue.calls,
              ElementsAre("PlainAttention", "AttentionDelta", "AttentionBackwardQueries", "AttentionBackwardKeys"));
  SdpaProblem want = ProblemOfArrays(Dtype::kF32);
  want.dropout = 0.25;
  EXPECT_THAT(queue.asked, ElementsAre(want, want));
}

TEST(CudaKernelsTest, TheLibraryIsAskedAboutTheMaskAndTheHeads) {
  RecordingQueue queue;
  CudaKernels kernels(Dtype::kBf16, &queue);
  Arrays a;
  const auto asked = [&](bool causal, int64_t window) {
    AttentionArgs args = a.forward();
    args.H = 4;
    args.D = 4;
    args.causal = causal;
    args.window = window;
    kernels.Attention(args);
    return queue.asked.back();
  };
  SdpaProblem want = {.B = 1, .T = 2, .H = 4, .kv_heads = 2, .D = 4, .act = Dtype::kBf16};
  EXPECT_EQ(asked(true, 0), want);
  EXPECT_EQ(asked(true, 2), want) << "a window that bounds nothing is none";
  want.window = 1;
  EXPECT_EQ(asked(true, 1), want);
  want.window = 0;
  want.causal = false;
  EXPECT_EQ(asked(false, 0), want);
}

TEST(CudaKernelsTest, TheLibraryIsToldTheDocumentsAndWhatIsDropped) {
  RecordingQueue queue;
  CudaKernels kernels(Dtype::kBf16, &queue);
  Arrays a;
  const int32_t first[2] = {0, 1}, end[2] = {1, 2};
  const Documents documents = {.first = first, .end = end};
  const Dropout dropout = {.rate = 0.25, .key = {.seed = 3, .step = 4, .vnode = 5}, .first_element = 64};
  SdpaProblem want = ProblemOfArrays(Dtype::kBf16);
  want.dropout = 0.25;
  want.documents = true;
  const auto expect_told = [&] {
    EXPECT_EQ(queue.problem, want);
    EXPECT_EQ(queue.arrays.documents, documents);
    const DropoutPlan plan = PlanDropout(dropout);
    const DeviceDropout want_dropout = {.on = true,
                                        .key = &queue.key,
                                        .drop_up_to = plan.drop_up_to,
                                        .keep_scale = plan.keep_scale,
                                        .first_element = 64};
    EXPECT_EQ(queue.arrays.dropout, want_dropout);
    EXPECT_EQ(queue.key, plan.key);
  };
  AttentionArgs forward = a.forward();
  forward.documents = documents;
  forward.dropout = dropout;
  kernels.Attention(forward);
  expect_told();
  queue.problem = {};
  queue.arrays = {};
  AttentionBackwardArgs backward = a.backward();
  backward.documents = documents;
  backward.dropout = dropout;
  kernels.AttentionBackward(backward);
  expect_told();
}

// ---- kernels that no conformance case asks for by themselves ----

void RunEmulated(const KernelCall& call) {
  const std::shared_ptr<GpuRuntime> runtime = NewEmulatedRuntime(GridOrder::kForward, {});
  ASSERT_OK_AND_ASSIGN(const GpuStream stream, runtime->NewStream());
  EXPECT_OK(runtime->Launch(stream, call));
  EXPECT_OK(runtime->Synchronize(stream));
  runtime->DestroyStream(stream);
}

TEST(CudaKernelsTest, WordsAreCopiedAndNothingBesideThem) {
  alignas(64) static uint32_t from[4100], to[4100];
  for (const size_t words : {1, 2, 4, 127, 128, 129, 508, 512, 516, 4000}) {
    for (const size_t from_at : {0, 2, 4}) {
      for (const size_t to_at : {0, 3, 8}) {
        std::iota(std::begin(from), std::end(from), 1u);
        std::fill(std::begin(to), std::end(to), 0u);
        RunEmulated(CopyWords(static_cast<int64_t>(words) * kCopyWordBytes, from + from_at, to + to_at));
        for (size_t i = 0; i < 4100; ++i) {
          const bool is_copied = i >= to_at && i < to_at + words;
          ASSERT_EQ(to[i], is_copied ? from[from_at + i - to_at] : 0u)
              << words << " " << from_at << " " << to_at << " " << i;
        }
      }
    }
  }
}

TEST(CudaKernelsTest, ARowsBiasIsMinusInfinityOutsideOfItsDocument) {
  constexpr int64_t B = 2, T = 5;
  const int32_t first[B * T] = {0, 0, 2, 2, 2, 0, 1, 1, 1, 4}, end[B * T] = {2, 2, 5, 5, 5, 1, 4, 4, 4, 5};
  std::vector<float> bias(B * T * T + 8, 7.0f);
  RunEmulated(DocumentBias(Dtype::kF32, B, T, {.first = first, .end = end}, bias.data()));
  for (int64_t row = 0; row < B * T; ++row) {
    for (int64_t column = 0; column < T; ++column) {
      const bool seen = column >= first[row] && column < end[row];
      EXPECT_EQ(bias[static_cast<size_t>(row * T + column)], seen ? 0.0f : -INFINITY) << row << " " << column;
    }
  }
  for (size_t i = B * T * T; i < bias.size(); ++i) EXPECT_EQ(bias[i], 7.0f);
}

// ---- products by expert, whose operands are read by packs or by elements ----

class EmulatedQueue : public KernelQueue {
 public:
  void Launch(KernelCall call) override { RunEmulated(call); }
};

uint16_t Bf16Of(int value) { return static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(value)) >> 16); }

// Rows of small whole numbers in bf16, the same for each seed wherever they lie: NaN is around them, nothing behind.
struct Matrix {
  Matrix(int64_t rows, int64_t columns, int64_t row_elems, int64_t first_elem, int seed)
      : ld(row_elems), first(first_elem), elements(static_cast<size_t>(first + (rows - 1) * ld + columns), 0x7FC0) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j)
        *at(i, j) = Bf16Of(static_cast<int>((i * 7 + j * 3 + i * j + seed) % 9) - 4);
    }
  }
  uint16_t* at(int64_t row, int64_t column) { return elements.data() + first + row * ld + column; }
  double value(int64_t row, int64_t column) { return std::bit_cast<float>(uint32_t{*at(row, column)} << 16); }

  int64_t ld, first;
  std::vector<uint16_t> elements;
};

// Of rows in two tiles, of no rows, and of a few.
constexpr int32_t kFirstRow[] = {0, 140, 140, 149};
constexpr int64_t kExperts = 3, kRows = 149;

struct Placing {
  int64_t ld_extra, first;
};
// Packs; packs that do not follow each other; leading dimensions that are no packs; addresses that are at 4 bytes.
constexpr Placing kPlacings[] = {{0, 0}, {16, 8}, {2, 0}, {0, 2}};

TEST(CudaKernelsTest, ProductsByExpertHaveTheSameBitsHoweverTheirOperandsLie) {
  constexpr int64_t kColumns = 144, kDepth = 168;
  EmulatedQueue queue;
  for (const bool trans_b : {false, true}) {
    std::vector<double> first_result;
    for (const Placing& placing : kPlacings) {
      const auto [extra, first] = placing;
      const int64_t b_rows = trans_b ? kColumns : kDepth, b_columns = trans_b ? kDepth : kColumns;
      Matrix a(kRows, kDepth, kDepth + extra, first, 1), b(kExperts * b_rows, b_columns, b_columns + extra, first, 2);
      Matrix c(kRows, kColumns, kColumns + extra, first, 3);
      ExpertMatMul(queue, Dtype::kBf16,
                   {.E = kExperts,
                    .R = kRows,
                    .N = kColumns,
                    .K = kDepth,
                    .first_row = kFirstRow,
                    .a = a.at(0, 0),
                    .lda = a.ld,
                    .b = b.at(0, 0),
                    .ldb = b.ld,
                    .b_stride = b_rows * b.ld,
                    .trans_b = trans_b,
                    .c = c.at(0, 0),
                    .ldc = c.ld,
                    .accumulate = true});
      std::vector<double> result;
      for (int64_t i = 0; i < kRows; ++i) {
        for (int64_t j = 0; j < kColumns; ++j) result.push_back(c.value(i, j));
      }
      if (first_result.empty()) first_result = result;
      EXPECT_EQ(result, first_result) << "leading dimensions + " << extra << ", at element " << first;
    }
  }
}

TEST(CudaKernelsTest, GradientsByExpertAreExactOfSmallNumbersHoweverTheirOperandsLie) {
  constexpr int64_t kM = 136, kN = 24;
  EmulatedQueue queue;
  for (const auto [extra, first] : kPlacings) {
    Matrix a(kRows, kM, kM + extra, first, 1), b(kRows, kN, kN + extra, first, 2);
    std::vector<float> c(kExperts * kM * kN, 5.0f);
    ExpertGradient(queue, Dtype::kBf16,
                   {.E = kExperts,
                    .R = kRows,
                    .M = kM,
                    .N = kN,
                    .first_row = kFirstRow,
                    .a = a.at(0, 0),
                    .lda = a.ld,
                    .b = b.at(0, 0),
                    .ldb = b.ld,
                    .c = c.data(),
                    .c_stride = kM * kN});
    for (int64_t i = 0; i < kExperts * kM * kN; ++i) {
      const int64_t expert = i / (kM * kN), row = i / kN % kM, column = i % kN;
      double want = 0;
      for (int64_t r = kFirstRow[expert]; r < kFirstRow[expert + 1]; ++r) want += a.value(r, row) * b.value(r, column);
      ASSERT_EQ(c[static_cast<size_t>(i)], want)
          << extra << " " << first << " " << expert << " " << row << " " << column;
    }
  }
}

}  // namespace
}  // namespace eps::worker::cuda
