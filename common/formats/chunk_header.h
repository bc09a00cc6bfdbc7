#ifndef EPS_COMMON_FORMATS_CHUNK_HEADER_H_
#define EPS_COMMON_FORMATS_CHUNK_HEADER_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/model/model_spec.h"
#include "common/schedule/reduction_tree.h"
#include "common/tensor/dtype.h"

namespace eps {

// The first 64 bytes of every message of the data plane; the payload follows at once. Little endian.
//
//   offset  bytes  field
//        0      4  magic "EPSC"
//        4      2  format, kChunkFormat
//        6      1  kind: 1 weights (pull), 2 gradient (push), 3 weights in MXINT8, 4 weights in NF4 (pull),
//                  5 sparse gradient (push): its payload is packed (sparse_chunk.h), all else as of kind 2
//        7      1  dtype of the payload (Dtype's value); of kinds 3 and 4 that which holds each of its values: 2, BF16
//        8      8  incarnation of the daemon process that the sender attached to
//       16      8  step: weights: the version; gradient: the step
//       24      4  blob
//       28      4  use (gradient; 0 for weights)
//       32      4  node.first, first vnode of the contribution (gradient; 0 for weights)
//       36      4  node.count (gradient; 0 for weights)
//       40      4  chunk, index within the blob
//       44      4  payload_bytes, at most kChunkElems * 4
//       48      4  nonfinite_vnode: a vnode of `node` whose gradient of this blob is not finite; -1 none
//       52      4  contribution: the sender's number for this push, from its offer (gradient; else 0)
//       56      8  version_wait_micros: how long the daemon had been asked for this version, and did not have it yet
//                  (weights: of the first chunk of an answer, and 0 in the others; gradient: 0)
inline constexpr int64_t kChunkHeaderBytes = 64;
inline constexpr uint16_t kChunkFormat = 2;

// kMxInt8Weights, kNf4Weights: one run of common/numeric/quantized.h.
enum class ChunkKind : uint8_t {
  kWeights = 1,
  kGradient = 2,
  kMxInt8Weights = 3,
  kNf4Weights = 4,
  kSparseGradient = 5
};
absl::string_view NameOf(ChunkKind kind);  // for people: "weights in NF4"
constexpr bool IsGradient(ChunkKind kind) { return kind == ChunkKind::kGradient || kind == ChunkKind::kSparseGradient; }
// What a pull of the blob is answered with.
ChunkKind PulledKind(const BlobSpec& blob);

struct ChunkHeader {
  ChunkKind kind = ChunkKind::kWeights;
  Dtype dtype = Dtype::kF32;
  uint64_t incarnation = 0;
  int64_t step = 0;
  BlobId blob;
  int32_t use = 0;
  TreeNode node{0, 0};
  int32_t chunk = 0;
  uint32_t payload_bytes = 0;
  int32_t nonfinite_vnode = -1;
  uint32_t contribution = 0;
  int64_t version_wait_micros = 0;

  friend bool operator==(const ChunkHeader&, const ChunkHeader&) = default;
};

std::array<std::byte, kChunkHeaderBytes> EncodeChunkHeader(const ChunkHeader& header);

// Checks what the bytes alone can tell: length, magic, format, kind, dtype, non-negative numbers,
// payload_bytes a multiple of the dtype's size, or of a quantized block's (what is packed may have any), and within bounds,
// what the kind does not use zero.
//
// Errors: INVALID_ARGUMENT naming the field, its offset, the value found and the value wanted
absl::StatusOr<ChunkHeader> DecodeChunkHeader(absl::Span<const std::byte> bytes);

}  // namespace eps

#endif  // EPS_COMMON_FORMATS_CHUNK_HEADER_H_
