#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/ids.h"
#include "common/model/model_spec.h"
#include "common/schedule/chunk_range.h"
#include "common/tensor/dtype.h"
#include "common/testing/status_matchers.h"
#include "eps_server/service/shared_memory_server.h"
#include "gpu_worker/transport/shared_memory_transport.h"
#include "gpu_worker/transport/transport_conformance.h"
#include "tests/transport/data_plane_daemon.h"
#include "tests/transport/small_window_conformance.h"

namespace eps {
namespace {

// Behind a real Unix socket, with real segments.
class SharedMemoryDaemon final : public DataPlaneDaemon {
 public:
  SharedMemoryDaemon(worker::TransportTestOptions options, int64_t window_bytes)
      : DataPlaneDaemon(options, window_bytes) {
    server_ = server::SharedMemoryServer::Start({.incarnation = kIncarnation,
                                                 .model = &model_,
                                                 .store = store_.get(),
                                                 .aggregator = aggregator_.get(),
                                                 .last_version = Version(100),
                                                 .max_inbox_bytes = server::MaxInboxBytes(model_, run_),
                                                 .copiers = 3})
                  .value();
  }
  ~SharedMemoryDaemon() override { Stop(); }

  std::unique_ptr<worker::Transport> NewTransport() override {
    auto transport = worker::ConnectSharedMemory({.socket_path = server_->path(),
                                                  .incarnation = kIncarnation,
                                                  .worker_id = WorkerId(1),
                                                  .model = &model_,
                                                  .wire_dtype = run_.precision.wire,
                                                  .wire_versions = run_.precision.wire_versions,
                                                  .push_bytes = kPushBytes});
    EXPECT_THAT(transport, IsOk());
    return *std::move(transport);
  }

  static constexpr int64_t kPushBytes = int64_t{4} << 20;

