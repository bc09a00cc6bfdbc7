#include "eps_server/checkpoint/serving_checkpoint.h"

#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/file_util.h"
#include "common/base/status_macros.h"
#include "common/formats/gpt2_folder.h"
#include "common/tensor/dtype.h"
#include "eps_server/checkpoint/checkpoint_directory.h"
#include "eps_server/checkpoint/checkpoint_folder.h"
#include "eps_server/checkpoint/checkpointer.h"
#include "eps_server/checkpoint/manifest.h"

namespace eps::server {
namespace {

bool Exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

bool IsFolder(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_directory(path, ignored);
}

// The newest step folder of `directory`: what `latest` names, or the newest there is.
absl::StatusOr<std::string> NewestIn(const std::string& directory) {
  const CheckpointDirectory checkpoints(directory);
  if (const std::optional<Version> latest = checkpoints.Latest(); latest.has_value()) {
    return checkpoints.FolderOf(*latest);
  }
  EPS_ASSIGN_OR_RETURN(const std::vector<Version> steps, checkpoints.Steps());
  if (!steps.empty()) return checkpoints.FolderOf(steps.front());
  return absl::NotFoundError(absl::StrCat("there is no checkpoint in ", directory));
}

absl::StatusOr<std::string> FindFolder(const std::string& path) {
  if (!Exists(path)) return absl::NotFoundError(absl::StrCat("there is no checkpoint at ", path));
  if (!IsFolder(path)) return NewestIn(DirName(path));  // the file `latest`
  if (Exists(absl::StrCat(path, "/", kManifestFile)) || Exists(absl::StrCat(path, "/", kConfigFile)))
    return path;
  if (IsFolder(absl::StrCat(path, "/checkpoints"))) return NewestIn(absl::StrCat(path, "/checkpoints"));
  const absl::StatusOr<std::string> newest = NewestIn(path);
  if (newest.ok()) return newest;
  return absl::NotFoundError(absl::StrCat(path, " holds no checkpoint: neither ", kManifestFile, ", ",
                                          kConfigFile,
                                          ", latest, a step-NNNNNNNN folder nor a folder checkpoints"));
}

// The run as one that trains nothing: what serving needs, and no more memory.
RunConfig WithoutTraining(RunConfig run) {
  run.optimizer.rule = OptimizerRule::kSgd;
  run.optimizer.momentum = 0;
  run.optimizer.clip = ClipMode::kNone;
  run.optimizer.clip_norm = 0;
  run.model.embedding_dropout = run.model.attention_dropout = run.model.residual_dropout = 0;
  return run;
}

absl::Status MakeStore(ServingCheckpoint& result) {
  EPS_ASSIGN_OR_RETURN(result.model, BuildGpt2(result.run.model));
  EPS_ASSIGN_OR_RETURN(result.store, Store::Create(result.model, result.run));
  return absl::OkStatus();
}

absl::Status LoadStepFolder(ServingCheckpoint& result) {
  EPS_ASSIGN_OR_RETURN(Manifest manifest, ReadManifest(result.folder));
  EPS_RETURN_IF_ERROR(CheckSizes(result.folder, manifest));
  EPS_RETURN_IF_ERROR(CheckSums(result.folder, manifest, {kConfigFile, kModelFile}));
  result.run = WithoutTraining(manifest.run);
  EPS_RETURN_IF_ERROR(MakeStore(result));
  EPS_RETURN_IF_ERROR(LoadTensors(result.folder, result.model, manifest, LoadWhat::kMasters, *result.store));
  result.state = std::move(manifest.state);
  return absl::OkStatus();
}

absl::Status LoadHuggingFaceFolder(ServingCheckpoint& result) {
  EPS_ASSIGN_OR_RETURN(const std::unique_ptr<Gpt2Folder> source, Gpt2Folder::Open(result.folder));
  RunConfig run;
  run.model = source->model().config;
  run.precision = {.wire = Dtype::kF32, .gradients = Dtype::kF32};
  // Required of every run, and of no meaning where nothing is trained.
  run.data.path = absl::StrCat(result.folder, "/", kConfigFile);
  run.optimizer.peak_learning_rate = 1;
  run.steps = 1;
  result.run = WithoutTraining(std::move(run));
  EPS_RETURN_IF_ERROR(MakeStore(result));
  return LoadHuggingFace(result.folder, result.model, *result.store);
}

}  // namespace

absl::StatusOr<ServingCheckpoint> LoadCheckpointForServing(const std::string& path) {
  ServingCheckpoint result;
  EPS_ASSIGN_OR_RETURN(result.folder, FindFolder(path));
  const std::string name = std::filesystem::path(result.folder).lexically_normal().filename().string();
  // A step folder that lost its manifest is damaged; it does not pass as somebody's Hugging Face folder.
  const bool is_step =
      Exists(absl::StrCat(result.folder, "/", kManifestFile)) || ParseStepFolderName(name).has_value();
  EPS_RETURN_IF_ERROR(is_step ? LoadStepFolder(result) : LoadHuggingFaceFolder(result));
  for (const BlobSpec& blob : result.model.blobs) result.store->Publish(blob.id, result.state.version);
  return result;
}

}  // namespace eps::server
