#include "gpu_worker/device/cuda/cuda_kernels.h"

#include <string>
#include <utility>
#include <vector>

#include "common/tensor/dtype.h"
#include "gmock/gmock.h"
#include "gpu_worker/device/cuda/launch.h"
#include "gpu_worker/device/cuda/matmul_problem.h"
#include "gpu_worker/device/cuda/sdpa_problem.h"
#include "gpu_worker/device/kernels.h"
#include "gtest/gtest.h"

namespace eps::worker::cuda {
namespace {

using ::testing::ElementsAre;

// Writes down what it is asked for.
class RecordingQueue : public ComputeQueue {
 public:
  void Launch(KernelCall call) override { calls.push_back(call.name); }
  void MatMul(const MatMulProblem&) override { calls.push_back("MatMul"); }
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

 private:
  void Keep(const SdpaProblem& p, const SdpaArrays& a) {
    problem = p;
    arrays = a;
  }
};

struct Arrays {
  float qkv[96], o[32], lse[4], d_o[32], dqkv[96], scratch[4];
};

TEST(CudaKernelsTest, AttentionIsTheLibrarysWhereItTakesIt) {
  RecordingQueue queue;
  CudaKernels kernels(Dtype::kBf16, &queue);
  Arrays a;
  kernels.Attention({.B = 1, .T = 2, .H = 2, .D = 8, .qkv = a.qkv, .o = a.o, .lse = a.lse, .scale = 0.5});
  const SdpaProblem want = {.B = 1, .T = 2, .H = 2, .kv_heads = 2, .D = 8, .act = Dtype::kBf16, .scale = 0.5};
  EXPECT_EQ(queue.problem, want);
  EXPECT_EQ(queue.arrays.qkv, a.qkv);
  EXPECT_EQ(queue.arrays.o, a.o);
  EXPECT_EQ(queue.arrays.lse, a.lse);

  kernels.AttentionBackward({.B = 1,
                             .T = 2,
                             .H = 2,
                             .D = 8,
                             .qkv = a.qkv,
                             .o = a.o,
                             .lse = a.lse,
                             .d_o = a.d_o,
                             .dqkv = a.dqkv,
                             .scale = 0.5,
                             .scratch = a.scratch});
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
  const Dropout dropout = {.rate = 0.25};
  kernels.Attention({.B = 1, .T = 2, .H = 2, .D = 8, .qkv = a.qkv, .o = a.o, .lse = a.lse, .dropout = dropout});
  kernels.AttentionBackward({.B = 1,
                             .T = 2,
                             .H = 2,
                             .D = 8,
                             .qkv = a.qkv,
                             .o = a.o,
                             .lse = a.lse,
                             .d_o = a.d_o,
                             .dqkv = a.dqkv,
                             .dropout = dropout,
                             .scratch = a.scratch});
  EXPECT_THAT(queue.calls,
              ElementsAre("PlainAttention", "AttentionDelta", "AttentionBackwardQueries", "AttentionBackwardKeys"));
  const SdpaProblem want = {.B = 1, .T = 2, .H = 2, .kv_heads = 2, .D = 8, .act = Dtype::kF32, .dropout = 0.25};
  EXPECT_THAT(queue.asked, ElementsAre(want, want));
}

}  // namespace
}  // namespace eps::worker::cuda
