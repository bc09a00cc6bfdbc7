// A relay beside a daemon that takes gradients more slowly than they are made: how much of them it holds, and what is
// said of its waits.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/model/model_spec.h"
#include "common/schedule/chunk_range.h"
#include "common/schedule/vnode_batch.h"
#include "common/spec/run_config.h"
#include "common/tensor/dtype.h"
#include "common/testing/status_matchers.h"
#include "gpu_worker/device/cpu/cpu_device.h"
#include "gpu_worker/device/cpu/cpu_kernel_sizes.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/plan/planner.h"
#include "gpu_worker/relay/relay_executor.h"
#include "gpu_worker/transport/in_process.h"
#include "gpu_worker/transport/transport.h"
#include "gtest/gtest.h"

namespace eps::worker {
namespace {

// Takes one contribution after the other, each some time after the one before.
class SlowTransport : public Transport {
 public:
  SlowTransport(InProcessStore* store, std::chrono::milliseconds pause)
      : inner_(store), pause_(pause), taker_([this] { TakeAll(); }) {}
  ~SlowTransport() override {
    {
      MutexLock lock(mu_);
      closing_ = true;
      changed_.NotifyAll();
    }
    taker_.join();
  }

  absl::StatusOr<PullTiming> Pull(BlobId blob, Version version, ChunkRange chunks,
                                  absl::Span<std::byte> destination) override {
    return inner_.Pull(blob, version, chunks, destination);
  }
  void Push(Contribution contribution) override {
    MutexLock lock(mu_);
    const auto num_bytes = static_cast<int64_t>(contribution.payload.size());
    waiting_bytes_ += num_bytes;
    most_bytes_ = std::max(most_bytes_, waiting_bytes_);
    all_bytes_ += num_bytes;
    waiting_.push_back(std::move(contribution));
    changed_.NotifyAll();
  }
  absl::Status Flush() override {
    MutexLock lock(mu_);
    while (!waiting_.empty()) changed_.Wait(mu_);
    return inner_.Flush();
  }
  void Cancel(absl::Status reason) override { inner_.Cancel(std::move(reason)); }

  // Of contributions that waited at once, and of all.
  int64_t most_bytes() const {
    MutexLock lock(mu_);
    return most_bytes_;
  }
  int64_t all_bytes() const {
    MutexLock lock(mu_);
    return all_bytes_;
  }

 private:
  void TakeAll() {
    MutexLock lock(mu_);
    while (true) {
      while (waiting_.empty() && !closing_) changed_.Wait(mu_);
      if (waiting_.empty()) return;
      const auto due = std::chrono::steady_clock::now() + pause_;
      while (!closing_ && std::chrono::steady_clock::now() < due) {
        changed_.WaitFor(mu_, due - std::chrono::steady_clock::now());
      }
      const auto num_bytes = static_cast<int64_t>(waiting_.front().payload.size());
      inner_.Push(std::move(waiting_.front()));
      waiting_.pop_front();
      waiting_bytes_ -= num_bytes;
      changed_.NotifyAll();
    }
  }

  InProcessTransport inner_;
  const std::chrono::milliseconds pause_;
  mutable Mutex mu_;
  CondVar changed_;
  std::deque<Contribution> waiting_ ABSL_GUARDED_BY(mu_);
  int64_t waiting_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t most_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t all_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  std::thread taker_;
};

class PushRoomTest : public ::testing::Test {
 protected:
  PushRoomTest() {
    run_.model = {.num_layers = 8, .d_model = 32, .num_heads = 2, .context = 8, .vocab = 40, .init_seed = 11};
    run_.batch = {.virtual_nodes = 2, .micro_batches = 1, .micro_batch = 1};
    run_.precision = {.wire = Dtype::kF32, .gradients = Dtype::kF32};
    run_.steps = 1;
    model_ = BuildModel(run_.model).value();
    assignment_.step = StepId(0);
    for (int vnode = 0; vnode < 2; ++vnode) {
      VnodeBatch batch{.vnode = vnode, .tokens = {}, .labels = {}};
      for (int32_t i = 0; i < 8; ++i) {
        batch.tokens.push_back(5 * vnode + i);
        batch.labels.push_back(3 * i);
      }
      assignment_.counted_tokens += 8;
      assignment_.vnodes.push_back(std::move(batch));
    }
  }

