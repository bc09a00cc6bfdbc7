#include "eps_server/report/step_trace.h"

#include <algorithm>
#include <chrono>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace eps::server {
namespace {

TraceLog::Time Before(TraceLog::Time end, double seconds) {
  return end - std::chrono::duration_cast<TraceLog::Time::duration>(std::chrono::duration<double>(seconds));
}

}  // namespace

StepTrace::StepTrace(TraceLog* log) : log_(*log), track_(log->AddTrack("steps")) {}

void StepTrace::OnCommit(const StepReport& report) {
  Add(absl::StrCat("step ", report.step.value()), report.seconds,
      absl::StrFormat("loss %.6g, %.0f counted tokens/s", report.loss, report.tokens_per_second));
  log_.Flush();
}

void StepTrace::OnEvaluation(const EvaluationReport& report) {
  Add(absl::StrCat("evaluation of version ", report.version.value()), report.seconds,
      absl::StrFormat("loss %.6g", report.loss));
}

// What is told took `seconds` until a little before now: it begins no earlier than the one before ended, as viewers want it.
void StepTrace::Add(const std::string& name, double seconds, const std::string& detail) {
  const TraceLog::Time now = std::chrono::steady_clock::now();
  log_.Add(track_, name, std::max(Before(now, seconds), last_end_), now, detail);
  last_end_ = now;
}

}  // namespace eps::server
