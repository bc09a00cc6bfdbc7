#ifndef EPS_SERVER_REPORT_REWARD_FIELDS_H_
#define EPS_SERVER_REPORT_REWARD_FIELDS_H_

#include "eps_server/step/step_report.h"

namespace eps::server {

// Calls `add(name, value)` for each of `rewards`, named as in all files of a run (docs/formats.md).
template <typename Add>
void AddRewards(const PairRewards& rewards, const Add& add) {
  add("chosen_reward", rewards.chosen);
  add("rejected_reward", rewards.rejected);
  add("reward_margin", rewards.margin());
}

}  // namespace eps::server

#endif  // EPS_SERVER_REPORT_REWARD_FIELDS_H_
