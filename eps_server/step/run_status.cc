#include "eps_server/step/run_status.h"

namespace eps::server {

absl::string_view RunPhaseName(RunPhase phase) {
  switch (phase) {
    case RunPhase::kStarting:
      return "starting";
    case RunPhase::kWaitingForWorkers:
      return "waiting_for_workers";
    case RunPhase::kTraining:
      return "training";
    case RunPhase::kFinishing:
      return "finishing";
    case RunPhase::kFinished:
      return "finished";
    case RunPhase::kFailed:
      return "failed";
  }
  return "unknown";
}

}  // namespace eps::server
