#include "eps_server/report/step_trace.h"

#include <chrono>

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
  const TraceLog::Time now = std::chrono::steady_clock::now();
  log_.Add(track_, absl::StrCat("step ", report.step.value()), Before(now, report.seconds), now,
           absl::StrFormat("loss %.6g, %.0f tokens/s", report.loss, report.tokens_per_second));
  log_.Flush();
}

void StepTrace::OnEvaluation(const EvaluationReport& report) {
  const TraceLog::Time now = std::chrono::steady_clock::now();
  log_.Add(track_, absl::StrCat("evaluation of version ", report.version.value()), Before(now, report.seconds), now,
           absl::StrFormat("loss %.6g", report.loss));
}

}  // namespace eps::server
