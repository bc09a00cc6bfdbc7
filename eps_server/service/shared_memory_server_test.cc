#include "eps_server/service/shared_memory_server.h"

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/file_util.h"
#include "common/formats/shared_message.h"
#include "common/formats/wire_layout.h"
#include "common/ipc/shared_segment.h"
#include "common/ipc/unix_socket.h"
#include "common/tensor/dtype.h"
#include "common/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace eps::server {
namespace {

using absl::StatusCode;

constexpr uint64_t kServerIncarnation = 4711;
constexpr int64_t kInboxBytes = kStagingBytes + 65536;
constexpr int64_t kLastChunkBytes = 128;  // of blob 0, which has two chunks: 64 elements, in bf16

// Says to a daemon whatever a test wants, byte by byte.
class SharedMemoryServerTest : public testing::Test {
 protected:
  SharedMemoryServerTest()
      : model_(BuildModel({.num_layers = 1, .d_model = 64, .num_heads = 2, .context = 16, .vocab = 4097}).value()) {
    run_.model = model_.config;
    run_.batch.virtual_nodes = 2;
    run_.precision = {.wire = Dtype::kBf16, .gradients = Dtype::kBf16};
    store_ = Store::Create(model_, run_).value();
    aggregator_ = Aggregator::Create({.model = &model_,
                                      .virtual_nodes = 2,
                                      .gradients = Dtype::kBf16,
                                      .consume = [](StepId, BlobId, int64_t, ChunkGradient) {},
                                      .on_step_in = [](StepId) {}})
                      .value();
    aggregator_->BeginStep(StepId(0));
    Start(aggregator_.get());
  }
  ~SharedMemoryServerTest() override { store_->CancelWaiters(absl::UnavailableError("over")); }

  void Start(Aggregator* aggregator) {
    server_.reset();
    server_ = SharedMemoryServer::Start({.incarnation = kServerIncarnation,
                                         .model = &model_,
                                         .store = store_.get(),
                                         .aggregator = aggregator,
                                         .last_version = Version(10),
                                         .max_inbox_bytes = MaxInboxBytes(model_, run_),
                                         .copiers = 2,
                                         .traffic = &traffic_})
                  .value();
  }

  FileDescriptor Connect() { return ConnectLocal(server_->path()).value(); }
  static constexpr absl::Duration kSoon = absl::Seconds(5);
  static SharedMessage Hello() {
    return {
        .kind = SharedMessageKind::kHello, .incarnation = kServerIncarnation, .step = 3, .offset_bytes = kInboxBytes};
  }
  static SharedMessage Pull(int32_t blob, int64_t version) {
    return {.kind = SharedMessageKind::kPull,
            .incarnation = kServerIncarnation,
            .step = version,
            .blob = BlobId(blob),
            .number = 1,
            .num_chunks = 1};
  }
  static SharedMessage Read(int32_t blob, int64_t version) {
    return {.kind = SharedMessageKind::kRead,
            .incarnation = kServerIncarnation,
            .step = version,
            .blob = BlobId(blob),
            .num_chunks = 1};
  }
  static SharedMessage Offer(uint32_t number, int64_t offset_bytes) {
    return {.kind = SharedMessageKind::kOffer,
            .incarnation = kServerIncarnation,
            .step = 0,
            .blob = BlobId(1),
            .use = 0,
            .node = {0, 1},
            .dtype = Dtype::kBf16,
            .number = number,
            .num_chunks = 1,
            .offset_bytes = offset_bytes};
  }
  // Of some chunks of blob 0.
  static SharedMessage OfferPart(uint32_t number, int32_t first_chunk, int32_t num_chunks, int64_t offset_bytes) {
    SharedMessage offer = Offer(number, offset_bytes);
    offer.blob = BlobId(0);
    offer.chunk = first_chunk;
    offer.num_chunks = num_chunks;
    return offer;
  }
  static SharedMessage WithChunks(SharedMessage message, int32_t first_chunk, int32_t num_chunks) {
    message.chunk = first_chunk;
    message.num_chunks = num_chunks;
    return message;
  }
  static SharedMessage Chunk(uint32_t number, int32_t chunk, int64_t offset_bytes) {
    return {.kind = SharedMessageKind::kChunk,
            .incarnation = kServerIncarnation,
            .number = number,
            .chunk = chunk,
            .offset_bytes = offset_bytes};
  }
  static void Say(const FileDescriptor& socket, const SharedMessage& message) {
    EXPECT_OK(SendPacket(socket, EncodeSharedMessage(message), {}, kSoon));
  }
  static absl::StatusOr<SharedMessage> Hear(const FileDescriptor& socket) {
    const auto packet = ReceivePacket(socket, 4096, kSoon);
    if (!packet.ok()) return packet.status();
    return DecodeSharedMessage(packet->bytes);
  }
  // A connection that was welcomed.
  FileDescriptor Welcomed() {
    FileDescriptor socket = Connect();
    Say(socket, Hello());
    const auto welcome = Hear(socket);
    EXPECT_THAT(welcome, IsOk());
    EXPECT_TRUE(welcome.ok() && welcome->kind == SharedMessageKind::kWelcome);
    return socket;
  }
  // What the daemon says last to a welcomed peer that says `messages`, before it hangs up.
  absl::Status RefusalOf(const std::vector<SharedMessage>& messages) {
    const FileDescriptor socket = Welcomed();
    for (const SharedMessage& message : messages) Say(socket, message);
    return LastWord(socket);
  }
  static absl::Status LastWord(const FileDescriptor& socket) {
    while (true) {
      const auto message = Hear(socket);
      if (!message.ok()) return message.status();
      if (message->kind == SharedMessageKind::kRefused) {
        EXPECT_THAT(Hear(socket), StatusIs(StatusCode::kUnavailable)) << "it did not hang up";
        return message->refusal;
      }
    }
  }

