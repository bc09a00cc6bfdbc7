#include "common/grpc/byte_buffers.h"

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/formats/chunk_header.h"
#include "common/grpc/grpc_status.h"
#include "common/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

ChunkHeader SomeHeader(uint32_t payload_bytes) {
  return {.kind = ChunkKind::kGradient,
          .dtype = Dtype::kF32,
          .incarnation = 42,
          .step = 7,
          .blob = BlobId(3),
          .use = 1,
          .node = TreeNode{2, 2},
          .chunk = 5,
          .payload_bytes = payload_bytes,
          .contribution = 9};
}

// The same bytes, cut into slices of `piece_bytes`, as a network would.
grpc::ByteBuffer Recut(const grpc::ByteBuffer& message, size_t piece_bytes) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(message.Dump(&slices).ok());
  std::string all;
  for (const auto& slice : slices) all.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  std::vector<grpc::Slice> pieces;
  for (size_t at = 0; at < all.size(); at += piece_bytes) pieces.emplace_back(all.substr(at, piece_bytes));
  return grpc::ByteBuffer(pieces.data(), pieces.size());
}

TEST(ByteBuffersTest, AChunkComesBackHoweverItIsCut) {
  std::vector<std::byte> payload(1000);
  for (size_t i = 0; i < payload.size(); ++i) payload[i] = static_cast<std::byte>(i * 7);
  const auto message = ChunkMessage(SomeHeader(1000), payload);
  for (size_t piece_bytes : {1u, 3u, 63u, 64u, 65u, 5000u}) {
    ASSERT_OK_AND_ASSIGN(const auto received, ReceivedMessage::Create(Recut(message, piece_bytes)));
    EXPECT_FALSE(received.is_offer());
    EXPECT_THAT(received.ParseChunk(), IsOkAndHolds(SomeHeader(1000)));
    std::vector<std::byte> copy(1000);
    received.CopyPayload(absl::MakeSpan(copy));
    EXPECT_EQ(copy, payload);
  }
}

TEST(ByteBuffersTest, APayloadThatIsNotAsLongAsSaidIsRefused) {
  const std::vector<std::byte> payload(996);
  ASSERT_OK_AND_ASSIGN(const auto received, ReceivedMessage::Create(ChunkMessage(SomeHeader(1000), payload)));
  EXPECT_THAT(received.ParseChunk(), StatusIs(absl::StatusCode::kInvalidArgument, "payload_bytes"));
}

TEST(ByteBuffersTest, ShortMessagesAreRefused) {
  EXPECT_THAT(ReceivedMessage::Create(grpc::ByteBuffer()), StatusIs(absl::StatusCode::kInvalidArgument, "magic"));
  const grpc::Slice slice(std::string("EPSC123"));
  ASSERT_OK_AND_ASSIGN(const auto received, ReceivedMessage::Create(grpc::ByteBuffer(&slice, 1)));
  EXPECT_THAT(received.ParseChunk(), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(ByteBuffersTest, TheOwnerLivesAsLongAsTheMessage) {
  auto owner = std::make_shared<std::vector<std::byte>>(1000);
  std::weak_ptr<void> watch = owner;
  {
    const auto message = ChunkMessage(SomeHeader(1000), *owner, owner);
    owner.reset();
    EXPECT_FALSE(watch.expired());
  }
  EXPECT_TRUE(watch.expired());
}

TEST(GrpcStatusTest, CodeAndMessageSurvive) {
  const absl::Status status = absl::AbortedError("overwritten");
  EXPECT_EQ(FromGrpc(ToGrpc(status)), status);
  EXPECT_TRUE(ToGrpc(absl::OkStatus()).ok());
  EXPECT_EQ(ToGrpc(absl::InternalError(std::string(100000, 'x'))).error_message().size(), 4096u);
}

}  // namespace
}  // namespace eps
