#include "common/grpc/byte_buffers.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/stream_copy.h"

namespace eps {
namespace {

void ReleaseOwner(void* owner) { delete static_cast<std::shared_ptr<void>*>(owner); }

}  // namespace

grpc::ByteBuffer ChunkMessage(const ChunkHeader& header, absl::Span<const std::byte> payload,
                              std::shared_ptr<void> owner) {
  const auto encoded = EncodeChunkHeader(header);
  // gRPC takes void*, but only reads what is sent.
  void* bytes = const_cast<std::byte*>(payload.data());
  const grpc::Slice slices[2] = {grpc::Slice(encoded.data(), encoded.size()),
                                 owner == nullptr ? grpc::Slice(bytes, payload.size(), grpc::Slice::STATIC_SLICE)
                                                  : grpc::Slice(bytes, payload.size(), &ReleaseOwner,
                                                                new std::shared_ptr<void>(std::move(owner)))};
  return grpc::ByteBuffer(slices, 2);
}

grpc::ByteBuffer ProtoMessage(const google::protobuf::MessageLite& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

grpc::ByteBuffer OfferMessage(const google::protobuf::MessageLite& offer) {
  std::string bytes(kOfferMagic.data(), kOfferMagic.size());
  offer.AppendToString(&bytes);
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

ReceivedMessage::ReceivedMessage(const grpc::ByteBuffer& message) {
  if (message.Valid()) (void)message.Dump(&slices_);
  for (const grpc::Slice& slice : slices_) num_bytes_ += static_cast<int64_t>(slice.size());
}

absl::StatusOr<ReceivedMessage> ReceivedMessage::Create(const grpc::ByteBuffer& message) {
  ReceivedMessage result(message);
  if (result.num_bytes_ < static_cast<int64_t>(kOfferMagic.size())) {
    return absl::InvalidArgumentError(
        absl::StrCat("magic: a message of ", result.num_bytes_, " bytes, want at least ", kOfferMagic.size()));
  }
  return result;
}

bool ReceivedMessage::is_offer() const {
  std::array<std::byte, kOfferMagic.size()> magic;
  CopyRange(0, absl::MakeSpan(magic));
  return std::memcmp(magic.data(), kOfferMagic.data(), magic.size()) == 0;
}

absl::Status ReceivedMessage::ParseOffer(google::protobuf::MessageLite& offer) const {
  std::string bytes(static_cast<size_t>(num_bytes_) - kOfferMagic.size(), '\0');
  CopyRange(kOfferMagic.size(), absl::MakeSpan(reinterpret_cast<std::byte*>(bytes.data()), bytes.size()));
  if (!offer.ParseFromString(bytes)) return absl::InvalidArgumentError("offer: not a protobuf message");
  return absl::OkStatus();
}

absl::StatusOr<ChunkHeader> ReceivedMessage::ParseChunk() const {
  std::array<std::byte, kChunkHeaderBytes> bytes;
  const int64_t num_header_bytes = std::min<int64_t>(num_bytes_, kChunkHeaderBytes);
  const auto head = absl::MakeSpan(bytes).subspan(0, static_cast<size_t>(num_header_bytes));
  CopyRange(0, head);
  EPS_ASSIGN_OR_RETURN(const ChunkHeader header, DecodeChunkHeader(head));
  if (header.payload_bytes != num_bytes_ - kChunkHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrCat("payload_bytes: the header says ", header.payload_bytes, ", ",
                                                   num_bytes_ - kChunkHeaderBytes, " follow it"));
  }
  return header;
}

void ReceivedMessage::CopyPayload(absl::Span<std::byte> destination) const {
  CopyRange(kChunkHeaderBytes, destination);
}

void ReceivedMessage::CopyRange(int64_t first, absl::Span<std::byte> destination) const {
  std::byte* out = destination.data();
  size_t left = destination.size();
  size_t skip = static_cast<size_t>(first);
  for (const grpc::Slice& slice : slices_) {
    if (left == 0) return;
    if (skip >= slice.size()) {
      skip -= slice.size();
      continue;
    }
    const size_t num_bytes = std::min(left, slice.size() - skip);
    StreamCopy(out, reinterpret_cast<const std::byte*>(slice.begin()) + skip, num_bytes);
    out += num_bytes;
    left -= num_bytes;
    skip = 0;
  }
  EPS_CHECK(left == 0);  // callers ask for bytes that the message has
}

absl::Status ParseProto(const grpc::ByteBuffer& message, google::protobuf::MessageLite& result) {
  std::vector<grpc::Slice> slices;
  if (!message.Valid() || !message.Dump(&slices).ok()) return absl::InvalidArgumentError("empty message");
  std::string bytes;
  for (const grpc::Slice& slice : slices) bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  if (!result.ParseFromString(bytes)) {
    return absl::InvalidArgumentError(absl::StrCat(result.GetTypeName(), ": not a protobuf message"));
  }
  return absl::OkStatus();
}

}  // namespace eps
