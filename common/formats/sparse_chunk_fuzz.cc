#include "common/formats/sparse_chunk.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <vector>

#include "absl/types/span.h"

// How many lines, but for one, and a packed chunk of so many. One that is taken says, packed again, the same in no more bytes.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  if (num_bytes < 1) return 0;
  std::vector<std::byte> chunk((1 + data[0]) * eps::kLineBytes);
  const size_t packed_bytes = num_bytes - 1;
  if (packed_bytes <= chunk.size() && packed_bytes > 0) {
    std::memcpy(&chunk[chunk.size() - packed_bytes], data + 1, packed_bytes);
  }
  if (!eps::UnpackSparseChunk(absl::MakeSpan(chunk), static_cast<int64_t>(packed_bytes)).ok()) return 0;
  const std::optional<std::vector<std::byte>> packed = eps::PackSparseChunk(chunk);
  if (!packed.has_value()) return 0;
  // A line of zeros may have been sent for all that.
  if (packed->size() > packed_bytes) abort();
  std::vector<std::byte> again(chunk.size());
  std::memcpy(again.data() + again.size() - packed->size(), packed->data(), packed->size());
  if (!eps::UnpackSparseChunk(absl::MakeSpan(again), static_cast<int64_t>(packed->size())).ok() || again != chunk)
    abort();
  return 0;
}
