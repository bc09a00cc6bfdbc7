#include "gpu_worker/relay/relay_executor.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/model/model_spec.h"
#include "common/schedule/vnode_batch.h"
#include "common/spec/run_config.h"
#include "common/tensor/dtype.h"
#include "common/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/group/group.h"
#include "gpu_worker/plan/group_parts.h"
#include "gpu_worker/relay/relay_executor_testing.h"
#include "gpu_worker/transport/in_process.h"
#include "gtest/gtest.h"

namespace eps::worker {
namespace {

TEST_F(RelayExecutorTest, AGroupGivesTheBitsOfOneWorker) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16}) {
    Use(RunOfSeveralChunks(dtype, 8));
    const StepOutcome alone = RunStep({});
    for (const int members : {2, 3, 4, 8}) {
      const std::string what = absl::StrCat(DtypeName(dtype), ", ", members, " members");
      const auto shares = EvenShares(8, members);
      const StepOutcome together = RunStep({.workers = shares, .group = true});
      ExpectSameBits(alone, together, what);
      ExpectSameBits(alone, RunStep({.own_memory = true, .workers = shares, .group = true}), what + ", own memory");
      ExpectSameBits(alone, RunStep({.in_place = true, .workers = shares, .group = true}), what + ", in place");
    }
    ExpectSameBits(alone, RunStep({.more_bytes = -1, .resident = true, .workers = EvenShares(8, 4), .group = true}),
                   "resident");
    ExpectSameBits(alone, RunStep({.weight_slots = 1, .workers = {{0}, {1, 2, 3, 4}, {5, 6, 7}}, .group = true}),
                   "uneven");
    ExpectSameBits(alone, RunStep({.own_memory = true, .in_place = true, .workers = EvenShares(8, 2), .group = true}),
                   "weights copied from where the daemon has them");
  }
}

TEST_F(RelayExecutorTest, OnCudaAGroupOverNcclGivesTheBitsOfOneWorker) {
  RunConfig run = SmallRun(Dtype::kBf16);
  run.model = {.num_layers = 1, .d_model = 56, .num_heads = 2, .context = 5, .vocab = 5000, .init_seed = 11};
  run.batch = {.virtual_nodes = 4, .micro_batches = 1, .micro_batch = 1};
  Use(run);
  const StepOutcome alone = RunStep({.cuda = Dtype::kBf16});
  for (const int members : {2, 3}) {
    const std::string what = absl::StrCat(members, " members");
    ExpectSameBits(alone, RunStep({.cuda = Dtype::kBf16, .workers = EvenShares(4, members), .group = true}), what);
  }
  ExpectSameBits(alone, RunStep({.in_place = true, .cuda = Dtype::kBf16, .workers = EvenShares(4, 2), .group = true}),
                 "copied from where they lie");
}

// What the daemon gives and gets is one model, not one for each member.
TEST_F(RelayExecutorTest, AGroupPushesEachPartOnce) {
  Use(RunOfSeveralChunks(Dtype::kF32, 4));
  const StepOutcome two = RunStep({.workers = EvenShares(4, 2)});
  const StepOutcome grouped = RunStep({.workers = EvenShares(4, 2), .group = true});
  ExpectSameBits(two, grouped, "two workers");
  int64_t parts = 0;
  for (const LayerSpec& layer : model_.layers) {
    for (const BlobUse& use : layer.blobs) parts += std::min<int64_t>(2, model_.blob(use.blob).num_chunks());
  }
  EXPECT_EQ(grouped.pushes, parts);
}

TEST_F(RelayExecutorTest, AGroupThatCannotCarryTheStepLetsEachGoAlone) {
  RunConfig run = RunOfSeveralChunks(Dtype::kF32, 4);
  Use(run);
  const StepOutcome alone = RunStep({});
  // A pass takes one vnode, and a member has two.
  ExpectSameBits(alone, RunStep({.max_pass_vnodes = 1, .workers = EvenShares(4, 2), .group = true}), "short passes");
}