  const ModelSpec model_;
  RunConfig run_;
  TransportTraffic traffic_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<Aggregator> aggregator_;
  std::unique_ptr<SharedMemoryServer> server_;
};

TEST_F(SharedMemoryServerTest, AWorkerGetsTheWeightsReadOnlyAndAnInboxOfItsOwn) {
  const FileDescriptor socket = Connect();
  Say(socket, Hello());
  auto packet = ReceivePacket(socket, 4096, kSoon);
  ASSERT_THAT(packet, IsOk());
  ASSERT_EQ(packet->files.size(), 2u);
  const WireLayout layout(model_, Dtype::kBf16, 2);
  EXPECT_EQ(DecodeSharedMessage(packet->bytes)->step, layout.segment_bytes());
  EXPECT_THAT(
      SharedSegment::Map(FileDescriptor(dup(packet->files[0].get())), layout.segment_bytes(), SegmentWriter::kReceiver),
      StatusIs(StatusCode::kResourceExhausted));  // what mmap says of a file for reading
  const auto weights = SharedSegment::Map(std::move(packet->files[0]), layout.segment_bytes(), SegmentWriter::kCreator);
  ASSERT_THAT(weights, IsOk());
  const auto inbox = SharedSegment::Map(std::move(packet->files[1]), kInboxBytes, SegmentWriter::kReceiver);
  ASSERT_THAT(inbox, IsOk());

  const std::vector<float> ones(static_cast<size_t>(model_.blob(BlobId(1)).num_elems), 1.0f);
  EXPECT_OK(store_->LoadMaster(BlobId(1), Version(0), 0, ones));
  EXPECT_EQ(layout.LoadPublished(weights->bytes(), BlobId(1)), Version(-1));
  Say(socket, Pull(1, 0));
  store_->Publish(BlobId(1), Version(0));
  const auto pulled = Hear(socket);
  EXPECT_EQ(layout.LoadPublished(weights->bytes(), BlobId(1)), Version(0));
  ASSERT_THAT(pulled, IsOk());
  EXPECT_EQ(pulled->kind, SharedMessageKind::kPulled);
  EXPECT_EQ(pulled->offset_bytes, layout.offset_bytes(BlobId(1), Version(0)));
  EXPECT_EQ(weights->bytes()[static_cast<size_t>(pulled->offset_bytes) + 1], std::byte{0x3F});  // 1.0 in bf16
  EXPECT_EQ(traffic_.pulled_bytes, model_.blob(BlobId(1)).num_elems * 2);
  // The next time it looks for itself, and says that it has.
  Say(socket, Read(1, 0));
  Say(socket, Pull(1, 0));
  EXPECT_THAT(Hear(socket), IsOk());
  EXPECT_EQ(traffic_.pulled_bytes, model_.blob(BlobId(1)).num_elems * 2 * 3);
}

TEST_F(SharedMemoryServerTest, AWorkerThatPinsTheWeightsMayMapThemWritable) {
  const FileDescriptor socket = Connect();
  SharedMessage hello = Hello();
  hello.kind = SharedMessageKind::kHelloToPin;
  Say(socket, hello);
  auto packet = ReceivePacket(socket, 4096, kSoon);
  ASSERT_THAT(packet, IsOk());
  ASSERT_EQ(packet->files.size(), 2u);
  EXPECT_THAT(SharedSegment::Map(std::move(packet->files[0]), WireLayout(model_, Dtype::kBf16, 2).segment_bytes(),
                                 SegmentWriter::kBoth),
              IsOk());
}

TEST_F(SharedMemoryServerTest, AContributionInTheInboxIsTakenAndAnsweredOnce) {
  const FileDescriptor socket = Welcomed();
  Say(socket, Offer(1, kStagingBytes));
  auto answer = Hear(socket);
  ASSERT_THAT(answer, IsOk());
  EXPECT_EQ(answer->kind, SharedMessageKind::kComplete);
  EXPECT_EQ(answer->number, 1u);
  Say(socket, Offer(2, kStagingBytes));
  answer = Hear(socket);
  ASSERT_THAT(answer, IsOk());
  EXPECT_EQ(answer->kind, SharedMessageKind::kNotWanted);
  EXPECT_EQ(traffic_.pushed_bytes, model_.blob(BlobId(1)).num_elems * 2);
}

TEST_F(SharedMemoryServerTest, APartInTheInboxTakesAndCountsItsOwnBytesAlone) {
  ASSERT_EQ(model_.blob(BlobId(0)).chunk_elems(1) * 2, kLastChunkBytes);
  const FileDescriptor socket = Welcomed();
  // The whole blob would not fit in the inbox.
  Say(socket, OfferPart(1, 1, 1, kInboxBytes - kLastChunkBytes));
  auto answer = Hear(socket);
  ASSERT_THAT(answer, IsOk());
  EXPECT_EQ(answer->kind, SharedMessageKind::kComplete);
  EXPECT_EQ(traffic_.pushed_bytes, kLastChunkBytes);
  Say(socket, OfferPart(2, 1, 1, -1));
  answer = Hear(socket);
  ASSERT_THAT(answer, IsOk());
  EXPECT_EQ(answer->kind, SharedMessageKind::kNotWanted);
  // The other chunk, through a slot.
  Say(socket, OfferPart(3, 0, 1, -1));
  answer = Hear(socket);
  ASSERT_THAT(answer, IsOk());
  EXPECT_EQ(answer->kind, SharedMessageKind::kAdmitted);
  Say(socket, Chunk(3, 0, 0));
  answer = Hear(socket);
  ASSERT_THAT(answer, IsOk());
  EXPECT_EQ(answer->kind, SharedMessageKind::kComplete);
  EXPECT_EQ(traffic_.pushed_bytes, model_.blob(BlobId(0)).num_elems * 2);
}

TEST_F(SharedMemoryServerTest, OfAPartThatIsReadItsOwnBytesAreCounted) {
  store_->Publish(BlobId(0), Version(0));
  const FileDescriptor socket = Welcomed();
  Say(socket, WithChunks(Pull(0, 0), 1, 1));
  EXPECT_THAT(Hear(socket), IsOk());
  EXPECT_EQ(traffic_.pulled_bytes, kLastChunkBytes);
  Say(socket, WithChunks(Read(0, 0), 0, 2));
  Say(socket, WithChunks(Pull(0, 0), 1, 1));
  EXPECT_THAT(Hear(socket), IsOk());
  EXPECT_EQ(traffic_.pulled_bytes, model_.blob(BlobId(0)).num_elems * 2 + 2 * kLastChunkBytes);
}

TEST_F(SharedMemoryServerTest, AWrongHelloIsRefusedWithItsReason) {
  const struct {
    SharedMessage hello;
    StatusCode code;
    std::string reason;
  } cases[] = {
      {Pull(0, 0), StatusCode::kInvalidArgument, "hello: kind: 2"},
      {{.kind = SharedMessageKind::kHello, .incarnation = 1, .offset_bytes = kInboxBytes},
       StatusCode::kFailedPrecondition,
       "incarnation: 1"},
      {{.kind = SharedMessageKind::kHello, .incarnation = kServerIncarnation, .offset_bytes = kStagingBytes - 1},
       StatusCode::kInvalidArgument,
       "inbox bytes"},
      {{.kind = SharedMessageKind::kHello, .incarnation = kServerIncarnation, .offset_bytes = int64_t{1} << 60},
       StatusCode::kInvalidArgument,
       "inbox bytes"},
  };
  for (const auto& c : cases) {
    const FileDescriptor socket = Connect();
    Say(socket, c.hello);
    EXPECT_THAT(LastWord(socket), StatusIs(c.code, c.reason));
  }
  const FileDescriptor socket = Connect();
  EXPECT_OK(SendPacket(socket, "GET / HTTP/1.1\r\n\r\n", {}, kSoon));
  EXPECT_THAT(LastWord(socket), StatusIs(StatusCode::kInvalidArgument, "message: 18 bytes"));
}

TEST_F(SharedMemoryServerTest, WhoDoesNotKnowTheIncarnationIsNotToldIt) {
  const FileDescriptor socket = Connect();
  Say(socket, {.kind = SharedMessageKind::kHello, .incarnation = 1, .offset_bytes = kInboxBytes});
  const auto refusal = Hear(socket);
  ASSERT_OK(refusal.status());
  EXPECT_EQ(refusal->kind, SharedMessageKind::kRefused);
  EXPECT_EQ(refusal->incarnation, 0u);
  EXPECT_EQ(refusal->refusal.message().find(std::to_string(kServerIncarnation)), absl::string_view::npos);
}

TEST_F(SharedMemoryServerTest, WhatMakesNoSenseIsRefusedByField) {
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
  SharedMessage other_daemon = Pull(0, 0);
  other_daemon.incarnation = 1;
  SharedMessage not_a_node = Offer(1, -1);
  not_a_node.node = {1, 2};
  SharedMessage other_blob = Offer(1, kStagingBytes);
  other_blob.blob = BlobId(99);
  const struct {
    std::vector<SharedMessage> messages;
    StatusCode code;
    std::string reason;
  } cases[] = {
      {{Hello()}, StatusCode::kInvalidArgument, "kind: 1"},
      {{other_daemon}, StatusCode::kInvalidArgument, "incarnation: 1"},
      {{Pull(99, 0)}, StatusCode::kNotFound, "blob: 99"},
      {{Read(99, 0)}, StatusCode::kNotFound, "read: blob: 99"},
      {{Read(0, 11)}, StatusCode::kInvalidArgument, "read: version: 11"},
      {{Pull(0, 11)}, StatusCode::kInvalidArgument, "version: 11"},
      {{other_blob}, StatusCode::kInvalidArgument, "blob: 99"},
      {{not_a_node}, StatusCode::kInvalidArgument, "node"},
      {{Offer(1, 0)}, StatusCode::kInvalidArgument, "offset: 0"},
      {{Offer(1, kStagingBytes + 2)}, StatusCode::kInvalidArgument, "offset"},
      {{Offer(1, kInboxBytes - 64)}, StatusCode::kInvalidArgument, "offset"},
      {{Offer(1, int64_t{1} << 62)}, StatusCode::kInvalidArgument, "offset"},
      {{OfferPart(1, 1, 1, kInboxBytes - kLastChunkBytes + 64)}, StatusCode::kInvalidArgument, "offset"},
      {{OfferPart(1, 1, 1, int64_t{1} << 62)}, StatusCode::kInvalidArgument, "offset"},
      {{OfferPart(1, 0, 1, kStagingBytes)}, StatusCode::kInvalidArgument, "524288 bytes before the inbox ends"},
      {{OfferPart(1, 2, 1, kStagingBytes)}, StatusCode::kInvalidArgument, "first_chunk: 2"},
      {{OfferPart(1, 1, 2, kStagingBytes)}, StatusCode::kInvalidArgument, "num_chunks: 2"},
      {{OfferPart(1, kMost, kMost, kStagingBytes)}, StatusCode::kInvalidArgument, "first_chunk: 2147483647"},
      {{OfferPart(1, 1, kMost, kStagingBytes)}, StatusCode::kInvalidArgument, "num_chunks: 2147483647"},
      {{OfferPart(1, 1, 0, kStagingBytes)}, StatusCode::kInvalidArgument, "num_chunks (offset 52): 0"},
      {{OfferPart(1, 2, 1, -1)}, StatusCode::kInvalidArgument, "first_chunk: 2"},
      {{OfferPart(1, 1, kMost, -1)}, StatusCode::kInvalidArgument, "num_chunks: 2147483647"},
      {{OfferPart(1, 1, 1, -1), Chunk(1, 0, 0)}, StatusCode::kInvalidArgument, "chunk: 0, want 1"},
      {{WithChunks(Pull(0, 0), 2, 1)}, StatusCode::kInvalidArgument, "pull: first_chunk: 2"},
      {{WithChunks(Pull(0, 0), 1, kMost)}, StatusCode::kInvalidArgument, "pull: num_chunks: 2147483647"},
      {{WithChunks(Read(0, 0), kMost, 1)}, StatusCode::kInvalidArgument, "read: first_chunk: 2147483647"},
      {{Offer(1, -1), Offer(1, -1)}, StatusCode::kInvalidArgument, "contribution: 1 is under way"},
      {{Chunk(7, 0, 0)}, StatusCode::kInvalidArgument, "contribution: 7"},
      {{Offer(1, -1), Chunk(1, 0, kStagingBytes)}, StatusCode::kInvalidArgument, "offset"},
      {{Offer(1, -1), Chunk(1, 0, 100)}, StatusCode::kInvalidArgument, "offset: 100"},
      {{Offer(1, -1), Chunk(1, 1, 0)}, StatusCode::kInvalidArgument, "chunk: 1"},
  };
  for (const auto& c : cases) EXPECT_THAT(RefusalOf(c.messages), StatusIs(c.code, c.reason));
}

TEST_F(SharedMemoryServerTest, PullsWithoutEndAreRefused) {
  EXPECT_THAT(RefusalOf(std::vector<SharedMessage>(65, Pull(0, 0))),
              StatusIs(StatusCode::kResourceExhausted, "64 are under way"));
}

TEST_F(SharedMemoryServerTest, AnOverwrittenVersionEndsTheConnectionWithTheStoresReason) {
  for (int64_t version = 0; version < 3; ++version) store_->Publish(BlobId(0), Version(version));
  EXPECT_THAT(RefusalOf({Pull(0, 0)}), StatusIs(StatusCode::kAborted, "overwritten"));
}

TEST_F(SharedMemoryServerTest, ADaemonThatServesTakesNoOffers) {
  Start(nullptr);
  EXPECT_THAT(RefusalOf({Offer(1, kStagingBytes)}), StatusIs(StatusCode::kFailedPrecondition, "trains nothing"));
}

TEST_F(SharedMemoryServerTest, WhatAGonePeerHadReservedIsGivenBack) {
  {
    const FileDescriptor socket = Welcomed();
    Say(socket, Offer(1, -1));
    const auto admitted = Hear(socket);
    ASSERT_THAT(admitted, IsOk());
    EXPECT_EQ(admitted->kind, SharedMessageKind::kAdmitted);
    EXPECT_GT(aggregator_->window_used_bytes(), 0);
  }
  const absl::Time deadline = absl::Now() + kSoon;
  while (aggregator_->window_used_bytes() > 0 && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(aggregator_->window_used_bytes(), 0);
}

TEST_F(SharedMemoryServerTest, WhatAGonePeerWaitedForIsForgotten) {
  const auto waits_become = [&](int64_t want) {
    const absl::Time deadline = absl::Now() + kSoon;
    while (store_->num_waits() != want && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(1));
    EXPECT_EQ(store_->num_waits(), want);
  };
  const FileDescriptor stays = Welcomed();
  Say(stays, Pull(0, 0));
  {
    const FileDescriptor goes = Welcomed();
    Say(goes, Pull(0, 0));
    Say(goes, Pull(1, 0));
    waits_become(3);
  }
  waits_become(1);
  store_->Publish(BlobId(0), Version(0));
  EXPECT_THAT(Hear(stays), IsOk());
}

TEST_F(SharedMemoryServerTest, APeerThatReadsNoAnswerHoldsUpNobody) {
  const FileDescriptor deaf = Welcomed();
  store_->Publish(BlobId(0), Version(0));
  for (int i = 0; i < 2000; ++i) {
    // A daemon that waited for the peer would stop reading, and this would not return.
    Say(deaf, Pull(0, 0));
  }
  const FileDescriptor other = Welcomed();
  Say(other, Pull(0, 0));
  EXPECT_THAT(Hear(other), IsOk());
}

TEST_F(SharedMemoryServerTest, TheEndOfTheDaemonEndsEveryConnectionAlsoOneThatSaysNothing) {
  const FileDescriptor silent = Connect();
  const FileDescriptor waiting = Welcomed();
  Say(waiting, Pull(0, 0));
  const std::string path = server_->path();
  const absl::Time begin = absl::Now();
  server_.reset();
  EXPECT_LT(absl::Now() - begin, absl::Seconds(3));
  EXPECT_THAT(LastWord(waiting), StatusIs(StatusCode::kUnavailable));
  EXPECT_THAT(LastWord(silent), StatusIs(StatusCode::kUnavailable));
  EXPECT_FALSE(std::filesystem::exists(DirName(path)));
}

}  // namespace
}  // namespace eps::server
