#include "cli/trace_files.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/base/file_util.h"
#include "common/base/status_macros.h"

namespace eps::cli {
namespace {

// Workers first, by their numbers; others behind them, as they come.
std::pair<bool, int64_t> Place(const TraceTrack& track) {
  absl::string_view number = track.process;
  int64_t worker = 0;
  const bool is_worker = absl::ConsumePrefix(&number, "worker ") && absl::SimpleAtoi(number, &worker);
  return {!is_worker, is_worker ? worker : 0};
}

}  // namespace

absl::StatusOr<std::vector<TraceTrack>> JoinTraceLogs(absl::Span<const std::string> files) {
  std::vector<TraceTrack> joined;
  double first = std::numeric_limits<double>::infinity();
  for (const std::string& file : files) {
    EPS_ASSIGN_OR_RETURN(const std::string text, ReadFile(file));
    const bool is_joined = IsChromeTrace(text);
    if (is_joined && files.size() > 1) {
      return absl::InvalidArgumentError(
          absl::StrCat(file, ": is joined already, and its times begin at 0: give it alone"));
    }
    absl::StatusOr<std::vector<TraceTrack>> tracks = is_joined ? ParseChromeTrace(text) : ParseTraceLog(text);
    EPS_RETURN_IF_ERROR_WITH(tracks.status(), file);
    for (TraceTrack& track : *tracks) {
      for (const TraceEvent& event : track.events) first = std::min(first, event.begin);
      joined.push_back(std::move(track));
    }
  }
  std::stable_sort(joined.begin(), joined.end(),
                   [](const TraceTrack& a, const TraceTrack& b) { return Place(a) < Place(b); });
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
    if (events.empty() || events.back().name != event.name) {
      events.push_back(event);
    } else {
      events.back().end = event.end;
    }
  }
  std::vector<TracedStep> followed, alone;
  const auto is_step = [](const TraceEvent& event) { return absl::StartsWith(event.name, "step "); };
  for (size_t i = 0; i < events.size(); ++i) {
    if (!is_step(events[i])) continue;
    if (i + 1 < events.size() && is_step(events[i + 1])) {
      followed.push_back({events[i].name, events[i].begin, events[i + 1].begin});
    } else {
      alone.push_back({events[i].name, events[i].begin, events[i].end});
    }
  }
  std::vector<TracedStep>& steps = followed.empty() ? alone : followed;
  if (steps.size() > 1) steps.erase(steps.begin());
  if (steps.empty()) return std::nullopt;
  const auto median = steps.begin() + static_cast<ptrdiff_t>(steps.size() / 2);
  std::nth_element(steps.begin(), median, steps.end(),
                   [](const TracedStep& a, const TracedStep& b) { return a.seconds() < b.seconds(); });
  return *median;
}

}  // namespace eps::cli
