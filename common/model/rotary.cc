#include "common/model/rotary.h"

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

}  // namespace

std::vector<double> RotaryFrequencies(const RotaryConfig& rotary, int64_t head_dim) {
  EPS_CHECK(head_dim % 2 == 0);
  std::vector<double> frequencies;
  for (int64_t i = 0; i < head_dim / 2; ++i) {
    const double plain = std::pow(rotary.theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
    switch (rotary.scaling) {
      case RotaryConfig::Scaling::kNone:
        frequencies.push_back(plain);
        break;
      case RotaryConfig::Scaling::kLinear:
        frequencies.push_back(plain / rotary.factor);
        break;
      case RotaryConfig::Scaling::kLlama3:
        frequencies.push_back(Llama3Frequency(rotary, plain));
        break;
    }
  }
  return frequencies;
}

std::vector<float> RotaryTable(const RotaryConfig& rotary, int64_t head_dim, int64_t num_positions) {
  const std::vector<double> frequencies = RotaryFrequencies(rotary, head_dim);
  std::vector<float> table;
  table.reserve(static_cast<size_t>(head_dim * num_positions));
  for (int64_t position = 0; position < num_positions; ++position) {
    const auto angle = [&](double frequency) { return static_cast<double>(position) * frequency; };
    for (const double f : frequencies) table.push_back(static_cast<float>(std::cos(angle(f))));
    for (const double f : frequencies) table.push_back(static_cast<float>(std::sin(angle(f))));
  }
  return table;
}

}  // namespace eps
