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
  EXPECT_FALSE(orders.NoteStarter(0, true, "of none"));
  EXPECT_THAT(orders.Ask(2), IsOkAndHolds(1));
  EXPECT_FALSE(orders.NoteStarter(1, false, ""));
  EXPECT_TRUE(orders.NoteStarter(1, true, "it does not fit"));
  EXPECT_FALSE(orders.NoteStarter(1, true, "it does not fit"));  // said before
  EXPECT_TRUE(orders.newest().is_over);
  EXPECT_EQ(orders.newest().failure, "it does not fit");
  EXPECT_THAT(orders.Ask(3), IsOkAndHolds(2));
  EXPECT_FALSE(orders.NoteStarter(1, true, "it does not fit"));
  EXPECT_FALSE(orders.newest().is_over);
  EXPECT_EQ(orders.newest().failure, "");
  EXPECT_TRUE(orders.NoteStarter(2, true, std::string(5000, 'x')));
  EXPECT_EQ(orders.newest().failure.size(), 1024u);
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
