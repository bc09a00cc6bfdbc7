#include "eps_server/step/run_status.h"

#include "common/base/state_names.h"

namespace eps::server {

absl::string_view RunPhaseName(RunPhase phase) {
  switch (phase) {
    case RunPhase::kStarting:
      return run_state::kStarting;
    case RunPhase::kWaitingForWorkers:
      return run_state::kWaitingForWorkers;
    case RunPhase::kTraining:
      return run_state::kTraining;
    case RunPhase::kFinishing:
      return run_state::kFinishing;
    case RunPhase::kFinished:
      return run_state::kFinished;
    case RunPhase::kFailed:
      return run_state::kFailed;
  }
  return "unknown";
}

}  // namespace eps::server
