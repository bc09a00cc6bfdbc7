#include "common/formats/safetensors_header.h"

#include <cstdlib>

#include "absl/types/span.h"

// Every tensor of a header that is taken lies inside the file, after the one before it, and has its shape's bytes.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  const auto file = absl::MakeConstSpan(reinterpret_cast<const std::byte*>(data), num_bytes);
  const absl::StatusOr<eps::SafetensorsHeader> header = eps::ParseSafetensorsHeader(file);
  if (!header.ok()) return 0;
  int64_t end = 0;
  for (const eps::SafetensorsEntry& entry : header->entries) {
    const absl::StatusOr<int64_t> bytes = eps::SafetensorsTensorBytes(entry.dtype, entry.shape);
    if (!bytes.ok() || *bytes != entry.num_bytes || entry.offset_bytes < end) abort();
    end = entry.offset_bytes + entry.num_bytes;
  }
  if (end > static_cast<int64_t>(num_bytes)) abort();
  return 0;
}
