#include "cli/order_follower.h"

#include <string>
#include <vector>

#include "common/base/host.h"
#include "gtest/gtest.h"
#include "proto/control.pb.h"

namespace eps::cli {
namespace {

proto::StatusReply Status(int order, int wanted, const std::vector<std::string>& states,
                          const std::string& run = "training") {
  proto::StatusReply status;
  status.set_state(run);
  if (order > 0) {
    status.mutable_start_order()->set_number(order);
    status.mutable_start_order()->set_workers(wanted);
  }
  for (const std::string& state : states) {
    proto::WorkerStatus& worker = *status.add_workers();
    worker.set_worker_id(status.workers_size());
    worker.set_process_id(100 + status.workers_size());
    worker.set_host_name(HostName());
    worker.set_state(state);
  }
  return status;
}

TEST(OrderFollowerTest, StartsOneAfterTheOtherUntilThereAreEnough) {
  OrderFollower follower;
  EXPECT_FALSE(follower.WantsOneMore(Status(0, 0, {"running"}), false));
  EXPECT_EQ(follower.report().order(), 0);
  EXPECT_TRUE(follower.WantsOneMore(Status(1, 3, {"running"}), false));
  EXPECT_EQ(follower.report().order(), 1);
  EXPECT_FALSE(follower.WantsOneMore(Status(1, 3, {"running"}), true));
  EXPECT_FALSE(follower.WantsOneMore(Status(1, 3, {"running", "attaching"}), true));
  EXPECT_TRUE(follower.WantsOneMore(Status(1, 3, {"running", "running"}), false));
  EXPECT_FALSE(follower.report().is_over());
  EXPECT_FALSE(follower.WantsOneMore(Status(1, 3, {"running", "running", "idle"}), false));
  EXPECT_TRUE(follower.report().is_over());
  EXPECT_EQ(follower.report().failure(), "");
  // Nobody takes the place of one that is lost later.
  EXPECT_FALSE(follower.WantsOneMore(Status(1, 3, {"running", "running", "lost"}), false));
}

TEST(OrderFollowerTest, WhoLeavesOrIsLostIsNotCountedAndWhoComesByItselfIs) {
  OrderFollower follower;
  EXPECT_TRUE(follower.WantsOneMore(Status(1, 2, {"running", "leaving", "lost"}), false));
  EXPECT_FALSE(follower.WantsOneMore(Status(1, 2, {"running", "attaching"}), false));
  EXPECT_FALSE(follower.report().is_over());
}

TEST(OrderFollowerTest, TheNewestOrderCountsAndTheSameOneAgainStartsNobodyTwice) {
  OrderFollower follower;
  EXPECT_TRUE(follower.WantsOneMore(Status(1, 2, {"running"}), false));
  EXPECT_FALSE(follower.WantsOneMore(Status(2, 2, {"running"}), true));
  EXPECT_EQ(follower.report().order(), 2);
  // One that is on its way is waited for, also where nobody needs it any more.
  EXPECT_FALSE(follower.WantsOneMore(Status(3, 1, {"running"}), true));
  EXPECT_FALSE(follower.report().is_over());
  EXPECT_FALSE(follower.WantsOneMore(Status(3, 1, {"running", "running"}), false));
  EXPECT_TRUE(follower.report().is_over());
}

TEST(OrderFollowerTest, AnOrderThatWasGivenUpStartsNobodyAndTheNextOneDoes) {
  OrderFollower follower;
  follower.GiveUp("there is none");
  EXPECT_EQ(follower.report().failure(), "");
  EXPECT_TRUE(follower.WantsOneMore(Status(1, 3, {"running"}), false));
  follower.GiveUp("it does not fit");
  EXPECT_FALSE(follower.WantsOneMore(Status(1, 3, {"running"}), false));
  EXPECT_TRUE(follower.report().is_over());
  EXPECT_EQ(follower.report().failure(), "it does not fit");
  EXPECT_TRUE(follower.WantsOneMore(Status(2, 3, {"running"}), false));
  EXPECT_EQ(follower.report().failure(), "");
}

TEST(OrderFollowerTest, WhatFailsOnceThereAreEnoughIsNoFailure) {
  OrderFollower follower;
  EXPECT_FALSE(follower.WantsOneMore(Status(1, 2, {"running", "running"}), true));
  follower.GiveUp("gpu_worker 3 ended");
  EXPECT_TRUE(follower.report().is_over());
  EXPECT_EQ(follower.report().failure(), "");
}

TEST(OrderFollowerTest, WhatItSaysCanBeSent) {
  OrderFollower follower;
  EXPECT_TRUE(follower.WantsOneMore(Status(1, 2, {"running"}), false));
  follower.GiveUp("/tmp/\xff is not there");
  proto::WorkerStarter received;
  EXPECT_TRUE(received.ParseFromString(follower.report().SerializeAsString()));
  EXPECT_NE(received.failure().find("is not there"), std::string::npos);
}

TEST(OrderFollowerTest, NobodyIsStartedForARunThatEnds) {
  for (const char* state : {"finishing", "finished", "failed"}) {
    OrderFollower follower;
    EXPECT_FALSE(follower.WantsOneMore(Status(1, 2, {"running"}, state), false));
    EXPECT_EQ(follower.report().failure(), "the run has come to its end");
  }
  OrderFollower follower;
  EXPECT_TRUE(follower.WantsOneMore(Status(1, 2, {"lost"}, "waiting_for_workers"), false));
}

TEST(ReadyProcessesTest, AreThoseOfThisMachine) {
  proto::StatusReply status = Status(0, 0, {"running", "attaching", "idle", "lost", "leaving"});
  status.mutable_workers(2)->set_host_name(HostName() + "-other");
  EXPECT_EQ(ReadyProcesses(status), (std::set<pid_t>{101, 105}));
}

}  // namespace
}  // namespace eps::cli
