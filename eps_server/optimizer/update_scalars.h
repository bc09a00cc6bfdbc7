#ifndef EPS_SERVER_OPTIMIZER_UPDATE_SCALARS_H_
#define EPS_SERVER_OPTIMIZER_UPDATE_SCALARS_H_

#include <cstdint>

#include "common/spec/run_config.h"

namespace eps::server {

// What one update is made of, rounded to fp32 once. AdamW, in the order of torch/optim/adamw.py:
//
//   p *= keep          m = beta1 m + (1 - beta1) g       v = beta2 v + (1 - beta2) g^2
//   p -= step_size * m / (sqrt(v) * inv_sqrt_bias2 + eps)
//
// SGD: g += decay p;  b = momentum b + g;  p -= step_size * b  (without momentum: g for b)
//
// Lion (arXiv:2302.06675, algorithm 2), with sign(0) = 0:
//
//   p *= keep          p -= step_size * sign(beta1 m + (1 - beta1) g)          m = beta2 m + (1 - beta2) g
//
// p is made of the moments as they are computed; what is kept of them is rounded, if they are not fp32 (moment_rounding.h).
struct UpdateScalars {
  OptimizerRule rule = OptimizerRule::kAdamW;
  float gradient_scale = 1;  // of clipping, over the loss scale
  float step_size = 0;       // AdamW: learning rate / (1 - beta1^t); SGD, Lion: learning rate
  float keep = 1;            // AdamW, Lion: 1 - learning rate * weight decay
  float decay = 0;           // SGD: weight decay
  float beta1 = 0, one_minus_beta1 = 1;
  float beta2 = 0, one_minus_beta2 = 1;
  float inv_sqrt_bias2 = 1;  // 1 / sqrt(1 - beta2^t)
  float eps = 0;
  float momentum = 0;
  uint32_t moment_key = 0;  // MomentKey of the step and the blob: moments that are not fp32
};
// `update` counts from 1 the updates that were made, without skipped steps.
UpdateScalars ComputeUpdateScalars(const OptimizerConfig& optimizer, double learning_rate, int64_t update,
                                   double gradient_scale);

}  // namespace eps::server

#endif  // EPS_SERVER_OPTIMIZER_UPDATE_SCALARS_H_
