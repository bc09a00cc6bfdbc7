#ifndef EPS_COMMON_GRPC_BYTE_BUFFERS_H_
#define EPS_COMMON_GRPC_BYTE_BUFFERS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/formats/chunk_header.h"
#include "common/model/model_spec.h"
#include "google/protobuf/message_lite.h"
#include "grpc/grpc.h"
#include "grpcpp/support/byte_buffer.h"

namespace eps {

// The largest message of the data plane: a header and a chunk of fp32.
inline constexpr int64_t kMaxDataMessageBytes = kChunkHeaderBytes + kChunkElems * 4;

// What both ends of a data connection ask of gRPC. The window is fixed: gRPC's own estimate of it (the BDP probe) grows on a
// fast link until tens of MiB lie in the receiver, whose allocator gives them back and takes them anew with each pull.
// That made a pull a third slower (bench/run pull).
struct ChannelArgument {
  const char* name;
  int value;
};
inline constexpr ChannelArgument kDataChannelArguments[] = {
    {GRPC_ARG_HTTP2_BDP_PROBE, 0},
    {GRPC_ARG_HTTP2_MAX_FRAME_SIZE, 2 << 20},          // bytes; a message is one frame (default: 16 KiB frames)
    {GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 2 << 20},  // under way at once on a stream, so that none waits for an ack
    {"grpc.experimental.tcp_read_chunk_size", 256 << 10},  // bytes taken from the socket at once
};

// A message of the data plane, whose payload is sent from where it lies. `owner`, if there is one, is held
// until gRPC has let go of the payload; without one the payload must outlive the call.
grpc::ByteBuffer ChunkMessage(const ChunkHeader& header, absl::Span<const std::byte> payload,
                              std::shared_ptr<void> owner = nullptr);

// The four bytes that an offer starts with on a push stream; data_plane.proto.
inline constexpr std::array<char, 4> kOfferMagic = {'E', 'P', 'S', 'O'};

grpc::ByteBuffer ProtoMessage(const google::protobuf::MessageLite& message);
grpc::ByteBuffer OfferMessage(const google::protobuf::MessageLite& offer);

// What a received message of the data plane is. The bytes are read where gRPC put them, in slices, and copied
// once, by CopyPayload.
//
// Threads: one at a time. Lifetime: of its own; `message` may be cleared after Create
class ReceivedMessage {
 public:
  // Errors: INVALID_ARGUMENT shorter than four bytes
  static absl::StatusOr<ReceivedMessage> Create(const grpc::ByteBuffer& message);

  bool is_offer() const;
  int64_t num_bytes() const { return num_bytes_; }

  // Errors: INVALID_ARGUMENT not an offer that protobuf can read
  absl::Status ParseOffer(google::protobuf::MessageLite& offer) const;
  // The header; also checks that exactly header.payload_bytes follow it.
  // Errors: DecodeChunkHeader's · INVALID_ARGUMENT payload_bytes is not what follows
  absl::StatusOr<ChunkHeader> ParseChunk() const;
  // Copies what follows the header. `destination` has header.payload_bytes.
  void CopyPayload(absl::Span<std::byte> destination) const;

 private:
  explicit ReceivedMessage(const grpc::ByteBuffer& message);
  // Copies bytes [first, first + destination.size()) of the message, which has them.
  void CopyRange(int64_t first, absl::Span<std::byte> destination) const;

  std::vector<grpc::Slice> slices_;
  int64_t num_bytes_ = 0;
};

// Errors: INVALID_ARGUMENT when protobuf cannot read it
absl::Status ParseProto(const grpc::ByteBuffer& message, google::protobuf::MessageLite& result);

}  // namespace eps

#endif  // EPS_COMMON_GRPC_BYTE_BUFFERS_H_
