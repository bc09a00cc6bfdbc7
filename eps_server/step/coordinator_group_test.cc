// The coordinator's workers in groups.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/schedule/vnode_batch.h"
#include "common/spec/run_config.h"
#include "common/testing/status_matchers.h"
#include "eps_server/membership/membership.h"
#include "eps_server/step/coordinator.h"
#include "eps_server/step/coordinator_test_run.h"
#include "eps_server/step/coordinator_test_worker.h"
#include "gtest/gtest.h"

namespace eps::server {
namespace {

// A worker of which the test plays every part.
class PlayedWorker {
 public:
  PlayedWorker(TestRun& run, std::string group_kind) : run_(run) {
    id = *run.coordinator->Attach({.device_name = "cpu", .device_model = "test", .device_cap_bytes = 1 << 20});
    EXPECT_OK(run.coordinator->Connect(id, told_));
    EXPECT_OK(run.coordinator->Ready(id, {.group_kind = std::move(group_kind)}));
  }
  // The next that was told. Waits for it.
  GroupOrder NextOrder() {
    WaitFor([&] { return told_->NumOrders() > orders_seen_; });
    return told_->Order(orders_seen_++);
  }
  std::shared_ptr<const Assignment> NextAssignment() {
    WaitFor([&] { return told_->NumAssignments() > assignments_seen_; });
    return told_->AssignmentAt(assignments_seen_++);
  }
  bool HasAssignment() { return told_->NumAssignments() > assignments_seen_; }
  void Report(GroupReport::Kind kind, uint64_t group, std::string text = "") {
    EXPECT_OK(run_.coordinator->ReportGroup(id, {.kind = kind, .group = group, .text = std::move(text)}));
  }

  WorkerId id;

 private:
  class Told : public WorkerChannel {
   public:
    void SendAssignment(std::shared_ptr<const Assignment> assignment) override {
      MutexLock lock(mu_);
      assignments_.push_back(std::move(assignment));
    }
    void SendGroupOrder(const GroupOrder& order) override {
      MutexLock lock(mu_);
      orders_.push_back(order);
    }
    void SendFinish(FinishNotice) override {}
    void Close(absl::Status) override {}
    size_t NumOrders() {
      MutexLock lock(mu_);
      return orders_.size();
    }
    GroupOrder Order(size_t index) {
      MutexLock lock(mu_);
      return orders_.at(index);
    }
    size_t NumAssignments() {
      MutexLock lock(mu_);
      return assignments_.size();
    }
    std::shared_ptr<const Assignment> AssignmentAt(size_t index) {
      MutexLock lock(mu_);
      return assignments_.at(index);
    }

   private:
    Mutex mu_;
    std::vector<GroupOrder> orders_ ABSL_GUARDED_BY(mu_);
    std::vector<std::shared_ptr<const Assignment>> assignments_ ABSL_GUARDED_BY(mu_);
  };

