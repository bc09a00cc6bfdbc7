#ifndef EPS_COMMON_CHECKPOINT_RUN_STATE_H_
#define EPS_COMMON_CHECKPOINT_RUN_STATE_H_

#include <cstdint>
#include <vector>

#include "common/base/ids.h"

namespace eps {

// What a run is beside its tensors, at a step boundary. All of it is in manifest.json.
struct RunState {
  Version version;                     // of every blob; the number of steps done
  std::vector<double> losses;          // of each step from 0, nats
  std::vector<double> gradient_norms;  // of each step; NaN-free: -1 where it was not computed
  double last_norm = 0;                // for LAGGED clipping
  int64_t tokens = 0;                  // counted so far
  double train_seconds = 0;            // spent in steps so far, over all sittings
  int64_t skipped_steps = 0;           // whose gradient was not finite; the optimizer's own step does not count them
};

}  // namespace eps

#endif  // EPS_COMMON_CHECKPOINT_RUN_STATE_H_
