#ifndef EPS_CLI_CHECKPOINT_FOLDER_H_
#define EPS_CLI_CHECKPOINT_FOLDER_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace eps::cli {

// The step folder that `path` means: itself, what the file `latest` names, or the newest of a run's folder. A Hugging
// Face folder (config.json, no manifest) stands for itself.
// Errors: NOT_FOUND, saying what was looked for
absl::StatusOr<std::string> FindCheckpoint(const std::string& path);

// Compares every file with the manifest's size and sha256; OK for a folder without a manifest.
// Errors: DATA_LOSS naming the file, found and wanted · INVALID_ARGUMENT the manifest cannot be read
absl::Status VerifyCheckpoint(const std::string& folder);

}  // namespace eps::cli

#endif  // EPS_CLI_CHECKPOINT_FOLDER_H_
