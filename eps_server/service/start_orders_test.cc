#include "eps_server/service/start_orders.h"

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace eps::server {
namespace {

using absl::StatusCode;

TEST(StartOrdersTest, AreTakenWhileSomebodyLooksWhoStartsWorkers) {
  absl::Duration now = absl::Seconds(100);
  StartOrders orders(8, [&] { return now; });
  EXPECT_THAT(orders.Ask(1), StatusIs(StatusCode::kFailedPrecondition, "nobody starts workers for this daemon"));
  EXPECT_EQ(orders.newest().number, 0);
  orders.NoteStarter(0, true, "");
  now += absl::Seconds(10);
  EXPECT_THAT(orders.Ask(2), IsOkAndHolds(1));
  EXPECT_THAT(orders.Ask(3), IsOkAndHolds(2));
  EXPECT_EQ(orders.newest().workers, 3);
  now += absl::Milliseconds(1);
  EXPECT_THAT(orders.Ask(1), StatusIs(StatusCode::kFailedPrecondition, "nobody starts workers for this daemon"));
  EXPECT_EQ(orders.newest().number, 2);
}

TEST(StartOrdersTest, WhatIsSaidOfAnOlderOneIsNotOfTheNewest) {
  StartOrders orders(8, [] { return absl::ZeroDuration(); });
  EXPECT_EQ(orders.NoteStarter(0, true, "of none"), "");
  EXPECT_THAT(orders.Ask(2), IsOkAndHolds(1));
  EXPECT_EQ(orders.NoteStarter(1, false, ""), "");
  EXPECT_EQ(orders.NoteStarter(1, true, "it does not fit"), "it does not fit");
  EXPECT_EQ(orders.NoteStarter(1, true, "it does not fit"), "");  // said before
  EXPECT_TRUE(orders.newest().is_over);
  EXPECT_EQ(orders.newest().failure, "it does not fit");
  EXPECT_THAT(orders.Ask(3), IsOkAndHolds(2));
  EXPECT_EQ(orders.NoteStarter(1, true, "it does not fit"), "");
  EXPECT_FALSE(orders.newest().is_over);
  EXPECT_EQ(orders.newest().failure, "");
  EXPECT_EQ(orders.NoteStarter(2, true, std::string(5000, 'x')), std::string(1024, 'x'));
  EXPECT_EQ(orders.newest().failure.size(), 1024u);
}

TEST(StartOrdersTest, AFailureIsTextThatEveryClientCanRead) {
  StartOrders orders(8, [] { return absl::ZeroDuration(); });
  orders.NoteStarter(0, true, "");
  EXPECT_THAT(orders.Ask(2), IsOkAndHolds(1));
  EXPECT_EQ(orders.NoteStarter(1, true, "/tmp/\xff\x1b[2J: no \xc3\xa4"), "/tmp/??[2J: no ??");
}

TEST(StartOrdersTest, AnOrderIsOverWhereWhoeverStartsWorkersIsGone) {
  absl::Duration now = absl::Seconds(100);
  StartOrders orders(8, [&] { return now; });
  orders.NoteStarter(0, true, "");
  EXPECT_THAT(orders.Ask(2), IsOkAndHolds(1));
  now += absl::Seconds(10);
  EXPECT_FALSE(orders.newest().is_over);
  now += absl::Milliseconds(1);
  EXPECT_TRUE(orders.newest().is_over);
  EXPECT_EQ(orders.newest().failure, "nothing is heard of whoever starts workers");
  orders.NoteStarter(1, false, "");  // it is back
  EXPECT_FALSE(orders.newest().is_over);
  EXPECT_EQ(orders.newest().failure, "");
}

TEST(StartOrdersTest, MoreWorkersThanHaveSomethingToDoAreRefused) {
  StartOrders orders(4, [] { return absl::ZeroDuration(); });
  orders.NoteStarter(0, true, "");
  EXPECT_THAT(orders.Ask(0), StatusIs(StatusCode::kInvalidArgument, "workers: 0, must be 1 to 4"));
  EXPECT_THAT(orders.Ask(-1), StatusIs(StatusCode::kInvalidArgument, "workers: -1"));
  EXPECT_THAT(orders.Ask(5),
              StatusIs(StatusCode::kInvalidArgument,
                       "workers: 5, must be 1 to 4, as batch.virtual_nodes is: others would have nothing to do"));
  EXPECT_THAT(orders.Ask(4), IsOkAndHolds(1));
}

}  // namespace
}  // namespace eps::server
