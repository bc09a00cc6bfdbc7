#include "cli/preflight.h"

#include <fcntl.h>

#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/checkpoint_size.h"
#include "cli/device_probe.h"
#include "common/base/file_util.h"
#include "common/base/ids.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_directory.h"
#include "common/checkpoint/checkpoint_files.h"
#include "common/checkpoint/frozen_file.h"
#include "common/checkpoint/resumed_run.h"
#include "common/formats/model_folder.h"
#include "common/model/model_spec.h"
#include "common/run_folder/run_folder.h"
#include "common/samples/sample_source.h"
#include "common/samples/tokenizer_of_ids.h"
#include "common/tokenizer/tokenizer.h"
#include "eps_server/memory/daemon_memory.h"
#include "gpu_worker/device_sizes.h"
#include "gpu_worker/plan/planner.h"

namespace eps::cli {
namespace {

absl::Status CheckPlan(const WorkerFlags& flags, const RunConfig& run, const ModelSpec& model) {
  EPS_RETURN_IF_ERROR(LoadProfile(flags.profile, flags.device).status());
  EPS_ASSIGN_OR_RETURN(const worker::KernelSizes kernels, worker::FindKernelSizes(flags.device, run.precision.wire));
  return worker::CheckFits({.model = &model,
                            .run = &run,
                            .kernels = kernels,
                            .cap_bytes = flags.device_memory_bytes,
                            .max_group_members = run.relay.group_members,
                            .host_stash_bytes = flags.host_memory_bytes});
}

// Those of run.data; 0: not known yet.
absl::StatusOr<int64_t> CountSamplesOfData(const RunConfig& run) {
  if (run.data.needs_tokenizing()) {
    // How many there are the daemon knows once it has made tokens of it.
    EPS_RETURN_IF_ERROR_WITH(OpenFile(run.data.path, O_RDONLY).status(), run.data.path_field);
    if (run.data.tokenizer == TokenForm::kModel) {
      EPS_RETURN_IF_ERROR_WITH(LoadTokenizer(run.data.tokenizer_path).status(),
                               absl::StrCat(run.data.field, ".tokenizer_path"));
    }
    return 0;
  }
  EPS_ASSIGN_OR_RETURN(const std::unique_ptr<SampleSource> source, SampleSource::Open(run));
  return source->num_samples();
}

// Bytes that the next checkpoint will add to the disk: what trains, and what is frozen unless there is a checkpoint
// whose file it can link. (Whether the disk has links shows when one is made.)
int64_t BytesOfNextCheckpoint(const Preflight& preflight, const RunConfig& run, const ModelSpec& model) {
  if (!run.checkpoint.last && run.checkpoint.every_steps == 0) return 0;
  const CheckpointSize size = SizeOfCheckpoints(model, run);
  const CheckpointDirectory checkpoints = RunFolder(preflight.out).checkpoints();
  const absl::StatusOr<Version> newest = FindNewestCheckpoint(checkpoints);
  const bool may_link = preflight.resume && newest.ok() && FrozenFile::Of(checkpoints.FolderOf(*newest)).ok();
  return may_link ? size.trained_bytes : size.bytes_of(1);
}

absl::Status CheckEvaluationFile(const RunConfig& run) {
  RunConfig of_evaluation = run;
  of_evaluation.data = run.evaluation_data();
  return CountSamplesOfData(of_evaluation).status();
}

}  // namespace

absl::StatusOr<int64_t> CountSamples(const RunConfig& run) {
  if (!run.evaluation.path.empty()) EPS_RETURN_IF_ERROR(CheckEvaluationFile(run));
  int64_t all = 0;
  bool is_known = true;
  for (const DataSource& source : run.all_sources()) {
    RunConfig of_source = run;
    of_source.data = source.data;
    EPS_ASSIGN_OR_RETURN(const int64_t num_samples, CountSamplesOfData(of_source));
    is_known &= num_samples > 0;
    all += num_samples - run.evaluation.HeldOut(num_samples);
  }
  return is_known ? all : 0;
}

absl::StatusOr<RunConfig> LoadRunToTrain(const Preflight& preflight) {
  if (!preflight.resume) return preflight.run.Load();
  EPS_ASSIGN_OR_RETURN(const std::vector<FieldOverride> overrides, preflight.run.Overrides());
  return LoadRunOfFolder(preflight.out, preflight.run.run, overrides);
}

absl::StatusOr<RunOutline> CheckBeforeTraining(const Preflight& preflight) {
  EPS_RETURN_IF_ERROR(ProbeDevice(preflight.worker.device, preflight.worker.vectors));
  // A folder that cannot be read is not one without checkpoints.
  EPS_RETURN_IF_ERROR(RunFolder(preflight.out).checkpoints().HoldsAny().status());
  EPS_ASSIGN_OR_RETURN(const RunConfig run, LoadRunToTrain(preflight));
  if (!preflight.resume) EPS_RETURN_IF_ERROR(RunFolder(preflight.out).CheckHoldsNoRun());
  RunOutline outline = {.steps = run.steps,
                        .virtual_nodes = run.batch.virtual_nodes,
                        .tokens_per_step = run.tokens_per_step(),
                        .samples_per_step = run.samples_per_step(),
                        .sources = static_cast<int64_t>(run.all_sources().size())};
  EPS_ASSIGN_OR_RETURN(const RunConfig readable, preflight.resume ? WithKeptTokenizer(preflight.out, run) : run);
  EPS_ASSIGN_OR_RETURN(outline.samples, CountSamples(readable));
  if (!preflight.resume) EPS_RETURN_IF_ERROR(CheckTokenizerOfIds(run));
  if (!run.model_from.empty() && !preflight.resume)
    EPS_RETURN_IF_ERROR(ModelFolder::Open(run.model_from, run.model).status());
  EPS_ASSIGN_OR_RETURN(const ModelSpec model, BuildModel(run.model));
  EPS_RETURN_IF_ERROR(CheckPlan(preflight.worker, run, model));
  outline.parameters = model.num_parameters();
  outline.trainable_parameters = model.num_trainable_parameters();
  outline.frozen_format = model.config.frozen_format;
  outline.checkpoint_bytes = BytesOfNextCheckpoint(preflight, run, model);
  outline.model_state_bytes = server::ComputeDaemonMemory(model, run).model_state_bytes();
  return outline;
}

absl::Status CheckBeforeEvaluating(const EvaluatedRun& evaluated, const WorkerFlags& worker) {
  const RunConfig& run = evaluated.config;
  EPS_RETURN_IF_ERROR(ProbeDevice(worker.device, worker.vectors));
  EPS_RETURN_IF_ERROR(run.evaluation.path.empty() ? CountSamples(run).status() : CheckEvaluationFile(run));
  EPS_RETURN_IF_ERROR(CheckTokenizerOfIds(run));
  if (!run.model_from.empty()) EPS_RETURN_IF_ERROR(ModelFolder::Open(run.model_from, run.model).status());
  EPS_ASSIGN_OR_RETURN(const ModelSpec model, BuildModel(run.model));
  return CheckPlan(worker, run, model);
}

}  // namespace eps::cli
