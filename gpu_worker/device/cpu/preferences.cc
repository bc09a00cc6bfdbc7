#include "gpu_worker/device/cpu/preferences.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace eps::worker::cpu {
namespace {

// -log sigmoid(-z).
double Softplus(double z) { return std::max(z, 0.0) + std::log1p(std::exp(-std::fabs(z))); }
double Sigmoid(double z) { return 1 / (1 + std::exp(-z)); }

// log(p / (1 - p)), where log p is `log_prob`, and how fast that rises with log p; beyond PreferenceConfig::kAlmostCertain
// both are as there.
struct LogOdds {
  explicit LogOdds(double log_prob) {
    double bounded = log_prob;  // NaN stays NaN
    if (bounded > PreferenceConfig::kAlmostCertain) bounded = PreferenceConfig::kAlmostCertain;
    const double otherwise = -std::expm1(bounded);  // the probability of all else
    value = bounded - std::log(otherwise);
    slope = 1 / otherwise;
  }
  double value, slope;
};

}  // namespace

// Row i goes to lane i mod 16; then the lanes in order.
void ScoreSequencesRange(const ScoreSequencesArgs& args, int64_t begin, int64_t end) {
  for (int64_t sequence = begin; sequence < end; ++sequence) {
    std::array<double, 16> lanes = {};
    SequenceScore score;
    for (int64_t i = 0; i < args.T; ++i) {
      const int64_t row = sequence * args.T + i;
      if (args.labels[row] < 0 || args.labels[row] >= args.V) continue;
      lanes[i % 16] += static_cast<double>(args.target[row]) - static_cast<double>(args.row_max[row]) -
                       std::log(static_cast<double>(std::fabs(args.row_sum[row])));
      ++score.counted;
    }
    for (const double lane : lanes) score.log_prob += lane;
    args.scores[sequence] = score;
  }
}

void AddPreferenceLoss(const PreferenceLossArgs& args) {
  const PreferenceConfig& rule = args.preferences;
  for (int64_t chosen = 0; chosen < args.B; chosen += 2) {
    const SequenceScore &c = args.scores[chosen], &r = args.scores[chosen + 1];
    float* scales = args.sequence_scale + chosen;
    scales[0] = scales[1] = 0;
    if (c.counted == 0 || r.counted == 0) continue;
    // How fast z rises with the first one's sum, and falls with the other's.
    double c_weight = rule.beta, r_weight = rule.beta;
    double c_reward = 0, r_reward = 0;
    double better = 0;       // how much the first one is
    double nll_weight = 0;   // in the loss, of minus the first one's sum
    double rank_weight = 1;  // in the loss, of what z gives
    if (rule.has_reference()) {
      const SequenceScore* reference = args.reference + chosen;
      const double c_more = c.log_prob - reference[0].log_prob, r_more = r.log_prob - reference[1].log_prob;
      c_reward = c_weight * c_more;
      r_reward = r_weight * r_more;
      better = rule.beta * (c_more - r_more);
    } else {
      c_weight /= static_cast<double>(c.counted);
      r_weight /= static_cast<double>(r.counted);
      c_reward = c_weight * c.log_prob;
      r_reward = r_weight * r.log_prob;
      better = c_reward - r_reward;
    }
    double z = better - rule.margin;
    if (rule.rule == PreferenceRule::kOrpo) {
      nll_weight = 1 / static_cast<double>(c.counted);
      rank_weight = rule.beta;
      const LogOdds c_odds(c.log_prob * nll_weight), r_odds(r.log_prob / static_cast<double>(r.counted));
      z = c_odds.value - r_odds.value;
      c_weight = c_odds.slope * nll_weight;
      r_weight = r_odds.slope / static_cast<double>(r.counted);
    }
    const double e = rule.label_smoothing;
    const double loss = rank_weight * ((1 - e) * Softplus(-z) + e * Softplus(z)) - nll_weight * c.log_prob;
    const double slope = rank_weight * ((1 - e) * Sigmoid(-z) - e * Sigmoid(z));  // how fast the loss falls with z
    scales[0] = static_cast<float>(args.scale * slope * c_weight + args.scale * nll_weight);
    scales[1] = static_cast<float>(-args.scale * slope * r_weight);
    args.record->loss_sum += loss;
    args.record->chosen_reward += c_reward;
    args.record->rejected_reward += r_reward;
    ++args.record->counted;
    if (!std::isfinite(loss)) {
      args.record->finite = 0;
    } else if (better > 0) {
      ++args.record->correct;
    }
  }
}

}  // namespace eps::worker::cpu
