#ifndef EPS_CLI_EXPORT_MODEL_H_
#define EPS_CLI_EXPORT_MODEL_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/formats/model_folder_writer.h"
#include "common/spec/run_config.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace eps::cli {

// Writes what `from`, a checkpoint's folder or a model's, holds as a model's folder `out`, adapters merged into the weights
// (MergedModel), with what its run began with beside the weights (FilesOfExport), and says on stdout what was written, on
// stderr what is missing.
// Errors: ModelFolder::Open's, FindModelSource's, FilesOfExport's, WriteModelFolder's; then nothing is left at `out`
absl::Status WriteModel(const std::string& from, const std::string& out, ModelFolderForm form);

// The same of a folder that is to begin runs: what lies beside its weights must be such as an export of them can write.
// Errors: CheckExportFiles's, and WriteModel's
absl::Status ImportModel(const std::string& from, const std::string& out, const ModelFolderForm& form);

// That what an export of `run` will have beside the weights can be written, before the run takes its hours. `resumed`: the
// folder of a run that goes on, which may have kept it, else "".
// Errors: CheckExportFiles's, FindModelSource's, ReadModelSource's
absl::Status CheckExportSource(const RunConfig& run, const std::string& resumed);

// The folder that `checkpoint` means (FindCheckpointFolder), to be written as `out`.
// Errors: CheckNewFolder's, FindCheckpointFolder's · INVALID_ARGUMENT `out` lies in the folder of that checkpoint's run
absl::StatusOr<std::string> FindFolderToExport(const std::string& checkpoint, const std::string& out);

// WriteModel of the checkpoint that `checkpoint` means, once its files are what they were.
// Errors: FindFolderToExport's, WriteModel's
absl::Status ExportCheckpoint(const std::string& checkpoint, const std::string& out, const ModelFolderForm& form);

// Whether `folder` is what ExportCheckpoint would write: the same config.json, tensors of its names, shapes and type, and
// some values of each.
// Errors: FAILED_PRECONDITION, or ModelFolder::Open's, it is not, and why · those of reading the checkpoint
absl::Status CheckIsExport(const std::string& checkpoint, const std::string& folder, const ModelFolderForm& form);

// Whether `path`, there or not, is `folder` or lies in it, links followed.
bool LiesIn(const std::string& path, const std::string& folder);

// The option `name`, for form.dtype.
CLI::Option* AddDtypeTo(CLI::App& command, const std::string& name, ModelFolderForm& form);

}  // namespace eps::cli

#endif  // EPS_CLI_EXPORT_MODEL_H_
