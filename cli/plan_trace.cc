#include "cli/plan_trace.h"

#include <cstddef>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gpu_worker/device/stream_id.h"
#include "gpu_worker/plan/relay_step.h"
#include "gpu_worker/plan/timeline.h"

namespace eps::cli {

std::vector<TraceTrack> TracksOf(const WholePlan& plan) {
  std::vector<TraceTrack> tracks;
  for (const worker::StreamId stream : worker::kStreams) {  // in the order of StreamId
    tracks.push_back({.process = "worker, predicted", .thread = std::string(worker::StreamName(stream)), .events = {}});
  }
  for (const worker::TimelineSpan& span : plan.step.timeline.steps) {
    const worker::RelayStep& step = plan.step.steps[static_cast<size_t>(span.index)];
    tracks[static_cast<size_t>(step.stream())].events.push_back(
        {Title(step, plan.model), span.begin, span.end, DebugString(step, plan.model)});
  }
  TraceTrack updates = {.process = "daemon, predicted", .thread = "updates", .events = {}};
  for (const worker::TimelineSpan& span : plan.step.timeline.updates) {
    const std::string& blob = plan.model.blobs[static_cast<size_t>(span.index)].name;
    updates.events.push_back({.name = absl::StrCat("update ", blob), .begin = span.begin, .end = span.end});
  }
  tracks.push_back(std::move(updates));
  return tracks;
}

}  // namespace eps::cli
