#include "gpu_worker/transport/shared_memory_transport.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/file_util.h"
#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/formats/shared_message.h"
#include "common/formats/wire_layout.h"
#include "common/ipc/shared_segment.h"
#include "common/ipc/unix_socket.h"
#include "common/model/model_spec.h"
#include "common/schedule/chunk_range.h"
#include "common/tensor/dtype.h"
#include "common/testing/status_matchers.h"
#include "gpu_worker/transport/transport.h"
#include "gtest/gtest.h"

// What the worker's side does when the daemon misbehaves. The good cases are the conformance suite's (//tests/transport).

namespace eps::worker {
namespace {

using absl::StatusCode;

constexpr uint64_t kSocketIncarnation = 5;
constexpr BlobId kPulledBlob(0);  // two chunks
constexpr Version kPulledVersion(4);
constexpr int64_t kInboxPushBytes = int64_t{4} << 20;

// Says to one worker what the test says, right or wrong. Of one thread.
class ScriptedPeer {
 public:
  explicit ScriptedPeer(const ModelSpec& model)
      : layout_(model, Dtype::kBf16, 2),
        listener_(LocalListener::Create().value()),
        weights_(SharedSegment::Create("eps-weights", layout_.segment_bytes(), SegmentWriter::kCreator).value()) {
    for (const BlobSpec& blob : model.blobs) layout_.StorePublished(weights_.bytes(), blob.id, Version(-1));
  }

  const std::string& path() const { return listener_.path(); }
  int64_t offset_bytes(BlobId blob, Version version) const { return layout_.offset_bytes(blob, version); }

  // What the worker asks for at first.
  SharedMessage AcceptHello() {
    while (true) {
      absl::StatusOr<FileDescriptor> socket = AcceptLocal(listener_.socket());
      if (!socket.ok()) {
        EXPECT_TRUE(absl::IsUnavailable(socket.status())) << socket.status();
        absl::SleepFor(absl::Milliseconds(1));
        continue;
      }
      socket_ = *std::move(socket);
      // Who only looks whether this listener is anybody's says nothing: another test's, which begins.
      const absl::StatusOr<Packet> hello = ReceivePacket(socket_, kSharedMessageBytes, kTimeout);
      if (hello.ok()) return DecodeSharedMessage(hello->bytes).value();
      EXPECT_TRUE(absl::IsUnavailable(hello.status())) << hello.status();
    }
  }
  // `files`: how many of the two segments go with it.
  void SendWelcome(const SharedMessage& hello, SharedMessage welcome, size_t files = 2) {
    inbox_.emplace(SharedSegment::Create("eps-inbox", hello.offset_bytes, SegmentWriter::kReceiver).value());
    const int all[] = {weights_.file().get(), inbox_->file().get()};
    EXPECT_OK(SendPacket(socket_, EncodeSharedMessage(welcome), absl::MakeSpan(all).subspan(0, files), kTimeout));
  }

  SharedMessage Receive() {
    const absl::StatusOr<Packet> packet = ReceivePacket(socket_, kSharedMessageBytes, kTimeout);
    return DecodeSharedMessage(packet.value().bytes).value();
  }
  // Into the void if the worker is gone already.
  void Send(SharedMessage message) {
    if (message.incarnation == 0) message.incarnation = kSocketIncarnation;
    SendBytes(EncodeSharedMessage(message));
  }
  void SendBytes(const std::string& bytes) { SendPacket(socket_, bytes, {}, kTimeout).IgnoreError(); }
  void Close() { socket_ = FileDescriptor(); }

  absl::Span<const std::byte> inbox() const { return inbox_->bytes(); }

 private:
  static constexpr absl::Duration kTimeout = absl::Seconds(20);

  const WireLayout layout_;
  const LocalListener listener_;
  const SharedSegment weights_;
  std::optional<SharedSegment> inbox_;
  FileDescriptor socket_;
};

class SharedMemoryTransportTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(model_,
                         BuildModel({.num_layers = 1, .d_model = 200, .num_heads = 2, .context = 4, .vocab = 2000}));
    daemon_.emplace(model_);
  }
  void TearDown() override { transport_.reset(); }

