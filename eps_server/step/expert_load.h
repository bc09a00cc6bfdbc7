#ifndef EPS_SERVER_STEP_EXPERT_LOAD_H_
#define EPS_SERVER_STEP_EXPERT_LOAD_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "common/schedule/expert_rows.h"

namespace eps::server {

// How evenly a step's tokens fell on the experts of its blocks. The load of an expert is its routed rows over what each
// had if all had as many: 1 where they have, ToldExperts' experts / per_token where every token chose it.
struct ExpertLoad {
  int64_t experts = 0;      // of a block
  std::vector<float> load;  // of each expert of each block, blocks in order; NaN in a block that the step left out
  // Of the blocks that ran.
  double busiest = 0;                             // the largest load, and whose it is: the first of equal ones
  int64_t busiest_block = 0, busiest_expert = 0;  // from 0
  double mean_busiest = 0;                        // the mean over blocks of each one's largest
  int64_t idle = 0, running = 0;                  // experts: of these that ran, those without a row
};

// rows: told.size() of them, added over the step's vnodes. nullopt where no block has any.
std::optional<ExpertLoad> LoadOf(absl::Span<const int64_t> rows, const ToldExperts& told);

}  // namespace eps::server

#endif  // EPS_SERVER_STEP_EXPERT_LOAD_H_
