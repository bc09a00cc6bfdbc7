#include "gpu_worker/relay/relay_executor.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
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

// What the emulator takes a moment for, with a table of two chunks.
RunConfig RunOnCuda() {
  RunConfig run = SmallRun(Dtype::kBf16);
  run.model = {.num_layers = 1, .d_model = 56, .num_heads = 2, .context = 5, .vocab = 5000, .init_seed = 11};
  run.batch = {.virtual_nodes = 4, .micro_batches = 1, .micro_batch = 1};
  return run;
}

TEST_F(RelayExecutorTest, OnCudaAGroupOverNcclGivesTheBitsOfOneWorker) {
  Use(RunOnCuda());
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

// A member's, whose device breaks on the way back, after so many exchanges of gradients.
class GroupUntilItsDeviceBreaks : public Group {
 public:
  GroupUntilItsDeviceBreaks(Group& group, Device& device, int num_exchanges)
      : group_(group), device_(device), left_(num_exchanges) {}
  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }
  void Enqueue(GroupLane lane, Exchange exchange) override {
    if (lane == GroupLane::kPush && left_-- == 0) {
      StreamOf(device_, lane).HostCall([] { return absl::InternalError("its device broke"); });
    }
    group_.Enqueue(lane, std::move(exchange));
  }
  absl::Status status() const override { return group_.status(); }
  void End(absl::Status reason) override { group_.End(std::move(reason)); }

 private:
  Group& group_;
  Device& device_;
  int left_;
};

// On a GPU exchanges that are cut short bring rubbish and say nothing of it. What was pushed before and after is in the
// store, of which nothing is taken twice: one that was pushed of rubbish would stay.
TEST_F(RelayExecutorTest, OnCudaNothingIsPushedOfExchangesThatAMemberWasLostIn) {
  Use(RunOnCuda());
  const StepOutcome alone = RunStep({.cuda = Dtype::kBf16});
  const std::vector<std::vector<int>> shares = EvenShares(4, 2);
  const Way way = {.cuda = Dtype::kBf16, .workers = shares, .group = true};
  constexpr int kRounds = 2;  // a layer: each vnode of a member goes by itself
  const int all_exchanges = kRounds * static_cast<int>(model_.layers.size());
  for (const int lost : {0, 1}) {
    for (int exchanges = 0; exchanges < all_exchanges; ++exchanges) {
      const std::string what = absl::StrCat("member ", lost, " is lost after ", exchanges, " exchanges");
      const std::unique_ptr<InProcessStore> store = NewStore();
      std::vector<std::unique_ptr<Worker>> workers;
      for (int rank = 0; rank < 2; ++rank) workers.push_back(std::make_unique<Worker>(model_, run_, way, *store));
      ASSERT_EQ(workers[0]->plan.max_subtree_leaves(), 1);
      std::vector<std::unique_ptr<Group>> groups =
          NewGroup({workers[0]->device.get(), workers[1]->device.get()}, /*nccl=*/true);
      const auto run = [&](int rank, Group* group) {
        Assignment assignment = Only(all_, shares[static_cast<size_t>(rank)]);
        assignment.group = GroupVnodes{.group = 1, .rank = rank, .vnodes = shares};
        return workers[static_cast<size_t>(rank)]->executor->Run(assignment, group).status();
      };
      std::thread dying([&] {
        std::unique_ptr<Group>& group = groups[static_cast<size_t>(lost)];
        GroupUntilItsDeviceBreaks breaking(*group, *workers[static_cast<size_t>(lost)]->device, exchanges);
        EXPECT_THAT(run(lost, &breaking), StatusIs(absl::StatusCode::kInternal, "its device broke")) << what;
        group.reset();
      });
      Worker& survivor = *workers[static_cast<size_t>(1 - lost)];
      EXPECT_THAT(run(1 - lost, groups[static_cast<size_t>(1 - lost)].get()),
                  StatusIs(absl::StatusCode::kAborted, "the group has ended"))
          << what;
      dying.join();
      // The survivor gave something of the second layer behind its pushes of the first.
      if (exchanges > kRounds) {
        EXPECT_GT(store->num_pushes(), 0) << what;
      }
      const auto result = survivor.executor->Run(all_);
      ASSERT_OK(result);
      ASSERT_OK(survivor.transport.Flush());
      StepOutcome outcome;
      for (const VnodeRecord& record : result->records) outcome.records[record.vnode] = record;
      Collect(*store, outcome);
      ExpectSameBits(alone, outcome, what);
    }
  }
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
