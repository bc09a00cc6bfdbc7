#include "common/numeric/quantized.h"

#include "common/numeric/mx_int8.h"
#include "common/numeric/nf4.h"

namespace eps {

static_assert(kMxRunElems == kQuantizedRunElems && kNf4RunElems == kQuantizedRunElems);
static_assert(kQuantizedBlockElems % kMxBlockElems == 0 && kQuantizedBlockElems % kNf4BlockElems == 0);

absl::string_view NameOf(QuantizedFormat format) { return format == QuantizedFormat::kMxInt8 ? "MXINT8" : "NF4"; }

absl::string_view BytesPerElem(QuantizedFormat format) {
  return format == QuantizedFormat::kMxInt8 ? "33/32" : "17/32";
}

int64_t QuantizedBytes(QuantizedFormat format, int64_t num_elems) {
  return format == QuantizedFormat::kMxInt8 ? MxInt8Bytes(num_elems) : Nf4Bytes(num_elems);
}

void EncodeQuantized(QuantizedFormat format, absl::Span<const float> values, int64_t first_elem, int64_t num_elems,
                     std::byte* array) {
  if (format == QuantizedFormat::kMxInt8) return EncodeMxInt8(values, first_elem, num_elems, array);
  EncodeNf4(values, first_elem, num_elems, array);
}

void DecodeQuantized(QuantizedFormat format, const std::byte* array, int64_t first_elem, int64_t num_elems,
                     absl::Span<float> values) {
  if (format == QuantizedFormat::kMxInt8) return DecodeMxInt8(array, first_elem, num_elems, values);
  DecodeNf4(array, first_elem, num_elems, values);
}

}  // namespace eps
