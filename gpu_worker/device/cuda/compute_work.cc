#include "gpu_worker/device/cuda/compute_work.h"

#include <cstddef>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "gpu_worker/device/cuda/gpu_runtime.h"
#include "gpu_worker/device/cuda/launch.h"
#include "gpu_worker/device/cuda/matmul_problem.h"

namespace eps::worker::cuda {
namespace {

struct Hasher {
  size_t operator()(const KernelCall& call) const {
    return MixHash(HashOfArguments(call.function, call.shape.blocks_x, call.shape.blocks_y), call.hash);
  }
  size_t operator()(const MatMulProblem& problem) const {
    return HashOfArguments(problem.M, problem.N, problem.K, problem.a, problem.lda, problem.trans_a, problem.b,
                           problem.ldb, problem.trans_b, problem.c, problem.ldc, problem.scale, problem.addend,
                           problem.bias, problem.operand_dtype, problem.result_dtype, problem.tf32);
  }
  size_t operator()(const AttentionCall& call) const {
    return HashOfArguments(call.problem.B, call.problem.T, call.arrays.qkv, call.arrays.o, call.arrays.dqkv,
                           call.arrays.dropout, call.is_backward);
  }
};

struct Enqueuer {
  GpuRuntime& runtime;
  GpuStream stream;

  absl::Status operator()(const KernelCall& call) const { return Annotate(runtime.Launch(stream, call), call.name); }
  absl::Status operator()(const MatMulProblem& problem) const {
    EPS_RETURN_IF_ERROR_WITH(runtime.MatMul(stream, problem),
                             absl::StrCat("MatMul ", problem.M, "x", problem.N, "x", problem.K));
    return absl::OkStatus();
  }
  absl::Status operator()(const AttentionCall& call) const {
    if (call.is_backward) {
      return Annotate(runtime.AttentionBackward(stream, call.problem, call.arrays), "attention backward");
    }
    return Annotate(runtime.Attention(stream, call.problem, call.arrays), "attention");
  }
};

}  // namespace

size_t HashOf(const ComputeWork& work) { return std::visit(Hasher(), work); }

absl::Status Enqueue(GpuRuntime& runtime, GpuStream stream, const ComputeWork& work) {
  return std::visit(Enqueuer{runtime, stream}, work);
}

}  // namespace eps::worker::cuda
