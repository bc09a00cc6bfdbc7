#include "gpu_worker/relay/pass_trace.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gpu_worker/plan/relay_step.h"
#include "gpu_worker/relay/step_label.h"

namespace eps::worker {
namespace {

// Where there is no cause to tell, a transfer waits for what it is to transfer.
std::string WaitTitle(WaitCause cause) {
  return absl::StrCat("wait: ", cause == WaitCause::kNone ? "compute" : WaitCauseName(cause));
}

}  // namespace

PassTrace::PassTrace(TraceLog* log, const ModelSpec* model) : log_(*log), model_(*model) {
  steps_ = log_.AddTrack("steps");
  for (const StreamId id : kStreams) streams_[static_cast<size_t>(id)] = log_.AddTrack(StreamName(id));
}

void PassTrace::AddSpans(StreamId stream, absl::Span<const StreamSpan> spans) {
  const int track = streams_[static_cast<size_t>(stream)];
  for (const StreamSpan& span : spans) {
    const RelayStep& work = static_cast<const StepLabel*>(span.label)->work();
    const std::string title = Title(work, model_);
    if (span.waited_for.has_value()) {
      log_.Add(track, WaitTitle(*span.waited_for), span.time.begin, span.time.end, absl::StrCat("before ", title));
    } else {
      log_.Add(track, title, span.time.begin, span.time.end, DebugString(work, model_), span.copied_bytes,
               span.copy_seconds);
    }
  }
}

void PassTrace::AddWaits(StreamId stream, WaitCause cause, absl::Span<const TimeSpan> waits) {
  for (const TimeSpan& wait : waits) {
    if (wait.begin < wait.end) {
      log_.Add(streams_[static_cast<size_t>(stream)], WaitTitle(cause), wait.begin, wait.end);
    }
  }
}

void PassTrace::AddAssignment(StepId step, bool evaluates, size_t vnodes, TimeSpan time) {
  log_.Add(steps_, absl::StrCat(evaluates ? "evaluation of version " : "step ", step.value()), time.begin, time.end,
           absl::StrCat(vnodes, " vnodes"));
  log_.Flush();
}

}  // namespace eps::worker
