#ifndef EPS_GPU_WORKER_DEVICE_CUDA_LT_MATMUL_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_LT_MATMUL_H_

#include <compare>
#include <cstdint>
#include <string>

#include "common/tensor/dtype.h"
#include "gpu_worker/device/cuda/matmul_problem.h"

// A MatMulProblem in the words of cuBLASLt, which knows column-major matrices alone: D = op(A) op(B) + beta C + bias.
// Row-major memory read by columns is the transpose, so the transpose of our product is asked for: A is b, B is a.
namespace eps::worker::cuda {

struct LtMatrix {
  Dtype dtype = Dtype::kF32;
  int64_t rows = 0, columns = 0, ld = 0;  // column-major, as it lies in memory
  int alignment_bytes = 0;                // of its start and of its leading dimension: 16, or an element's

  friend auto operator<=>(const LtMatrix&, const LtMatrix&) = default;
};

// All that an algorithm is chosen by.
struct LtShape {
  LtMatrix a, b, d;  // C has the layout of D, and the bias the alignment of A
  bool trans_a = false, trans_b = false;
  bool has_addend = false;  // beta is 1, else 0
  bool tf32 = false;        // products of a and b rounded to TF32
  bool has_bias = false;    // one element for each row of D, of A's dtype

  friend auto operator<=>(const LtShape&, const LtShape&) = default;
};

LtShape LtShapeOf(const MatMulProblem& problem);

// As text, other for every shape; at most kMaxChoiceKeyBytes: "matmul BF16[4096x1024/4096] * BF16[1024x512/1024]T ->
// F32[4096x512/4096] + C + bias, tf32, align 16 16 16", each matrix as ROWSxCOLUMNS/LEADING, T if it is transposed first.
std::string KeyOf(const LtShape& shape);

}  // namespace eps::worker::cuda

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_LT_MATMUL_H_
