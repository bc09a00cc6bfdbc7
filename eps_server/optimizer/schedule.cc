#include "eps_server/optimizer/schedule.h"

#include <cmath>
#include <numbers>

namespace eps::server {

double LearningRate(const OptimizerConfig& optimizer, int64_t steps, StepId step) {
  const double peak = optimizer.peak_learning_rate, last = optimizer.final_learning_rate;
  const int64_t s = step.value(), warmup = optimizer.warmup_steps;
  if (s < warmup) return peak * static_cast<double>(s + 1) / static_cast<double>(warmup);
  if (optimizer.decay == ScheduleDecay::kConstant) return peak;
  if (s >= steps - 1) return last;
  const double x = static_cast<double>(s - warmup) / static_cast<double>(steps - 1 - warmup);
  if (optimizer.decay == ScheduleDecay::kLinear) return peak + (last - peak) * x;
  return last + (peak - last) * (1 + std::cos(std::numbers::pi * x)) / 2;
}

}  // namespace eps::server
