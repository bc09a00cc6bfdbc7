#ifndef EPS_COMMON_TELEMETRY_TRACE_FILE_H_
#define EPS_COMMON_TELEMETRY_TRACE_FILE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace eps {

// Something that took time, on one line of a picture.
struct TraceEvent {
  std::string name;           // "forward h.3"
  double begin = 0, end = 0;  // seconds, from wherever the trace begins
  std::string detail = {};    // for people who ask: "vnode 1 micro-batch 0"; "": nothing
  int64_t copied_bytes = 0;   // between host and device; 0: nothing was
  double copy_seconds = 0;    // that the copies alone took
};

// A line: a stream of a worker, or what a daemon's threads do.
struct TraceTrack {
  std::string process, thread;  // "worker, predicted", "compute"
  std::vector<TraceEvent> events;
};

// What a TraceLog has left: a process's tracks, in their order, times in seconds on the log's clock. A last line that was
// cut off is left out.
//
// Errors: INVALID_ARGUMENT naming the line, and what is wrong with it
absl::StatusOr<std::vector<TraceTrack>> ParseTraceLog(absl::string_view text);

// What ToChromeTrace has written: tracks of several processes, times as they are there.
//
// Errors: INVALID_ARGUMENT naming the line, and what is wrong with it
absl::StatusOr<std::vector<TraceTrack>> ParseChromeTrace(absl::string_view text);
// Whether `text` begins as that does, and not as a TraceLog's file.
bool IsChromeTrace(absl::string_view text);

// The Chrome trace format, which Perfetto and chrome://tracing load: a JSON object with `traceEvents`, of which those with
// "ph": "X" are complete events, in microseconds, a line an event. Tracks of one process stand together, in the order in
// which they come.
std::string ToChromeTrace(absl::Span<const TraceTrack> tracks);

}  // namespace eps

#endif  // EPS_COMMON_TELEMETRY_TRACE_FILE_H_
