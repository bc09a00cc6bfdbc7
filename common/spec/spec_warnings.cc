#include "common/spec/spec_warnings.h"

#include "absl/strings/str_cat.h"

namespace eps {
namespace {

bool EndsWithFinal(ScheduleDecay decay) {
  return decay == ScheduleDecay::kLinear || decay == ScheduleDecay::kCosine || decay == ScheduleDecay::kOneMinusSqrt;
}

}  // namespace

std::vector<SpecWarning> FindSpecWarnings(const RunConfig& run) {
  const OptimizerConfig& optimizer = run.optimizer;
  std::vector<SpecWarning> warnings;
  if (optimizer.warmup_steps >= run.steps) {
    warnings.push_back({"optimizer.schedule.warmup_steps",
                        absl::StrCat(optimizer.warmup_steps, ": all of the run's ", run.steps, " steps are warm-up")});
  }
  if (EndsWithFinal(optimizer.decay) && optimizer.final_learning_rate > optimizer.peak_learning_rate) {
    warnings.push_back({"optimizer.schedule.final",
                        absl::StrCat(optimizer.final_learning_rate, ": above the peak, ", optimizer.peak_learning_rate,
                                     ": the rate rises where it should decay")});
  }
  if (run.evaluation.every_steps > run.steps) {
    warnings.push_back({"evaluation.every_steps", absl::StrCat(run.evaluation.every_steps, ": of the run's ", run.steps,
                                                               " steps only the last is evaluated")});
  }
  return warnings;
}

}  // namespace eps