  // Connects while `answer` is the daemon's side of it.
  absl::Status Connect(const std::function<void(const SharedMessage& hello)>& answer) {
    auto connected = std::async(std::launch::async, [this] {
      return ConnectSharedMemory({.socket_path = daemon_->path(),
                                  .incarnation = kSocketIncarnation,
                                  .worker_id = WorkerId(3),
                                  .model = &model_,
                                  .wire_dtype = Dtype::kBf16,
                                  .wire_versions = 2,
                                  .push_bytes = kInboxPushBytes,
                                  .on_failure = [this](absl::Status why) {
                                    MutexLock lock(mu_);
                                    failures_.push_back(std::move(why));
                                    changed_.NotifyAll();
                                  }});
    });
    const SharedMessage hello = daemon_->AcceptHello();
    EXPECT_EQ(hello.incarnation, kSocketIncarnation);
    EXPECT_EQ(hello.step, 3);
    EXPECT_EQ(hello.offset_bytes, kStagingBytes + kInboxPushBytes);
    answer(hello);
    auto transport = connected.get();
    if (!transport.ok()) return transport.status();
    transport_ = *std::move(transport);
    return absl::OkStatus();
  }
  void Connect() {
    ASSERT_OK(Connect([this](const SharedMessage& hello) { daemon_->SendWelcome(hello, Welcome(hello)); }));
  }
  static SharedMessage Welcome(const SharedMessage& hello) {
    return {.kind = SharedMessageKind::kWelcome, .incarnation = kSocketIncarnation, .offset_bytes = hello.offset_bytes};
  }

  absl::Status Await() {
    return transport_->Await(kPulledBlob, kPulledVersion, model_.blob(kPulledBlob).all_chunks()).status();
  }
  // What becomes of a pull that is answered by `answer`.
  absl::Status PullAnswered(const std::function<void(const SharedMessage& pull)>& answer) {
    auto pull = std::async(std::launch::async, [this] { return Await(); });
    answer(daemon_->Receive());
    return pull.get();
  }
  // As it should be.
  SharedMessage Pulled(const SharedMessage& pull) const {
    return {.kind = SharedMessageKind::kPulled,
            .step = pull.step,
            .blob = pull.blob,
            .number = pull.number,
            .offset_bytes = daemon_->offset_bytes(kPulledBlob, kPulledVersion)};
  }
  // A pull whose answer is changed.
  absl::Status PullWith(const std::function<void(SharedMessage&)>& change) {
    return PullAnswered([&](const SharedMessage& pull) {
      SharedMessage answer = Pulled(pull);
      change(answer);
      daemon_->Send(answer);
    });
  }
  // What ends the transport, of which somebody waits for a pull, when the daemon says `message`.
  absl::Status EndedBy(const SharedMessage& message) {
    return PullAnswered([&](const SharedMessage&) { daemon_->Send(message); });
  }

  Contribution Make(std::atomic<bool>* released = nullptr) {
    auto* bytes = new std::vector<std::byte>(static_cast<size_t>(model_.blob(kPulledBlob).num_elems * 2), std::byte{7});
    std::shared_ptr<void> owner(bytes, [released](std::vector<std::byte>* memory) {
      delete memory;
      if (released != nullptr) *released = true;
    });
    return {.step = StepId(4),
            .blob = kPulledBlob,
            .node = {0, 1},
            .chunks = model_.blob(kPulledBlob).all_chunks(),
            .dtype = Dtype::kBf16,
            .payload = *bytes,
            .owner = owner};
  }
  Contribution MakeInInbox() {
    Contribution contribution = Make();
    std::optional<PushMemory> memory = transport_->NewPushMemory(static_cast<int64_t>(contribution.payload.size()));
    EXPECT_TRUE(memory.has_value());
    contribution.payload = memory->bytes;
    contribution.owner = memory->owner;
    return contribution;
  }
  // The offer of what is pushed.
  SharedMessage Offered(Contribution contribution) {
    transport_->Push(std::move(contribution));
    return daemon_->Receive();
  }

  void AwaitFailure() {
    MutexLock lock(mu_);
    while (failures_.empty()) changed_.Wait(mu_);
  }
  // Why it failed by itself, each time that it was said so; it is over then.
  std::vector<absl::Status> Failures() {
    transport_.reset();
    MutexLock lock(mu_);
    return failures_;
  }

  ModelSpec model_;
  std::optional<ScriptedPeer> daemon_;
  std::unique_ptr<Transport> transport_;
  Mutex mu_;
  CondVar changed_;
  std::vector<absl::Status> failures_ ABSL_GUARDED_BY(mu_);
};

TEST_F(SharedMemoryTransportTest, APullThatIsAnsweredIsAPull) {
  Connect();
  EXPECT_OK(PullWith([](SharedMessage&) {}));
  EXPECT_OK(PullWith([](SharedMessage&) {}));
  EXPECT_TRUE(Failures().empty());
}

