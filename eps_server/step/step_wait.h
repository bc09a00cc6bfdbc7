#ifndef EPS_SERVER_STEP_STEP_WAIT_H_
#define EPS_SERVER_STEP_STEP_WAIT_H_

#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/base/ids.h"

namespace eps::server {

// What a step waits for that takes too long. `cause` is a literal.
struct StepWait {
  StepId step;
  double seconds = 0;
  absl::string_view cause;  // "data", "no_worker", "compute", "push", "update", "checkpoint"
  // Not finished, by worker; WorkerId() is nobody. Of "compute", in training, those that are furthest behind.
  std::map<WorkerId, std::vector<int>> vnodes;
  std::vector<std::string> blobs;  // not complete, by name
};

// "step_waits step=41 cause=compute waited_seconds=12.5 worker_vnodes=2:{4,5} blobs=wte,h.0"; worker 0 is nobody, and
// long lists are cut.
void LogStepWait(const StepWait& wait);

}  // namespace eps::server

#endif  // EPS_SERVER_STEP_STEP_WAIT_H_
