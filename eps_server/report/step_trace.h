#ifndef EPS_SERVER_REPORT_STEP_TRACE_H_
#define EPS_SERVER_REPORT_STEP_TRACE_H_

#include <string>

#include "common/telemetry/trace_log.h"
#include "eps_server/step/step_report.h"

namespace eps::server {

// A line of the daemon's trace: from each step's commit, or its own start, to the next one's; and evaluations.
class StepTrace final : public StepObserver {
 public:
  explicit StepTrace(TraceLog* log);  // outlives it
  void OnCommit(const StepReport& report) override;
  void OnEvaluation(const EvaluationReport& report) override;

 private:
  void Add(const std::string& name, double seconds, const std::string& detail);

  TraceLog& log_;
  const int track_;
  TraceLog::Time last_end_;
};

}  // namespace eps::server

#endif  // EPS_SERVER_REPORT_STEP_TRACE_H_
