// Several copiers and several workers at once: what is copied or lent is what was offered, and what was answered is read no
// more.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/file_util.h"
#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/formats/shared_message.h"
#include "common/ipc/shared_segment.h"
#include "common/ipc/unix_socket.h"
#include "common/model/model_spec.h"
#include "common/schedule/chunk_range.h"
#include "common/schedule/reduction_tree.h"
#include "common/spec/run_config.h"
#include "common/tensor/dtype.h"
#include "common/testing/status_matchers.h"
#include "eps_server/aggregation/aggregator.h"
#include "eps_server/aggregation/chunk_pool.h"
#include "eps_server/optimizer/chunk_gradient.h"
#include "eps_server/service/shared_memory_server.h"
#include "eps_server/service/traffic.h"
#include "eps_server/store/store.h"
#include "gtest/gtest.h"

namespace eps::server {
namespace {

constexpr uint64_t kCopiersIncarnation = 4711;
constexpr BlobId kTable(0);  // nine chunks, the last one short; of embedding and head
constexpr int kCopiers = 4;

constexpr absl::Duration kSoon = absl::Seconds(30);

// Of an element of a contribution to the table.
uint32_t ValueAt(int use, TreeNode node, int64_t elem) {
  return static_cast<uint32_t>(elem * 2654435761 + use * 40503 + node.first * 7919 + node.count * 104729);
}

// A worker, in fp32. Offers what it is told to, and overwrites what was answered at once, as the next gradient would.
class Peer {
 public:
  Peer(const ModelSpec& model, const std::string& path, int64_t inbox_bytes) : blob_(model.blob(kTable)) {
    socket_ = ConnectLocal(path).value();
    Say({.kind = SharedMessageKind::kHello, .step = 1, .offset_bytes = inbox_bytes});
    auto welcome = ReceivePacket(socket_, 4096, kSoon).value();
    inbox_.emplace(SharedSegment::Map(std::move(welcome.files.at(1)), inbox_bytes, SegmentWriter::kReceiver).value());
  }

  void Offer(int use, TreeNode node, ChunkRange chunks) {
    const absl::Span<std::byte> memory =
        inbox_->bytes().subspan(static_cast<size_t>(next_offset_), static_cast<size_t>(NumBytes(chunks)));
    Write({use, node}, chunks, memory);
    SayOffer({use, node}, chunks, next_offset_, memory);
    next_offset_ += (NumBytes(chunks) + kInboxAlignBytes - 1) / kInboxAlignBytes * kInboxAlignBytes;
  }
  // Through the slots; one at a time.
  void OfferStaged(int use, TreeNode node, ChunkRange chunks) { SayOffer({use, node}, chunks, -1, {}); }

  // Until all is answered.
  void Run() {
    while (!pending_.empty() || slots_in_use_ > 0) {
      const auto packet = ReceivePacket(socket_, 4096, kSoon);
      ASSERT_THAT(packet, IsOk()) << pending_.size() << " are not answered";
      const auto message = DecodeSharedMessage(packet->bytes);
      ASSERT_THAT(message, IsOk());
      ASSERT_NO_FATAL_FAILURE(Handle(*message));
    }
  }

 private:
  struct Of {
    int use = 0;
    TreeNode node;
  };
  struct Pending {
    Of of;
    ChunkRange chunks;
    absl::Span<std::byte> memory;
    int64_t next_chunk = 0;  // to stage
  };

  int64_t NumBytes(ChunkRange chunks) const { return blob_.part_elems(chunks) * int64_t{sizeof(float)}; }
  void Write(Of of, ChunkRange chunks, absl::Span<std::byte> to) const {
    const int64_t first = blob_.part_first_elem(chunks);
    for (int64_t i = 0; i < blob_.part_elems(chunks); ++i) {
      const uint32_t value = ValueAt(of.use, of.node, first + i);
      std::memcpy(to.data() + i * int64_t{sizeof(value)}, &value, sizeof(value));
    }
  }

  void Say(SharedMessage message) {
    message.incarnation = kCopiersIncarnation;
    EXPECT_OK(SendPacket(socket_, EncodeSharedMessage(message), {}, kSoon));
  }
  void SayOffer(Of of, ChunkRange chunks, int64_t offset_bytes, absl::Span<std::byte> memory) {
    const uint32_t number = ++last_number_;
    pending_[number] = {.of = of, .chunks = chunks, .memory = memory, .next_chunk = chunks.first};
    Say({.kind = SharedMessageKind::kOffer,
         .blob = kTable,
         .use = of.use,
         .node = of.node,
         .dtype = Dtype::kF32,
         .number = number,
         .chunk = static_cast<int32_t>(chunks.first),
         .num_chunks = static_cast<int32_t>(chunks.count),
         .offset_bytes = offset_bytes});
  }

