#ifndef EPS_GPU_WORKER_RELAY_PASS_TRACE_H_
#define EPS_GPU_WORKER_RELAY_PASS_TRACE_H_

#include <array>

#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/model/model_spec.h"
#include "common/telemetry/trace_log.h"
#include "gpu_worker/device/device.h"

namespace eps::worker {

// Writes what a device's streams did in each pass: a line of the picture for each stream, an event for each step of the
// relay, and for each wait in front of one. A wait for a version lies within the pull that it is of, on the in-stream,
// and one for room within its push, on the out-stream.
//
// Threads: one
class PassTrace {
 public:
  // Both outlive it.
  PassTrace(TraceLog* log, const ModelSpec* model);

  // Whose labels are StepLabels.
  void AddSpans(StreamId stream, absl::Span<const StreamSpan> spans);
  // Of what a stream does, and not in front of it.
  void AddWaits(StreamId stream, WaitCause cause, absl::Span<const TimeSpan> waits);
  // An assignment: vnodes of a step, or of an evaluation of the version that the step reads.
  void AddAssignment(StepId step, bool evaluates, size_t vnodes, TimeSpan time);

 private:
  TraceLog& log_;
  const ModelSpec& model_;
  int steps_ = 0;
  std::array<int, kNumStreams> streams_ = {};
};

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_RELAY_PASS_TRACE_H_
