// A relay beside a daemon that takes gradients more slowly than they are made: how much of them it holds, and what is
// said of its waits.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
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
#include "gpu_worker/plan/arena_layout.h"
#include "gpu_worker/plan/planner.h"
#include "gpu_worker/relay/relay_executor.h"
#include "gpu_worker/transport/in_process.h"
#include "gpu_worker/transport/transport.h"
#include "gtest/gtest.h"

namespace eps::worker {
namespace {

// When a daemon takes what it is given.
struct Slowness {
  std::chrono::milliseconds pause{0};  // before each contribution
  // Nothing is taken before so many were pushed, or all were: Flush.
  int64_t first_after_pushes = 0;
  bool first_after_flush = false;
  // Nor before none came for so long.
  std::chrono::milliseconds first_after_quiet{0};
  // A contribution to this blob is taken once so many to the other one have come.
  BlobId held_blob, awaited_blob;
  int awaited = 0;
};

class SlowTransport : public Transport {
 public:
  SlowTransport(InProcessStore* store, Slowness slowness)
      : inner_(store), slowness_(slowness), taker_([this] { TakeAll(); }) {}
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
    ++pushes_;
    awaited_pushes_ += contribution.blob == slowness_.awaited_blob ? 1 : 0;
    waiting_.push_back(std::move(contribution));
    changed_.NotifyAll();
  }
  absl::Status Flush() override {
    MutexLock lock(mu_);
    flushes_ = true;
    changed_.NotifyAll();
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
    while (!flushes_ && !closing_ && (slowness_.first_after_flush || pushes_ < slowness_.first_after_pushes)) {
      changed_.Wait(mu_);
    }
    for (int64_t seen = -1; slowness_.first_after_quiet.count() > 0 && seen != pushes_;) {
      seen = pushes_;
      Sleep(slowness_.first_after_quiet);
    }
    while (true) {
      while (waiting_.empty() && !closing_) changed_.Wait(mu_);
      if (waiting_.empty()) return;
      Sleep(slowness_.pause);
      const bool any = closing_ || awaited_pushes_ >= slowness_.awaited;
      const auto next = std::find_if(waiting_.begin(), waiting_.end(), [&](const Contribution& waiting) {
        return any || waiting.blob != slowness_.held_blob;
      });
      if (next == waiting_.end()) {
        if (!changed_.WaitFor(mu_, kStuck)) std::abort();  // nobody can go on
        continue;
      }
      waiting_bytes_ -= static_cast<int64_t>(next->payload.size());
      inner_.Push(std::move(*next));
      waiting_.erase(next);
      changed_.NotifyAll();
    }
  }
  void Sleep(std::chrono::milliseconds time) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const auto due = std::chrono::steady_clock::now() + time;
    while (!closing_ && std::chrono::steady_clock::now() < due) {
      changed_.WaitFor(mu_, due - std::chrono::steady_clock::now());
    }
  }

  static constexpr std::chrono::seconds kStuck{30};

  InProcessTransport inner_;
  const Slowness slowness_;
  mutable Mutex mu_;
  CondVar changed_;
  std::deque<Contribution> waiting_ ABSL_GUARDED_BY(mu_);
  int64_t waiting_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t most_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t all_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t pushes_ ABSL_GUARDED_BY(mu_) = 0;
  int awaited_pushes_ ABSL_GUARDED_BY(mu_) = 0;
  bool flushes_ ABSL_GUARDED_BY(mu_) = false;
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  std::thread taker_;
};

class PushRoomTest : public ::testing::Test {
 protected:
  void Use(int virtual_nodes) {
    run_.model = {.num_layers = 8, .d_model = 32, .num_heads = 2, .context = 8, .vocab = 40, .init_seed = 11};
    run_.batch = {.virtual_nodes = virtual_nodes, .micro_batches = 1, .micro_batch = 1};
    run_.precision = {.wire = Dtype::kF32, .gradients = Dtype::kF32};
    run_.steps = 1;
    model_ = BuildModel(run_.model).value();
    assignment_.step = StepId(0);
    for (int vnode = 0; vnode < virtual_nodes; ++vnode) {
      VnodeBatch batch{.vnode = vnode, .tokens = {}, .labels = {}};
      for (int32_t i = 0; i < 8; ++i) {
        batch.tokens.push_back(3 * vnode + i);
        batch.labels.push_back(3 * i);
      }
      assignment_.counted_tokens += 8;
      assignment_.vnodes.push_back(std::move(batch));
    }
  }
  PlanRequest Request(int max_pass_vnodes = 0) const {
    return {.model = &model_, .run = &run_, .kernels = CpuKernelSizes(), .max_pass_vnodes = max_pass_vnodes};
  }

