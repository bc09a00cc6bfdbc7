#include "gpu_worker/transport/grpc_transport.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/formats/chunk_header.h"
#include "common/formats/sparse_chunk.h"
#include "common/grpc/byte_buffers.h"
#include "common/model/model_spec.h"
#include "common/testing/status_matchers.h"
#include "gpu_worker/transport/grpc_channel.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "proto/data_plane.grpc.pb.h"

// What the client does when the daemon misbehaves. The good cases are the conformance suite's (//tests/transport).

namespace eps::worker {
namespace {

using absl::StatusCode;

constexpr uint64_t kIncarnation = 5;
constexpr BlobId kWte(0);  // two chunks

// Sends what the test says, right or wrong.
class ScriptedDaemon final : public proto::DataPlane::WithRawCallbackMethod_Pull<
                                 proto::DataPlane::WithRawCallbackMethod_Push<proto::DataPlane::Service>> {
 public:
  // What is sent `pull_after` the first request of a stream of pulls, which then ends with pull_end.
  std::chrono::milliseconds pull_after = std::chrono::milliseconds(0);
  std::vector<grpc::ByteBuffer> pull_messages;
  grpc::Status pull_end;
  // What is answered to each message of a push; nothing: the stream ends with push_end.
  std::function<std::optional<grpc::ByteBuffer>(const ReceivedMessage&)> answer;
  grpc::Status push_end;

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Pull(grpc::CallbackServerContext*) override {
    class Writer final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
     public:
      explicit Writer(ScriptedDaemon& daemon) : daemon_(daemon) { StartRead(&request_); }

     private:
      void Next(bool ok) {
        if (!ok || next_ == daemon_.pull_messages.size()) return Finish(daemon_.pull_end);
        StartWrite(&daemon_.pull_messages[next_++]);
      }
      void OnReadDone(bool ok) override {
        std::this_thread::sleep_for(daemon_.pull_after);
        Next(ok);
      }
      void OnWriteDone(bool ok) override { Next(ok); }
      void OnDone() override { delete this; }
      ScriptedDaemon& daemon_;
      grpc::ByteBuffer request_;
      size_t next_ = 0;
    };
    return new Writer(*this);
  }

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Push(grpc::CallbackServerContext*) override {
    class Reader final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
     public:
      explicit Reader(ScriptedDaemon& daemon) : daemon_(daemon) { StartRead(&in_); }

     private:
      void OnReadDone(bool ok) override {
        if (!ok) return Finish(daemon_.push_end);
        auto reply = daemon_.answer(ReceivedMessage::Create(in_).value());
        if (!reply.has_value()) return Finish(daemon_.push_end);
        out_ = *std::move(reply);
        StartWrite(&out_);
      }
      void OnWriteDone(bool) override { StartRead(&in_); }
      void OnDone() override { delete this; }
      ScriptedDaemon& daemon_;
      grpc::ByteBuffer in_, out_;
    };
    return new Reader(*this);
  }
};

class GrpcTransportTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(model_,
                         BuildModel({.num_layers = 1, .d_model = 200, .num_heads = 2, .context = 4, .vocab = 2000}));
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&daemon_);
    builder.SetMaxReceiveMessageSize(-1);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
    transport_ = NewGrpcTransport({.channels = {NewDataChannel(absl::StrCat("127.0.0.1:", port))},
                                   .incarnation = kIncarnation,
                                   .worker_id = WorkerId(3),
                                   .model = &model_,
                                   .wire_dtype = Dtype::kBf16,
                                   .on_failure = [this](absl::Status why) {
                                     MutexLock lock(mu_);
                                     failures_.push_back(std::move(why));
                                     changed_.NotifyAll();
                                   }});
    weights_.resize(kChunkElems * 2);
  }
  void TearDown() override {
    transport_.reset();
    if (server_ != nullptr) server_->Shutdown();
  }

  ChunkHeader HeaderOf(int chunk) const {
    return {.kind = ChunkKind::kWeights,
            .dtype = Dtype::kBf16,
            .incarnation = kIncarnation,
            .step = 4,
            .blob = kWte,
            .chunk = chunk,
            .payload_bytes = static_cast<uint32_t>(model_.blob(kWte).chunk_elems(chunk) * 2)};
  }
  void Send(const ChunkHeader& header) {
    daemon_.pull_messages.push_back(ChunkMessage(header, absl::MakeSpan(weights_).subspan(0, header.payload_bytes)));
  }
  absl::Status Pull() { return PullPart(model_.blob(kWte).all_chunks()); }
  absl::Status PullPart(ChunkRange chunks) { return TimedPull(chunks).status(); }
  absl::StatusOr<PullTiming> TimedPull(ChunkRange chunks) {
    std::vector<std::byte> bytes(model_.blob(kWte).part_elems(chunks) * 2);
    return transport_->Pull(kWte, Version(4), chunks, absl::MakeSpan(bytes));
  }
  // How long a pull waited for its version, of which the daemon says so much, `after` it was asked.
  double VersionWait(std::chrono::milliseconds after, int64_t version_wait_micros) {
    daemon_.pull_after = after;
    for (const int chunk : {0, 1}) {
      ChunkHeader header = HeaderOf(chunk);
      if (chunk == 0) header.version_wait_micros = version_wait_micros;
      Send(header);
    }
    const absl::StatusOr<PullTiming> timing = TimedPull(model_.blob(kWte).all_chunks());
    EXPECT_OK(timing);
    return timing.ok() ? timing->version_wait_seconds : -1;
  }
  // A pull whose second header is changed.
  absl::Status PullWith(const std::function<void(ChunkHeader&)>& change) {
    Send(HeaderOf(0));
    ChunkHeader header = HeaderOf(1);
    change(header);
    Send(header);
    return Pull();
  }

  static grpc::ByteBuffer Reply(uint32_t number, proto::PushReply::Verdict verdict) {
    proto::PushReply reply;
    reply.set_contribution(number);
    reply.set_verdict(verdict);
    return ProtoMessage(reply);
  }
  Contribution Make() { return MakePart(model_.blob(kWte).all_chunks()); }
  Contribution MakePart(ChunkRange chunks) {
    auto* bytes = new std::vector<std::byte>(model_.blob(kWte).part_elems(chunks) * 2, std::byte{0x3c});
    std::shared_ptr<void> owner(bytes, [](std::vector<std::byte>* memory) { delete memory; });
    return {
        .step = StepId(4), .blob = kWte, .chunks = chunks, .dtype = Dtype::kBf16, .payload = *bytes, .owner = owner};
  }

  void AwaitFailure() {
    MutexLock lock(mu_);
    while (failures_.empty()) changed_.Wait(mu_);
  }

  ModelSpec model_;
  ScriptedDaemon daemon_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Transport> transport_;
  std::vector<std::byte> weights_;
  Mutex mu_;
  CondVar changed_;
  std::vector<absl::Status> failures_ ABSL_GUARDED_BY(mu_);
};

TEST_F(GrpcTransportTest, ChunksInOrderAreAPull) {
  Send(HeaderOf(0));
  Send(HeaderOf(1));
  EXPECT_OK(Pull());
}

TEST_F(GrpcTransportTest, ABlobThatIsNotQuantizedIsNotAnsweredWithOneThatIs) {
  EXPECT_THAT(PullWith([](ChunkHeader& header) {
                header.kind = ChunkKind::kMxInt8Weights;
                header.payload_bytes = 66;
              }),
              StatusIs(absl::StatusCode::kDataLoss, "kind: the daemon sent weights in MXINT8, want weights"));
}

