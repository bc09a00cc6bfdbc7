#include "cli/new_run_flags.h"

#include <cstdio>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cli/shell_word.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_files.h"
#include "common/checkpoint/grow_model.h"

namespace eps::cli {

void NewRunFlags::AddTo(CLI::App& command) {
  command.add_option("--checkpoint", checkpoint, "A step-NNNNNNNN folder, checkpoints/latest, or a run's folder")
      ->type_name("PATH")
      ->required();
  command
      .add_option(
          "--out", out,
          "The new run's folder: gets the checkpoint, and run.textproto, the RunSpec to go on with. Must hold no "
          "checkpoints")
      ->type_name("DIR")
      ->required();
  command
      .add_option(
          "--set", run.set,
          "Changes a field of the run that goes on, such as steps, optimizer.schedule.peak or optimizer.clip.norm; "
          "not of its model, but for a deeper one's model.freeze, nor of its data, batch or precision, nor the "
          "optimizer's rule, nor the preferences' loss. May be repeated")
      ->type_name("FIELD=VALUE")
      ->expected(1)
      ->take_all();
}

absl::StatusOr<std::string> NewRunFlags::FindFolder() const {
  EPS_ASSIGN_OR_RETURN(std::string folder, FindCheckpointFolder(checkpoint));
  if (IsStepFolder(folder)) return folder;
  return absl::InvalidArgumentError(
      absl::StrCat("--checkpoint ", checkpoint, ": is no checkpoint of a run, which has moments and a manifest"));
}

absl::StatusOr<std::vector<FieldOverride>> NewRunFlags::Overrides() const {
  EPS_ASSIGN_OR_RETURN(std::vector<FieldOverride> overrides, run.Overrides());
  return WithPathsFromHere(std::move(overrides));
}

void NewRunFlags::SayHowToGoOn(const Manifest& made, const std::string& what) const {
  const auto done = static_cast<long long>(made.state.version.value());
  std::printf("%s: step %lld, %s; ", out.c_str(), done, what.c_str());
  if (done < made.run.steps) {
    std::printf("go on with\n  eps train --run %s --out %s --resume\n",
                ShellWord(absl::StrCat(out, "/", kGrownRunFile)).c_str(), ShellWord(out).c_str());
  } else {
    std::printf("the run has done all of its %lld steps: to train on, make it in another --out with --set steps=N\n",
                done);
  }
}

}  // namespace eps::cli
