#include "eps_server/checkpoint/patient_thread.h"

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "absl/status/status.h"
#include "common/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace eps::server {
namespace {

TEST(PatientThreadTest, WorksAtLowPriorityWhileNobodyWaits) {
  const int before = getpriority(PRIO_PROCESS, 0);
  int during = -100;
  std::thread::id where;
  PatientThread patient(nullptr);
  ASSERT_OK(patient.Run([&] {
    during = getpriority(PRIO_PROCESS, 0);
    where = std::this_thread::get_id();
    return absl::OkStatus();
  }));
  EXPECT_NE(where, std::this_thread::get_id());
  EXPECT_EQ(during, std::min(19, before + 14));
  EXPECT_EQ(getpriority(PRIO_PROCESS, 0), before);
}

TEST(PatientThreadTest, WorksOnTheCallersThreadAsLongAsSomebodyWaits) {
  std::atomic<bool> is_awaited = false;
  PatientThread patient([&] { return is_awaited.load(); });
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

TEST(PatientThreadTest, ReturnsWhatThePieceDoes) {
  PatientThread patient(nullptr);
  EXPECT_THAT(patient.Run([] { return absl::DataLossError("bad disk"); }),
              StatusIs(absl::StatusCode::kDataLoss, "bad disk"));
  EXPECT_OK(patient.Run([] { return absl::OkStatus(); }));
}

}  // namespace
}  // namespace eps::server
