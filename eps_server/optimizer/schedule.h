#ifndef EPS_SERVER_OPTIMIZER_SCHEDULE_H_
#define EPS_SERVER_OPTIMIZER_SCHEDULE_H_

#include <cstdint>

#include "common/base/ids.h"
#include "common/spec/run_config.h"

namespace eps::server {

// The learning rate of a step of a run of `steps` steps, in fp64. With W = warmup_steps:
//
//   s < W                   peak * (s + 1) / W
//   s >= W, CONSTANT        peak
//   s >= W, INVERSE_SQRT    peak * sqrt(W / (s + 1))
//   s >= W, LINEAR          peak + (final - peak) * x
//   s >= W, ONE_MINUS_SQRT  peak + (final - peak) * sqrt(x)
//   s >= W, COSINE          final + (peak - final) * (1 + cos(pi x)) / 2
//
// with x = (s - S) / (steps - 1 - S), x = 0 before S and x = 1 at the last step: `peak` from s = W to s = S, `final` at
// s = steps - 1. S is max(W, steps - 1 - decay_steps), and W without decay_steps. Where S is the last step itself, the decay
// has no length and x is 0: of one step, at a `final` of 0, nothing would be learned.
double LearningRate(const OptimizerConfig& optimizer, int64_t steps, StepId step);

}  // namespace eps::server

#endif  // EPS_SERVER_OPTIMIZER_SCHEDULE_H_