  // What comes of the step whose contributions are taken so slowly.
  struct Outcome {
    RelayPlan plan;
    PassResult result;
    int64_t most_bytes = 0, all_bytes = 0;
    std::vector<std::vector<float>> gradients;  // by blob
  };
  Outcome RunStep(std::chrono::milliseconds pause, bool is_awaited, int max_pass_vnodes = 0) {
    InProcessStore store(&model_, 2, Dtype::kF32);
    for (const BlobSpec& blob : model_.blobs) {
      std::vector<float> master(static_cast<size_t>(blob.num_elems));
      for (const TensorSpec& tensor : blob.tensors) InitTensor(tensor, 3, master.data() + tensor.offset_elems);
      store.Publish(blob.id, ReadVersion(assignment_.step), master);
    }
    SlowTransport transport(&store, pause);
    const PlanRequest request{
        .model = &model_, .run = &run_, .kernels = CpuKernelSizes(), .max_pass_vnodes = max_pass_vnodes};
    Outcome outcome{.plan = MakeRelayPlan(request).value(), .result = {}, .gradients = {}};
    const auto device = NewCpuDevice({.arena_bytes = outcome.plan.arena_bytes, .threads = 1}).value();
    const auto executor = RelayExecutor::Create({.model = &model_,
                                                 .run = &run_,
                                                 .device = device.get(),
                                                 .transport = &transport,
                                                 .plan = outcome.plan,
                                                 .is_awaited = [is_awaited] { return is_awaited; }})
                              .value();
    outcome.result = executor->Run(assignment_).value();
    EXPECT_OK(transport.Flush());
    outcome.most_bytes = transport.most_bytes();
    outcome.all_bytes = transport.all_bytes();
    for (const BlobSpec& blob : model_.blobs) {
      outcome.gradients.push_back(store.Gradient(assignment_.step, blob.id).value());
    }
    return outcome;
  }
  static double Waited(const Outcome& outcome, WaitCause cause) {
    return outcome.result.compute_wait_seconds[static_cast<size_t>(cause)];
  }

  RunConfig run_;
  ModelSpec model_;
  Assignment assignment_;
};

constexpr std::chrono::milliseconds kPause(20);

TEST_F(PushRoomTest, NoMoreIsHeldThanThePlanSaysAndNoBitChanges) {
  const Outcome slow = RunStep(kPause, /*is_awaited=*/false);
  EXPECT_LE(slow.most_bytes, slow.plan.host_push_bytes);
  EXPECT_GT(slow.all_bytes, 3 * slow.plan.host_push_bytes);
  EXPECT_LE(slow.all_bytes, slow.plan.host_redo_push_bytes);
  const Outcome fast = RunStep(std::chrono::milliseconds(0), /*is_awaited=*/false);
  EXPECT_EQ(slow.gradients, fast.gradients);
}

TEST_F(PushRoomTest, AWaitForRoomIsCountedAsThat) {
  const Outcome slow = RunStep(kPause, /*is_awaited=*/false);
  // Ten layers, of which at most a few are under way when all is computed.
  EXPECT_GT(Waited(slow, WaitCause::kRoom), 0.05);
  EXPECT_LT(Waited(slow, WaitCause::kPush) + Waited(slow, WaitCause::kStash), Waited(slow, WaitCause::kRoom));
}

TEST_F(PushRoomTest, WhoIsAwaitedHoldsAllThatIsLeft) {
  const Outcome awaited = RunStep(kPause, /*is_awaited=*/true);
  EXPECT_GT(awaited.most_bytes, 2 * awaited.plan.host_push_bytes);
  EXPECT_EQ(Waited(awaited, WaitCause::kRoom), 0);
}

TEST_F(PushRoomTest, ThePassesBeforeTheLastHoldAllOfTheirs) {
  const Outcome split = RunStep(kPause, /*is_awaited=*/false, /*max_pass_vnodes=*/1);
  EXPECT_GT(split.most_bytes, split.plan.host_push_bytes);
  EXPECT_EQ(split.gradients, RunStep(std::chrono::milliseconds(0), /*is_awaited=*/false).gradients);
}

}  // namespace
}  // namespace eps::worker
