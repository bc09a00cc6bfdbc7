#ifndef EPS_COMMON_TENSOR_TO_FLOATS_H_
#define EPS_COMMON_TENSOR_TO_FLOATS_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/types/span.h"
#include "common/numeric/bf16.h"
#include "common/numeric/fp16.h"
#include "common/tensor/dtype.h"

namespace eps {

// The values of `bytes`, which are elements of `dtype`, at any address. Exact.
inline std::vector<float> ToFloats(absl::Span<const std::byte> bytes, Dtype dtype) {
  std::vector<float> values(bytes.size() / static_cast<size_t>(SizeOf(dtype)));
  if (values.empty()) return values;
  if (dtype == Dtype::kF32) {
    std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
    return values;
  }
  for (size_t i = 0; i < values.size(); ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, bytes.data() + i * sizeof(bits), sizeof(bits));
    values[i] = dtype == Dtype::kBf16 ? ToFloat(Bf16{bits}) : ToFloat(Fp16{bits});
  }
  return values;
}

}  // namespace eps

#endif  // EPS_COMMON_TENSOR_TO_FLOATS_H_
