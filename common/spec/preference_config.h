#ifndef EPS_COMMON_SPEC_PREFERENCE_CONFIG_H_
#define EPS_COMMON_SPEC_PREFERENCE_CONFIG_H_

#include <cstdint>

namespace eps {

enum class PreferenceRule : uint8_t {
  kNone,   // the run learns no preferences
  kDpo,    // Rafailov et al., arXiv:2305.18290, eq. 7
  kSimPo,  // Meng et al., arXiv:2405.14734, eq. 6
};

// What of two sequences, of which one is preferred, is learnt. With s the sum of log p over a sequence's counted tokens, n
// their number, and r what s is by the model without its adapters:
//   DPO:    z = beta ((s_c - r_c) - (s_r - r_r))
//   SimPO:  z = beta (s_c / n_c - s_r / n_r) - margin
//   the pair's loss = -(1 - e) log sigmoid(z) - e log sigmoid(-z), with e the label_smoothing
// The reward of a sequence (DPO's section 4) is what of z is its own: beta (s - r), or beta s / n.
struct PreferenceConfig {
  PreferenceRule rule = PreferenceRule::kNone;
  double beta = 0.1;           // > 0
  double margin = 0;           // SimPO's gamma, >= 0; 0 of DPO
  double label_smoothing = 0;  // DPO's, [0, 0.5): how likely a pair is the wrong way around; 0 of SimPO

  bool is_on() const { return rule != PreferenceRule::kNone; }
  bool has_reference() const { return rule == PreferenceRule::kDpo; }

  friend bool operator==(const PreferenceConfig&, const PreferenceConfig&) = default;
};

}  // namespace eps

#endif  // EPS_COMMON_SPEC_PREFERENCE_CONFIG_H_
