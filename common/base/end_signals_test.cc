#include "common/base/end_signals.h"

#include <signal.h>

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using Meaning = EndSignals::Meaning;

TEST(EndSignalsTest, TheFirstEndsInOrderWhatRepeatsItSaysNothingAndASecondEndsAtOnce) {
  absl::Duration now;
  EndSignals signals([&now] { return now; });
  EXPECT_EQ(signals.first(), 0);
  EXPECT_EQ(signals.OnSignal(SIGINT), Meaning::kEndInOrder);
  now += EndSignals::kRepeat - absl::Nanoseconds(1);
  EXPECT_EQ(signals.OnSignal(SIGTERM), Meaning::kNothingNew);
  now += absl::Nanoseconds(1);  // counted from the first
  EXPECT_EQ(signals.OnSignal(SIGTERM), Meaning::kEndAtOnce);
  EXPECT_EQ(signals.first(), SIGINT);
}

TEST(EndSignalsTest, SighupIsAFirstOneAndNeverASecond) {
  absl::Duration now;
  EndSignals signals([&now] { return now; });
  EXPECT_EQ(signals.OnSignal(SIGHUP), Meaning::kEndInOrder);
  now += absl::Hours(1);
  EXPECT_EQ(signals.OnSignal(SIGHUP), Meaning::kNothingNew);
  EXPECT_EQ(signals.OnSignal(SIGTERM), Meaning::kEndAtOnce);
}

}  // namespace
}  // namespace eps
