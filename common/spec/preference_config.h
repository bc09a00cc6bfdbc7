#ifndef EPS_COMMON_SPEC_PREFERENCE_CONFIG_H_
#define EPS_COMMON_SPEC_PREFERENCE_CONFIG_H_

#include <cstdint>

namespace eps {

enum class PreferenceRule : uint8_t {
  kNone,   // the run learns no preferences
  kDpo,    // Rafailov et al., arXiv:2305.18290, eq. 7
  kSimPo,  // Meng et al., arXiv:2405.14734, eq. 6
  kOrpo,   // Hong et al., arXiv:2403.07691, eq. 6 and 7
};

// What of two sequences, of which one is preferred, is learnt. With s the sum of log p over a sequence's counted tokens, n
// their number, and r what s is by the model without its adapters:
//   DPO:    z = beta ((s_c - r_c) - (s_r - r_r))
//   SimPO:  z = beta (s_c / n_c - s_r / n_r) - margin
//           both: a pair's loss = -(1 - e) log sigmoid(z) - e log sigmoid(-z), with e the label_smoothing
//   ORPO:   z = o(s_c / n_c) - o(s_r / n_r), with o(a) = a - log(1 - exp(a)), the log odds of log probability a
//           a pair's loss = -s_c / n_c - beta log sigmoid(z)
// The reward of a sequence is beta (s - r) of DPO (its section 4), and beta s / n of the others. Of ORPO that is no part of
// z, but orders a pair as z does.
struct PreferenceConfig {
  // The odds of a sequence that is certain have no bound, and fp32 rounds to certainty what is less than this from it: a
  // mean log probability above it has ORPO's log odds of this one, and their slope (1e7), by which it is still pushed.
  static constexpr double kAlmostCertain = -1e-7;

  PreferenceRule rule = PreferenceRule::kNone;
  double beta = 0.1;           // > 0; ORPO's lambda
  double margin = 0;           // SimPO's gamma, >= 0; 0 of the others
  double label_smoothing = 0;  // DPO's, [0, 0.5): how likely a pair is the wrong way around; 0 of the others

  bool is_on() const { return rule != PreferenceRule::kNone; }
  bool has_reference() const { return rule == PreferenceRule::kDpo; }

  friend bool operator==(const PreferenceConfig&, const PreferenceConfig&) = default;
};

}  // namespace eps

#endif  // EPS_COMMON_SPEC_PREFERENCE_CONFIG_H_
