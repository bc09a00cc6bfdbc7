#include "common/model/rotary.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numbers>

#include "common/base/status_macros.h"

namespace eps {
namespace {

// Llama 3.1's rule, as Hugging Face's "llama3".
double Llama3Frequency(const RotaryConfig& rotary, double frequency) {
  const double turns = static_cast<double>(rotary.original_context) * frequency / (2 * std::numbers::pi);
  if (turns < rotary.low_freq_factor) return frequency / rotary.factor;
  if (turns > rotary.high_freq_factor) return frequency;
  const double share = (turns - rotary.low_freq_factor) / (rotary.high_freq_factor - rotary.low_freq_factor);
  return (1 - share) * frequency / rotary.factor + share * frequency;
}

// The pairs, not whole ones, between which YaRN goes from angles as they are to angles over `factor`.
// Source: YaRN, arXiv:2309.00071, sections 3.2 and 3.4; rounded and kept apart as Hugging Face's "yarn" does it
struct YarnRamp {
  double begin = 0, end = 0;

  double SlowShare(int64_t pair) const {
    return std::clamp((static_cast<double>(pair) - begin) / (end - begin), 0.0, 1.0);
  }
};

YarnRamp YarnRampOf(const RotaryConfig& rotary, int64_t head_dim) {
  const auto pair_that_turns = [&](double times) {
    const double angle = times * 2 * std::numbers::pi / static_cast<double>(rotary.original_context);
    return static_cast<double>(head_dim) * -std::log(angle) / (2 * std::log(rotary.theta));
  };
  YarnRamp ramp = {.begin = pair_that_turns(rotary.beta_fast), .end = pair_that_turns(rotary.beta_slow)};
  if (rotary.truncate) ramp = {.begin = std::floor(ramp.begin), .end = std::ceil(ramp.end)};
  ramp = {.begin = std::max(ramp.begin, 0.0), .end = std::min(ramp.end, static_cast<double>(head_dim - 1))};
  if (ramp.begin == ramp.end) ramp.end += 0.001;
  return ramp;
}

// What cosines and sines are multiplied by.
double LengthOf(const RotaryConfig& rotary) {
  if (rotary.scaling != RotaryConfig::Scaling::kYarn) return 1;
  return rotary.attention_factor > 0 ? rotary.attention_factor : 0.1 * std::log(rotary.factor) + 1;
}

}  // namespace

std::vector<double> RotaryFrequencies(const RotaryConfig& rotary, int64_t head_dim) {
  EPS_CHECK(head_dim % 2 == 0);
  const YarnRamp ramp = rotary.scaling == RotaryConfig::Scaling::kYarn ? YarnRampOf(rotary, head_dim) : YarnRamp{};
  std::vector<double> frequencies;
  for (int64_t i = 0; i < head_dim / 2; ++i) {
    const double plain = std::pow(rotary.theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
    switch (rotary.scaling) {
      case RotaryConfig::Scaling::kNone:
      case RotaryConfig::Scaling::kDynamic:
        frequencies.push_back(plain);
        break;
      case RotaryConfig::Scaling::kLinear:
        frequencies.push_back(plain / rotary.factor);
        break;
      case RotaryConfig::Scaling::kLlama3:
        frequencies.push_back(Llama3Frequency(rotary, plain));
        break;
      case RotaryConfig::Scaling::kYarn:
        frequencies.push_back(std::lerp(plain, plain / rotary.factor, ramp.SlowShare(i)));
        break;
    }
  }
  return frequencies;
}

std::vector<float> RotaryTable(const RotaryConfig& rotary, int64_t head_dim, int64_t num_positions) {
  const std::vector<double> frequencies = RotaryFrequencies(rotary, head_dim);
  const double length = LengthOf(rotary);
  std::vector<float> table;
  table.reserve(static_cast<size_t>(head_dim * num_positions));
  for (int64_t position = 0; position < num_positions; ++position) {
    const auto angle = [&](double frequency) { return static_cast<double>(position) * frequency; };
    for (const double f : frequencies) table.push_back(static_cast<float>(length * std::cos(angle(f))));
    for (const double f : frequencies) table.push_back(static_cast<float>(length * std::sin(angle(f))));
  }
  return table;
}

}  // namespace eps
