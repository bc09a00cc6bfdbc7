#include "common/numeric/quantized.h"

#include <algorithm>
#include <cstddef>

#include "common/numeric/mx_int8.h"
#include "common/numeric/nf4.h"

namespace eps {
namespace {

static_assert(kMxRunElems == kQuantizedRunElems && kNf4RunElems == kQuantizedRunElems);
static_assert(kQuantizedBlockElems % kMxBlockElems == 0 && kQuantizedBlockElems % kNf4BlockElems == 0);

// values: whole blocks
void EncodeBlocks(QuantizedFormat format, absl::Span<const float> values, int64_t first_elem, int64_t num_elems,
                  std::byte* array) {
  switch (format) {
    case QuantizedFormat::kMxInt8:
      return EncodeMxInt8(values, first_elem, num_elems, array);
    case QuantizedFormat::kNf4:
      return EncodeNf4(values, first_elem, num_elems, array);
  }
}

}  // namespace

absl::string_view NameOf(QuantizedFormat format) {
  switch (format) {
    case QuantizedFormat::kMxInt8:
      return "MXINT8";
    case QuantizedFormat::kNf4:
      return "NF4";
  }
  return "";
}

int64_t QuantizedBytes(QuantizedFormat format, int64_t num_elems) {
  switch (format) {
    case QuantizedFormat::kMxInt8:
      return MxInt8Bytes(num_elems);
    case QuantizedFormat::kNf4:
      return Nf4Bytes(num_elems);
  }
  return 0;
}

void EncodeQuantized(QuantizedFormat format, absl::Span<const float> values, int64_t first_elem, int64_t num_elems,
                     std::byte* array) {
  constexpr auto kBlock = static_cast<size_t>(kQuantizedBlockElems);
  const size_t whole = values.size() / kBlock * kBlock;
  EncodeBlocks(format, values.first(whole), first_elem, num_elems, array);
  if (whole == values.size()) return;
  float last[kBlock] = {};
  std::copy(values.begin() + whole, values.end(), last);
  EncodeBlocks(format, last, first_elem + static_cast<int64_t>(whole), num_elems, array);
}

void DecodeQuantized(QuantizedFormat format, const std::byte* array, int64_t first_elem, int64_t num_elems,
                     absl::Span<float> values) {
  switch (format) {
    case QuantizedFormat::kMxInt8:
      return DecodeMxInt8(array, first_elem, num_elems, values);
    case QuantizedFormat::kNf4:
      return DecodeNf4(array, first_elem, num_elems, values);
  }
}

}  // namespace eps