TEST_F(SharedMemoryTransportTest, AnAnswerOfAnotherPullIsDataLoss) {
  Connect();
  EXPECT_THAT(PullWith([](SharedMessage& m) { ++m.number; }),
              StatusIs(StatusCode::kDataLoss, "pull: the daemon sent 2, want 1"));
  EXPECT_THAT(Await(), StatusIs(StatusCode::kDataLoss, "pull: "));  // it stays failed
  EXPECT_THAT(transport_->Flush(), StatusIs(StatusCode::kDataLoss, "pull: "));
  EXPECT_FALSE(transport_->NewPushMemory(64).has_value());
  const auto failures = Failures();
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_THAT(failures[0], StatusIs(StatusCode::kDataLoss, "shared memory: pull: the daemon sent 2, want 1"));
}
TEST_F(SharedMemoryTransportTest, AnAnswerThatNobodyWaitsForIsDataLoss) {
  Connect();
  SharedMessage answer;
  EXPECT_OK(PullAnswered([&](const SharedMessage& pull) { daemon_->Send(answer = Pulled(pull)); }));
  daemon_->Send(answer);
  AwaitFailure();
  EXPECT_THAT(Await(), StatusIs(StatusCode::kDataLoss, "pull: "));
}
TEST_F(SharedMemoryTransportTest, AnAnswerOfAnotherBlobIsDataLoss) {
  Connect();
  EXPECT_THAT(PullWith([](SharedMessage& m) { m.blob = BlobId(1); }),
              StatusIs(StatusCode::kDataLoss, "blob: the daemon sent 1, want 0"));
}
TEST_F(SharedMemoryTransportTest, AnAnswerOfAnotherVersionIsDataLoss) {
  Connect();
  EXPECT_THAT(PullWith([](SharedMessage& m) { m.step = 5; }),
              StatusIs(StatusCode::kDataLoss, "version: the daemon sent 5, want 4"));
}
TEST_F(SharedMemoryTransportTest, AnAnswerOfAnotherPlaceIsDataLoss) {
  Connect();
  EXPECT_THAT(PullWith([](SharedMessage& m) { m.offset_bytes += 128; }),
              StatusIs(StatusCode::kDataLoss, "offset: the daemon sent 128, want 0"));
}
TEST_F(SharedMemoryTransportTest, AnAnswerOfAnotherDaemonIsAborted) {
  Connect();
  EXPECT_THAT(PullWith([](SharedMessage& m) { m.incarnation = 6; }), StatusIs(StatusCode::kAborted, "restarted"));
}
TEST_F(SharedMemoryTransportTest, WhatIsNoAnswerIsDataLoss) {
  Connect();
  EXPECT_THAT(EndedBy({.kind = SharedMessageKind::kOffer, .node = {0, 1}, .num_chunks = 1, .offset_bytes = -1}),
              StatusIs(StatusCode::kDataLoss, "kind: the daemon sent 3, want an answer"));
}
TEST_F(SharedMemoryTransportTest, BytesThatAreNoMessageAreDataLoss) {
  Connect();
  EXPECT_THAT(PullAnswered([this](const SharedMessage&) { daemon_->SendBytes(std::string(64, 'x')); }),
              StatusIs(StatusCode::kDataLoss, "magic"));
}

TEST_F(SharedMemoryTransportTest, ARefusalComesThroughWithItsReason) {
  Connect();
  EXPECT_THAT(
      EndedBy({.kind = SharedMessageKind::kRefused, .refusal = absl::AbortedError("version 4 was overwritten")}),
      StatusIs(StatusCode::kAborted, "the daemon says: version 4 was overwritten"));
}
TEST_F(SharedMemoryTransportTest, TheLastWordOfADaemonThatEndsComesThrough) {
  Connect();
  EXPECT_THAT(
      PullAnswered([this](const SharedMessage&) {
        daemon_->Send({.kind = SharedMessageKind::kRefused, .refusal = absl::UnavailableError("the run is over")});
        daemon_->Close();
      }),
      StatusIs(StatusCode::kUnavailable, "shared memory: the daemon says: the run is over"));
  const auto failures = Failures();
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_THAT(failures[0], StatusIs(StatusCode::kUnavailable, "the run is over"));
}
TEST_F(SharedMemoryTransportTest, ADaemonThatGoesWithoutAWordIsGone) {
  Connect();
  // Of what it is a pull, who pulls says itself.
  EXPECT_EQ(PullAnswered([this](const SharedMessage&) { daemon_->Close(); }),
            absl::UnavailableError("shared memory: the daemon is gone"));
}

TEST_F(SharedMemoryTransportTest, WhatWaitedEndsWithTheReasonOfACancelThatIsNotReported) {
  Connect();
  std::atomic<bool> before = false, after = false;
  Offered(Make(&before));
  EXPECT_THAT(PullAnswered([this](const SharedMessage&) { transport_->Cancel(absl::AbortedError("void")); }),
              StatusIs(StatusCode::kAborted, "void"));
  EXPECT_TRUE(before);
  transport_->Push(Make(&after));
  EXPECT_TRUE(after);
  EXPECT_TRUE(Failures().empty());
}

