#include "eps_server/service/data_service.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/formats/chunk_header.h"
#include "common/formats/sparse_chunk.h"
#include "common/grpc/byte_buffers.h"
#include "common/grpc/grpc_status.h"
#include "common/model/model_spec.h"
#include "common/spec/run_config.h"
#include "common/testing/status_matchers.h"
#include "eps_server/aggregation/aggregator.h"
#include "eps_server/service/rpc_server.h"
#include "eps_server/store/store.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/security/credentials.h"
#include "gtest/gtest.h"
#include "proto/data_plane.pb.h"

namespace eps::server {
namespace {

using absl::StatusCode;

constexpr uint64_t kDataIncarnation = 77;
constexpr BlobId kWte(0);  // two chunks

// A call whose messages the test makes byte by byte.
class RawCall {
 public:
  RawCall(grpc::GenericStub& stub, const std::string& method) {
    call_ = stub.PrepareCall(&context_, method, &queue_);
    call_->StartCall(this);
    Next();
  }
  ~RawCall() {
    context_.TryCancel();
    if (!finished_) (void)Finish();
    queue_.Shutdown();
    void* tag;
    bool ok;
    while (queue_.Next(&tag, &ok)) {
    }
  }

  bool Write(const grpc::ByteBuffer& message) {
    call_->Write(message, this);
    return Next();
  }
  bool WritesDone() {
    call_->WritesDone(this);
    return Next();
  }
  std::optional<grpc::ByteBuffer> Read() {
    grpc::ByteBuffer message;
    call_->Read(&message, this);
    if (!Next()) return std::nullopt;
    return message;
  }
  absl::Status Finish() {
    grpc::Status status;
    call_->Finish(&status, this);
    Next();
    finished_ = true;
    return FromGrpc(status);
  }
  void Cancel() { context_.TryCancel(); }

