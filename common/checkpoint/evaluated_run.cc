#include "common/checkpoint/evaluated_run.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_files.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/model_source.h"
#include "common/checkpoint/resumed_run.h"
#include "common/checkpoint/untrained_run.h"
#include "common/corpus/data_form.h"

namespace eps {
namespace {

constexpr char kPath[] = "evaluation.path";

// The one that counts; null: none is given.
const std::string* Given(absl::string_view field, const std::vector<FieldOverride>& overrides) {
  const auto last = std::find_if(overrides.rbegin(), overrides.rend(),
                                 [&](const FieldOverride& given) { return given.path == field; });
  return last == overrides.rend() ? nullptr : &last->value;
}

absl::string_view NameOf(DataForm form) {
  switch (form) {
    case DataForm::kText:
      return "text";
    case DataForm::kJsonl:
      return "JSONL";
    case DataForm::kTable:
      return "a table";
    case DataForm::kTokenIds:
      return "token ids";
  }
  return "";
}

DataForm FormOf(const DataConfig& data) {
  if (data.tokenizer == TokenForm::kTokenFile) return DataForm::kTokenIds;
  return data.is_jsonl ? DataForm::kJsonl : data.is_table ? DataForm::kTable : DataForm::kText;
}

bool IsOfForm(const DataConfig& data, DataForm form) {
  // What the RunSpec said of data in spite of their ending, it says of this file too.
  return FormOf(data) == form || DataFormOfName(data.path) != FormOf(data);
}

// Reads evaluation.path as that one of the run's files whose form its ending says; the first, which it goes by, from now on.
absl::Status TakeForm(RunConfig& run) {
  const DataForm form = DataFormOfName(run.evaluation.path);
  if (run.sources.empty() && IsOfForm(run.data, form)) return absl::OkStatus();
  for (DataSource& source : run.sources) {
    if (!IsOfForm(source.data, form)) continue;
    std::swap(source, run.sources.front());
    return absl::OkStatus();
  }
  const DataConfig data = run.all_sources().front().data;
  const DataForm wanted = FormOf(data);
  return absl::InvalidArgumentError(
      absl::StrCat(kPath, ": ", run.evaluation.path, " is ", NameOf(form), " by its ending, and the run's data, ",
                   data.path, ", ", NameOf(wanted), "; ",
                   wanted == DataForm::kTokenIds ? "`eps tokenize` makes a token file of it"
                                                 : "a folder that `eps export` writes can be evaluated on any file"));
}

// What an evaluation goes by; the rest is of training, or the model's own.
absl::Status CheckFields(const std::vector<FieldOverride>& overrides, bool is_checkpoint) {
  constexpr absl::string_view kParts[] = {"data.", "batch.", "precision.", "relay."};
  constexpr absl::string_view kFields[] = {kPath, "evaluation.samples", "evaluation.held_out", "transport",
                                           "model.context"};
  constexpr absl::string_view kOfModel[] = {"model.classes", "model.class_names"};
  for (const FieldOverride& field : overrides) {
    const bool is_taken =
        std::any_of(std::begin(kParts), std::end(kParts),
                    [&](absl::string_view part) { return absl::StartsWith(field.path, part); }) ||
        std::find(std::begin(kFields), std::end(kFields), field.path) != std::end(kFields) ||
        (!is_checkpoint && std::find(std::begin(kOfModel), std::end(kOfModel), field.path) != std::end(kOfModel));
    if (is_taken) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--set: ", field.path,
                     ": an evaluation goes by evaluation.path, evaluation.samples, model.context, data, batch, "
                     "precision, relay and transport alone; leave it out"));
  }
  return absl::OkStatus();
}

// step: that the model is of.
absl::StatusOr<RunConfig> WithoutSteps(RunConfig run, int64_t step) {
  run.steps = step + 1;  // which is not made
  run.evaluation.every_steps = 1;
  run.evaluation.at_start = step == 0;
  run.checkpoint = {.last = false};
  run.relay.device_models = DeviceModelRule::kAny;
  return ParseRunConfig(SerializeRunConfig(run));
}

