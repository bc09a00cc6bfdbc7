#ifndef EPS_SERVER_OPTIMIZER_UPDATE_SCALARS_H_
#define EPS_SERVER_OPTIMIZER_UPDATE_SCALARS_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/spec/run_config.h"

namespace eps::server {

// In what some tensors of a blob differ from others.
struct TensorGroup {
  double learning_rate_scale = 1;  // of the schedule's; with LAMB's trust ratio
  double weight_decay = 0;
};

// A TensorGroup's part in an update, rounded to fp32 once.
struct GroupScalars {
  float step_size = 0;  // AdamW, Adam, LAMB: learning rate / (1 - beta1^t); SGD, Lion: learning rate
  float keep = 1;       // AdamW, LAMB, Lion: 1 - learning rate * weight decay; Adam: 1
  float decay = 0;      // weight decay
};

// What one update is made of, rounded to fp32 once. AdamW, in the order of torch/optim/adamw.py:
//
//   p *= keep          m = beta1 m + (1 - beta1) g       v = beta2 v + (1 - beta2) g^2
//   p -= step_size * m / (sqrt(v) * inv_sqrt_bias2 + eps)
//
// Adam: the same with keep = 1, and g += decay p before all.
//
// LAMB (arXiv:1904.00962, algorithm 2): the same, with a learning rate that is multiplied by the tensor's trust ratio
// |p| / |u|, where u = inv_bias1 * m / (sqrt(v) * inv_sqrt_bias2 + eps) + decay p.
//
// SGD: g += decay p;  b = momentum b + g;  p -= step_size * b  (without momentum: g for b)
//
// Lion (arXiv:2302.06675, algorithm 2), with sign(0) = 0:
//
//   p *= keep          p -= step_size * sign(beta1 m + (1 - beta1) g)          m = beta2 m + (1 - beta2) g
//
// p is made of the moments as they are computed; what is kept of them is rounded, if they are not fp32
// (moment_rounding.h).
struct UpdateScalars {
  OptimizerRule rule = OptimizerRule::kAdamW;
  float gradient_scale = 1;  // of clipping, over the loss scale
  float beta1 = 0, one_minus_beta1 = 1;
  float beta2 = 0, one_minus_beta2 = 1;
  float inv_bias1 = 1;       // 1 / (1 - beta1^t)
  float inv_sqrt_bias2 = 1;  // 1 / sqrt(1 - beta2^t)
  float eps = 0;
  float momentum = 0;
  uint32_t moment_key = 0;           // MomentKey of the step and the blob: moments that are not fp32
  std::vector<GroupScalars> groups;  // as GroupRange::group
};
// What clipping multiplies a gradient of norm `norm` by, as torch.nn.utils.clip_grad_norm_.
double ClipScale(const OptimizerConfig& optimizer, double norm);

// `update` counts from 1 the updates that were made, without skipped steps.
UpdateScalars ComputeUpdateScalars(const OptimizerConfig& optimizer, absl::Span<const TensorGroup> groups,
                                   double learning_rate, int64_t update, double gradient_scale);

}  // namespace eps::server

#endif  // EPS_SERVER_OPTIMIZER_UPDATE_SCALARS_H_
