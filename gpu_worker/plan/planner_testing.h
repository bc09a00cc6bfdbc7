#ifndef EPS_GPU_WORKER_PLAN_PLANNER_TESTING_H_
#define EPS_GPU_WORKER_PLAN_PLANNER_TESTING_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "common/model/model_spec.h"
#include "common/spec/run_config.h"
#include "gpu_worker/device/cpu/cpu_kernel_sizes.h"
#include "gpu_worker/plan/plan_needs.h"
#include "gpu_worker/plan/planner.h"
#include "gpu_worker/plan/relay_plan.h"

namespace eps::worker {

// A run and the request for its plan.
struct TestRun {
  explicit TestRun(int64_t layers = 4, int micro_batches = 2) {
    run.model = {.num_layers = layers, .d_model = 64, .num_heads = 4, .context = 32, .vocab = 256};
    run.batch = {.virtual_nodes = 4, .micro_batches = micro_batches, .micro_batch = 2};
    run.steps = 1;
  }
  PlanRequest Request(int64_t cap_bytes) {
    model = BuildModel(run.model).value();
    return {.model = &model,
            .run = &run,
            .kernels = CpuKernelSizes(),
            .cap_bytes = cap_bytes,
            .host_stash_bytes = host_stash_bytes};
  }
  absl::StatusOr<RelayPlan> Plan(int64_t cap_bytes) { return MakeRelayPlan(Request(cap_bytes)); }
  int64_t Smallest() { return SmallestCapBytes(Request(0)); }

  RunConfig run;
  ModelSpec model;
  int64_t host_stash_bytes = 0;
};

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_PLAN_PLANNER_TESTING_H_
