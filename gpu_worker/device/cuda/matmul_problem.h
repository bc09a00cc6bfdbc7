#ifndef EPS_GPU_WORKER_DEVICE_CUDA_MATMUL_PROBLEM_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_MATMUL_PROBLEM_H_

#include <cstdint>

#include "common/tensor/dtype.h"

namespace eps::worker::cuda {

// c (M, N) = scale * op(a) (M, K) * op(b) (K, N) [+ addend] [+ bias], summed in fp32 and rounded once. Row-major; leading
// dimensions in elements, as in MatMulArgs. Operands start at multiples of 4 bytes.
struct MatMulProblem {
  int64_t M = 0, N = 0, K = 0;
  const void* a = nullptr;
  int64_t lda = 0;
  bool trans_a = false;
  const void* b = nullptr;
  int64_t ldb = 0;
  bool trans_b = false;
  void* c = nullptr;
  int64_t ldc = 0;
  float scale = 1;
  const void* addend = nullptr;  // (M, N), ldc, of c's dtype; may be c; or null
  const void* bias = nullptr;    // (N), of the operands' dtype; or null
  Dtype operand_dtype = Dtype::kF32;
  Dtype result_dtype = Dtype::kF32;  // the operands', or fp32
  bool tf32 = false;                 // operands of fp32 may be rounded to 10 bits of mantissa

  friend bool operator==(const MatMulProblem&, const MatMulProblem&) = default;
};

}  // namespace eps::worker::cuda

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_MATMUL_PROBLEM_H_
