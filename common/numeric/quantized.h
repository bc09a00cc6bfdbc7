#ifndef EPS_COMMON_NUMERIC_QUANTIZED_H_
#define EPS_COMMON_NUMERIC_QUANTIZED_H_

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

// What weights that are frozen may be kept and pulled in, in place of the wire dtype: arrays of whole runs and a last,
// shorter one, in which a part is found without the others. Each value is a bf16, and what was decoded encodes to the
// same bytes.
namespace eps {

enum class QuantizedFormat : uint8_t {
  kMxInt8,  // common/numeric/mx_int8.h: 33 bytes for 32 elements
  kNf4,     // common/numeric/nf4.h: 34 bytes for 64
};

absl::string_view NameOf(QuantizedFormat format);  // as a RunSpec has it: "NF4"

// Arrays have a multiple of kQuantizedBlockElems, and parts that are written begin at one.
inline constexpr int64_t kQuantizedBlockElems = 64;
inline constexpr int64_t kQuantizedRunElems = 262144;

// Of whole runs, and of the last one.
int64_t QuantizedBytes(QuantizedFormat format, int64_t num_elems);

// Of an array of `num_elems`, writes those from `first_elem` on. Values are finite; what the last kQuantizedBlockElems
// lack of them is zero.
void EncodeQuantized(QuantizedFormat format, absl::Span<const float> values, int64_t first_elem, int64_t num_elems,
                     std::byte* array);

// Reads elements [first_elem, first_elem + values.size()), any, of an array of `num_elems`.
void DecodeQuantized(QuantizedFormat format, const std::byte* array, int64_t first_elem, int64_t num_elems,
                     absl::Span<float> values);

}  // namespace eps

#endif  // EPS_COMMON_NUMERIC_QUANTIZED_H_
