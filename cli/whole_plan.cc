#include "cli/whole_plan.h"

#include <string>
#include <utility>
#include <vector>

#include "cli/common_flags.h"
#include "common/base/control_groups.h"
#include "common/base/ids.h"
#include "common/base/status_macros.h"
#include "common/model/layer_drop.h"
#include "gpu_worker/device_sizes.h"
#include "gpu_worker/plan/planner.h"
#include "gpu_worker/plan/profile.h"
#include "gpu_worker/plan/step_costs.h"
#include "gpu_worker/profile/kept_profile.h"

namespace eps::cli {

absl::StatusOr<WholePlan> MakeWholePlan(WholePlanRequest whole) {
  EPS_RETURN_IF_ERROR(CheckWorkers("--workers", whole.workers, whole.run.batch));
  WholePlan plan;
  plan.device_name = whole.device;
  plan.device_on_host = worker::IsOnHost(whole.device);
  plan.run = std::move(whole.run);
  plan.threads = whole.threads > 0 ? whole.threads : UsableCores();
  plan.profile_file = worker::ChooseProfile(whole.profile, whole.device, plan.threads, whole.vectors);
  EPS_ASSIGN_OR_RETURN(plan.profile, LoadProfile(plan.profile_file, whole.device));
  EPS_ASSIGN_OR_RETURN(plan.model, BuildModel(plan.run.model));
  EPS_ASSIGN_OR_RETURN(const worker::KernelSizes kernels,
                       worker::FindKernelSizes(whole.device, plan.run.precision.wire));
  const worker::PlanRequest request = {.model = &plan.model,
                                       .run = &plan.run,
                                       .kernels = kernels,
                                       .cap_bytes = whole.device_memory_bytes,
                                       .max_group_members = plan.run.relay.group_members,
                                       .host_stash_bytes = whole.host_memory_bytes,
                                       .profile = &plan.profile,
                                       .link = worker::LinkOf(whole.device, plan.run.transport),
                                       .suggests = whole.suggests};
  plan.smallest_cap_bytes = worker::SmallestCapBytes(request);
  worker::PlanRequest any_host = request;
  any_host.host_stash_bytes = 0;
  plan.host_raises_cap = plan.smallest_cap_bytes > worker::SmallestCapBytes(any_host);
  EPS_ASSIGN_OR_RETURN(plan.device, worker::MakeRelayPlan(request));
  plan.workers = whole.workers;
  plan.step = worker::PredictStep(request, plan.device, {.workers = plan.workers});
  if (const LayerDrop drop(plan.model, plan.run.layer_drop); drop.is_on()) {
    const std::vector<LayerId> dropped = drop.Average();
    plan.average_dropped = dropped.size();
    plan.average_step_seconds =
        worker::PredictStep(request, plan.device, {.dropped = dropped, .workers = plan.workers}).timeline.step_seconds;
  }
  plan.has_exact_times = worker::HasExactTimes(plan.profile, plan.model, plan.run, kernels);
  plan.outside_bytes = request.kernels.outside_bytes(worker::LibraryUseOf(plan.run, plan.threads));
  plan.host = server::ComputeDaemonMemory(plan.model, plan.run, plan.workers);
  return plan;
}

}  // namespace eps::cli
