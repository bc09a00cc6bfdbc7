#include "common/formats/shared_message.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/little_endian.h"
#include "common/base/status_macros.h"
#include "common/model/model_spec.h"

namespace eps {
namespace {

constexpr uint32_t kMagic = 0x4D535045;  // "EPSM" as little-endian bytes

// Offsets of the fields; the table is in the header file.
constexpr size_t kMagicAt = 0, kFormatAt = 4, kKindAt = 5, kDtypeAt = 6, kCodeAt = 7, kIncarnationAt = 8, kStepAt = 16,
                 kBlobAt = 24, kUseAt = 28, kFirstAt = 32, kCountAt = 36, kNonfiniteAt = 40, kNumberAt = 44,
                 kChunkAt = 48, kNumChunksAt = 52, kOffsetAt = 56;

template <typename Found>
absl::Status Bad(absl::string_view field, size_t offset, Found found, absl::string_view wanted) {
  return absl::InvalidArgumentError(
      absl::StrCat("message: ", field, " (offset ", offset, "): ", found, ", must be ", wanted));
}

// Of messages that name a part of a blob.
bool HasChunks(SharedMessageKind kind) {
  return kind == SharedMessageKind::kPull || kind == SharedMessageKind::kOffer || kind == SharedMessageKind::kRead;
}

bool IsKind(uint8_t kind) {
  return (kind >= static_cast<uint8_t>(SharedMessageKind::kHello) &&
          kind <= static_cast<uint8_t>(SharedMessageKind::kHelloToPin)) ||
         (kind >= static_cast<uint8_t>(SharedMessageKind::kWelcome) &&
          kind <= static_cast<uint8_t>(SharedMessageKind::kRefused));
}

absl::Status CheckPreamble(absl::string_view bytes) {
  if (const auto magic = LoadLittleEndian<uint32_t>(bytes, kMagicAt); magic != kMagic) {
    return Bad("magic", kMagicAt, absl::StrCat("0x", absl::Hex(magic, absl::kZeroPad8)), "0x4d535045 (\"EPSM\")");
  }
  if (const auto format = LoadLittleEndian<uint8_t>(bytes, kFormatAt); format != kSharedMessageFormat) {
    return Bad("format", kFormatAt, int{format}, absl::StrCat(int{kSharedMessageFormat}));
  }
  const auto kind = LoadLittleEndian<uint8_t>(bytes, kKindAt);
  if (!IsKind(kind)) return Bad("kind", kKindAt, int{kind}, "1 to 6 or 17 to 23");
  const bool offer = kind == static_cast<uint8_t>(SharedMessageKind::kOffer);
  const auto dtype = LoadLittleEndian<uint8_t>(bytes, kDtypeAt);
  if (offer ? !IsDtype(dtype) : dtype != 0) {
    return Bad("dtype", kDtypeAt, int{dtype}, offer ? kDtypeValues : "0");
  }
  const bool refused = kind == static_cast<uint8_t>(SharedMessageKind::kRefused);
  const auto code = LoadLittleEndian<uint8_t>(bytes, kCodeAt);
  if (refused ? code < 1 || code > 16 : code != 0) {
    return Bad("status code", kCodeAt, int{code}, refused ? "1 to 16" : "0");
  }
  const size_t most = kSharedMessageBytes + (refused ? kMaxRefusalBytes : 0);
  if (bytes.size() > most) return Bad("length", bytes.size(), bytes.size(), absl::StrCat("at most ", most));
  return absl::OkStatus();
}

absl::Status CheckNumbers(const SharedMessage& message) {
  if (message.step < 0) return Bad("step", kStepAt, message.step, "at least 0");
  if (message.blob.value() < 0) return Bad("blob", kBlobAt, message.blob.value(), "at least 0");
  if (message.use < 0) return Bad("use", kUseAt, message.use, "at least 0");
  if (message.chunk < 0) return Bad("chunk", kChunkAt, message.chunk, "at least 0");
  if (HasChunks(message.kind) ? message.num_chunks < 1 : message.num_chunks != 0) {
    return Bad("num_chunks", kNumChunksAt, message.num_chunks, HasChunks(message.kind) ? "at least 1" : "0");
  }
  if (message.offset_bytes < -1) return Bad("offset", kOffsetAt, message.offset_bytes, "at least -1");
  if (message.node.first < 0) return Bad("node.first", kFirstAt, message.node.first, "at least 0");
  const int least_count = message.kind == SharedMessageKind::kOffer ? 1 : 0;
  // The second: so that node.end() cannot overflow.
  if (message.node.count < least_count ||
      message.node.first > std::numeric_limits<int32_t>::max() - message.node.count) {
    return Bad("node.count", kCountAt, message.node.count,
               absl::StrCat("at least ", least_count, ", and small enough for node.first"));
  }
  if (message.nonfinite_vnode < -1) {
    return Bad("nonfinite_vnode", kNonfiniteAt, message.nonfinite_vnode, "at least -1");
  }
  return absl::OkStatus();
}

}  // namespace

std::string EncodeSharedMessage(const SharedMessage& message) {
  static_assert(kStagingSlotBytes == kChunkElems * 4);
  std::string bytes(kSharedMessageBytes, '\0');
  StoreLittleEndian(bytes, kMagicAt, kMagic);
  StoreLittleEndian(bytes, kFormatAt, kSharedMessageFormat);
  StoreLittleEndian(bytes, kKindAt, static_cast<uint8_t>(message.kind));
  if (message.kind == SharedMessageKind::kOffer)
    StoreLittleEndian(bytes, kDtypeAt, static_cast<uint8_t>(message.dtype));
  StoreLittleEndian(bytes, kIncarnationAt, message.incarnation);
  StoreLittleEndian(bytes, kStepAt, message.step);
  StoreLittleEndian(bytes, kBlobAt, message.blob.value());
  StoreLittleEndian(bytes, kUseAt, message.use);
  StoreLittleEndian(bytes, kFirstAt, static_cast<int32_t>(message.node.first));
  StoreLittleEndian(bytes, kCountAt, static_cast<int32_t>(message.node.count));
  StoreLittleEndian(bytes, kNonfiniteAt, message.nonfinite_vnode);
  StoreLittleEndian(bytes, kNumberAt, message.number);
  StoreLittleEndian(bytes, kChunkAt, message.chunk);
  StoreLittleEndian(bytes, kNumChunksAt, message.num_chunks);
  StoreLittleEndian(bytes, kOffsetAt, message.offset_bytes);
  if (message.kind == SharedMessageKind::kRefused) {
    StoreLittleEndian(bytes, kCodeAt, static_cast<uint8_t>(message.refusal.code()));
    const absl::string_view reason = message.refusal.message().substr(0, kMaxRefusalBytes);
    bytes.append(reason.data(), reason.size());
  }
  return bytes;
}

absl::StatusOr<SharedMessage> DecodeSharedMessage(absl::string_view bytes) {
  if (bytes.size() < kSharedMessageBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("message: ", bytes.size(), " bytes, must be at least ", kSharedMessageBytes));
  }
  EPS_RETURN_IF_ERROR(CheckPreamble(bytes));
  SharedMessage message;
  message.kind = static_cast<SharedMessageKind>(LoadLittleEndian<uint8_t>(bytes, kKindAt));
  if (message.kind == SharedMessageKind::kOffer)
    message.dtype = static_cast<Dtype>(LoadLittleEndian<uint8_t>(bytes, kDtypeAt));
  message.incarnation = LoadLittleEndian<uint64_t>(bytes, kIncarnationAt);
  message.step = LoadLittleEndian<int64_t>(bytes, kStepAt);
  message.blob = BlobId(LoadLittleEndian<int32_t>(bytes, kBlobAt));
  message.use = LoadLittleEndian<int32_t>(bytes, kUseAt);
  message.node = {LoadLittleEndian<int32_t>(bytes, kFirstAt), LoadLittleEndian<int32_t>(bytes, kCountAt)};
  message.nonfinite_vnode = LoadLittleEndian<int32_t>(bytes, kNonfiniteAt);
  message.number = LoadLittleEndian<uint32_t>(bytes, kNumberAt);
  message.chunk = LoadLittleEndian<int32_t>(bytes, kChunkAt);
  message.num_chunks = LoadLittleEndian<int32_t>(bytes, kNumChunksAt);
  message.offset_bytes = LoadLittleEndian<int64_t>(bytes, kOffsetAt);
  if (message.kind == SharedMessageKind::kRefused) {
    message.refusal = absl::Status(static_cast<absl::StatusCode>(LoadLittleEndian<uint8_t>(bytes, kCodeAt)),
                                   bytes.substr(kSharedMessageBytes));
  }
  EPS_RETURN_IF_ERROR(CheckNumbers(message));
  return message;
}

}  // namespace eps
