#include "eps_server/optimizer/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace eps::server {

double LearningRate(const OptimizerConfig& optimizer, int64_t steps, StepId step) {
  const double peak = optimizer.peak_learning_rate, last = optimizer.final_learning_rate;
  const int64_t s = step.value(), warmup = optimizer.warmup_steps;
  if (s < warmup) return peak * static_cast<double>(s + 1) / static_cast<double>(warmup);
  if (optimizer.decay == ScheduleDecay::kConstant) return peak;
  if (optimizer.decay == ScheduleDecay::kInverseSqrt) {
    return peak * std::sqrt(static_cast<double>(warmup) / static_cast<double>(s + 1));
  }
  const int64_t start = optimizer.decay_steps > 0 ? std::max(warmup, steps - 1 - optimizer.decay_steps) : warmup;
  if (s <= start) return peak;
  if (s >= steps - 1) return last;
  const double x = static_cast<double>(s - start) / static_cast<double>(steps - 1 - start);
  switch (optimizer.decay) {
    case ScheduleDecay::kLinear:
      return peak + (last - peak) * x;
    case ScheduleDecay::kOneMinusSqrt:
      return peak + (last - peak) * std::sqrt(x);
    default:
      return last + (peak - last) * (1 + std::cos(std::numbers::pi * x)) / 2;
  }
}

}  // namespace eps::server