  void Handle(const SharedMessage& message) {
    switch (message.kind) {
      case SharedMessageKind::kComplete:
      case SharedMessageKind::kNotWanted: {
        const auto answered = pending_.find(message.number);
        ASSERT_NE(answered, pending_.end()) << message.number << " is answered twice";
        for (std::byte& byte : answered->second.memory) byte = std::byte{0xFF};
        pending_.erase(answered);
        return;
      }
      case SharedMessageKind::kAdmitted:
        admitted_ = message.number;
        return Stage();
      case SharedMessageKind::kTaken: {
        bool& in_use = slot_in_use_.at(static_cast<size_t>(message.offset_bytes / kStagingSlotBytes));
        ASSERT_TRUE(in_use);
        in_use = false;
        --slots_in_use_;
        const auto slot = inbox_->bytes().subspan(static_cast<size_t>(message.offset_bytes), kStagingSlotBytes);
        for (std::byte& byte : slot) byte = std::byte{0xFF};
        return Stage();
      }
      default:
        FAIL() << "kind " << static_cast<int>(message.kind) << ": " << message.refusal;
    }
  }

  void Stage() {
    const auto found = pending_.find(admitted_);
    if (found == pending_.end()) return;
    Pending& pending = found->second;
    for (size_t slot = 0; slot < slot_in_use_.size() && pending.next_chunk < pending.chunks.end(); ++slot) {
      if (slot_in_use_[slot]) continue;
      const int64_t offset_bytes = static_cast<int64_t>(slot) * kStagingSlotBytes;
      const ChunkRange chunk = {.first = pending.next_chunk, .count = 1};
      Write(pending.of, chunk,
            inbox_->bytes().subspan(static_cast<size_t>(offset_bytes), static_cast<size_t>(NumBytes(chunk))));
      slot_in_use_[slot] = true;
      ++slots_in_use_;
      Say({.kind = SharedMessageKind::kChunk,
           .number = admitted_,
           .chunk = static_cast<int32_t>(pending.next_chunk++),
           .offset_bytes = offset_bytes});
    }
  }

  const BlobSpec& blob_;
  FileDescriptor socket_;
  std::optional<SharedSegment> inbox_;
  int64_t next_offset_ = kStagingBytes;
  uint32_t last_number_ = 0;
  std::map<uint32_t, Pending> pending_;  // by number
  uint32_t admitted_ = 0;
  std::array<bool, kStagingSlots> slot_in_use_ = {};
  int slots_in_use_ = 0;
};

class SharedMemoryCopiersTest : public testing::Test {
 protected:
  struct Kept {
    int64_t chunk;
    ChunkGradient gradient;
  };

  SharedMemoryCopiersTest()
      // The table alone trains: nothing waits for other gradients.
      : model_(BuildModel({.num_layers = 1,
                           .d_model = 64,
                           .num_heads = 2,
                           .context = 16,
                           .vocab = 32769,
                           .freeze = {"transformer.h.*", "transformer.ln_f.*", "transformer.wpe.*"}})
                   .value()) {
    run_.model = model_.config;
    run_.batch.virtual_nodes = 2;
    run_.precision = {.wire = Dtype::kBf16, .gradients = Dtype::kF32};
    store_ = Store::Create(model_, run_).value();
  }
  ~SharedMemoryCopiersTest() override { store_->CancelWaiters(absl::UnavailableError("over")); }

  void Start(int64_t window_bytes = 0) {
    server_.reset();
    {
      MutexLock lock(mu_);
      consumed_.assign(static_cast<size_t>(model_.blob(kTable).num_chunks()), 0);
    }
    aggregator_ = Aggregator::Create({.model = &model_,
                                      .virtual_nodes = 2,
                                      .gradients = Dtype::kF32,
                                      .window_bytes = window_bytes,
                                      .consume =
                                          [this](StepId, BlobId blob, int64_t chunk, ChunkGradient gradient) {
                                            Consume(blob, chunk, gradient);
                                            MutexLock lock(mu_);
                                            if (keeps_) kept_.push_back({chunk, std::move(gradient)});
                                          },
                                      .on_step_in = [](StepId) {}})
                      .value();
    aggregator_->BeginStep(StepId(0));
    server_ = SharedMemoryServer::Start({.incarnation = kCopiersIncarnation,
                                         .model = &model_,
                                         .store = store_.get(),
                                         .aggregator = aggregator_.get(),
                                         .last_version = Version(10),
                                         .max_inbox_bytes = MaxInboxBytes(model_, run_),
                                         .copiers = kCopiers,
                                         .traffic = &traffic_})
                  .value();
  }
  std::unique_ptr<Peer> NewPeer() { return NewPeer(MaxInboxBytes(model_, run_)); }
  std::unique_ptr<Peer> NewPeer(int64_t inbox_bytes) {
    return std::make_unique<Peer>(model_, server_->path(), inbox_bytes);
  }

