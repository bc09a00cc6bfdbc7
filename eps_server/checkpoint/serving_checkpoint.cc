#include "eps_server/checkpoint/serving_checkpoint.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/long_work.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_files.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/untrained_run.h"
#include "common/formats/model_folder.h"
#include "common/tensor/dtype.h"
#include "eps_server/checkpoint/checkpoint_folder.h"
#include "eps_server/checkpoint/checkpointer.h"

namespace eps::server {
namespace {

absl::Status CheckFields(const std::vector<FieldOverride>& overrides) {
  for (const FieldOverride& field : overrides) {
    if (field.path == "precision.wire" || field.path == "precision.frozen") continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--set: ", field.path,
                     ": a model is served by precision.wire and precision.frozen alone; leave it "
                     "out"));
  }
  return absl::OkStatus();
}

// The run as one that trains nothing: what serving needs, and no more memory.
absl::StatusOr<RunConfig> AsServed(RunConfig run, const std::vector<FieldOverride>& overrides) {
  run.precision.wire_versions = 1;  // no other version is made
  run.model.embedding_dropout = run.model.attention_dropout = run.model.residual_dropout = 0;
  return WithoutTraining(std::move(run), overrides);
}

absl::Status MakeStore(const ServingOptions& options, ServingCheckpoint& result) {
  ModelConfig& model = result.run.model;
  // Where positions are a table its rows are the context.
  if (options.max_context > 0 && model.max_positions > 0) model.context = std::min(model.context, options.max_context);
  EPS_ASSIGN_OR_RETURN(result.model, BuildModel(result.run.model));
  EPS_ASSIGN_OR_RETURN(result.store, Store::Create(result.model, result.run));
  return absl::OkStatus();
}

absl::Status LoadStepFolder(const ServingOptions& options, ServingCheckpoint& result) {
  EPS_ASSIGN_OR_RETURN(Manifest manifest, ReadManifestOfWholeWeights(result.folder, options.work));
  EPS_ASSIGN_OR_RETURN(result.run, AsServed(manifest.run, options.overrides));
  EPS_RETURN_IF_ERROR(MakeStore(options, result));
  EPS_RETURN_IF_ERROR(LoadTensors(result.folder, result.model, manifest, LoadWhat::kMasters, options.threads,
                                  *result.store, options.work));
  result.state = std::move(manifest.state);
  return absl::OkStatus();
}

absl::Status LoadHuggingFaceFolder(const ServingOptions& options, ServingCheckpoint& result) {
  EPS_ASSIGN_OR_RETURN(const std::unique_ptr<ModelFolder> source, ModelFolder::Open(result.folder));
  RunConfig run;
  run.model = source->model().config;
  run.precision = {.wire = source->IsAllBf16() ? Dtype::kBf16 : Dtype::kF32, .gradients = Dtype::kF32};
  // Required of every run, and of no meaning where nothing is trained.
  run.data.path = absl::StrCat(result.folder, "/", kConfigFile);
  run.data.tokenizer = TokenForm::kTokenFile;
  if (run.objective() == Objective::kClasses) run.data.documents = DocumentMode::kPadded;
  if (run.objective() == Objective::kMaskedTokens) run.data.mask.token = 0;
  run.optimizer.peak_learning_rate = 1;
  run.steps = 1;
  EPS_ASSIGN_OR_RETURN(result.run, AsServed(std::move(run), options.overrides));
  EPS_RETURN_IF_ERROR(MakeStore(options, result));
  return LoadHuggingFace(result.folder, result.model, NewAdapters::kRefused, options.threads, *result.store,
                         options.work);
}

}  // namespace

absl::StatusOr<ServingCheckpoint> LoadCheckpointForServing(const std::string& path, const ServingOptions& options) {
  EPS_RETURN_IF_ERROR(CheckFields(options.overrides));
  ServingCheckpoint result;
  EPS_ASSIGN_OR_RETURN(result.folder, FindCheckpointFolder(path));
  EPS_RETURN_IF_ERROR(IsStepFolder(result.folder) ? LoadStepFolder(options, result)
                                                  : LoadHuggingFaceFolder(options, result));
  for (const BlobSpec& blob : result.model.blobs) result.store->Publish(blob.id, result.state.version);
  return result;
}

}  // namespace eps::server
