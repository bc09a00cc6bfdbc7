#include "eps_server/optimizer/update_scalars.h"

#include <algorithm>
#include <cmath>

namespace eps::server {
namespace {

constexpr double kClipEpsilon = 1e-6;  // of torch.nn.utils.clip_grad_norm_

}  // namespace

double ClipScale(const OptimizerConfig& optimizer, double norm) {
  return std::min(1.0, optimizer.clip_norm / (norm + kClipEpsilon));
}

UpdateScalars ComputeUpdateScalars(const OptimizerConfig& optimizer, absl::Span<const TensorGroup> groups,
                                   double learning_rate, int64_t update, double gradient_scale) {
  UpdateScalars s;
  s.rule = optimizer.rule;
  s.gradient_scale = static_cast<float>(gradient_scale);
  s.momentum = static_cast<float>(optimizer.momentum);
  s.beta1 = static_cast<float>(optimizer.beta1);
  s.one_minus_beta1 = static_cast<float>(1 - optimizer.beta1);
  s.beta2 = static_cast<float>(optimizer.beta2);
  s.one_minus_beta2 = static_cast<float>(1 - optimizer.beta2);
  s.eps = static_cast<float>(optimizer.eps);
  double bias1 = 1;
  if (optimizer.has_adam_moments()) {
    const auto t = static_cast<double>(update);
    bias1 = 1 - std::pow(optimizer.beta1, t);
    s.inv_bias1 = static_cast<float>(1 / bias1);
    s.inv_sqrt_bias2 = static_cast<float>(1 / std::sqrt(1 - std::pow(optimizer.beta2, t)));
  }
  const bool adds_decay = optimizer.rule == OptimizerRule::kAdam;  // to the gradient
  for (const TensorGroup& group : groups) {
    const double rate = learning_rate * group.learning_rate_scale;
    s.groups.push_back({.step_size = static_cast<float>(rate / bias1),
                        .keep = adds_decay ? 1 : static_cast<float>(1 - rate * group.weight_decay),
                        .decay = static_cast<float>(group.weight_decay)});
  }
  return s;
}

}  // namespace eps::server
