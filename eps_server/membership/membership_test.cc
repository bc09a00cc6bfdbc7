#include "eps_server/membership/membership.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "common/schedule/vnode_batch.h"
#include "common/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class SilentChannel : public WorkerChannel {
 public:
  void SendAssignment(std::shared_ptr<const Assignment>) override {}
  void SendGroupOrder(const GroupOrder&) override {}
  void SendFinish(FinishNotice) override {}
  void Close(absl::Status) override {}
};

WorkerInfo Cpu() { return {.device_name = "cpu", .device_model = "test", .device_cap_bytes = 1 << 20}; }
absl::Duration At(int seconds) { return absl::Seconds(seconds); }

WorkerId JoinReady(Membership& members, int now) {
  const WorkerId id = *members.Attach(Cpu(), At(now));
  EXPECT_OK(members.Connect(id, std::make_shared<SilentChannel>(), At(now)));
  EXPECT_OK(members.Ready(id, {}, At(now)));
  return id;
}

TEST(MembershipTest, AnotherDeviceModelIsNamedWhileItsWorkerTakesPart) {
  Membership members(absl::Seconds(10));
  EXPECT_EQ(members.OtherDeviceModel("test"), "");
  const WorkerId id = *members.Attach(Cpu(), At(0));
  EXPECT_EQ(members.OtherDeviceModel("test"), "");
  EXPECT_EQ(members.OtherDeviceModel("another"), "test");
  members.LetGo(id);
  EXPECT_EQ(members.OtherDeviceModel("another"), "");
  members.Remove(id);
  EXPECT_EQ(members.OtherDeviceModel("another"), "");
}

TEST(MembershipTest, IdsRiseAndAreNeverUsedTwice) {
  Membership members(absl::Seconds(10));
  const WorkerId first = JoinReady(members, 0);
  EXPECT_NE(members.Remove(first), nullptr);
  const WorkerId second = JoinReady(members, 0);
  EXPECT_GE(first.value(), 1);
  EXPECT_GT(second, first);
  EXPECT_THAT(members.Renew(first, At(0)), StatusIs(absl::StatusCode::kNotFound, "worker_id: 1"));
  EXPECT_EQ(members.Remove(first), nullptr);
}