// Where positions are a table its rows are the context.
absl::Status CheckContext(const RunConfig& was, const RunConfig& now) {
  if (now.model.context == was.model.context || was.model.family != ModelFamily::kGpt2) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--set: model.context: ", now.model.context, ", must be ",
                                                 was.model.context, ": the model has a table of so many positions"));
}

// What is held out is what was not trained on.
absl::Status CheckHeldOut(const RunConfig& was, const RunConfig& now) {
  if (now.evaluation.held_out == 0 || now.evaluation.held_out == was.evaluation.held_out) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--set: evaluation.held_out: ", now.evaluation.held_out, ", but the run has ",
      was.evaluation.held_out > 0 ? absl::StrCat("held out ", was.evaluation.held_out) : "held out nothing",
      ": it was trained on the rest; evaluate on another file (--data FILE)"));
}

absl::StatusOr<RunConfig> OfCheckpoint(const std::string& folder, const std::vector<FieldOverride>& overrides) {
  EPS_RETURN_IF_ERROR(CheckFields(overrides, /*is_checkpoint=*/true));
  EPS_ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(folder));
  RunConfig run = manifest.run;
  run.model_from.clear();
  run.evaluation.every_steps = 1;
  const std::string* path = Given(kPath, overrides);
  if (path != nullptr) run.evaluation = {.path = *path, .every_steps = 1};
  const bool says_on_what = run.evaluation.held_out > 0 || !run.evaluation.path.empty();
  if (!says_on_what && Given("evaluation.held_out", overrides) == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(kPath, ": missing, and the run of ", folder, " evaluates nothing: say on what (--data FILE)"));
  }
  EPS_ASSIGN_OR_RETURN(run, WithoutTraining(std::move(run), overrides));
  EPS_RETURN_IF_ERROR(CheckContext(manifest.run, run));
  EPS_RETURN_IF_ERROR(CheckHeldOut(manifest.run, run));
  if (path != nullptr) EPS_RETURN_IF_ERROR(TakeForm(run));
  if (const std::optional<std::string> out = RunFolderOf(folder); out.has_value()) {
    EPS_ASSIGN_OR_RETURN(run, WithKeptTokenizer(*out, run));
  }
  return WithoutSteps(std::move(run), manifest.state.version.value());
}

absl::StatusOr<RunConfig> OfModel(const std::string& folder, std::vector<FieldOverride> overrides) {
  EPS_RETURN_IF_ERROR(CheckFields(overrides, /*is_checkpoint=*/false));
  const std::string* path = Given(kPath, overrides);
  if (path == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(kPath, ": missing, and ", folder, " is no run's: say on what (--data FILE)"));
  }
  overrides.insert(overrides.begin(), {{"data.path", *path}, {"evaluation.every_steps", "1"}});
  const std::vector<FieldOverride> frozen_format = TakeFrozenFormat(overrides);
  EPS_ASSIGN_OR_RETURN(RunConfig run, RunConfigOfModel(folder, overrides));
  EPS_ASSIGN_OR_RETURN(run, WithoutTraining(std::move(run), frozen_format));
  return WithoutSteps(std::move(run), /*step=*/0);
}

}  // namespace

absl::StatusOr<EvaluatedRun> FindEvaluatedRun(const std::string& path, const std::vector<FieldOverride>& given) {
  EPS_ASSIGN_OR_RETURN(std::vector<FieldOverride> overrides, WithPathsFromHere(given));
  EvaluatedRun run;
  EPS_ASSIGN_OR_RETURN(run.folder, FindCheckpointFolder(path));
  EPS_ASSIGN_OR_RETURN(run.config, IsStepFolder(run.folder) ? OfCheckpoint(run.folder, std::move(overrides))
                                                            : OfModel(run.folder, std::move(overrides)));
  return run;
}

}  // namespace eps