  // What lies in the inbox and is kept once all is consumed: the embedding's part, of both vnodes.
  void OfferAndKeep(Peer& peer) {
    {
      MutexLock lock(mu_);
      keeps_ = true;
    }
    peer.OfferStaged(1, {0, 2}, model_.blob(kTable).all_chunks());
    peer.Run();
    peer.Offer(0, {0, 2}, model_.blob(kTable).all_chunks());
    const absl::Time deadline = absl::Now() + kSoon;
    while (num_kept() < model_.blob(kTable).num_chunks() && absl::Now() < deadline)
      absl::SleepFor(absl::Milliseconds(1));
  }
  int64_t num_kept() {
    MutexLock lock(mu_);
    return static_cast<int64_t>(kept_.size());
  }
  // Looks once more at what is kept, and lets go of it.
  void GiveBack() {
    std::vector<Kept> kept;
    {
      MutexLock lock(mu_);
      kept.swap(kept_);
      keeps_ = false;
    }
    for (const Kept& one : kept) EXPECT_EQ(NumWrong(kTable, one.chunk, one.gradient), 0) << one.chunk;
  }
  // Of a contribution to the table, as whole pages.
  int64_t TableBytes() const {
    int64_t sum = 0;
    for (int64_t c = 0; c < model_.blob(kTable).num_chunks(); ++c) {
      sum += ChunkPool::CostBytes(model_.blob(kTable).chunk_elems(c) * int64_t{sizeof(float)});
    }
    return sum;
  }

  int64_t NumWrong(BlobId blob, int64_t chunk, const ChunkGradient& gradient) const {
    int64_t wrong = 0;
    for (const GradientOperand& operand : gradient.operands) {
      for (int64_t i = 0; i < model_.blob(blob).chunk_elems(chunk); ++i) {
        uint32_t value = 0;
        std::memcpy(&value, operand.values + i * int64_t{sizeof(value)}, sizeof(value));
        wrong += value == ValueAt(operand.use, operand.node, chunk * kChunkElems + i) ? 0 : 1;
      }
    }
    return wrong;
  }
  void Consume(BlobId blob, int64_t chunk, const ChunkGradient& gradient) {
    const int64_t wrong = NumWrong(blob, chunk, gradient);
    MutexLock lock(mu_);
    ++consumed_[static_cast<size_t>(chunk)];
    wrong_ += wrong;
  }
  void ExpectAllConsumedOnce() {
    // A connection whose peer is gone ends by itself, a little later.
    const absl::Time deadline = absl::Now() + kSoon;
    while (aggregator_->window_used_bytes() > 0 && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(1));
    EXPECT_EQ(aggregator_->window_used_bytes(), 0);
    MutexLock lock(mu_);
    EXPECT_EQ(consumed_, std::vector<int>(consumed_.size(), 1));
    EXPECT_EQ(wrong_, 0);
  }

