#ifndef EPS_CLI_PLAN_EXPLANATION_H_
#define EPS_CLI_PLAN_EXPLANATION_H_

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/whole_plan.h"

namespace eps::cli {

// Blocks that follow one another, with as many of their micro-batches' inner activations in each place.
struct BlockPlaces {
  std::string first, last;                        // layers
  int64_t kept = 0, swapped = 0, recomputed = 0;  // of each block
  bool depth_first = false;                       // none of these: each micro-batch goes there and back at once
};

// Why a plan is as it is, and what would make it better; by simulation.
struct PlanExplanation {
  std::vector<BlockPlaces> blocks;  // that have a backward, in forward order
  // Tokens of a step from which compute is busy the longest, if they grow by more micro-batches; nothing: however many
  // there are, something else is. Not known where twice as many do not fit: they take device memory where relay says
  // that inner activations or boundaries stay there.
  bool hiding_is_known = true;
  std::optional<double> hiding_tokens;
  // A step's seconds with one more GiB of device memory, and of host memory; nothing: that is not limited.
  std::optional<double> seconds_with_more_device, seconds_with_more_host;
};

// Makes up to three more plans, at once where there are cores for that; `on_progress` is told how many, one call at a
// time. Errors: MakeWholePlan's
absl::StatusOr<PlanExplanation> Explain(
    const WholePlanRequest& request, const WholePlan& plan,
    const std::function<void(size_t done, size_t all)>& on_progress = [](size_t, size_t) {});

// Lines for people.
std::string ExplanationText(const PlanExplanation& explanation, const WholePlan& plan);

}  // namespace eps::cli

#endif  // EPS_CLI_PLAN_EXPLANATION_H_
