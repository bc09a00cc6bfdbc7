#include "cli/trace_files.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "common/base/file_util.h"
#include "common/base/status_macros.h"

namespace eps::cli {

absl::StatusOr<std::vector<TraceTrack>> JoinTraceLogs(absl::Span<const std::string> files) {
  std::vector<TraceTrack> joined;
  double first = std::numeric_limits<double>::infinity();
  for (const std::string& file : files) {
    EPS_ASSIGN_OR_RETURN(const std::string text, ReadFile(file));
    absl::StatusOr<std::vector<TraceTrack>> tracks = ParseTraceLog(text);
    EPS_RETURN_IF_ERROR_WITH(tracks.status(), file);
    for (TraceTrack& track : *tracks) {
      for (const TraceEvent& event : track.events) first = std::min(first, event.begin);
      joined.push_back(std::move(track));
    }
  }
  return first < std::numeric_limits<double>::infinity() ? Later(std::move(joined), -first) : joined;
}

std::vector<TraceTrack> Later(std::vector<TraceTrack> tracks, double seconds) {
  for (TraceTrack& track : tracks) {
    for (TraceEvent& event : track.events) {
      event.begin += seconds;
      event.end += seconds;
    }
  }
  return tracks;
}

std::optional<TracedStep> MedianStep(absl::Span<const TraceTrack> tracks) {
  const auto first_worker = std::find_if(tracks.begin(), tracks.end(), [](const TraceTrack& track) {
    return track.thread == "steps" && absl::StartsWith(track.process, "worker");
  });
  if (first_worker == tracks.end()) return std::nullopt;
  // One behind the other: no evaluation between them, and one event of a step whose lost vnodes were run again.
  std::vector<TraceEvent> events;
  for (const TraceEvent& event : first_worker->events) {
    if (events.empty() || events.back().name != event.name) events.push_back(event);
  }
  std::vector<TracedStep> steps;
  const auto is_step = [](const TraceEvent& event) { return absl::StartsWith(event.name, "step "); };
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    if (is_step(events[i]) && is_step(events[i + 1])) {
      steps.push_back({events[i].name, events[i].begin, events[i + 1].begin});
    }
  }
  if (steps.size() > 1) steps.erase(steps.begin());
  if (steps.empty()) return std::nullopt;
  const auto median = steps.begin() + static_cast<ptrdiff_t>(steps.size() / 2);
  std::nth_element(steps.begin(), median, steps.end(),
                   [](const TracedStep& a, const TracedStep& b) { return a.seconds() < b.seconds(); });
  return *median;
}

}  // namespace eps::cli
