#include "eps_server/checkpoint/patient_thread.h"

#include <sched.h>

#include <atomic>
#include <thread>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace eps::server {
namespace {

TEST(PatientThreadTest, WorksAtLowPriorityWhileNobodyWaits) {
  const int before = sched_getscheduler(0);
  int during = -1;
  std::thread::id where;
  PatientThread patient({});
  ASSERT_OK(patient.Run([&] {
    during = sched_getscheduler(0);
    where = std::this_thread::get_id();
    return absl::OkStatus();
  }));
  EXPECT_NE(where, std::this_thread::get_id());
  EXPECT_EQ(during, SCHED_IDLE);
  EXPECT_EQ(sched_getscheduler(0), before);
}

TEST(PatientThreadTest, WorksOnTheCallersThreadAsLongAsSomebodyWaits) {
  std::atomic<bool> is_awaited = false;
  PatientThread patient({.is_awaited = [&] { return is_awaited.load(); }});
  std::thread::id where;
  const auto piece = [&] {
    where = std::this_thread::get_id();
    return absl::OkStatus();
  };
  for (const bool awaited : {true, false, true, false, false}) {
    is_awaited = awaited;
    ASSERT_OK(patient.Run(piece));
    EXPECT_EQ(where == std::this_thread::get_id(), awaited);
  }
}

TEST(PatientThreadTest, WorksOnTheCallersThreadUntilTheAllowanceIsUsedUp) {
  const std::thread::id caller = std::this_thread::get_id();
  PatientThread patient({.allowance = absl::Milliseconds(20)});
  int own = 0, others = 0;
  volatile int work = 0;
  const auto piece = [&] {
    ++(std::this_thread::get_id() == caller ? own : others);
    for (int i = 0; i < 10'000; ++i) work = i;
    return absl::OkStatus();
  };
  while (others == 0) ASSERT_OK(patient.Run(piece));
  EXPECT_GT(own, 10);
}

TEST(PatientThreadTest, ReturnsWhatThePieceDoes) {
  PatientThread patient({});
  EXPECT_THAT(patient.Run([] { return absl::DataLossError("bad disk"); }),
              StatusIs(absl::StatusCode::kDataLoss, "bad disk"));
  EXPECT_OK(patient.Run([] { return absl::OkStatus(); }));
}

TEST(PatientThreadTest, RunsNothingOnceItIsCancelled) {
  bool cancelled = false;
  PatientThread patient({.is_awaited = [] { return true; }, .is_cancelled = [&] { return cancelled; }});
  int pieces = 0;
  const auto piece = [&] {
    ++pieces;
    return absl::OkStatus();
  };
  EXPECT_OK(patient.Run(piece));
  cancelled = true;
  EXPECT_EQ(patient.Run(piece).code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(pieces, 1);
}

}  // namespace
}  // namespace eps::server
