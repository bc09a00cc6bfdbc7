#ifndef EPS_COMMON_FORMATS_SPARSE_CHUNK_H_
#define EPS_COMMON_FORMATS_SPARSE_CHUNK_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace eps {

// The bytes of a chunk without its lines of zeros (docs/formats.md, Sparse gradients). Of a token table most rows are read by no token of a step, and their
// gradient is zero, as is that of an expert that no token chose: over a network they need not travel.
//
//   bytes                          what
//   ceil(lines / 8)                one bit a line, the first in the lowest bit of the first byte: it follows; the bits behind
//                                  the last line are zero
//   64 for each bit that is set    those lines, in their order
//
// A line is 64 bytes from a multiple of 64 on: every chunk is a whole number of them (kTensorAlignElems). Zero is the bits:
// a value of -0 is none, so what is unpacked is what was packed.
inline constexpr int64_t kLineBytes = 64;

// The bytes before the lines of a chunk of num_bytes.
constexpr int64_t LineBitsBytes(int64_t num_bytes) { return (num_bytes / kLineBytes + 7) / 8; }

// `chunk`, a multiple of kLineBytes, packed; empty where that would save less than a quarter of it, so that what is
// dense goes out from where it lies. Of a dense chunk 64 lines are looked at.
std::optional<std::vector<std::byte>> PackSparseChunk(absl::Span<const std::byte> chunk);

// Unpacks what lies in the last packed_bytes of `chunk` into all of `chunk`: a multiple of kLineBytes, not 0, and at most
// kChunkElems * 4.
//
// Errors: INVALID_ARGUMENT naming what was found and what is wanted: packed_bytes, which is not that of the bits, or more
//         than the chunk; bits of lines that there are not. What is in `chunk` is then worth nothing
absl::Status UnpackSparseChunk(absl::Span<std::byte> chunk, int64_t packed_bytes);

}  // namespace eps

#endif  // EPS_COMMON_FORMATS_SPARSE_CHUNK_H_
