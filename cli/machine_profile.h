#ifndef EPS_CLI_MACHINE_PROFILE_H_
#define EPS_CLI_MACHINE_PROFILE_H_

#include <string>

#include "absl/status/statusor.h"
#include "cli/common_flags.h"
#include "cli/signal_queue.h"
#include "gpu_worker/plan/profile.h"

namespace eps::cli {

// What is measured, and with the layers of which run.
struct MachineToMeasure {
  RunFlags run;
  std::string device;
  int threads = 1;
  std::string vectors;
};

// Measures it with `gpu_worker --measure` into the file `out`, which takes some seconds in which nothing else should run; of
// a large layer more. What `out` has of other runs' layers, measured on the same hardware, stays there.
//
// signals: one that comes ends it; may be null.
// Errors: INVALID_ARGUMENT what the worker says of the run · CANCELLED by a signal · INTERNAL what else the worker says
absl::StatusOr<worker::Profile> MeasureMachine(const MachineToMeasure& machine, const std::string& out,
                                               SignalQueue* signals);

}  // namespace eps::cli

#endif  // EPS_CLI_MACHINE_PROFILE_H_
