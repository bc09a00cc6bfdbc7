#include "cli/preflight.h"

#include <fcntl.h>

#include <filesystem>
#include <memory>

#include "absl/strings/str_cat.h"
#include "cli/device_probe.h"
#include "common/base/file_util.h"
#include "common/base/status_macros.h"
#include "common/formats/model_folder.h"
#include "common/model/model_spec.h"
#include "common/samples/sample_source.h"
#include "common/tokenizer/tokenizer.h"
#include "eps_server/memory/daemon_memory.h"
#include "gpu_worker/device_sizes.h"
#include "gpu_worker/plan/relay_plan.h"

namespace eps::cli {
namespace {

absl::Status CheckDevice(const std::string& device) {
  if (device == "cpu") return absl::OkStatus();  // always there
  return ProbeDevice(device);
}

absl::Status CheckFolder(const Preflight& preflight) {
  std::error_code ignored;
  const bool holds_a_run = std::filesystem::exists(preflight.out + "/checkpoints", ignored);
  if (holds_a_run && !preflight.resume) {
    return absl::AlreadyExistsError(
        absl::StrCat(preflight.out, " holds a run already: go on with --resume, or give another --out"));
  }
  return absl::OkStatus();
}

absl::Status CheckPlan(const Preflight& preflight, const RunConfig& run, const ModelSpec& model) {
  EPS_ASSIGN_OR_RETURN(const worker::KernelSizes kernels,
                       worker::FindKernelSizes(preflight.worker.device, run.precision.wire));
  return worker::MakeRelayPlan({.model = &model,
                                .run = &run,
                                .kernels = kernels,
                                .cap_bytes = preflight.worker.device_memory_bytes,
                                .max_pass_vnodes = 0,
                                .max_group_members = run.relay.group_members})
      .status();
}

}  // namespace

absl::StatusOr<int64_t> CountSamples(const RunConfig& run) {
  if (run.data.needs_tokenizing()) {
    // How many there are the daemon knows once it has made tokens of it.
    EPS_RETURN_IF_ERROR_WITH(OpenFile(run.data.path, O_RDONLY).status(), "data.path");
    if (run.data.tokenizer == TokenForm::kModel) {
      EPS_RETURN_IF_ERROR_WITH(LoadTokenizer(run.data.tokenizer_path).status(), "data.tokenizer_path");
    }
    return 0;
  }
  EPS_ASSIGN_OR_RETURN(const std::unique_ptr<SampleSource> source, SampleSource::Open(run));
  return source->num_samples();
}

absl::StatusOr<RunOutline> CheckBeforeTraining(const Preflight& preflight) {
  EPS_RETURN_IF_ERROR(CheckDevice(preflight.worker.device));
  EPS_ASSIGN_OR_RETURN(const RunConfig run, preflight.run.Load());
  EPS_RETURN_IF_ERROR(CheckFolder(preflight));
  RunOutline outline = {.steps = run.steps,
                        .tokens_per_step = run.tokens_per_step(),
                        .sequences_per_step = run.batch.sequences_per_step()};
  EPS_ASSIGN_OR_RETURN(outline.samples, CountSamples(run));
  if (!run.model_from.empty() && !preflight.resume)
    EPS_RETURN_IF_ERROR(ModelFolder::Open(run.model_from, run.model.num_classes).status());
  EPS_ASSIGN_OR_RETURN(const ModelSpec model, BuildModel(run.model));
  EPS_RETURN_IF_ERROR(CheckPlan(preflight, run, model));
  outline.parameters = model.num_parameters();
  outline.model_state_bytes = server::ComputeDaemonMemory(model, run).model_state_bytes();
  return outline;
}

}  // namespace eps::cli
