#include "gpu_worker/device/cuda/emulator/plain_matmul.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "common/tensor/dtype.h"
#include "gpu_worker/device/cuda/act_dispatch.h"
#include "gpu_worker/device/cuda/device_code.h"
#include "gpu_worker/device/cuda/matmul_problem.h"

namespace eps::worker::cuda {
namespace {

float At(const void* x, int64_t i, Dtype dtype) {
  float value = 0;
  ForAct(dtype, [&](auto type) { value = ToFloat(static_cast<const typename decltype(type)::type*>(x)[i]); });
  return value;
}

// To nearest, ties away from zero, in 10 bits of mantissa.
float ToTf32(float value) {
  if (!std::isfinite(value)) return value;
  return std::bit_cast<float>((std::bit_cast<uint32_t>(value) + 0x1000u) & ~0x1FFFu);
}

void Put(float value, void* x, int64_t i, Dtype dtype) {
  ForAct(dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    static_cast<T*>(x)[i] = FromFloat<T>(value);
  });
}

}  // namespace

void PlainMatMul(const MatMulProblem& p, SumOrder order) {
  // op(b) once as fp32 (K, N), so that the inner loop runs along rows.
  std::vector<float> b(static_cast<size_t>(p.K * p.N)), row(static_cast<size_t>(p.N));
  const auto operand = [&p](const void* x, int64_t i) {
    const float value = At(x, i, p.operand_dtype);
    return p.tf32 ? ToTf32(value) : value;
  };
  for (int64_t k = 0; k < p.K; ++k) {
    for (int64_t n = 0; n < p.N; ++n) {
      b[k * p.N + n] = operand(p.b, p.trans_b ? n * p.ldb + k : k * p.ldb + n);
    }
  }
  for (int64_t m = 0; m < p.M; ++m) {
    row.assign(row.size(), 0);
    for (int64_t i = 0; i < p.K; ++i) {
      const int64_t k = order == SumOrder::kRising ? i : p.K - 1 - i;
      const float a = operand(p.a, p.trans_a ? k * p.lda + m : m * p.lda + k);
      for (int64_t n = 0; n < p.N; ++n) row[n] += a * b[k * p.N + n];
    }
    for (int64_t n = 0; n < p.N; ++n) {
      row[n] *= p.scale;
      if (p.bias != nullptr) row[n] += At(p.bias, n, p.operand_dtype);
      if (p.addend != nullptr) row[n] += At(p.addend, m * p.ldc + n, p.result_dtype);
      Put(row[n], p.c, m * p.ldc + n, p.result_dtype);
    }
  }
}

}  // namespace eps::worker::cuda