  const ModelSpec model_;
  RunConfig run_;
  TransportTraffic traffic_;
  std::unique_ptr<Store> store_;
  Mutex mu_;
  std::vector<int> consumed_ ABSL_GUARDED_BY(mu_);  // times, by chunk
  int64_t wrong_ ABSL_GUARDED_BY(mu_) = 0;          // elements
  std::unique_ptr<Aggregator> aggregator_;
  std::unique_ptr<SharedMemoryServer> server_;
  bool keeps_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<Kept> kept_ ABSL_GUARDED_BY(mu_);  // destroyed before the aggregator, as the optimizer's are
};

// Whole ones and parts; some twice, and some by way of the slots.
void OfferTheTable(Peer& peer, ChunkRange all) {
  peer.OfferStaged(1, {1, 1}, all);
  peer.Offer(0, {0, 1}, all);
  peer.Offer(0, {1, 1}, {0, 4});
  peer.Offer(0, {1, 1}, {2, 5});
  peer.Offer(0, {1, 1}, {4, 5});
  peer.Offer(1, {0, 1}, {5, 4});
  peer.Offer(1, {0, 1}, {0, 6});
}

TEST_F(SharedMemoryCopiersTest, WhatOneWorkerOffersIsTakenOnceAndAsItWas) {
  Start();
  const std::unique_ptr<Peer> peer = NewPeer();
  OfferTheTable(*peer, model_.blob(kTable).all_chunks());
  peer->Run();
  ExpectAllConsumedOnce();
}

TEST_F(SharedMemoryCopiersTest, WorkersThatOfferTheSameAndOneThatIsLostMeanwhileAddUp) {
  const ChunkRange all = model_.blob(kTable).all_chunks();
  for (int round = 0; round < 3; ++round) {
    // The second time as little room as there may be.
    Start(round % 2 == 0 ? 0 : 2 * kChunkElems * int64_t{sizeof(float)});
    std::vector<std::thread> workers;
    for (int i = 0; i < 2; ++i) {
      workers.emplace_back([&] {
        const std::unique_ptr<Peer> peer = NewPeer();
        OfferTheTable(*peer, all);
        peer->Run();
      });
    }
    workers.emplace_back([&] {
      const std::unique_ptr<Peer> peer = NewPeer();
      OfferTheTable(*peer, all);
      absl::SleepFor(absl::Milliseconds(round));
    });
    for (std::thread& worker : workers) worker.join();
    ExpectAllConsumedOnce();
  }
}

TEST_F(SharedMemoryCopiersTest, TheEndOfTheDaemonWaitsForWhatIsBeingCopied) {
  const ChunkRange all = model_.blob(kTable).all_chunks();
  for (int round = 0; round < 3; ++round) {
    Start();
    const std::unique_ptr<Peer> peer = NewPeer();
    OfferTheTable(*peer, all);
    absl::SleepFor(absl::Milliseconds(round));
    server_.reset();
    aggregator_.reset();  // nothing of it is under way any more
    MutexLock lock(mu_);
    EXPECT_EQ(wrong_, 0);
  }
}

TEST_F(SharedMemoryCopiersTest, WhatCompletesChunksIsLentAndAnsweredOnceItIsGivenBack) {
  Start();
  const std::unique_ptr<Peer> peer = NewPeer();
  OfferAndKeep(*peer);
  EXPECT_EQ(aggregator_->window_used_bytes(), TableBytes());  // of the head's part
  std::atomic<bool> answered = false;
  std::thread waits([&] {
    peer->Run();
    answered = true;
  });
  absl::SleepFor(absl::Milliseconds(20));
  EXPECT_FALSE(answered);  // a fault may be missed so, never invented
  GiveBack();
  waits.join();
  ExpectAllConsumedOnce();
  EXPECT_EQ(traffic_.pushed_bytes, 2 * model_.blob(kTable).num_elems * int64_t{sizeof(float)});
}

TEST_F(SharedMemoryCopiersTest, NoMoreThanHalfOfAnInboxIsLent) {
  Start();
  const std::unique_ptr<Peer> peer = NewPeer(kStagingBytes + model_.blob(kTable).num_elems * int64_t{sizeof(float)});
  OfferAndKeep(*peer);
  EXPECT_GE(aggregator_->window_used_bytes(), TableBytes() + TableBytes() / 2);
  EXPECT_LT(aggregator_->window_used_bytes(), 2 * TableBytes());
  GiveBack();
  peer->Run();
  ExpectAllConsumedOnce();
}

TEST_F(SharedMemoryCopiersTest, WhatIsLentOutlivesItsWorkerAndTheServer) {
  for (const bool server_first : {false, true}) {
    Start();
    std::unique_ptr<Peer> peer = NewPeer();
    OfferAndKeep(*peer);
    if (server_first) server_.reset();
    peer.reset();
    absl::SleepFor(absl::Milliseconds(20));  // in which its connection ends
    server_.reset();
    GiveBack();
    ExpectAllConsumedOnce();
  }
}

TEST_F(SharedMemoryCopiersTest, WhatIsCopiedIsCounted) {
  Start();
  const std::unique_ptr<Peer> peer = NewPeer();
  peer->Offer(0, {0, 1}, {1, 8});
  peer->Run();
  EXPECT_EQ(traffic_.pushed_bytes, model_.blob(kTable).part_elems({1, 8}) * int64_t{sizeof(float)});
}

}  // namespace
}  // namespace eps::server
