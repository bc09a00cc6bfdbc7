#ifndef EPS_SERVER_REPORT_METRICS_LOG_H_
#define EPS_SERVER_REPORT_METRICS_LOG_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "common/run_folder/run_folder.h"
#include "eps_server/report/growing_file.h"
#include "eps_server/step/step_report.h"

namespace eps::server {

// metrics.jsonl and evaluations.jsonl: a line of JSON per committed step, and one per evaluation, as they happen
// (docs/formats.md).
//
// Threads: as StepObserver
class MetricsLog final : public StepObserver {
 public:
  // Opens `folder`'s metrics.jsonl, and evaluations.jsonl where the run `evaluates`, for the steps from `first_step` on:
  // lines of earlier steps, and of evaluations before so many were committed, stay. Errors: the system's, naming the file
  static absl::StatusOr<std::unique_ptr<MetricsLog>> Open(const RunFolder& folder, bool evaluates, int64_t first_step);

  void OnCommit(const StepReport& report) override;
  // Of a run that evaluates.
  void OnEvaluation(const EvaluationReport& report) override;

 private:
  MetricsLog(std::unique_ptr<GrowingFile> steps, std::unique_ptr<GrowingFile> evaluations)
      : steps_(std::move(steps)), evaluations_(std::move(evaluations)) {}

  const std::unique_ptr<GrowingFile> steps_;
  const std::unique_ptr<GrowingFile> evaluations_;  // null: the run has none
};

// The line of one step, with its end of line.
std::string MetricsLine(const StepReport& report);
// The same of an evaluation.
std::string EvaluationLine(const EvaluationReport& report);

}  // namespace eps::server

#endif  // EPS_SERVER_REPORT_METRICS_LOG_H_
