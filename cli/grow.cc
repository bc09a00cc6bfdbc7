// eps grow, eps branch: another run's folder, made from a run's checkpoint, which goes on from it with a deeper model, or
// otherwise than the run itself.

#include <sys/stat.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/command.h"
#include "cli/common_flags.h"
#include "cli/shell_word.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_files.h"
#include "common/checkpoint/grow_model.h"
#include "common/checkpoint/manifest.h"
#include "common/spec/run_config.h"

namespace eps::cli {
namespace {

// What both take.
struct NewRunFlags {
  std::string checkpoint, out;
  RunFlags run;  // --set alone

  void AddTo(CLI::App& command);
  // Errors: INVALID_ARGUMENT --checkpoint is none of a run · FindCheckpointFolder's
  absl::StatusOr<std::string> FindFolder() const;
  // --set, with paths as they are seen from here: in a checkpoint's run they are absolute.
  absl::StatusOr<std::vector<FieldOverride>> Overrides() const;
  // What was `made`, in which `what`, and how it goes on.
  void SayHowToGoOn(const Manifest& made, const std::string& what) const;
};

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
          "optimizer's rule. May be repeated")
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
  for (FieldOverride& field : overrides) {
    if (field.path != "evaluation.path" || field.value.empty()) continue;
    std::error_code ignored;
    field.value = std::filesystem::absolute(field.value, ignored).string();
  }
  return overrides;
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

struct GrowFlags {
  NewRunFlags made;
  std::vector<std::string> insert;
  int64_t layers = 0;  // 0: not given
  std::string by = "STACK";
};

absl::StatusOr<std::vector<GrownBlock>> BlocksOf(const GrowFlags& flags, int64_t num_layers) {
  if (flags.insert.empty() == (flags.layers == 0)) {
    return absl::InvalidArgumentError("give either --insert or --layers");
  }
  if (flags.layers > 0) {
    absl::StatusOr<std::vector<GrownBlock>> blocks =
        flags.by == "STACK"
            ? StackBlocks(num_layers, flags.layers)
            : SpreadBlocks(num_layers, flags.layers, flags.by == "COPY" ? GrowRule::kCopy : GrowRule::kZeroGated);
    EPS_RETURN_IF_ERROR_WITH(blocks.status(), "--layers");
    return blocks;
  }
  std::vector<Insertion> insertions;
  for (const std::string& text : flags.insert) {
    absl::StatusOr<Insertion> insertion = ParseInsertion(text);
    EPS_RETURN_IF_ERROR_WITH(insertion.status(), "--insert");
    insertions.push_back(*insertion);
  }
  absl::StatusOr<std::vector<GrownBlock>> blocks = InsertBlocks(num_layers, insertions);
  EPS_RETURN_IF_ERROR_WITH(blocks.status(), "--insert");
  return blocks;
}

absl::Status RunGrow(const GrowFlags& flags) {
  EPS_ASSIGN_OR_RETURN(const std::string folder, flags.made.FindFolder());
  EPS_ASSIGN_OR_RETURN(const Manifest was, ReadManifest(folder));
  EPS_ASSIGN_OR_RETURN(const std::vector<GrownBlock> blocks, BlocksOf(flags, was.run.model.num_layers));
  EPS_ASSIGN_OR_RETURN(const std::vector<FieldOverride> overrides, flags.made.Overrides());
  EPS_ASSIGN_OR_RETURN(const Manifest grown, GrowCheckpoint(folder, blocks, overrides, flags.made.out));
  flags.made.SayHowToGoOn(grown,
                          absl::StrCat(grown.run.model.num_layers, " blocks in place of ", was.run.model.num_layers));
  return absl::OkStatus();
}

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

void AddGrow(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand(
      "grow",
      "Writes a checkpoint of a deeper model, with its moments, from a run's checkpoint; the run goes on with it");
  auto flags = std::make_shared<GrowFlags>();
  flags->made.AddTo(*command);
  command
      ->add_option(
          "--insert", flags->insert,
          "A block more behind block AFTER (from 0, as in the tensors' names), made of it. COPY: its weights, "
          "moments and count of updates. ZERO_GATED: the same, but its products into the residual stream, and its "
          "moments, are zero: it gives what it is given, and the model's loss stays what it is (those that "
          "model.freeze "
          "names stay zero for good). May be repeated")
      ->type_name("AFTER:COPY|ZERO_GATED")
      ->expected(1)
      ->take_all();
  command->add_option("--layers", flags->layers, "In place of --insert: so many blocks in all")
      ->type_name("N")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  command
      ->add_option(
          "--by", flags->by,
          "What --layers adds. STACK: all blocks once more on top, copied. COPY, ZERO_GATED: as --insert, evenly "
          "behind the blocks")
      ->check(CLI::IsMember({"STACK", "COPY", "ZERO_GATED"}))
      ->capture_default_str();
  command->callback([flags, exit_code] {
    umask(077);  // a run's folder is its user's alone
    *exit_code = ReportStart(RunGrow(*flags));
  });
}

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
