#include "eps_server/service/start_orders.h"

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace eps::server {
namespace {

TEST(StartOrdersTest, AreTakenWhileSomebodyLooksWhoStartsWorkers) {
  absl::Duration now = absl::Seconds(100);
  StartOrders orders([&] { return now; });
  EXPECT_THAT(orders.Ask(1), StatusIs(absl::StatusCode::kFailedPrecondition, "nobody starts workers for this daemon"));
  orders.NoteStarter();
  now += absl::Seconds(10);
  EXPECT_OK(orders.Ask(2));
  EXPECT_OK(orders.Ask(3));
  EXPECT_EQ(orders.asked_for(), 5);
  now += absl::Milliseconds(1);
  EXPECT_THAT(orders.Ask(1), StatusIs(absl::StatusCode::kFailedPrecondition, "nobody starts workers for this daemon"));
  EXPECT_EQ(orders.asked_for(), 5);
}

TEST(StartOrdersTest, CountsThatMeanNothingAreRefused) {
  StartOrders orders([] { return absl::ZeroDuration(); });
  orders.NoteStarter();
  EXPECT_THAT(orders.Ask(0), StatusIs(absl::StatusCode::kInvalidArgument, "workers: 0, must be 1 to 4096"));
  EXPECT_THAT(orders.Ask(-1), StatusIs(absl::StatusCode::kInvalidArgument, "workers: -1"));
  EXPECT_THAT(orders.Ask(4097), StatusIs(absl::StatusCode::kInvalidArgument, "workers: 4097"));
  EXPECT_EQ(orders.asked_for(), 0);
}

}  // namespace
}  // namespace eps::server
