#include "common/formats/chunk_header.h"

#include <cstdlib>
#include <cstring>

#include "absl/types/span.h"

// A header that is taken is the one that would be written, bit for bit: no byte of it has a second meaning.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  const auto bytes = absl::MakeConstSpan(reinterpret_cast<const std::byte*>(data), num_bytes);
  const absl::StatusOr<eps::ChunkHeader> header = eps::DecodeChunkHeader(bytes);
  if (!header.ok()) return 0;
  const auto encoded = eps::EncodeChunkHeader(*header);
  if (num_bytes < encoded.size() || std::memcmp(encoded.data(), data, encoded.size()) != 0) abort();
  return 0;
}