TEST_F(RelayExecutorTest, AVnodeWhoseGradientIsNotFiniteIsNamedByTheWholeGroup) {
  Use(RunOfSeveralChunks(Dtype::kF32, 4));
  const Way way = {.workers = EvenShares(4, 2), .group = true};
  const std::unique_ptr<InProcessStore> finite = NewStore();
  StepOutcome outcome;
  RunAsGroup(way, *finite, outcome);
  EXPECT_THAT(finite->NonFiniteVnodes(kStep), ::testing::IsEmpty());

  // A row of the table so large that logits overflow, and one vnode, of the second member, whose labels count.
  const auto row = static_cast<int32_t>(run_.model.vocab - 1);
  const int64_t width = run_.model.d_model;
  for (int64_t c = 0; c < width; ++c) masters_[0][static_cast<size_t>(row * width + c)] = c % 2 == 0 ? 3e38f : -3e38f;
  for (VnodeBatch& batch : all_.vnodes) {
    for (int32_t& token : batch.tokens) token %= row;
    if (batch.vnode != 3) batch.labels.assign(batch.labels.size(), kNotCounted);
  }
  const std::unique_ptr<InProcessStore> broken = NewStore();
  RunAsGroup(way, *broken, outcome);
  for (const auto& [vnode, record] : outcome.records) EXPECT_EQ(record.finite, vnode != 3) << vnode;
  // Every part of either member: what the first pushes it knows from the flags that came with the gradients.
  EXPECT_EQ(broken->NonFiniteVnodes(kStep), std::vector<int>(static_cast<size_t>(broken->num_pushes()), 3));
}

TEST_F(RelayExecutorTest, WhenAMemberIsLostTheOthersFailAndGoOnAlone) {
  Use(RunOfSeveralChunks(Dtype::kF32, 4));
  const StepOutcome alone = RunStep({});
  const std::unique_ptr<InProcessStore> store = NewStore();
  const std::vector<std::vector<int>> shares = EvenShares(4, 2);
  const Way way = {.workers = shares, .group = true};
  Worker survivor(model_, run_, way, *store);
  StepOutcome outcome;
  {
    Worker lost(model_, run_, way, *store);
    std::vector<std::unique_ptr<Group>> groups = NewGroup({survivor.device.get(), lost.device.get()});
    // Its weights never come: it stays in its first layer.
    lost.transport.Cancel(absl::UnavailableError("it was killed"));
    std::thread dying([&] {
      Assignment assignment = Only(all_, shares[1]);
      assignment.group = GroupVnodes{.group = 1, .rank = 1, .vnodes = shares};
      EXPECT_FALSE(lost.executor->Run(assignment, groups[1].get()).ok());
      groups[1].reset();
    });
    Assignment assignment = Only(all_, shares[0]);
    assignment.group = GroupVnodes{.group = 1, .rank = 0, .vnodes = shares};
    EXPECT_THAT(survivor.executor->Run(assignment, groups[0].get()), StatusIs(absl::StatusCode::kAborted, "group"));
    dying.join();
  }
  // The daemon gives it everything, and it goes alone.
  const auto result = survivor.executor->Run(all_);
  ASSERT_OK(result);
  ASSERT_OK(survivor.transport.Flush());
  for (const VnodeRecord& record : result->records) outcome.records[record.vnode] = record;
  Collect(*store, outcome);
  ExpectSameBits(alone, outcome, "after the loss");
}

// The second of two members, to whom nothing comes. On the way back its in-stream fails, by itself; its out-stream finds
// no more than that the group is at its end.
class GroupWithABrokenInStream : public Group {
 public:
  explicit GroupWithABrokenInStream(Device& device) : device_(device) {}
  int rank() const override { return 1; }
  int size() const override { return 2; }
  void Enqueue(GroupLane lane, Exchange) override {
    goes_back_ |= lane == GroupLane::kPush;
    if (!goes_back_) return;
    StreamOf(device_, lane).HostCall([lane] {
      return lane == GroupLane::kPush ? absl::AbortedError("the group has ended: an exchange was left out")
                                      : absl::InternalError("an illegal access");
    });
  }
  absl::Status status() const override {
    MutexLock lock(mu_);
    return status_;
  }
  void End(absl::Status reason) override {
    MutexLock lock(mu_);
    if (status_.ok()) status_ = absl::AbortedError(absl::StrCat("the group has ended: ", reason.message()));
  }

 private:
  Device& device_;
  bool goes_back_ = false;
  mutable Mutex mu_;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

// Else its worker would count it as the other members' fault, and go on alone.
TEST_F(RelayExecutorTest, AnErrorOfThisWorkerIsToldBeforeTheEndOfTheGroupThatItCaused) {
  Use(RunOfSeveralChunks(Dtype::kF32, 4));
  const std::vector<std::vector<int>> shares = EvenShares(4, 2);
  const std::unique_ptr<InProcessStore> store = NewStore();
  Worker worker(model_, run_, {.weight_slots = 1, .workers = shares, .group = true}, *store);
  GroupWithABrokenInStream group(*worker.device);
  Assignment assignment = Only(all_, shares[1]);
  assignment.group = GroupVnodes{.group = 1, .rank = 1, .vnodes = shares};
  EXPECT_THAT(worker.executor->Run(assignment, &group), StatusIs(absl::StatusCode::kInternal, "an illegal access"));
  EXPECT_THAT(group.status(), StatusIs(absl::StatusCode::kAborted));
}

}  // namespace
}  // namespace eps::worker