TEST_F(SharedMemoryTransportTest, AnAnswerToAContributionThatIsNotThereIsDataLoss) {
  for (const auto kind : {SharedMessageKind::kNotWanted, SharedMessageKind::kComplete}) {
    Connect();
    const SharedMessage offer = Offered(Make());
    daemon_->Send({.kind = kind, .number = offer.number});
    EXPECT_OK(transport_->Flush());
    EXPECT_THAT(EndedBy({.kind = kind, .number = offer.number}),
                StatusIs(StatusCode::kDataLoss, "the daemon answered contribution 1, which is not there"));
  }
}
TEST_F(SharedMemoryTransportTest, ChunksOfWhatIsNotThereOrLiesInTheInboxAreNotAskedFor) {
  Connect();
  EXPECT_THAT(EndedBy({.kind = SharedMessageKind::kAdmitted, .number = 99}),
              StatusIs(StatusCode::kDataLoss, "the daemon asks for contribution 99"));
  Connect();
  const SharedMessage offer = Offered(MakeInInbox());
  EXPECT_GE(offer.offset_bytes, kStagingBytes);
  EXPECT_THAT(EndedBy({.kind = SharedMessageKind::kAdmitted, .number = offer.number}),
              StatusIs(StatusCode::kDataLoss, "the daemon asks for contribution 1"));
}

TEST_F(SharedMemoryTransportTest, AdmittedChunksGoThroughTheSlotsInOrder) {
  Connect();
  std::atomic<bool> released = false;
  const SharedMessage offer = Offered(Make(&released));
  EXPECT_EQ(offer.offset_bytes, -1);
  EXPECT_EQ(offer.num_chunks, 2);
  daemon_->Send({.kind = SharedMessageKind::kAdmitted, .number = offer.number});
  for (const int chunk : {0, 1}) {
    const SharedMessage message = daemon_->Receive();
    EXPECT_EQ(message.kind, SharedMessageKind::kChunk);
    EXPECT_EQ(message.number, offer.number);
    EXPECT_EQ(message.chunk, chunk);
    EXPECT_EQ(daemon_->inbox()[static_cast<size_t>(message.offset_bytes)], std::byte{7});
    daemon_->Send({.kind = SharedMessageKind::kTaken, .offset_bytes = message.offset_bytes});
  }
  EXPECT_FALSE(released);
  daemon_->Send({.kind = SharedMessageKind::kComplete, .number = offer.number});
  EXPECT_OK(transport_->Flush());
  EXPECT_TRUE(Failures().empty());
  EXPECT_TRUE(released);
}
TEST_F(SharedMemoryTransportTest, ASlotThatIsNotInUseIsNotGivenBack) {
  for (const int64_t offset_bytes : {int64_t{0}, kStagingSlotBytes, kStagingBytes, int64_t{1} << 60}) {
    Connect();
    EXPECT_THAT(EndedBy({.kind = SharedMessageKind::kTaken, .offset_bytes = offset_bytes}),
                StatusIs(StatusCode::kDataLoss, "no slot in use"))
        << offset_bytes;
  }
}

TEST_F(SharedMemoryTransportTest, AHelloThatIsRefusedGivesTheReason) {
  const SharedMessage refusal = {.kind = SharedMessageKind::kRefused,
                                 .refusal = absl::ResourceExhaustedError("no memory for the inbox")};
  EXPECT_THAT(Connect([&](const SharedMessage&) { daemon_->SendBytes(EncodeSharedMessage(refusal)); }),
              StatusIs(StatusCode::kResourceExhausted, "the daemon says: no memory for the inbox"));
}
TEST_F(SharedMemoryTransportTest, AWelcomeOfAnotherDaemonIsRefused) {
  EXPECT_THAT(Connect([this](const SharedMessage& hello) {
                SharedMessage welcome = Welcome(hello);
                welcome.incarnation = 6;
                daemon_->SendWelcome(hello, welcome);
              }),
              StatusIs(StatusCode::kFailedPrecondition, "another daemon"));
}
TEST_F(SharedMemoryTransportTest, AWelcomeWithoutTheSegmentsIsRefused) {
  EXPECT_THAT(Connect([this](const SharedMessage& hello) { daemon_->SendWelcome(hello, Welcome(hello), 1); }),
              StatusIs(StatusCode::kInternal, "kind 17 and 1 descriptors"));
}
TEST_F(SharedMemoryTransportTest, SegmentsOfAnotherSizeAreRefused) {
  EXPECT_THAT(Connect([this](const SharedMessage& hello) {
                SharedMessage larger = hello;
                larger.offset_bytes += 4096;
                daemon_->SendWelcome(larger, Welcome(hello));
              }),
              StatusIs(StatusCode::kInvalidArgument));
}
TEST_F(SharedMemoryTransportTest, ADaemonThatIsGoneBeforeItsWelcomeIsUnavailable) {
  EXPECT_THAT(Connect([this](const SharedMessage&) { daemon_->Close(); }), StatusIs(StatusCode::kUnavailable));
}

}  // namespace
}  // namespace eps::worker