TEST(MembershipTest, OnlyConnectedAndReadyWorkersAreReady) {
  Membership members(absl::Seconds(10));
  const WorkerId id = *members.Attach(Cpu(), At(0));
  EXPECT_THAT(members.Ready(id, {}, At(0)), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_OK(members.Connect(id, std::make_shared<SilentChannel>(), At(0)));
  EXPECT_THAT(members.Connect(id, std::make_shared<SilentChannel>(), At(0)),
              StatusIs(absl::StatusCode::kFailedPrecondition, "already"));
  EXPECT_THAT(members.ReadyWorkers(), IsEmpty());
  EXPECT_OK(members.Ready(id, {}, At(0)));
  EXPECT_THAT(members.ReadyWorkers(), ElementsAre(id));
}

TEST(MembershipTest, WhoIsAboutToLeaveIsGivenNothingAndListedAsThatUntilItIsGone) {
  Membership members(absl::Seconds(10));
  const WorkerId leaving = JoinReady(members, 0), stays = JoinReady(members, 0);
  EXPECT_OK(members.Leave(leaving, At(5)));
  EXPECT_THAT(members.Leave(WorkerId(99), At(5)), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(members.ReadyWorkers(), ElementsAre(stays));
  EXPECT_THAT(members.LeavingWorkers(), ElementsAre(leaving));
  EXPECT_THAT(members.WorkersForTheRest(), ElementsAre(stays));
  EXPECT_EQ(members.num_ready(), 2);
  EXPECT_EQ(members.GroupCandidates().size(), 1u);
  EXPECT_EQ(members.List(At(5)).front().state, WorkerState::kLeaving);
  EXPECT_THAT(members.Expired(At(10)), ElementsAre(stays)) << "asking was a sign of life";
  EXPECT_NE(members.Remove(leaving), nullptr);
  EXPECT_EQ(members.List(At(5)).front().state, WorkerState::kLost) << "it went before it was let go";
}

TEST(MembershipTest, WhoSaysTheSameAgainIsNothingNew) {
  Membership members(absl::Seconds(10));
  const WorkerId id = *members.Attach(Cpu(), At(0));
  EXPECT_OK(members.Connect(id, std::make_shared<SilentChannel>(), At(0)));
  for (const bool is_first : {true, false}) {
    ASSERT_OK_AND_ASSIGN(const bool is_ready_now, members.Ready(id, {}, At(0)));
    EXPECT_EQ(is_ready_now, is_first);
  }
  for (const bool is_first : {true, false}) {
    ASSERT_OK_AND_ASSIGN(const bool leaves_now, members.Leave(id, At(0)));
    EXPECT_EQ(leaves_now, is_first);
  }
}

TEST(MembershipTest, WhoIsLetGoCountsForNothingAndIsKnownUntilItIsGone) {
  Membership members(absl::Seconds(10));
  const WorkerId leaving = JoinReady(members, 0), stays = JoinReady(members, 0);
  EXPECT_OK(members.Leave(leaving, At(5)));
  EXPECT_FALSE(members.IsLetGo(leaving));
  EXPECT_OK(members.Leave(stays, At(5)));
  EXPECT_THAT(members.WorkersForTheRest(), ElementsAre(leaving, stays)) << "nobody else is left";
  members.LetGo(leaving);
  EXPECT_TRUE(members.IsLetGo(leaving));
  EXPECT_THAT(members.WorkersForTheRest(), ElementsAre(stays));
  EXPECT_THAT(members.ReadyWorkers(), IsEmpty());
  EXPECT_THAT(members.LeavingWorkers(), ElementsAre(stays));
  EXPECT_EQ(members.num_ready(), 1);
  EXPECT_EQ(members.num_alive(), 1);
  EXPECT_EQ(members.Channels().size(), 1u);
  EXPECT_OK(members.Renew(leaving, At(6))) << "its last heartbeat";
  EXPECT_EQ(members.List(At(6)).front().state, WorkerState::kLeaving);
  EXPECT_NE(members.Remove(leaving), nullptr);
  EXPECT_FALSE(members.IsLetGo(leaving));
  EXPECT_EQ(members.List(At(6)).size(), 1u) << "nobody has lost it";
}

TEST(MembershipTest, WhoIsDrainedLeavesAsLongAsAnotherIsReady) {
  Membership members(absl::Seconds(10));
  const WorkerId first = JoinReady(members, 0), second = JoinReady(members, 0), third = JoinReady(members, 0);
  EXPECT_THAT(members.Drain({first, WorkerId(99)}), StatusIs(absl::StatusCode::kNotFound, "worker 99"));
  EXPECT_THAT(members.Drain({first, second, third}), StatusIs(absl::StatusCode::kFailedPrecondition, "eps stop"));
  EXPECT_THAT(members.LeavingWorkers(), IsEmpty()) << "all or none";
  EXPECT_THAT(members.Drain({second, first, second}), IsOkAndHolds(ElementsAre(first, second)));
  EXPECT_THAT(members.Drain({second}), IsOkAndHolds(IsEmpty())) << "asked again";
  EXPECT_THAT(members.LeavingWorkers(), ElementsAre(first, second));
  EXPECT_THAT(members.Drain({third}), StatusIs(absl::StatusCode::kFailedPrecondition)) << "the others only leave";
  const WorkerId attaching = *members.Attach(Cpu(), At(0));
  EXPECT_OK(members.Connect(attaching, std::make_shared<SilentChannel>(), At(0)));
  EXPECT_THAT(members.Drain({attaching}), StatusIs(absl::StatusCode::kFailedPrecondition, "not ready yet"));
  EXPECT_THAT(members.Drain({third}), StatusIs(absl::StatusCode::kFailedPrecondition)) << "no other is ready";
  EXPECT_OK(members.Ready(attaching, {}, At(0)));
  EXPECT_OK(members.Drain({third}));
}

TEST(MembershipTest, LeaseRunsOutUnlessRenewed) {
  Membership members(absl::Seconds(10));
  const WorkerId silent = JoinReady(members, 0), lively = JoinReady(members, 0);
  EXPECT_OK(members.Renew(lively, At(9)));
  EXPECT_THAT(members.Expired(At(9)), IsEmpty());
  EXPECT_THAT(members.Expired(At(10)), ElementsAre(silent));
  EXPECT_OK(members.RecordPass(silent, {}, At(10)));  // any sign of life counts
  EXPECT_THAT(members.Expired(At(18)), IsEmpty());
  EXPECT_THAT(members.Expired(At(20)), ElementsAre(silent, lively));
}

TEST(MembershipTest, WhatLibrariesTookSinceAWorkerWasReadyIsKnownFromItsNewestPass) {
  Membership members(absl::Seconds(10));
  const WorkerId id = *members.Attach(Cpu(), At(0));
  EXPECT_OK(members.Connect(id, std::make_shared<SilentChannel>(), At(0)));
  EXPECT_OK(members.Ready(id, {.device_arena_bytes = 7, .device_outside_bytes = 100}, At(0)));
  EXPECT_EQ(members.List(At(0)).front().memory.device_outside_bytes, 100);
  EXPECT_OK(members.RecordPass(id, {.seconds = 1, .device_outside_bytes = 350}, At(1)));
  EXPECT_EQ(members.List(At(1)).front().memory.device_outside_bytes, 350);
  EXPECT_EQ(members.List(At(1)).front().memory.device_arena_bytes, 7);
}

TEST(MembershipTest, TheNumberOfWorkersIsBounded) {
  Membership members(absl::Seconds(10));
  const WorkerInfo info = {.device_name = "cpu", .device_model = "test", .device_cap_bytes = 1};
  WorkerId last;
  for (size_t i = 0; i < kMaxWorkers; ++i) last = members.Attach(info, absl::ZeroDuration()).value();
  EXPECT_THAT(members.Attach(info, absl::ZeroDuration()), StatusIs(absl::StatusCode::kUnavailable, "4096 workers"));
  members.Remove(last);
  EXPECT_OK(members.Attach(info, absl::ZeroDuration()));
}

TEST(MembershipTest, WhoWentByItselfIsListedAsThatAndNotAsLost) {
  Membership members(absl::Seconds(10));
  members.Remove(JoinReady(members, 0), WorkerState::kLeft);
  members.Remove(JoinReady(members, 0));
  const std::vector<WorkerStatus> list = members.List(absl::Seconds(1));
  ASSERT_EQ(list.size(), 2u);
  EXPECT_EQ(WorkerStateName(list[0].state), "left");
  EXPECT_EQ(WorkerStateName(list[1].state), "lost");
  EXPECT_TRUE(IsGone(list[0].state) && IsGone(list[1].state));
  EXPECT_FALSE(IsGone(WorkerState::kLeaving));
}

TEST(MembershipTest, LostWorkersAreListedForAWhile) {
  Membership members(absl::Seconds(10));
  for (int i = 0; i < 40; ++i) members.Remove(JoinReady(members, 0));
  JoinReady(members, 0);
  const std::vector<WorkerStatus> list = members.List(absl::Seconds(1));
  EXPECT_EQ(list.size(), 17u);
  EXPECT_EQ(list.front().state, WorkerState::kLost);
  EXPECT_EQ(list.back().state, WorkerState::kIdle);
  EXPECT_EQ(members.num_alive(), 1);
}

TEST(MembershipTest, BadIntroductionNamesTheField) {
  Membership members(absl::Seconds(10));
  WorkerInfo name = Cpu(), model = Cpu(), host = Cpu(), cap = Cpu();
  name.device_name = std::string(65, 'x');
  model.device_model = std::string(257, 'x');
  host.host_name = std::string(65, 'x');
  cap.device_cap_bytes = 0;
  EXPECT_THAT(members.Attach(name, At(0)), StatusIs(absl::StatusCode::kInvalidArgument, "device_name: 65"));
  EXPECT_THAT(members.Attach(model, At(0)), StatusIs(absl::StatusCode::kInvalidArgument, "device_model: 257"));
  model.device_model = "cpu\n";
  EXPECT_THAT(members.Attach(model, At(0)),
              StatusIs(absl::StatusCode::kInvalidArgument, "device_model: \"cpu\\n\", must be printable"));
  EXPECT_THAT(members.Attach(host, At(0)), StatusIs(absl::StatusCode::kInvalidArgument, "host_name: 65"));
  EXPECT_THAT(members.Attach(cap, At(0)), StatusIs(absl::StatusCode::kInvalidArgument, "device_cap_bytes: 0"));
  EXPECT_EQ(members.num_alive(), 0);
}

TEST(MembershipTest, APageIsAnAddressOfNumbers) {
  WorkerInfo info = Cpu();
  for (const char* good : {"", "127.0.0.1:9464", "[::1]:65535"}) {
    info.metrics_address = good;
    EXPECT_OK(CheckWorkerInfo(info));
  }
  const std::string zero("127.0.0.1\0evil:80", 17);
  for (const std::string& bad : {std::string("127.0.0.1"), std::string("node7:80"), std::string("127.0.0.1:0"),
                                 std::string("127.0.0.1:65536"), std::string("127.0.0.1:80\n"), zero,
                                 std::string("[::1]:80 "), std::string("http://127.0.0.1:80"), std::string(257, '1')}) {
    info.metrics_address = bad;
    EXPECT_THAT(CheckWorkerInfo(info), StatusIs(absl::StatusCode::kInvalidArgument, "metrics_address: "));
  }
}

TEST(SplitVnodesTest, RangesAreContiguousAndCoverAll) {
  EXPECT_THAT(SplitVnodes({0, 1, 2, 3}, 1), ElementsAre(ElementsAre(0, 1, 2, 3)));
  EXPECT_THAT(SplitVnodes({0, 1, 2, 3}, 3), ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(2, 3)));
  EXPECT_THAT(SplitVnodes({5, 7}, 3), ElementsAre(IsEmpty(), ElementsAre(5), ElementsAre(7)));
}

}  // namespace
}  // namespace eps::server
