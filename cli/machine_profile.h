#ifndef EPS_CLI_MACHINE_PROFILE_H_
#define EPS_CLI_MACHINE_PROFILE_H_

#include <string>

#include "absl/status/statusor.h"
#include "cli/common_flags.h"
#include "cli/progress.h"
#include "cli/signal_queue.h"
#include "gpu_worker/plan/profile.h"

namespace eps::cli {

// What is measured, and with the layers of which run.
struct MachineToMeasure {
  RunFlags run;
  std::string device;   // "cpu", "cuda" or "cuda:I"
  int threads = 1;      // that compute
  std::string vectors;  // of kVectorWidths
};

// Measures it with `gpu_worker --measure` into the file `out`, in a folder that is there. Blocks for some seconds, or
// with wide layers some more, in which nothing else should run. Layers of other runs that `out` has of the same
// hardware stay in it; what is returned is what was measured.
//
// signals: one that comes ends it. progress: shows what is measured, and how much is done
// Errors: INVALID_ARGUMENT what the worker says of the run · CANCELLED by a signal · INTERNAL what else the worker says
//         · RunProgram's · ReadProfile's · WriteProfile's
absl::StatusOr<worker::Profile> MeasureMachine(const MachineToMeasure& machine, const std::string& out,
                                               SignalQueue& signals, ProgressPrinter& progress);

}  // namespace eps::cli

#endif  // EPS_CLI_MACHINE_PROFILE_H_
