#ifndef EPS_CLI_WHOLE_PLAN_H_
#define EPS_CLI_WHOLE_PLAN_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "common/model/model_spec.h"
#include "common/spec/run_config.h"
#include "eps_server/memory/daemon_memory.h"
#include "gpu_worker/plan/relay_plan.h"

namespace eps::cli {

// Every byte that a run takes, on the device and on the host: arithmetic alone.
struct WholePlan {
  RunConfig run;
  ModelSpec model;
  worker::RelayPlan device;
  int64_t smallest_cap_bytes = 0;
  int threads = 0;  // of each worker
  int64_t outside_bytes = 0;
  server::DaemonMemory host;

  // Of each worker on the host; on the cpu device the arena is there too.
  int64_t worker_host_bytes() const {
    return device.arena_bytes + outside_bytes + device.host_boundary_bytes + device.host_push_bytes;
  }
};

// device_memory_bytes, threads: 0 where they are not given.
// Errors: RESOURCE_EXHAUSTED naming the smallest cap that would do
absl::StatusOr<WholePlan> MakeWholePlan(RunConfig run, int64_t device_memory_bytes, int threads);

}  // namespace eps::cli

#endif  // EPS_CLI_WHOLE_PLAN_H_
