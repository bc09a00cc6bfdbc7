#ifndef EPS_CLI_TRACE_FILES_H_
#define EPS_CLI_TRACE_FILES_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/telemetry/trace_file.h"

namespace eps::cli {

// What the processes of a run wrote (TraceLog), as one trace that begins at 0: tracks of the workers, by their numbers, then
// of the others, in the order of the files. Or one file alone that was joined already (ToChromeTrace).
// Errors: INVALID_ARGUMENT naming file and line · the system's
absl::StatusOr<std::vector<TraceTrack>> JoinTraceLogs(absl::Span<const std::string> files);

// From the start of a step on a worker to the start of its next one, or to its own end.
struct TracedStep {
  std::string name;  // "step 12"
  double begin = 0, end = 0;
  double seconds() const { return end - begin; }
};
// That which took the median time on the first worker; the first step, in which buffers are touched for the first time,
// is left out where there are others. Of those that another step follows, and that last until it begins; only where
// there are none, as behind each is an evaluation or the run's end, of all. Nothing: that worker has ended no step.
std::optional<TracedStep> MedianStep(absl::Span<const TraceTrack> tracks);

// The same tracks, `seconds` later.
std::vector<TraceTrack> Later(std::vector<TraceTrack> tracks, double seconds);

}  // namespace eps::cli

#endif  // EPS_CLI_TRACE_FILES_H_
