#include "gpu_worker/telemetry/worker_metrics.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/telemetry/metric_table.h"
#include "common/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps::worker {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(WorkerMetricsTest, TheTableIsGood) { EXPECT_OK(CheckMetricTable(WorkerMetricTable(), "worker_")); }

TEST(WorkerMetricsTest, ShowsWhatTheWorkerDoes) {
  WorkerView view;
  view.phase = WorkerPhase::kRunning;
  view.attachments = 2;
  view.step = 41;
  view.vnodes = 3;
  view.passes = 5;
  view.pass_seconds = 7.5;
  view.last_pass_seconds = 1.5;
  view.wait_seconds = {{"pull", 0.25}};
  view.device_peak_bytes = 4096;
  const std::string page = WorkerMetricsText(view, 1e9, 1 << 20);
  for (const char* line :
       {"worker_phase{phase=\"running\"} 1\n", "worker_phase{phase=\"idle\"} 0\n", "worker_step 41\n",
        "worker_vnodes 3\n", "worker_passes_total 5\n", "worker_pass_seconds 1.5\n",
        "worker_wait_seconds_total{cause=\"pull\"} 0.25\n", "worker_wait_seconds_total{cause=\"stash\"} 0\n",
        "worker_device_memory_bytes{kind=\"peak\"} 4096\n", "worker_host_memory_bytes{kind=\"resident\"} 1048576\n"}) {
    EXPECT_THAT(page, HasSubstr(absl::StrCat("\n", line)));
  }
  const auto lines = std::count(page.begin(), page.end(), '\n');
  EXPECT_EQ(lines - 2 * static_cast<int64_t>(WorkerMetricTable().size()), MaxSeries(WorkerMetricTable()));
}

TEST(WorkerMetricsTest, BeforeTheFirstAssignmentThereIsNoStep) {
  const std::string page = WorkerMetricsText(WorkerView(), 0, 0);
  EXPECT_THAT(page, Not(HasSubstr("\nworker_step ")));
  EXPECT_THAT(page, HasSubstr("worker_phase{phase=\"connecting\"} 1\n"));
}

}  // namespace
}  // namespace eps::worker
