// eps grow: a checkpoint of a deeper model, made from one of a run, which goes on from it.

#include <sys/stat.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
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
          "moments, are zero: it gives what it is given, and the model's loss stays what it is (those that are frozen "
          "stay zero for good; of adapters beside them B alone is zero, and learns). May be repeated")
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

}  // namespace eps::cli
