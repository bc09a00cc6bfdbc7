#include "gpu_worker/relay/pass_trace.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/file_util.h"
#include "common/base/ids.h"
#include "common/model/model_spec.h"
#include "common/telemetry/trace_file.h"
#include "common/telemetry/trace_log.h"
#include "common/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gpu_worker/device/device.h"
#include "gtest/gtest.h"

namespace eps::worker {
namespace {

// Each of its sessions has an executor of its own, and so a trace.
TEST(PassTraceTest, AWorkerThatAttachesAnewGoesOnInItsTracks) {
  const std::string path = testing::TempDir() + "/worker_trace.json";
  const ModelSpec model;
  {
    ASSERT_OK_AND_ASSIGN(const auto log, TraceLog::Create({.path = path}));
    for (int64_t step = 0; step < 2; ++step) {
      const TraceLog::Time begin{std::chrono::seconds(step)};
      PassTrace trace(log.get(), &model);
      trace.AddAssignment(StepId(step), /*evaluates=*/false, 4, {begin, begin + std::chrono::milliseconds(500)});
      trace.AddWaits(StreamId::kIn, WaitCause::kVersion, {{begin, begin + std::chrono::milliseconds(100)}});
    }
  }
  ASSERT_OK_AND_ASSIGN(const std::string text, ReadFile(path));
  ASSERT_OK_AND_ASSIGN(const std::vector<TraceTrack> tracks, ParseTraceLog(text));
  std::vector<std::string> names;
  std::vector<size_t> events;
  for (const TraceTrack& track : tracks) {
    names.push_back(track.thread);
    events.push_back(track.events.size());
  }
  EXPECT_THAT(names, testing::ElementsAre("steps", "compute", "in", "out"));
  EXPECT_THAT(events, testing::ElementsAre(2, 0, 2, 0));
}

}  // namespace
}  // namespace eps::worker
