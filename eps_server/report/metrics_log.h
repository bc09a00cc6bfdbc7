#ifndef EPS_SERVER_REPORT_METRICS_LOG_H_
#define EPS_SERVER_REPORT_METRICS_LOG_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/file_util.h"
#include "eps_server/step/step_report.h"

namespace eps::server {

// metrics.jsonl: one line of JSON per committed step, and one per evaluation, as they happen (docs/formats.md).
//
// Threads: as StepObserver
class MetricsLog final : public StepObserver {
 public:
  // Opens `path` for the steps from `first_step` on: lines of earlier steps, and of evaluations before so many were
  // committed, stay, all others go, also one that a killed process wrote in half. Errors: the system's, naming the file
  static absl::StatusOr<std::unique_ptr<MetricsLog>> Open(const std::string& path, int64_t first_step);

  // A full disk must not end a run: what cannot be written is said once in the log, and the run goes on.
  void OnCommit(const StepReport& report) override;
  void OnEvaluation(const EvaluationReport& report) override;

 private:
  void Write(const std::string& line);

  MetricsLog(std::string path, FileDescriptor file, int64_t num_bytes)
      : path_(std::move(path)), file_(std::move(file)), num_bytes_(num_bytes) {}

  const std::string path_;
  FileDescriptor file_;
  int64_t num_bytes_;
  bool failed_ = false;
};

// The line of one step, with its end of line.
std::string MetricsLine(const StepReport& report);
// The same of an evaluation.
std::string MetricsLine(const EvaluationReport& report);

}  // namespace eps::server

#endif  // EPS_SERVER_REPORT_METRICS_LOG_H_