TEST_F(GrpcTransportTest, AVersionThatWasThereWasNotWaitedForHoweverSlowTheLinkIs) {
  EXPECT_EQ(VersionWait(std::chrono::milliseconds(50), 0), 0);
}
TEST_F(GrpcTransportTest, AWaitForAVersionIsWhatTheDaemonSaysOfIt) {
  EXPECT_DOUBLE_EQ(VersionWait(std::chrono::milliseconds(50), 20'000), 0.02);
}
TEST_F(GrpcTransportTest, AWaitForAVersionThatIsLongerThanThePullIsNotBelieved) {
  const auto begin = std::chrono::steady_clock::now();
  const double wait = VersionWait(std::chrono::milliseconds(50), std::numeric_limits<int64_t>::max());
  EXPECT_GE(wait, 0.05);
  EXPECT_LE(wait, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
}
TEST_F(GrpcTransportTest, AWaitForAVersionInALaterChunkIsDataLoss) {
  EXPECT_THAT(PullWith([](ChunkHeader& h) { h.version_wait_micros = 7; }),
              StatusIs(StatusCode::kDataLoss, "version_wait_micros: the daemon sent 7, want 0"));
}

TEST_F(GrpcTransportTest, APartIsPulledByTheIndicesOfTheBlob) {
  Send(HeaderOf(1));
  EXPECT_OK(PullPart({1, 1}));
}
TEST_F(GrpcTransportTest, AChunkThatIsNotOfThePartIsDataLoss) {
  Send(HeaderOf(0));
  EXPECT_THAT(PullPart({1, 1}), StatusIs(StatusCode::kDataLoss, "chunk: the daemon sent 0, want 1"));
}

TEST_F(GrpcTransportTest, APartIsOfferedAsOneAndItsChunksKeepTheirIndices) {
  std::vector<int64_t> said;
  daemon_.answer = [&](const ReceivedMessage& message) -> std::optional<grpc::ByteBuffer> {
    if (message.is_offer()) {
      proto::Offer offer;
      EXPECT_OK(message.ParseOffer(offer));
      said = {offer.first_chunk(), offer.num_chunks()};
      return Reply(offer.contribution(), proto::PushReply::ADMITTED);
    }
    const auto header = message.ParseChunk();
    EXPECT_OK(header);
    said.push_back(header->chunk);
    said.push_back(header->payload_bytes);
    return Reply(header->contribution, proto::PushReply::COMPLETE);
  };
  transport_->Push(MakePart({1, 1}));
  EXPECT_OK(transport_->Flush());
  EXPECT_EQ(said, (std::vector<int64_t>{1, 1, 1, model_.blob(kWte).chunk_elems(1) * 2}));
}

TEST_F(GrpcTransportTest, LinesOfZerosDoNotTravel) {
  ChunkHeader header;
  std::vector<std::byte> sent;
  daemon_.answer = [&](const ReceivedMessage& message) -> std::optional<grpc::ByteBuffer> {
    if (message.is_offer()) return Reply(1, proto::PushReply::ADMITTED);
    header = message.ParseChunk().value();
    sent.resize(header.payload_bytes);
    message.CopyPayload(absl::MakeSpan(sent));
    return Reply(1, proto::PushReply::COMPLETE);
  };
  Contribution contribution = MakePart({1, 1});
  std::vector<std::byte> gradient(contribution.payload.size());
  std::fill_n(gradient.begin() + 3 * kLineBytes, kLineBytes, std::byte{0x3c});
  contribution.payload = gradient;
  transport_->Push(contribution);
  EXPECT_OK(transport_->Flush());
  EXPECT_EQ(header.kind, ChunkKind::kSparseGradient);
  EXPECT_EQ(sent, PackSparseChunk(gradient));
}

TEST_F(GrpcTransportTest, AChunkOfAnotherOrderIsDataLoss) {
  EXPECT_THAT(PullWith([](ChunkHeader& h) { h.chunk = 0; }), StatusIs(StatusCode::kDataLoss, "chunk: "));
  EXPECT_THAT(Pull(), StatusIs(StatusCode::kDataLoss, "chunk: "));  // it stays failed
  // Once it is gone it calls nobody.
  transport_.reset();
  MutexLock lock(mu_);
  EXPECT_EQ(failures_.size(), 1u);
}
TEST_F(GrpcTransportTest, APullIsNamedWhereItsFailureIsReportedAndNotToWhoPulls) {
  EXPECT_EQ(PullWith([](ChunkHeader& h) { h.blob = BlobId(1); }),
            absl::DataLossError("blob: the daemon sent 1, want 0"));
  transport_.reset();
  MutexLock lock(mu_);
  ASSERT_EQ(failures_.size(), 1u);
  EXPECT_EQ(failures_[0], absl::DataLossError("pull of blob wte, version 4: blob: the daemon sent 1, want 0"));
}
TEST_F(GrpcTransportTest, AChunkOfAnotherBlobIsDataLoss) {
  EXPECT_THAT(PullWith([](ChunkHeader& h) { h.blob = BlobId(1); }), StatusIs(StatusCode::kDataLoss, "blob"));
}
TEST_F(GrpcTransportTest, AChunkOfAnotherVersionIsDataLoss) {
  EXPECT_THAT(PullWith([](ChunkHeader& h) { h.step = 5; }), StatusIs(StatusCode::kDataLoss, "version"));
}
TEST_F(GrpcTransportTest, AChunkOfAnotherDtypeIsDataLoss) {
  EXPECT_THAT(PullWith([](ChunkHeader& h) { h.dtype = Dtype::kF32; }), StatusIs(StatusCode::kDataLoss, "dtype"));
}
TEST_F(GrpcTransportTest, AChunkOfAnotherLengthIsDataLoss) {
  EXPECT_THAT(PullWith([](ChunkHeader& h) { h.payload_bytes -= 2; }), StatusIs(StatusCode::kDataLoss, "payload_bytes"));
}
TEST_F(GrpcTransportTest, AChunkOfAnotherDaemonIsAborted) {
  EXPECT_THAT(PullWith([](ChunkHeader& h) { h.incarnation = 6; }), StatusIs(StatusCode::kAborted, "restarted"));
}
TEST_F(GrpcTransportTest, AChunkTooManyIsDataLossInTheNextPull) {
  Send(HeaderOf(0));
  Send(HeaderOf(1));
  Send(HeaderOf(1));
  EXPECT_OK(Pull());
  EXPECT_THAT(Pull(), StatusIs(StatusCode::kDataLoss, "chunk: "));
}
TEST_F(GrpcTransportTest, AStreamThatEndsBetweenPullsFailsTheNext) {
  Send(HeaderOf(0));
  Send(HeaderOf(1));
  EXPECT_OK(Pull());
  EXPECT_THAT(Pull(), StatusIs(StatusCode::kDataLoss, "chunks"));
}
TEST_F(GrpcTransportTest, AChunkTooFewIsDataLoss) {
  Send(HeaderOf(0));
  EXPECT_THAT(Pull(), StatusIs(StatusCode::kDataLoss, "chunks"));
}
TEST_F(GrpcTransportTest, BytesThatAreNoChunkAreDataLoss) {
  const grpc::Slice slice(std::string("hello"));
  daemon_.pull_messages.push_back(grpc::ByteBuffer(&slice, 1));
  EXPECT_THAT(Pull(), StatusIs(StatusCode::kDataLoss));
}
TEST_F(GrpcTransportTest, TheDaemonsErrorComesThrough) {
  daemon_.pull_end = grpc::Status(grpc::StatusCode::ABORTED, "version 4 was overwritten");
  EXPECT_THAT(Pull(), StatusIs(StatusCode::kAborted, "overwritten"));
}

TEST_F(GrpcTransportTest, ADaemonThatIsGoneIsUnavailable) {
  server_->Shutdown();
  EXPECT_THAT(Pull(), StatusIs(StatusCode::kUnavailable));
  transport_->Push(Make());
  EXPECT_THAT(transport_->Flush(), StatusIs(StatusCode::kUnavailable));
}

TEST_F(GrpcTransportTest, AnEndedPushStreamFailsFlushAndPullAndIsReported) {
  daemon_.answer = [](const ReceivedMessage&) { return std::nullopt; };
  daemon_.push_end = grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "offer: node: no such node");
  transport_->Push(Make());
  EXPECT_THAT(transport_->Flush(), StatusIs(StatusCode::kInvalidArgument, "no such node"));
  EXPECT_THAT(Pull(), StatusIs(StatusCode::kInvalidArgument, "no such node"));
  transport_.reset();  // calls nobody afterwards; until then what failed may be said later than Flush returns
  MutexLock lock(mu_);
  ASSERT_EQ(failures_.size(), 1u);
  EXPECT_THAT(failures_[0], StatusIs(StatusCode::kInvalidArgument, "no such node"));
}

TEST_F(GrpcTransportTest, WhatIsNotWantedIsNotSent) {
  int offers = 0, chunks = 0;
  daemon_.answer = [&](const ReceivedMessage& message) -> std::optional<grpc::ByteBuffer> {
    ++(message.is_offer() ? offers : chunks);
    proto::Offer offer;
    EXPECT_OK(message.ParseOffer(offer));
    return Reply(offer.contribution(), proto::PushReply::NOT_WANTED);
  };
  transport_->Push(Make());
  transport_->Push(Make());
  EXPECT_OK(transport_->Flush());
  EXPECT_EQ(offers, 2);
  EXPECT_EQ(chunks, 0);
}

TEST_F(GrpcTransportTest, AnUnknownVerdictIsOurPeersBug) {
  daemon_.answer = [](const ReceivedMessage&) { return Reply(1, proto::PushReply::UNKNOWN); };
  transport_->Push(Make());
  EXPECT_THAT(transport_->Flush(), StatusIs(StatusCode::kInternal, "verdict"));
  transport_->Push(Make());
  EXPECT_THAT(transport_->Flush(), StatusIs(StatusCode::kInternal, "verdict"));  // it stays failed
  AwaitFailure();  // else a step would wait for the gradient
  transport_.reset();
  MutexLock lock(mu_);
  ASSERT_EQ(failures_.size(), 1u);
  EXPECT_THAT(failures_[0], StatusIs(StatusCode::kInternal, "verdict"));
}

TEST_F(GrpcTransportTest, APushThatIsCancelledIsNotReported) {
  daemon_.answer = [](const ReceivedMessage& message) -> std::optional<grpc::ByteBuffer> {
    proto::Offer offer;
    EXPECT_OK(message.ParseOffer(offer));
    return Reply(offer.contribution(), proto::PushReply::NOT_WANTED);
  };
  transport_->Push(Make());
  EXPECT_OK(transport_->Flush());
  transport_->Cancel(absl::CancelledError("over"));
  transport_.reset();
  MutexLock lock(mu_);
  EXPECT_TRUE(failures_.empty());
}

TEST_F(GrpcTransportTest, VerdictsForNobodyAreIgnored) {
  auto verdict = proto::PushReply::UNKNOWN;
  daemon_.answer = [&](const ReceivedMessage& message) -> std::optional<grpc::ByteBuffer> {
    if (message.is_offer()) {
      proto::Offer offer;
      EXPECT_OK(message.ParseOffer(offer));
      return Reply(offer.contribution(), proto::PushReply::ADMITTED);
    }
    const auto header = message.ParseChunk();
    EXPECT_OK(header);
    if (header->chunk == 0) return Reply(12345, verdict);
    return Reply(header->contribution, proto::PushReply::COMPLETE);
  };
  for (const auto of_nobody : {proto::PushReply::ADMITTED, proto::PushReply::NOT_WANTED, proto::PushReply::COMPLETE}) {
    verdict = of_nobody;
    transport_->Push(Make());
    EXPECT_OK(transport_->Flush());
  }
}

}  // namespace
}  // namespace eps::worker
