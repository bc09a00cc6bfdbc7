#ifndef EPS_CLI_WHOLE_PLAN_H_
#define EPS_CLI_WHOLE_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "common/model/model_spec.h"
#include "common/spec/run_config.h"
#include "common/spec/vector_width.h"
#include "eps_server/memory/daemon_memory.h"
#include "gpu_worker/plan/predict_step.h"
#include "gpu_worker/plan/profile.h"
#include "gpu_worker/plan/relay_plan.h"

namespace eps::cli {

// Every byte that a run takes, on the device and on the host: arithmetic alone.
struct WholePlan {
  RunConfig run;
  ModelSpec model;
  std::string device_name;
  worker::RelayPlan device;
  int64_t smallest_cap_bytes = 0;
  bool device_on_host = true;
  int threads = 0;  // of each worker
  int64_t outside_bytes = 0;
  bool host_raises_cap = false;  // boundaries that it may not hold must stay on the device
  server::DaemonMemory host;
  worker::Profile profile;       // that the device's part was searched with
  std::string profile_file;      // where it is from, or worker::kNominalProfile
  bool has_exact_times = false;  // the profile has each of the run's layers, in its very shape
  int workers = 1;
  worker::Prediction step;  // of as many workers, and every layer
  // The same of a step that drops as many blocks as one does on average, where the run drops any; else 0.
  double average_step_seconds = 0;
  size_t average_dropped = 0;

  // Of each worker on the host; the cpu device's arena is there too.
  int64_t worker_host_bytes() const {
    const int64_t of_device = device_on_host ? device.arena_bytes + outside_bytes : 0;
    return of_device + device.host_bytes();
  }
};

struct WholePlanRequest {
  RunConfig run;
  std::string device = "cpu";       // a name; it need not be there
  int64_t device_memory_bytes = 0;  // these three: 0 where they are not given
  int64_t host_memory_bytes = 0;    // of a worker, for activations
  int threads = 0;
  std::string profile = {};  // these two: what worker::ChooseProfile is told
  std::string vectors = kWidestVectors;
  int workers = 1;       // whose step is predicted
  bool suggests = true;  // worker::PlanRequest's
};
// Errors: RESOURCE_EXHAUSTED naming the smallest cap that would do · INVALID_ARGUMENT no such device; more workers
// than virtual nodes (named --workers); the profile's
absl::StatusOr<WholePlan> MakeWholePlan(WholePlanRequest request);

}  // namespace eps::cli

#endif  // EPS_CLI_WHOLE_PLAN_H_