  TestRun& run_;
  std::shared_ptr<Told> told_ = std::make_shared<Told>();
  size_t orders_seen_ = 0, assignments_seen_ = 0;
};

std::vector<int> VnodesOf(const Assignment& assignment) {
  std::vector<int> vnodes;
  for (const VnodeBatch& batch : assignment.vnodes) vnodes.push_back(batch.vnode);
  return vnodes;
}

std::vector<VnodeRecord> RecordsOf(const Assignment& assignment) {
  std::vector<VnodeRecord> records;
  for (const VnodeBatch& batch : assignment.vnodes) {
    records.push_back({.vnode = batch.vnode, .loss_sum = 1, .counted_tokens = CountedTokens(batch), .finite = true});
  }
  return records;
}

// Forms the group that the coordinator asks for, all the way.
uint64_t FormGroup(PlayedWorker& first, PlayedWorker& second) {
  const GroupOrder found = first.NextOrder();
  EXPECT_EQ(found.kind, GroupOrder::Kind::kFound);
  EXPECT_EQ(found.size, 2);
  EXPECT_FALSE(first.HasAssignment()) << "the step waits for its group";
  first.Report(GroupReport::Kind::kFounded, found.group, "T");
  const GroupOrder join = second.NextOrder();
  EXPECT_EQ(join.kind, GroupOrder::Kind::kJoin);
  EXPECT_EQ(join.token, "T");
  EXPECT_EQ(join.rank, 1);
  first.Report(GroupReport::Kind::kJoined, found.group);
  second.Report(GroupReport::Kind::kJoined, found.group);
  return found.group;
}

TEST(CoordinatorGroupTest, AStepIsGivenToItsGroupAndAnewToEachAloneWhenAMemberIsLost) {
  RunConfig config = SmallRun();
  config.relay.group_members = 2;
  TestRun run(config, {.expected_workers = 2});
  PlayedWorker first(run, "k"), second(run, "k");
  const uint64_t group = FormGroup(first, second);
  const auto of_first = first.NextAssignment(), of_second = second.NextAssignment();
  const std::vector<std::vector<int>> shares = {VnodesOf(*of_first), VnodesOf(*of_second)};
  EXPECT_EQ(of_first->group, (GroupVnodes{.group = group, .rank = 0, .vnodes = shares}));
  EXPECT_EQ(of_second->group, (GroupVnodes{.group = group, .rank = 1, .vnodes = shares}));
  const auto members_of = [&run] {
    std::vector<std::pair<int, WorkerId>> members;
    for (const WorkerStatus& worker : run.coordinator->Status().workers) {
      if (worker.state != WorkerState::kLost) members.emplace_back(worker.group_members, worker.group_founder);
    }
    return members;
  };
  EXPECT_EQ(members_of(), (std::vector{std::pair(2, first.id), std::pair(2, first.id)}));

  run.coordinator->Disconnect(second.id, absl::UnavailableError("it was killed"));
  const GroupOrder end = first.NextOrder();
  EXPECT_EQ(end.kind, GroupOrder::Kind::kEnd);
  EXPECT_EQ(end.group, group);
  const auto anew = first.NextAssignment();
  EXPECT_FALSE(anew->group.has_value());
  EXPECT_EQ(anew->step, of_first->step);
  EXPECT_EQ(VnodesOf(*anew), (std::vector<int>{0, 1, 2, 3})) << "its own as well: parts of them were with the other";
  EXPECT_EQ(run.coordinator->Status().counts.vnodes_redone, 0) << "not yet";
  ASSERT_OK(run.coordinator->PassDone(first.id, anew->step, RecordsOf(*anew), {.seconds = 1}));
  EXPECT_EQ(run.coordinator->Status().counts.vnodes_redone, 4);
  EXPECT_EQ(members_of(), (std::vector{std::pair(0, WorkerId())}));
}

TEST(CoordinatorGroupTest, AMemberThatAsksToLeaveComputesAloneWhatItsGroupDidNotFinish) {
  RunConfig config = SmallRun();
  config.relay.group_members = 2;
  TestRun run(config, {.expected_workers = 2});
  PlayedWorker first(run, "k"), second(run, "k");
  FormGroup(first, second);
  const auto of_first = first.NextAssignment();
  second.NextAssignment();
  ASSERT_OK(run.coordinator->Leave(first.id));
  ASSERT_OK(run.coordinator->PassDone(first.id, of_first->step, RecordsOf(*of_first), {.seconds = 1}));
  absl::SleepFor(absl::Milliseconds(120));
  EXPECT_EQ(run.coordinator->Status().phase, RunPhase::kTraining) << "the other may still be exchanging with it";
  run.coordinator->Disconnect(second.id, absl::UnavailableError("it was killed"));
  EXPECT_EQ(first.NextOrder().kind, GroupOrder::Kind::kEnd) << "else it may wait for the other";
  EXPECT_EQ(VnodesOf(*first.NextAssignment()), (std::vector<int>{0, 1, 2, 3}));
}

TEST(CoordinatorGroupTest, AMemberThatSaysThatItsGroupIsOverKeepsItsPlace) {
  RunConfig config = SmallRun();
  config.relay.group_members = 2;
  TestRun run(config, {.expected_workers = 2});
  PlayedWorker first(run, "k"), second(run, "k");
  const uint64_t group = FormGroup(first, second);
  const auto of_first = first.NextAssignment(), of_second = second.NextAssignment();
  second.Report(GroupReport::Kind::kFailed, group, "a broken link");
  EXPECT_EQ(first.NextOrder().kind, GroupOrder::Kind::kEnd);
  first.Report(GroupReport::Kind::kFailed, group, "it too");  // nothing more comes of it
  for (PlayedWorker* worker : {&first, &second}) {
    const auto anew = worker->NextAssignment();
    EXPECT_FALSE(anew->group.has_value());
    EXPECT_EQ(VnodesOf(*anew), VnodesOf(worker == &first ? *of_first : *of_second));
    ASSERT_OK(run.coordinator->PassDone(worker->id, anew->step, RecordsOf(*anew), {.seconds = 1}));
  }
  EXPECT_EQ(run.coordinator->Status().counts.vnodes_redone, 4);
  EXPECT_EQ(run.coordinator->Status().counts.workers_lost, 0);
}

TEST(CoordinatorGroupTest, AGroupThatDoesNotComeAboutHoldsAStepUpForAMinuteAtMost) {
  FakeClock clock;
  RunConfig config = SmallRun();
  config.relay.group_members = 2;
  TestRun run(config, {.expected_workers = 2, .clock = &clock});
  PlayedWorker first(run, "k"), second(run, "k"), other(run, "");
  EXPECT_EQ(first.NextOrder().kind, GroupOrder::Kind::kFound);  // and says nothing
  for (; clock.seconds < 55; clock.seconds += 5) {
    for (PlayedWorker* worker : {&first, &second, &other}) EXPECT_OK(run.coordinator->Heartbeat(worker->id));
    absl::SleepFor(absl::Milliseconds(10));
  }
  for (PlayedWorker* worker : {&first, &second, &other}) EXPECT_OK(run.coordinator->Heartbeat(worker->id));
  EXPECT_FALSE(other.HasAssignment());
  clock.seconds = 60;
  EXPECT_EQ(first.NextOrder().kind, GroupOrder::Kind::kEnd);
  for (PlayedWorker* worker : {&first, &second, &other}) {
    EXPECT_FALSE(worker->NextAssignment()->group.has_value());
  }
}

}  // namespace
}  // namespace eps::server
