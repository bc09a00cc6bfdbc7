#include "gpu_worker/profile/spread_tokens.h"

#include <algorithm>
#include <cstring>

namespace eps::worker {
namespace {

// The same each time, so that measurements can be compared.
class Numbers {
 public:
  int32_t Below(int64_t bound) {
    state_ = state_ * 1664525u + 1013904223u;
    return static_cast<int32_t>((static_cast<uint64_t>(state_) * static_cast<uint64_t>(bound)) >> 32);
  }

 private:
  uint32_t state_ = 1;
};

}  // namespace

void FillSpreadTokens(const LayerShape& shape, int64_t num_types, absl::Span<std::byte> arrays) {
  std::memset(arrays.data(), 0, arrays.size());
  const auto array = [&](int64_t offset_bytes) {
    return absl::MakeSpan(reinterpret_cast<int32_t*>(arrays.data() + offset_bytes), static_cast<size_t>(shape.M()));
  };
  Numbers numbers;
  for (int32_t& token : array(0)) token = numbers.Below(shape.V);
  if (shape.has_types) {
    for (int32_t& type : array(shape.types_offset_bytes())) type = numbers.Below(num_types);
  }
  if (shape.has_documents) {
    const absl::Span<int32_t> ends = array(shape.document_end_offset_bytes());
    std::fill(ends.begin(), ends.end(), static_cast<int32_t>(shape.T));
  }
}

}  // namespace eps::worker
