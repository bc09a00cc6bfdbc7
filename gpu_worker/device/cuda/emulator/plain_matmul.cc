#include "gpu_worker/device/cuda/emulator/plain_matmul.h"

#include <cstdint>
#include <vector>

#include "common/tensor/dtype.h"
#include "gpu_worker/device/cuda/device_code.h"
#include "gpu_worker/device/cuda/matmul_problem.h"

namespace eps::worker::cuda {
namespace {

float At(const void* x, int64_t i, Dtype dtype) {
  return dtype == Dtype::kF32 ? static_cast<const float*>(x)[i] : ToFloat(static_cast<const ActBf16*>(x)[i]);
}

void Put(float value, void* x, int64_t i, Dtype dtype) {
  if (dtype == Dtype::kF32) {
    static_cast<float*>(x)[i] = value;
  } else {
    static_cast<ActBf16*>(x)[i] = FromFloat<ActBf16>(value);
  }
}

}  // namespace

void PlainMatMul(const MatMulProblem& p, SumOrder order) {
  // op(b) once as fp32 (K, N), so that the inner loop runs along rows.
  std::vector<float> b(static_cast<size_t>(p.K * p.N)), row(static_cast<size_t>(p.N));
  for (int64_t k = 0; k < p.K; ++k) {
    for (int64_t n = 0; n < p.N; ++n) {
      b[k * p.N + n] = At(p.b, p.trans_b ? n * p.ldb + k : k * p.ldb + n, p.operand_dtype);
    }
  }
  for (int64_t m = 0; m < p.M; ++m) {
    row.assign(row.size(), 0);
    for (int64_t i = 0; i < p.K; ++i) {
      const int64_t k = order == SumOrder::kRising ? i : p.K - 1 - i;
      const float a = At(p.a, p.trans_a ? k * p.lda + m : m * p.lda + k, p.operand_dtype);
      for (int64_t n = 0; n < p.N; ++n) row[n] += a * b[k * p.N + n];
    }
    for (int64_t n = 0; n < p.N; ++n) {
      if (p.bias != nullptr) row[n] += At(p.bias, n, p.operand_dtype);
      if (p.addend != nullptr) row[n] += At(p.addend, m * p.ldc + n, p.result_dtype);
      Put(row[n], p.c, m * p.ldc + n, p.result_dtype);
    }
  }
}

}  // namespace eps::worker::cuda
