#include "gpu_worker/device/cuda/cuda_kernels.h"

#include <algorithm>
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

}  // namespace
}  // namespace eps::worker::cuda
