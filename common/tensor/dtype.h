#ifndef EPS_COMMON_TENSOR_DTYPE_H_
#define EPS_COMMON_TENSOR_DTYPE_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace eps {

// Values are part of the chunk header (docs/formats.md); never renumber.
enum class Dtype : uint8_t { kF32 = 1, kBf16 = 2, kF16 = 3 };

inline constexpr absl::string_view kDtypeValues = "1 (F32), 2 (BF16) or 3 (F16)";  // for messages
constexpr bool IsDtype(int64_t value) { return value >= 1 && value <= 3; }

constexpr int64_t SizeOf(Dtype dtype) { return dtype == Dtype::kF32 ? 4 : 2; }
constexpr absl::string_view DtypeName(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32:
      return "F32";
    case Dtype::kBf16:
      return "BF16";
    case Dtype::kF16:
      return "F16";
  }
  return "";
}

}  // namespace eps

#endif  // EPS_COMMON_TENSOR_DTYPE_H_