 private:
  std::unique_ptr<server::SharedMemoryServer> server_;
};

}  // namespace

namespace worker {

using ::testing::Not;

INSTANTIATE_TEST_SUITE_P(SharedMemory, TransportConformanceTest,
                         testing::Values(TransportCase{"shared_memory", [](TransportTestOptions options) {
                                                         return std::make_unique<SharedMemoryDaemon>(options, 0);
                                                       }}));

INSTANTIATE_TEST_SUITE_P(SharedMemory, SmallWindowTest,
                         testing::Values(TransportCase{"shared_memory_small_window", [](TransportTestOptions options) {
                                                         return std::make_unique<SharedMemoryDaemon>(options,
                                                                                                     kChunkElems * 4);
                                                       }}));

// What only shared memory does.
class SharedMemoryTransportTest : public TransportConformanceTest {
 protected:
  // As Make, in the transport's own memory while there is any.
  Contribution MakeInInbox(Transport& transport, StepId step, BlobId blob, int use, TreeNode node) {
    return InInbox(transport, Make(step, blob, use, node, Dtype::kF32));
  }
  Contribution InInbox(Transport& transport, Contribution contribution) {
    std::optional<PushMemory> memory = transport.NewPushMemory(static_cast<int64_t>(contribution.payload.size()));
    if (!memory.has_value()) return contribution;
    std::memcpy(memory->bytes.data(), contribution.payload.data(), contribution.payload.size());
    contribution.payload = memory->bytes;
    contribution.owner = memory->owner;
    ++num_in_inbox_;
    return contribution;
  }
  int num_in_inbox_ = 0;
};
INSTANTIATE_TEST_SUITE_P(SharedMemory, SharedMemoryTransportTest,
                         testing::Values(TransportCase{"shared_memory", [](TransportTestOptions options) {
                                                         return std::make_unique<SharedMemoryDaemon>(options, 0);
                                                       }}));

TEST_P(SharedMemoryTransportTest, WeightsAreReadInPlaceAndAreNotCopied) {
  StartDaemon(Dtype::kBf16);
  const auto transport = daemon_->NewTransport();
  for (int64_t version = 0; version < 2; ++version) {
    for (const BlobSpec& blob : model_.blobs) {
      const std::byte* place = transport->InPlace(blob.id, Version(version));
      ASSERT_NE(place, nullptr);
      daemon_->Publish(blob.id, Version(version), Master(blob.id, version));
      ASSERT_THAT(transport->Await(blob.id, Version(version), blob.all_chunks()), IsOk());
      const std::vector<std::byte> want = ToWire(Master(blob.id, version), Dtype::kBf16);
      EXPECT_EQ(std::memcmp(place, want.data(), want.size()), 0);
    }
  }
  EXPECT_EQ(transport->InPlace(BlobId(0), Version(0)), transport->InPlace(BlobId(0), Version(2)));
}

TEST_P(SharedMemoryTransportTest, ContributionsInTheInboxAndBesideItAddUp) {
  StartDaemon(Dtype::kF32);
  daemon_->BeginStep(StepId(0));
  const auto transport = daemon_->NewTransport();
  for (const BlobSpec& blob : model_.blobs) {
    for (size_t use = 0; use < blob.uses.size(); ++use) {
      const int u = static_cast<int>(use);
      transport->Push(MakeInInbox(*transport, StepId(0), blob.id, u, {0, 1}));
      transport->Push(Make(StepId(0), blob.id, u, {1, 1}, Dtype::kF32));
      transport->Push(MakeInInbox(*transport, StepId(0), blob.id, u, {2, 2}));
    }
  }
  EXPECT_OK(transport->Flush());
  EXPECT_GT(num_in_inbox_, 2);
  for (const BlobSpec& blob : model_.blobs) {
    EXPECT_THAT(daemon_->Gradient(StepId(0), blob.id), IsOkAndHolds(ExpectedGradient(blob.id)));
  }
}

TEST_P(SharedMemoryTransportTest, PartsInTheInboxAndPartsOfWhatLiesThereAddUp) {
  StartDaemon(Dtype::kF32);
  daemon_->BeginStep(StepId(0));
  const BlobId wte(0);
  const BlobSpec& blob = model_.blob(wte);
  const auto transport = daemon_->NewTransport();
  for (int use = 0; use < 2; ++use) {
    // Memory of its own for a part.
    transport->Push(InInbox(*transport, MakePart(StepId(0), wte, use, {0, 4}, Dtype::kF32, {1, 1})));
    EXPECT_EQ(num_in_inbox_, 2 * use + 1);
    // The first and the last chunk of a whole blob that lies there: the last one from the middle of the memory on.
    const Contribution whole = MakeInInbox(*transport, StepId(0), wte, use, {0, 4});
    EXPECT_EQ(num_in_inbox_, 2 * use + 2);
    for (const ChunkRange chunks : {ChunkRange{2, 1}, ChunkRange{0, 1}}) {
      Contribution part = whole;
      part.chunks = chunks;
      part.payload = whole.payload.subspan(static_cast<size_t>(blob.part_first_elem(chunks) * 4),
                                           static_cast<size_t>(blob.part_elems(chunks) * 4));
      transport->Push(std::move(part));
    }
    EXPECT_OK(transport->Flush());
  }
  EXPECT_THAT(daemon_->Gradient(StepId(0), wte), IsOkAndHolds(ExpectedGradient(wte)));
}

TEST_P(SharedMemoryTransportTest, AFullInboxHoldsUpNothing) {
  StartDaemon(Dtype::kF32);
  daemon_->BeginStep(StepId(0));
  const auto transport = daemon_->NewTransport();
  const auto all = transport->NewPushMemory(SharedMemoryDaemon::kPushBytes);
  ASSERT_TRUE(all.has_value());
  EXPECT_FALSE(transport->NewPushMemory(1).has_value());
  transport->Push(Make(StepId(0), BlobId(0), 0, {0, 2}, Dtype::kF32));
  transport->Push(Make(StepId(0), BlobId(0), 0, {2, 2}, Dtype::kF32));
  transport->Push(Make(StepId(0), BlobId(0), 1, {0, 4}, Dtype::kF32));
  EXPECT_OK(transport->Flush());
}

TEST_P(SharedMemoryTransportTest, WhenTheDaemonIsGoneWaitsEndAndTheWeightsCanStillBeRead) {
  StartDaemon(Dtype::kBf16);
  const auto transport = daemon_->NewTransport();
  daemon_->Publish(BlobId(0), Version(0), Master(BlobId(0), 0));
  ASSERT_THAT(transport->Await(BlobId(0), Version(0), model_.blob(BlobId(0)).all_chunks()), IsOk());
  std::thread ender([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    daemon_.reset();
  });
  EXPECT_THAT(transport->Await(BlobId(0), Version(1), model_.blob(BlobId(0)).all_chunks()), Not(IsOk()));
  ender.join();
  const std::vector<std::byte> want = ToWire(Master(BlobId(0), 0), Dtype::kBf16);
  EXPECT_EQ(std::memcmp(transport->InPlace(BlobId(0), Version(0)), want.data(), want.size()), 0);
  EXPECT_FALSE(transport->NewPushMemory(64).has_value());
  EXPECT_THAT(transport->Flush(), Not(IsOk()));
}

}  // namespace worker
}  // namespace eps
