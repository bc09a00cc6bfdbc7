#ifndef EPS_COMMON_TENSOR_DTYPE_H_
#define EPS_COMMON_TENSOR_DTYPE_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace eps {

// Values are part of the chunk header (docs/formats.md); never renumber.
enum class Dtype : uint8_t { kF32 = 1, kBf16 = 2 };

constexpr int64_t SizeOf(Dtype dtype) { return dtype == Dtype::kF32 ? 4 : 2; }
constexpr absl::string_view DtypeName(Dtype dtype) { return dtype == Dtype::kF32 ? "F32" : "BF16"; }

}  // namespace eps

#endif  // EPS_COMMON_TENSOR_DTYPE_H_
