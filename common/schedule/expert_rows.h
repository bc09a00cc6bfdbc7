#ifndef EPS_COMMON_SCHEDULE_EXPERT_ROWS_H_
#define EPS_COMMON_SCHEDULE_EXPERT_ROWS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/model/model_config.h"

namespace eps {

// How a vnode's tokens fell on a model's experts: the routed rows (a token has ExpertsConfig::per_token in each block) of
// each expert of each block, blocks in order. All are 0 of a block that the step left out.
using ExpertRows = std::vector<uint32_t>;

// What ExpertRows are told of.
struct ToldExperts {
  int64_t blocks = 0, experts = 0;  // of a block; 0: nothing is told
  int64_t per_token = 0;

  int64_t size() const { return blocks * experts; }
};

// Experts of a model, and numbers in a step: with more than either their messages would be felt, and nobody could look at
// what they say.
inline constexpr int64_t kMostToldExperts = int64_t{1} << 16, kMostToldNumbers = int64_t{1} << 22;

// A run's; nothing where there are no experts, or too many.
ToldExperts ToldExpertsOf(const ModelConfig& model, int num_vnodes);

// `rows`: of a vnode of num_tokens tokens, padding among them.
// Errors: INVALID_ARGUMENT what is wrong: other than told.size() numbers, or those of a block add up to something else
// than all routed rows, and 0
absl::Status CheckExpertRows(absl::Span<const uint32_t> rows, const ToldExperts& told, int64_t num_tokens);

}  // namespace eps

#endif  // EPS_COMMON_SCHEDULE_EXPERT_ROWS_H_