  // What comes of the step beside such a daemon.
  struct Outcome {
    PassResult result;
    int64_t most_bytes = 0, all_bytes = 0;
    std::vector<std::vector<float>> gradients;  // by blob
  };
  Outcome RunStep(const RelayPlan& plan, Slowness slowness, bool is_awaited = false) {
    InProcessStore store(&model_, run_.batch.virtual_nodes, Dtype::kF32);
    for (const BlobSpec& blob : model_.blobs) {
      std::vector<float> master(static_cast<size_t>(blob.num_elems));
      for (const TensorSpec& tensor : blob.tensors) InitTensor(tensor, 3, master.data() + tensor.offset_elems);
      store.Publish(blob.id, ReadVersion(assignment_.step), master);
    }
    SlowTransport transport(&store, slowness);
    const auto device = NewCpuDevice({.arena_bytes = plan.arena_bytes, .threads = 1}).value();
    const auto executor = RelayExecutor::Create({.model = &model_,
                                                 .run = &run_,
                                                 .device = device.get(),
                                                 .transport = &transport,
                                                 .plan = plan,
                                                 .is_awaited = [is_awaited] { return is_awaited; }})
                              .value();
    Outcome outcome;
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

constexpr Slowness kSlow = {.pause = std::chrono::milliseconds(20),
                            .first_after_quiet = std::chrono::milliseconds(100)};

TEST_F(PushRoomTest, NoMoreIsHeldThanThePlanSaysAndNoBitChanges) {
  Use(2);
  const RelayPlan plan = MakeRelayPlan(Request()).value();
  const Outcome slow = RunStep(plan, kSlow);
  EXPECT_LE(slow.most_bytes, plan.host_push_bytes);
  EXPECT_GT(slow.all_bytes, 3 * plan.host_push_bytes);
  EXPECT_LE(slow.all_bytes, plan.host_redo_push_bytes);
  EXPECT_EQ(slow.gradients, RunStep(plan, {}).gradients);
}

TEST_F(PushRoomTest, AWaitForRoomIsCountedAsThat) {
  Use(2);
  const Outcome slow = RunStep(MakeRelayPlan(Request()).value(), kSlow);
  EXPECT_GT(Waited(slow, WaitCause::kRoom), 0.05);
  EXPECT_LT(Waited(slow, WaitCause::kPush) + Waited(slow, WaitCause::kStash), Waited(slow, WaitCause::kRoom));
}

TEST_F(PushRoomTest, WhoIsAwaitedHoldsAllThatIsLeft) {
  Use(2);
  const Outcome awaited = RunStep(MakeRelayPlan(Request()).value(), {.first_after_flush = true}, /*is_awaited=*/true);
  EXPECT_EQ(awaited.most_bytes, awaited.all_bytes);
  EXPECT_EQ(Waited(awaited, WaitCause::kRoom), 0);
}

TEST_F(PushRoomTest, ThePassesBeforeTheLastHoldAllOfTheirs) {
  Use(2);
  const RelayPlan plan = MakeRelayPlan(Request(/*max_pass_vnodes=*/1)).value();
  const auto pushes_of_a_pass = static_cast<int64_t>(model_.blobs.size()) + 1;  // the table has two uses
  const Outcome split = RunStep(plan, {.first_after_pushes = pushes_of_a_pass});
  EXPECT_GE(split.most_bytes, split.all_bytes / 2);
  EXPECT_EQ(split.gradients, RunStep(plan, {}).gradients);
}

// The daemon takes the last block's when it has every head's, as one does whose window is full.
TEST_F(PushRoomTest, TheHeadsGradientsDoNotWaitForABlocksThatWaitForThem) {
  Use(8);
  const PlanRequest request = Request();
  const PlanChoice choice = LeastChoice(NeedsOf(request), /*depth_first_blocks=*/1);
  RelayPlan plan = LayArena(request, NeedsOf(request), choice);
  plan.host_push_bytes = 2 * plan.push_slots[0].num_bytes;  // and no room for the others
  const LayerSpec& last_block = model_.layers[model_.layers.size() - 2];
  const auto& of_head = model_.layers.back().blobs;
  const auto alone = std::find_if(of_head.begin(), of_head.end(),
                                  [this](const BlobUse& use) { return model_.blob(use.blob).uses.size() == 1; });
  ASSERT_NE(alone, of_head.end());
  const Outcome outcome =
      RunStep(plan, {.held_blob = last_block.blobs[0].blob, .awaited_blob = alone->blob, .awaited = 8});
  EXPECT_EQ(outcome.gradients, RunStep(plan, {}).gradients);
}

}  // namespace
}  // namespace eps::worker
