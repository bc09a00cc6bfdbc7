#ifndef EPS_COMMON_SCHEDULE_LOSS_SCALE_H_
#define EPS_COMMON_SCHEDULE_LOSS_SCALE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"

namespace eps {

inline constexpr double kMaxLossScale = 1 << 24;
inline constexpr double kMinLossScale = 1.0 / (1 << 24);

// Dynamic loss scaling: what the loss's derivative is multiplied by, so that gradients in FP16 neither vanish nor
// overflow. It halves after a step whose gradient is not finite, which changes nothing, and doubles after
// growth_interval others in a row. Always a power of two: dividing by it rounds nothing.
// Source: Micikevicius et al., Mixed Precision Training, arXiv:1710.03740, section 3.2; the defaults are those of
// torch.amp.GradScaler.
struct LossScaleRule {
  double first = 1 << 16;          // of a run's first step; a power of two within the bounds above
  int64_t growth_interval = 2000;  // steps; 0: it never grows

  friend bool operator==(const LossScaleRule&, const LossScaleRule&) = default;
};

struct LossScale {
  double value = 1;
  int64_t finite_steps = 0;  // since it changed; below growth_interval, or 0

  friend bool operator==(const LossScale&, const LossScale&) = default;
};

// Whether `value` may be one.
inline bool IsLossScale(double value) {
  int exponent = 0;
  return value >= kMinLossScale && value <= kMaxLossScale && std::frexp(value, &exponent) == 0.5;
}
inline constexpr absl::string_view kLossScaleRange = "a power of two from 2^-24 to 2^24";  // for messages

// Of a run's first step; 1 in one without a rule.
inline LossScale FirstLossScale(const std::optional<LossScaleRule>& rule) {
  return {.value = rule.has_value() ? rule->first : 1};
}
// Of the step after one that had `scale`.
inline LossScale NextLossScale(const LossScaleRule& rule, LossScale scale, bool finite) {
  if (!finite) return {.value = std::max(scale.value / 2, kMinLossScale)};
  if (rule.growth_interval == 0) return scale;
  if (++scale.finite_steps < rule.growth_interval) return scale;
  return {.value = std::min(scale.value * 2, kMaxLossScale)};
}

}  // namespace eps

#endif  // EPS_COMMON_SCHEDULE_LOSS_SCALE_H_
