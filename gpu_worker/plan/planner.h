#ifndef EPS_GPU_WORKER_PLAN_PLANNER_H_
#define EPS_GPU_WORKER_PLAN_PLANNER_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/plan/plan_needs.h"
#include "gpu_worker/plan/relay_plan.h"

namespace eps::worker {

// The plan of a run on a device, as SearchPlan finds it.
//
// Errors: RESOURCE_EXHAUSTED when nothing fits; the message holds "needs at least N bytes", the smallest cap
//         that does, and what to change (PlanRequest::suggests). Any cap >= N works · INVALID_ARGUMENT a pass beyond
//         all measure, by field
absl::StatusOr<RelayPlan> MakeRelayPlan(const PlanRequest& request);

// Whether there is one; without the search.
absl::Status CheckFits(const PlanRequest& request);

// That N. It depends on neither num_layers nor micro_batches, unless the run asks to be resident, to keep inner
// activations, to have boundaries on the device or some blocks depth first, or the host may not hold them all
// (host_stash_bytes). INT64_MAX where MakeRelayPlan says INVALID_ARGUMENT.
int64_t SmallestCapBytes(const PlanRequest& request);

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_PLAN_PLANNER_H_
