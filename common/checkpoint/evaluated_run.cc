#include "common/checkpoint/evaluated_run.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_files.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/model_source.h"
#include "common/checkpoint/resumed_run.h"
#include "common/corpus/data_form.h"
#include "common/model/model_spec.h"

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

// Its ending says what that of the run's data does. What the RunSpec said of data in spite of their ending, it says of this
// file too.
absl::Status CheckForm(const RunConfig& run) {
  const DataConfig data = run.all_sources().front().data;
  const DataForm form = DataFormOfName(run.evaluation.path), wanted = FormOf(data);
  if (form == wanted || DataFormOfName(data.path) != wanted) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      kPath, ": ", run.evaluation.path, " is ", NameOf(form), " by its ending, and the run's data, ", data.path, ", ",
      NameOf(wanted), wanted == DataForm::kTokenIds ? "; `eps tokenize` makes a token file of it" : ""));
}

// The name of the smallest tensor that the head has for itself: the nearer to the loss it is, the less of a way back has
// to be planned for.
std::string TensorToTrain(const ModelSpec& model) {
  const TensorSpec* smallest = nullptr;
  for (const BlobUse& use : model.layers.back().blobs) {
    const BlobSpec& blob = model.blob(use.blob);
    if (blob.uses.size() > 1) continue;
    for (const TensorSpec& tensor : blob.tensors) {
      if (smallest == nullptr || tensor.num_elems() < smallest->num_elems()) smallest = &tensor;
    }
  }
  EPS_CHECK(smallest != nullptr);  // its norm, if nothing else
  return smallest->name;
}

// step: that the model is of.
absl::StatusOr<RunConfig> WithoutSteps(RunConfig run, int64_t step) {
  run.steps = step + 1;  // which is not made
  run.evaluation.every_steps = 1;
  run.evaluation.at_start = true;
  run.optimizer = {.rule = OptimizerRule::kSgd, .peak_learning_rate = 1};
  run.precision.moments = MomentFormat::kFp32;
  run.checkpoint = {.last = false};
  run.layer_drop = {};
  run.relay.device_models = DeviceModelRule::kAny;
  run.model.freeze.clear();
  EPS_ASSIGN_OR_RETURN(const ModelSpec model, BuildModel(run.model));
  run.model.freeze = {"*", absl::StrCat("!", TensorToTrain(model))};
  return ParseRunConfig(SerializeRunConfig(run));
}

absl::Status CheckSameModel(const RunConfig& was, const RunConfig& now) {
  ModelConfig model = now.model;
  model.freeze = was.model.freeze;
  // Where positions are a table its rows are the context.
  if (model.family != ModelFamily::kGpt2) model.context = was.model.context;
  if (model == was.model) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "--set: model: it is the checkpoint's; only evaluation, data, batch and what "
      "changes no bits can be set, and model.context of families other than GPT2");
}

absl::StatusOr<RunConfig> OfCheckpoint(const std::string& folder, const std::vector<FieldOverride>& overrides) {
  EPS_ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(folder));
  RunConfig run = manifest.run;
  run.model_from.clear();
  const std::string* path = Given(kPath, overrides);
  if (path != nullptr) {
    run.evaluation = {.path = *path, .every_steps = 1};
  } else if (!run.evaluation.is_on()) {
    return absl::InvalidArgumentError(
        absl::StrCat(kPath, ": missing, and the run of ", folder, " evaluates nothing: say on what (--data FILE)"));
  }
  EPS_ASSIGN_OR_RETURN(run, WithOverrides(run, overrides));
  EPS_RETURN_IF_ERROR(CheckSameModel(manifest.run, run));
  if (path != nullptr && Given("data.format", overrides) == nullptr) EPS_RETURN_IF_ERROR(CheckForm(run));
  if (const std::optional<std::string> out = RunFolderOf(folder); out.has_value()) {
    EPS_ASSIGN_OR_RETURN(run, WithKeptTokenizer(*out, run));
  }
  return WithoutSteps(std::move(run), manifest.state.version.value());
}

absl::StatusOr<RunConfig> OfModel(const std::string& folder, std::vector<FieldOverride> overrides) {
  const std::string* path = Given(kPath, overrides);
  if (path == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(kPath, ": missing, and ", folder, " is no run's: say on what (--data FILE)"));
  }
  overrides.insert(overrides.begin(), {{"data.path", *path}, {"evaluation.every_steps", "1"}});
  EPS_ASSIGN_OR_RETURN(RunConfig run, RunConfigOfModel(folder, overrides));
  return WithoutSteps(std::move(run), /*step=*/0);
}

}  // namespace

absl::StatusOr<EvaluatedRun> FindEvaluatedRun(const std::string& path, const std::vector<FieldOverride>& given) {
  EPS_ASSIGN_OR_RETURN(const std::vector<FieldOverride> overrides, WithPathsFromHere(given));
  EvaluatedRun run;
  EPS_ASSIGN_OR_RETURN(run.folder, FindCheckpointFolder(path));
  EPS_ASSIGN_OR_RETURN(run.config,
                       IsStepFolder(run.folder) ? OfCheckpoint(run.folder, overrides) : OfModel(run.folder, overrides));
  return run;
}

}  // namespace eps
