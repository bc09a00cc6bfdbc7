#ifndef EPS_CLI_NEW_RUN_FLAGS_H_
#define EPS_CLI_NEW_RUN_FLAGS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/common_flags.h"
#include "common/checkpoint/manifest.h"
#include "common/spec/run_config.h"

namespace CLI {
class App;
}  // namespace CLI

namespace eps::cli {

// Of what makes another run's folder from a run's checkpoint: `eps grow`, `eps branch`.
struct NewRunFlags {
  std::string checkpoint, out;
  RunFlags run;  // --set alone

  void AddTo(CLI::App& command);
  // Errors: INVALID_ARGUMENT --checkpoint is none of a run · FindCheckpointFolder's
  absl::StatusOr<std::string> FindFolder() const;
  // --set, with paths as they are seen from here: in a checkpoint's run they are absolute. Errors: INVALID_ARGUMENT for
  // one without "=" · NOT_FOUND this process's folder is gone
  absl::StatusOr<std::vector<FieldOverride>> Overrides() const;
  // What was `made`, in which `what`, and how it goes on.
  void SayHowToGoOn(const Manifest& made, const std::string& what) const;
};

}  // namespace eps::cli

#endif  // EPS_CLI_NEW_RUN_FLAGS_H_
