// eps branch: a run that goes on from another one's checkpoint otherwise than that run.

#include <sys/stat.h>

#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/command.h"
#include "cli/common_flags.h"
#include "cli/new_run_flags.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_files.h"
#include "common/checkpoint/grow_model.h"
#include "common/checkpoint/manifest.h"
#include "common/spec/run_config.h"

namespace eps::cli {
namespace {

absl::Status RunBranch(const NewRunFlags& flags) {
  EPS_ASSIGN_OR_RETURN(const std::string folder, flags.FindFolder());
  EPS_ASSIGN_OR_RETURN(const Manifest was, ReadManifest(folder));
  EPS_ASSIGN_OR_RETURN(const std::vector<FieldOverride> overrides, flags.Overrides());
  EPS_ASSIGN_OR_RETURN(const Manifest branch,
                       GrowCheckpoint(folder, SameBlocks(was.run.model.num_layers), overrides, flags.out));
  flags.SayHowToGoOn(branch, absl::StrCat("with ", absl::StrJoin(flags.run.set, ", ")));
  return absl::OkStatus();
}

}  // namespace

void AddBranch(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand(
      "branch",
      "Writes a run that goes on from another one's checkpoint, with its moments, and with another schedule, more "
      "steps or other clipping");
  auto flags = std::make_shared<NewRunFlags>();
  flags->AddTo(*command);
  command->footer(
      "At least one --set is wanted. Of a run that has diverged, and with --resume would again: with a lower\n"
      "optimizer.schedule.peak, and from an older checkpoint where the newest one was written too late.");
  command->callback([flags, exit_code] {
    umask(077);  // a run's folder is its user's alone
    *exit_code = ReportStart(RunBranch(*flags));
  });
}

}  // namespace eps::cli
