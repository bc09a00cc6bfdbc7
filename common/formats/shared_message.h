#ifndef EPS_COMMON_FORMATS_SHARED_MESSAGE_H_
#define EPS_COMMON_FORMATS_SHARED_MESSAGE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/schedule/reduction_tree.h"
#include "common/tensor/dtype.h"

namespace eps {

// What daemon and worker say to each other on the Unix socket beside their shared memory. Every message is one packet of
// 64 bytes; a refusal is followed by its reason, as text. Little endian.
//
//   offset  bytes  field
//        0      4  magic "EPSM"
//        4      1  format, kSharedMessageFormat
//        5      1  kind
//        6      1  dtype of a contribution (Dtype's value); else 0
//        7      1  status code of a refusal (absl::StatusCode's value); else 0
//        8      8  incarnation of the daemon process that the worker attached to
//       16      8  step: pull and its answer, read: the version; offer: the step; hellos: the worker's id; welcome: bytes of
//                  the segment of weights, published versions and all
//       24      4  blob
//       28      4  use
//       32      4  node.first
//       36      4  node.count
//       40      4  nonfinite_vnode of an offer, else -1
//       44      4  number: of the pull, or of the contribution
//       48      4  chunk; pull, offer, read: the first one
//       52      4  num_chunks: pull, offer, read: how many of the blob's chunks, from that one on; at least 1
//       56      8  offset: where in the inbox; -1: not there. hello and welcome: bytes of the inbox
//
// Who sends what, and what is answered: docs/formats.md. A field that a kind does not use is zero (nonfinite_vnode: -1).
inline constexpr size_t kSharedMessageBytes = 64;
inline constexpr size_t kMaxRefusalBytes = 512;
inline constexpr uint8_t kSharedMessageFormat = 2;

// A contribution that does not lie in the inbox travels through these slots at its beginning, chunk by chunk, once it
// is admitted: whatever else fills the inbox, it gets through.
inline constexpr int64_t kStagingSlotBytes = int64_t{1} << 20;  // a whole chunk in fp32
inline constexpr int kStagingSlots = 4;
inline constexpr int64_t kStagingBytes = kStagingSlots * kStagingSlotBytes;
// Of payloads in the inbox.
inline constexpr int64_t kInboxAlignBytes = 64;

enum class SharedMessageKind : uint8_t {
  // From the worker.
  kHello = 1,
  kPull = 2,
  kOffer = 3,
  kChunk = 4,
  kRead = 5,
  kHelloToPin = 6,  // as kHello, of a worker that pins the weights: its process must be able to map them writable
  // From the daemon.
  kWelcome = 17,
  kPulled = 18,
  kAdmitted = 19,
  kNotWanted = 20,
  kComplete = 21,
  kTaken = 22,
  kRefused = 23,
};

struct SharedMessage {
  SharedMessageKind kind = SharedMessageKind::kHello;
  uint64_t incarnation = 0;
  int64_t step = 0;
  BlobId blob;
  int32_t use = 0;
  TreeNode node{0, 0};
  Dtype dtype = Dtype::kF32;  // kOffer only
  int32_t nonfinite_vnode = -1;
  uint32_t number = 0;
  int32_t chunk = 0;
  int32_t num_chunks = 0;  // kPull, kOffer, kRead only
  int64_t offset_bytes = 0;
  absl::Status refusal;  // kRefused only: not OK

  friend bool operator==(const SharedMessage&, const SharedMessage&) = default;
};

std::string EncodeSharedMessage(const SharedMessage& message);

// Checks what the bytes alone can tell: length, magic, format, kind, dtype, numbers that must not be negative, unused
// fields that must be zero.
// Errors: INVALID_ARGUMENT naming the field, its offset, the value found and the value wanted
absl::StatusOr<SharedMessage> DecodeSharedMessage(absl::string_view bytes);

}  // namespace eps

#endif  // EPS_COMMON_FORMATS_SHARED_MESSAGE_H_
