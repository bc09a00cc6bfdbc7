#include "eps_server/optimizer/update_scalars.h"

#include <cmath>

namespace eps::server {

UpdateScalars ComputeUpdateScalars(const OptimizerConfig& optimizer, double learning_rate, int64_t update,
                                   double gradient_scale) {
  UpdateScalars s;
  s.rule = optimizer.rule;
  s.gradient_scale = static_cast<float>(gradient_scale);
  if (optimizer.rule == OptimizerRule::kSgd) {
    s.step_size = static_cast<float>(learning_rate);
    s.decay = static_cast<float>(optimizer.weight_decay);
    s.momentum = static_cast<float>(optimizer.momentum);
    return s;
  }
  s.keep = static_cast<float>(1 - learning_rate * optimizer.weight_decay);
  s.beta1 = static_cast<float>(optimizer.beta1);
  s.one_minus_beta1 = static_cast<float>(1 - optimizer.beta1);
  s.beta2 = static_cast<float>(optimizer.beta2);
  s.one_minus_beta2 = static_cast<float>(1 - optimizer.beta2);
  if (optimizer.rule == OptimizerRule::kLion) {
    s.step_size = static_cast<float>(learning_rate);
    return s;
  }
  const double t = static_cast<double>(update);
  s.step_size = static_cast<float>(learning_rate / (1 - std::pow(optimizer.beta1, t)));
  s.inv_sqrt_bias2 = static_cast<float>(1 / std::sqrt(1 - std::pow(optimizer.beta2, t)));
  s.eps = static_cast<float>(optimizer.eps);
  return s;
}

}  // namespace eps::server
