#ifndef EPS_SERVER_REPORT_TENSORBOARD_LOG_H_
#define EPS_SERVER_REPORT_TENSORBOARD_LOG_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/run_folder/run_folder.h"
#include "eps_server/report/growing_file.h"
#include "eps_server/step/step_report.h"

namespace eps::server {

// TensorBoard's event files: the scalars of each committed step and of each evaluation, as they happen
// (docs/formats.md, "TensorBoard"). One file for each sitting, as TensorBoard reads a file on from where it was.
//
// Threads: as StepObserver
class TensorboardLog final : public StepObserver {
 public:
  // A new file in `folder`'s tensorboard/, for the steps from `first_step` on, which tells TensorBoard to forget what older
  // files say of these. Errors: the system's, naming the file
  static absl::StatusOr<std::unique_ptr<TensorboardLog>> Open(const RunFolder& folder, int64_t first_step);

  // Those that a run left which was in `folder` before; files of others stay. Errors: as above
  static absl::Status RemoveFiles(const RunFolder& folder);

  void OnCommit(const StepReport& report) override;
  void OnEvaluation(const EvaluationReport& report) override;

 private:
  explicit TensorboardLog(std::unique_ptr<GrowingFile> file) : file_(std::move(file)) {}

  const std::unique_ptr<GrowingFile> file_;
};

// A record of an event file: TFRecord's form, the bytes between their length and their checksum.
std::string TfRecord(absl::string_view bytes);

}  // namespace eps::server

#endif  // EPS_SERVER_REPORT_TENSORBOARD_LOG_H_
