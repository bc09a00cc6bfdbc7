#include "cli/whole_plan.h"

#include <algorithm>
#include <string>
#include <thread>
#include <utility>

#include "common/base/status_macros.h"
#include "gpu_worker/device_sizes.h"
#include "gpu_worker/plan/planner.h"
#include "gpu_worker/plan/profile.h"
#include "gpu_worker/plan/step_costs.h"

namespace eps::cli {

absl::StatusOr<WholePlan> MakeWholePlan(RunConfig run, const std::string& device, int64_t device_memory_bytes,
                                        int threads) {
  WholePlan plan;
  plan.device_name = device;
  plan.device_on_host = worker::IsOnHost(device);
  plan.run = std::move(run);
  EPS_ASSIGN_OR_RETURN(plan.model, BuildModel(plan.run.model));
  EPS_ASSIGN_OR_RETURN(const worker::KernelSizes kernels, worker::FindKernelSizes(device, plan.run.precision.wire));
  const worker::Profile profile = worker::NominalProfile(device);
  const worker::PlanRequest request = {.model = &plan.model,
                                       .run = &plan.run,
                                       .kernels = kernels,
                                       .cap_bytes = device_memory_bytes,
                                       .max_pass_vnodes = 0,
                                       .max_group_members = plan.run.relay.group_members,
                                       .profile = &profile,
                                       .link = worker::LinkOf(device, plan.run.transport)};
  plan.smallest_cap_bytes = worker::SmallestCapBytes(request);
  EPS_ASSIGN_OR_RETURN(plan.device, worker::MakeRelayPlan(request));
  plan.threads = threads > 0 ? threads : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  plan.outside_bytes = request.kernels.outside_bytes(plan.threads);
  plan.host = server::ComputeDaemonMemory(plan.model, plan.run);
  return plan;
}

}  // namespace eps::cli