 private:
  bool Next() {
    void* tag;
    bool ok = false;
    return queue_.Next(&tag, &ok) && ok;
  }

  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
  bool finished_ = false;
};

grpc::ByteBuffer Bytes(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

class DataServiceTest : public testing::Test {
 protected:
  void SetUp() override {
    run_.model = {.num_layers = 1, .d_model = 200, .num_heads = 2, .context = 4, .vocab = 2000};
    run_.batch.virtual_nodes = 2;
    run_.precision = {.wire = Dtype::kBf16, .gradients = Dtype::kBf16};
    run_.steps = 10;
    ASSERT_OK_AND_ASSIGN(model_, BuildModel(run_.model));
    ASSERT_EQ(model_.blob(kWte).num_chunks(), 2);
    ASSERT_OK_AND_ASSIGN(store_, Store::Create(model_, run_));
    for (const BlobSpec& blob : model_.blobs) {
      std::vector<float> values(blob.num_elems);
      for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 1000);
      EXPECT_OK(store_->LoadMaster(blob.id, Version(0), 0, values));
    }
    ASSERT_OK_AND_ASSIGN(aggregator_, Aggregator::Create({.model = &model_,
                                                          .virtual_nodes = 2,
                                                          .gradients = Dtype::kBf16,
                                                          .window_bytes = 0,
                                                          .consume =
                                                              [this](StepId, BlobId blob, int64_t, ChunkGradient) {
                                                                MutexLock lock(mu_);
                                                                consumed_.push_back(blob);
                                                              },
                                                          .on_step_in = [](StepId) {}}));
    aggregator_->BeginStep(StepId(0));
    std::vector<std::unique_ptr<grpc::Service>> services;
    services.push_back(NewDataService({.incarnation = kDataIncarnation,
                                       .model = &model_,
                                       .store = store_.get(),
                                       .aggregator = aggregator_.get(),
                                       .last_version = Version(10),
                                       .clock = [this] { return absl::Microseconds(now_micros_.load()); }}));
    ASSERT_OK_AND_ASSIGN(server_, RpcServer::Start({.host = "127.0.0.1", .port = 0}, std::move(services), 0));
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    stub_ = std::make_unique<grpc::GenericStub>(
        grpc::CreateCustomChannel(server_->address(), grpc::InsecureChannelCredentials(), arguments));
  }

  void TearDown() override {
    if (aggregator_ != nullptr) aggregator_->Stop(absl::CancelledError("the test is over"));
    if (store_ != nullptr) store_->CancelWaiters(absl::CancelledError("the test is over"));
  }

  std::unique_ptr<RawCall> Pull(int blob, int64_t version, uint64_t incarnation = kDataIncarnation) {
    proto::PullRequest request;
    request.set_incarnation(incarnation);
    request.set_blob(blob);
    request.set_version(version);
    return Pull(request);
  }
  std::unique_ptr<RawCall> PullPart(int first_chunk, int num_chunks) {
    proto::PullRequest request;
    request.set_incarnation(kDataIncarnation);
    request.set_first_chunk(first_chunk);
    request.set_num_chunks(num_chunks);
    return Pull(request);
  }
  std::unique_ptr<RawCall> Pull(const proto::PullRequest& request) {
    auto call = std::make_unique<RawCall>(*stub_, "/eps.proto.DataPlane/Pull");
    call->Write(ProtoMessage(request));
    call->WritesDone();
    return call;
  }
  std::unique_ptr<RawCall> Push() { return std::make_unique<RawCall>(*stub_, "/eps.proto.DataPlane/Push"); }

  static proto::Offer OfferOf(uint32_t number, int vnode) {
    proto::Offer offer;
    offer.set_incarnation(kDataIncarnation);
    offer.set_contribution(number);
    offer.set_step(0);
    offer.set_blob(kWte.value());
    offer.set_use(0);
    offer.set_node_first(vnode);
    offer.set_node_count(1);
    offer.set_dtype(2);
    offer.set_nonfinite_vnode(-1);
    offer.set_worker_id(1);
    offer.set_num_chunks(2);
    return offer;
  }
  // Chunk `chunk` of what OfferOf(number, vnode) offers.
  ChunkHeader HeaderOf(uint32_t number, int vnode, int chunk) const {
    return {.kind = ChunkKind::kGradient,
            .dtype = Dtype::kBf16,
            .incarnation = kDataIncarnation,
            .step = 0,
            .blob = kWte,
            .use = 0,
            .node = {vnode, 1},
            .chunk = chunk,
            .payload_bytes = static_cast<uint32_t>(model_.blob(kWte).chunk_elems(chunk) * 2),
            .contribution = number};
  }
  grpc::ByteBuffer ChunkOf(const ChunkHeader& header) {
    payload_.resize(header.payload_bytes);
    return ChunkMessage(header, payload_);
  }

  static std::pair<uint32_t, int> ReadVerdict(RawCall& call) {
    const auto message = call.Read();
    proto::PushReply reply;
    if (!message.has_value() || !ParseProto(*message, reply).ok()) return {0, -1};
    return {reply.contribution(), reply.verdict()};
  }

  // A push stream on which contribution 1 is admitted.
  std::unique_ptr<RawCall> Admitted() {
    auto call = Push();
    EXPECT_TRUE(call->Write(OfferMessage(OfferOf(1, 0))));
    EXPECT_EQ(ReadVerdict(*call), std::make_pair(1u, int{proto::PushReply::ADMITTED}));
    return call;
  }

  // `message` ends the stream, saying `words`, and nothing was taken.
  void ExpectRefused(RawCall& call, const grpc::ByteBuffer& message, StatusCode code, const std::string& words) {
    call.Write(message);
    while (call.Read().has_value()) {
    }
    EXPECT_THAT(call.Finish(), StatusIs(code, words));
    EXPECT_TRUE(aggregator_->MissingVnodes()[0]);
  }
  void ExpectRefused(RawCall& call, const grpc::ByteBuffer& message, const std::string& words) {
    ExpectRefused(call, message, StatusCode::kInvalidArgument, words);
  }

  RunConfig run_;
  ModelSpec model_;
  std::atomic<int64_t> now_micros_ = 1000000;  // the service's clock; atomic, because its threads read it
  std::unique_ptr<Store> store_;
  std::unique_ptr<Aggregator> aggregator_;
  std::unique_ptr<RpcServer> server_;
  std::unique_ptr<grpc::GenericStub> stub_;
  std::vector<std::byte> payload_;
  Mutex mu_;
  std::vector<BlobId> consumed_ ABSL_GUARDED_BY(mu_);
};

TEST_F(DataServiceTest, APullWaitsForItsVersionAndGivesTheWireFormInChunks) {
  auto call = Pull(0, 0);
  store_->Publish(kWte, Version(0));
  std::string bytes;
  for (int chunk = 0; chunk < 2; ++chunk) {
    const auto message = call->Read();
    ASSERT_TRUE(message.has_value());
    ASSERT_OK_AND_ASSIGN(const auto received, ReceivedMessage::Create(*message));
    ASSERT_OK_AND_ASSIGN(const ChunkHeader header, received.ParseChunk());
    EXPECT_EQ(header.kind, ChunkKind::kWeights);
    EXPECT_EQ(header.incarnation, kDataIncarnation);
    EXPECT_EQ(header.blob, kWte);
    EXPECT_EQ(header.step, 0);
    EXPECT_EQ(header.chunk, chunk);
    std::string payload(header.payload_bytes, '\0');
    received.CopyPayload(absl::MakeSpan(reinterpret_cast<std::byte*>(payload.data()), payload.size()));
    bytes += payload;
  }
  EXPECT_FALSE(call->Read().has_value());
  EXPECT_OK(call->Finish());
  const auto wire = store_->Wire(kWte, Version(0));
  ASSERT_EQ(bytes.size(), wire.size());
  EXPECT_EQ(std::memcmp(bytes.data(), wire.data(), wire.size()), 0);
}

TEST_F(DataServiceTest, TheFirstChunkOfAPullSaysHowLongItsVersionWasNotThere) {
  proto::PullRequest request;
  request.set_incarnation(kDataIncarnation);
  RawCall call(*stub_, "/eps.proto.DataPlane/Pull");
  const auto read_wait = [&] {
    return ReceivedMessage::Create(call.Read().value())->ParseChunk()->version_wait_micros;
  };
  ASSERT_TRUE(call.Write(ProtoMessage(request)));
  while (store_->num_waits() == 0) std::this_thread::yield();
  now_micros_ += 2500;
  store_->Publish(kWte, Version(0));
  EXPECT_EQ(read_wait(), 2500);
  now_micros_ += 400;  // the link is slow
  EXPECT_EQ(read_wait(), 0);
  // What is there is not waited for, whatever was before.
  ASSERT_TRUE(call.Write(ProtoMessage(request)));
  EXPECT_EQ(read_wait(), 0);
  EXPECT_EQ(read_wait(), 0);
}

TEST_F(DataServiceTest, AStreamServesPullAfterPullUntilOneIsRefused) {
  proto::PullRequest request;
  request.set_incarnation(kDataIncarnation);
  store_->Publish(kWte, Version(0));
  RawCall call(*stub_, "/eps.proto.DataPlane/Pull");
  for (int pull = 0; pull < 3; ++pull) {
    // Two at once: the second is served when the first is out.
    ASSERT_TRUE(call.Write(ProtoMessage(request)));
    ASSERT_TRUE(call.Write(ProtoMessage(request)));
    for (const int chunk : {0, 1, 0, 1}) {
      const auto message = call.Read();
      ASSERT_TRUE(message.has_value());
      EXPECT_EQ(ReceivedMessage::Create(*message)->ParseChunk()->chunk, chunk);
    }
  }
  request.set_blob(99);
  ASSERT_TRUE(call.Write(ProtoMessage(request)));
  EXPECT_FALSE(call.Read().has_value());
  EXPECT_THAT(call.Finish(), StatusIs(StatusCode::kNotFound, "blob: 99"));
}

TEST_F(DataServiceTest, APullOfWhatIsNotThereIsRefused) {
  EXPECT_THAT(Pull(99, 0)->Finish(), StatusIs(StatusCode::kNotFound, "blob: 99"));
  EXPECT_THAT(Pull(-1, 0)->Finish(), StatusIs(StatusCode::kNotFound, "blob: -1"));
  EXPECT_THAT(Pull(0, -1)->Finish(), StatusIs(StatusCode::kInvalidArgument, "version: -1"));
  EXPECT_THAT(Pull(0, 11)->Finish(), StatusIs(StatusCode::kInvalidArgument, "version: 11"));
  EXPECT_THAT(Pull(0, 0, kDataIncarnation + 1)->Finish(), StatusIs(StatusCode::kFailedPrecondition, "incarnation"));
  RawCall nonsense(*stub_, "/eps.proto.DataPlane/Pull");
  nonsense.Write(Bytes("\xff\xff\xff\xff"));
  nonsense.WritesDone();
  EXPECT_THAT(nonsense.Finish(), StatusIs(StatusCode::kInvalidArgument, "PullRequest"));
}

TEST_F(DataServiceTest, APartIsPulledAndOneThatIsNotThereIsRefused) {
  store_->Publish(kWte, Version(0));
  for (const int num_chunks : {0, 1}) {  // all from the second on, and one: the same
    auto call = PullPart(1, num_chunks);
    const auto message = call->Read();
    ASSERT_TRUE(message.has_value());
    EXPECT_EQ(ReceivedMessage::Create(*message)->ParseChunk()->chunk, 1);
    EXPECT_FALSE(call->Read().has_value());
    EXPECT_OK(call->Finish());
  }
  EXPECT_THAT(PullPart(-1, 1)->Finish(), StatusIs(StatusCode::kInvalidArgument, "first_chunk: -1"));
  EXPECT_THAT(PullPart(2, 1)->Finish(), StatusIs(StatusCode::kInvalidArgument, "first_chunk: 2"));
  EXPECT_THAT(PullPart(1, 2)->Finish(), StatusIs(StatusCode::kInvalidArgument, "num_chunks: 2"));
  EXPECT_THAT(PullPart(0, -1)->Finish(), StatusIs(StatusCode::kInvalidArgument, "num_chunks: -1"));
  constexpr int kMost = std::numeric_limits<int32_t>::max(), kLeast = std::numeric_limits<int32_t>::min();
  EXPECT_THAT(PullPart(kMost, kMost)->Finish(), StatusIs(StatusCode::kInvalidArgument, "first_chunk: 2147483647"));
  EXPECT_THAT(PullPart(kMost, 0)->Finish(), StatusIs(StatusCode::kInvalidArgument, "first_chunk: 2147483647"));
  EXPECT_THAT(PullPart(kLeast, 0)->Finish(), StatusIs(StatusCode::kInvalidArgument, "first_chunk: -2147483648"));
  EXPECT_THAT(PullPart(1, kMost)->Finish(), StatusIs(StatusCode::kInvalidArgument, "num_chunks: 2147483647"));
}

TEST_F(DataServiceTest, AnOverwrittenVersionIsAborted) {
  for (int64_t version = 0; version < 3; ++version) {
    if (version > 0) store_->CarryOver(kWte, Version(version - 1));
    store_->Publish(kWte, Version(version));
  }
  EXPECT_THAT(Pull(0, 0)->Finish(), StatusIs(StatusCode::kAborted));
}

TEST_F(DataServiceTest, AVersionBeforeTheFirstIsAborted) {
  store_->CarryOver(kWte, Version(0));
  store_->Publish(kWte, Version(1));  // as after a resume: version 0 was never published here
  EXPECT_THAT(Pull(0, 0)->Finish(), StatusIs(StatusCode::kAborted, "the first is 1"));
}

TEST_F(DataServiceTest, ACancelledPullLetsGoBeforeItsVersionIsPublished) {
  auto call = Pull(0, 0);
  call->Cancel();
  EXPECT_THAT(call->Finish(), StatusIs(StatusCode::kCancelled));
  store_->Publish(kWte, Version(0));  // finds nobody
}

TEST_F(DataServiceTest, PullsThatAreGivenUpWhileTheirVersionIsAwaitedAreForgotten) {
  const auto waits_become = [&](int64_t want) {
    const absl::Time deadline = absl::Now() + absl::Seconds(5);
    while (store_->num_waits() != want && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(1));
    EXPECT_EQ(store_->num_waits(), want);
  };
  const auto kept = Pull(0, 0);
  waits_become(1);
  for (int i = 0; i < 20; ++i) {
    auto given_up = Pull(0, 0);
    if (i % 2 == 0) waits_become(2);  // the others end before they wait, or while they begin to
    given_up->Cancel();
    EXPECT_THAT(given_up->Finish(), StatusIs(StatusCode::kCancelled));
  }
  waits_become(1);
  store_->Publish(kWte, Version(0));
  waits_become(0);
}

TEST_F(DataServiceTest, AContributionIsOfferedAdmittedSentAndComplete) {
  auto call = Admitted();
  ASSERT_TRUE(call->Write(ChunkOf(HeaderOf(1, 0, 0))));
  ASSERT_TRUE(call->Write(ChunkOf(HeaderOf(1, 0, 1))));
  EXPECT_EQ(ReadVerdict(*call), std::make_pair(1u, int{proto::PushReply::COMPLETE}));
  // The same again, by any worker, is not wanted.
  ASSERT_TRUE(call->Write(OfferMessage(OfferOf(2, 0))));
  EXPECT_EQ(ReadVerdict(*call), std::make_pair(2u, int{proto::PushReply::NOT_WANTED}));
  call->WritesDone();
  EXPECT_OK(call->Finish());
}

TEST_F(DataServiceTest, ASparseChunkIsTakenAndOneThatIsPackedWrongIsRefused) {
  // Two lines of the chunk, the first and the eighth.
  const int64_t bits_bytes = LineBitsBytes(HeaderOf(1, 0, 0).payload_bytes);
  payload_.assign(bits_bytes + 2 * kLineBytes, std::byte{0});
  payload_[0] = std::byte{0x81};
  ChunkHeader sparse = HeaderOf(1, 0, 0);
  sparse.kind = ChunkKind::kSparseGradient;
  sparse.payload_bytes = static_cast<uint32_t>(payload_.size());
  const auto sent = [&](int64_t num_bytes) {
    sparse.payload_bytes = static_cast<uint32_t>(num_bytes);
    return ChunkOf(sparse);  // whose payload begins with what is there
  };
  const int64_t right = static_cast<int64_t>(payload_.size());
  ExpectRefused(*Admitted(), sent(right + 1), "sparse chunk: ");
  ExpectRefused(*Admitted(), sent(bits_bytes - 1), "sparse chunk: ");
  // Longer than the second chunk, which is shorter than others.
  proto::Offer second = OfferOf(1, 0);
  second.set_first_chunk(1);
  second.set_num_chunks(1);
  auto of_second = Push();
  ASSERT_TRUE(of_second->Write(OfferMessage(second)));
  EXPECT_EQ(ReadVerdict(*of_second), std::make_pair(1u, int{proto::PushReply::ADMITTED}));
  const int64_t second_bytes = HeaderOf(1, 0, 1).payload_bytes;
  sparse.chunk = 1;
  ExpectRefused(
      *of_second, sent(second_bytes + 1),
      "chunk: payload_bytes: " + std::to_string(second_bytes + 1) + ", want at most " + std::to_string(second_bytes));
  sparse.chunk = 0;

  auto call = Admitted();
  ASSERT_TRUE(call->Write(sent(right)));
  ASSERT_TRUE(call->Write(ChunkOf(HeaderOf(1, 0, 1))));
  EXPECT_EQ(ReadVerdict(*call), std::make_pair(1u, int{proto::PushReply::COMPLETE}));
}

TEST_F(DataServiceTest, APartIsOfferedSentAndCompleteAndOnlyTheRestIsWantedFromOthers) {
  proto::Offer part = OfferOf(1, 0);
  part.set_first_chunk(1);
  part.set_num_chunks(1);
  auto call = Push();
  ASSERT_TRUE(call->Write(OfferMessage(part)));
  EXPECT_EQ(ReadVerdict(*call), std::make_pair(1u, int{proto::PushReply::ADMITTED}));
  ASSERT_TRUE(call->Write(ChunkOf(HeaderOf(1, 0, 1))));
  EXPECT_EQ(ReadVerdict(*call), std::make_pair(1u, int{proto::PushReply::COMPLETE}));
  EXPECT_TRUE(aggregator_->MissingVnodes()[0]);
  part.set_contribution(2);
  ASSERT_TRUE(call->Write(OfferMessage(part)));
  EXPECT_EQ(ReadVerdict(*call), std::make_pair(2u, int{proto::PushReply::NOT_WANTED}));
  // The whole blob, of which one chunk is missing: complete with that one.
  ASSERT_TRUE(call->Write(OfferMessage(OfferOf(3, 0))));
  EXPECT_EQ(ReadVerdict(*call), std::make_pair(3u, int{proto::PushReply::ADMITTED}));
  ASSERT_TRUE(call->Write(ChunkOf(HeaderOf(3, 0, 0))));
  EXPECT_EQ(ReadVerdict(*call), std::make_pair(3u, int{proto::PushReply::COMPLETE}));
  call->WritesDone();
  EXPECT_OK(call->Finish());
}

TEST_F(DataServiceTest, AChunkThatIsNotOfThePartIsRefused) {
  for (const int part_of : {0, 1}) {
    proto::Offer part = OfferOf(1, 0);
    part.set_first_chunk(part_of);
    part.set_num_chunks(1);
    auto call = Push();
    ASSERT_TRUE(call->Write(OfferMessage(part)));
    EXPECT_EQ(ReadVerdict(*call), std::make_pair(1u, int{proto::PushReply::ADMITTED}));
    const int other = 1 - part_of;
    ExpectRefused(*call, ChunkOf(HeaderOf(1, 0, other)),
                  "chunk: " + std::to_string(other) + ", want " + std::to_string(part_of) + " (offered: chunk " +
                      std::to_string(part_of) + ")");
  }
}

TEST_F(DataServiceTest, ARepeatedChunkIsCountedOnce) {
  auto call = Admitted();
  for (const int chunk : {0, 0, 1, 0, 1}) ASSERT_TRUE(call->Write(ChunkOf(HeaderOf(1, 0, chunk))));
  EXPECT_EQ(ReadVerdict(*call), std::make_pair(1u, int{proto::PushReply::COMPLETE}));
  call->WritesDone();
  EXPECT_FALSE(call->Read().has_value());
  EXPECT_OK(call->Finish());
}

TEST_F(DataServiceTest, ABrokenStreamGivesItsReservationBackAndItsChunksStay) {
  {
    auto call = Admitted();
    ASSERT_TRUE(call->Write(ChunkOf(HeaderOf(1, 0, 0))));
    call->WritesDone();
    EXPECT_OK(call->Finish());
  }
  // Another worker sends all of it; the chunk that is there is dropped.
  auto call = Admitted();
  for (const int chunk : {0, 1}) ASSERT_TRUE(call->Write(ChunkOf(HeaderOf(1, 0, chunk))));
  EXPECT_EQ(ReadVerdict(*call), std::make_pair(1u, int{proto::PushReply::COMPLETE}));
}

TEST_F(DataServiceTest, MalformedMessagesAreRefused) {
  ExpectRefused(*Push(), Bytes(""), "magic");
  ExpectRefused(*Push(), Bytes("EPS"), "magic");
  ExpectRefused(*Push(), Bytes("GET / HTTP/1.1"), "");
  ExpectRefused(*Push(), Bytes("EPSC and too short"), "");
  ExpectRefused(*Push(), Bytes("EPSO\xff\xff\xff\xff"), "offer");
  grpc::ByteBuffer chunk = ChunkOf(HeaderOf(1, 0, 0));
  std::vector<grpc::Slice> slices;
  ASSERT_TRUE(chunk.Dump(&slices).ok());
  std::string header(reinterpret_cast<const char*>(slices[0].begin()), slices[0].size());
  header[60] = 1;  // reserved
  ExpectRefused(*Push(), Bytes(header), "");
}

TEST_F(DataServiceTest, AnImpossibleOfferIsRefusedByField) {
  const auto refused = [&](const std::function<void(proto::Offer&)>& change, const std::string& field) {
    proto::Offer offer = OfferOf(1, 0);
    change(offer);
    ExpectRefused(*Push(), OfferMessage(offer), field);
  };
  refused([](proto::Offer& o) { o.set_dtype(9); }, "dtype");
  refused([](proto::Offer& o) { o.set_blob(1000); }, "blob");
  refused([](proto::Offer& o) { o.set_blob(-1); }, "blob");
  constexpr int kMost = std::numeric_limits<int32_t>::max();
  refused([](proto::Offer& o) { o.set_first_chunk(-1); }, "first_chunk: -1");
  refused([](proto::Offer& o) { o.set_first_chunk(2); }, "first_chunk: 2, the blob has 2");
  refused([](proto::Offer& o) { o.set_first_chunk(kMost); }, "first_chunk: 2147483647");
  refused([](proto::Offer& o) { o.clear_num_chunks(); }, "num_chunks: 0");
  refused([](proto::Offer& o) { o.set_num_chunks(-1); }, "num_chunks: -1");
  refused([](proto::Offer& o) { o.set_num_chunks(3); }, "num_chunks: 3, from first_chunk on are 1 to 2");
  refused([](proto::Offer& o) { o.set_first_chunk(1); }, "num_chunks: 2, from first_chunk on are 1 to 1");
  refused([](proto::Offer& o) { o.set_num_chunks(kMost); }, "num_chunks: 2147483647");
  refused([](proto::Offer& o) { o.set_use(2); }, "use");
  refused([](proto::Offer& o) { o.set_node_first(5); }, "node");
  refused([](proto::Offer& o) { o.set_node_count(0); }, "node");
  refused([](proto::Offer& o) { o.set_node_count(2), o.set_dtype(2); }, "dtype");
  refused([](proto::Offer& o) { o.set_step(3); }, "step");
  refused([](proto::Offer& o) { o.set_nonfinite_vnode(1); }, "nonfinite_vnode");
  refused([](proto::Offer& o) { o.set_nonfinite_vnode(2147483647); }, "nonfinite_vnode");
  proto::Offer foreign = OfferOf(1, 0);
  foreign.set_incarnation(1);
  ExpectRefused(*Push(), OfferMessage(foreign), StatusCode::kFailedPrecondition, "incarnation");
  ExpectRefused(*Admitted(), OfferMessage(OfferOf(1, 1)), "contribution: 1");
}

TEST_F(DataServiceTest, AChunkThatIsNotWhatWasOfferedIsRefusedByField) {
  const auto refused = [&](const std::function<void(ChunkHeader&)>& change, const std::string& field) {
    ChunkHeader header = HeaderOf(1, 0, 0);
    change(header);
    ExpectRefused(*Admitted(), ChunkOf(header), field);
  };
  refused([](ChunkHeader& h) { h.contribution = 2; }, "contribution: 2");
  refused([](ChunkHeader& h) { h.incarnation = 1; }, "incarnation");
  refused([](ChunkHeader& h) { h.step = 1; }, "step");
  refused([](ChunkHeader& h) { h.blob = BlobId(1); }, "blob");
  refused([](ChunkHeader& h) { h.blob = BlobId(1000); }, "blob");
  refused([](ChunkHeader& h) { h.use = 1; }, "use");
  refused([](ChunkHeader& h) { h.node = {1, 1}; }, "node.first");
  refused([](ChunkHeader& h) { h.dtype = Dtype::kF32; }, "dtype");
  refused([](ChunkHeader& h) { h.nonfinite_vnode = 0; }, "nonfinite_vnode");
  refused([](ChunkHeader& h) { h.chunk = 1; }, "chunk: 1");  // out of order
  refused([](ChunkHeader& h) { h.chunk = 1000000; }, "chunk");
  refused([](ChunkHeader& h) { h.payload_bytes -= 2; }, "payload_bytes");
  refused([](ChunkHeader& h) { h.version_wait_micros = 1; }, "version_wait_micros");
  refused([](ChunkHeader& h) { h.kind = ChunkKind::kWeights; }, "");
  refused([](ChunkHeader& h) { h.kind = ChunkKind::kSparseGradient; }, "sparse chunk: 524288 bytes, want 1024");
}

TEST_F(DataServiceTest, AChunkThatWasNotAdmittedIsRefused) {
  ExpectRefused(*Push(), ChunkOf(HeaderOf(1, 0, 0)), "contribution: 1");
}

TEST_F(DataServiceTest, AnOversizedMessageEndsTheStream) {
  ExpectRefused(*Admitted(), Bytes("EPSC" + std::string(2 << 20, 'x')), StatusCode::kResourceExhausted, "");
}

TEST_F(DataServiceTest, ADaemonThatServesTakesNoGradients) {
  std::vector<std::unique_ptr<grpc::Service>> services;
  services.push_back(NewDataService({.incarnation = kDataIncarnation, .model = &model_, .store = store_.get()}));
  ASSERT_OK_AND_ASSIGN(const auto server, RpcServer::Start({.host = "127.0.0.1", .port = 0}, std::move(services), 0));
  grpc::GenericStub stub(grpc::CreateChannel(server->address(), grpc::InsecureChannelCredentials()));
  RawCall call(stub, "/eps.proto.DataPlane/Push");
  EXPECT_THAT(call.Finish(), StatusIs(StatusCode::kFailedPrecondition, "serves"));
}

// A push stream on which offers of vnode 0 are answered with NOT_WANTED, because it is complete.
class SlowPushTest : public DataServiceTest {
 protected:
  std::unique_ptr<RawCall> Completed() {
    auto call = Admitted();
    for (int chunk = 0; chunk < 2; ++chunk) EXPECT_TRUE(call->Write(ChunkOf(HeaderOf(1, 0, chunk))));
    EXPECT_EQ(ReadVerdict(*call), std::make_pair(1u, int{proto::PushReply::COMPLETE}));
    return call;
  }
};

TEST_F(SlowPushTest, AWorkerThatReadsNoRepliesIsNotReadFromEither) {
  constexpr int kMany = 2'000'000;
  const auto call = Completed();
  std::atomic<int> written = 0;
  std::thread writer([&] {
    while (written < kMany && call->Write(OfferMessage(OfferOf(2 + written, 0)))) ++written;
  });
  // Until it stands still, which is not before much was written.
  int before = 0;
  while (written < 1024 || written != before) {
    before = written;
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
  }
  EXPECT_LT(written, kMany);
  call->Cancel();
  writer.join();
}

TEST_F(SlowPushTest, AWorkerThatReadsItsRepliesLateGetsThemAll) {
  constexpr uint32_t kOffers = 20000;  // more than a stream's window and kMaxReplies hold
  const auto call = Completed();
  for (uint32_t i = 0; i < kOffers; ++i) ASSERT_TRUE(call->Write(OfferMessage(OfferOf(2 + i, 0))));
  for (uint32_t i = 0; i < kOffers; ++i) {
    ASSERT_EQ(ReadVerdict(*call), std::make_pair(2 + i, int{proto::PushReply::NOT_WANTED}));
  }
  call->WritesDone();
  EXPECT_OK(call->Finish());
}

}  // namespace
}  // namespace eps::server
