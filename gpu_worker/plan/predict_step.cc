#include "gpu_worker/plan/predict_step.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/schedule/vnode_batch.h"
#include "gpu_worker/plan/group_parts.h"
#include "gpu_worker/plan/reduced_pass.h"
#include "gpu_worker/plan/schedule.h"
#include "gpu_worker/plan/step_costs.h"

namespace eps::worker {
namespace {

// The group of the last worker, if it is in one that can carry the step: workers are taken in turn, as many as a group
// may have.
std::optional<GroupParts> GroupOfLast(const PlanRequest& request, const RelayPlan& plan,
                                      absl::Span<const std::vector<int>> shares) {
  const auto most = static_cast<size_t>(std::max(1, request.max_group_members));
  const size_t last = shares.size() - 1, first = last / most * most;
  if (first == last) return std::nullopt;
  GroupVnodes members{
      .group = 1, .rank = static_cast<int>(last - first), .vnodes = {shares.begin() + first, shares.end()}};
  absl::StatusOr<GroupParts> parts =
      GroupParts::Make(*request.model, std::move(members), BoundsOf(plan, request.run->precision.gradients));
  return parts.ok() ? std::optional(*std::move(parts)) : std::nullopt;
}

// The pass without adapters, which goes forward alone and pulls whole layers, and then the other one.
void PrependReference(const ModelSpec& model, const ReducedPass& reduced, const StepCosts& costs,
                      Prediction& prediction) {
  PassShape pass = reduced.pass;
  pass.forward_only = pass.evaluates = true;
  pass.group_rounds = 0;
  pass.inner.clear();
  std::vector<RelayStep> steps = BuildSchedule(model, reduced.plan, pass);
  Timeline reference = Simulate(model, steps, costs);
  const double seconds = reference.step_seconds - costs.between_steps_seconds;
  reference.compute_wait_seconds[static_cast<size_t>(WaitCause::kNone)] -= costs.between_steps_seconds;
  Timeline& timeline = prediction.timeline;
  timeline.step_seconds += reduced.scale * seconds;
  for (size_t i = 0; i < timeline.busy_seconds.size(); ++i) {
    timeline.busy_seconds[i] += reduced.scale * reference.busy_seconds[i];
  }
  for (size_t i = 0; i < timeline.compute_wait_seconds.size(); ++i) {
    timeline.compute_wait_seconds[i] += reduced.scale * reference.compute_wait_seconds[i];
  }
  const int before = static_cast<int>(steps.size());
  for (const TimelineSpan& span : timeline.steps) {
    reference.steps.push_back({span.index + before, span.begin + seconds, span.end + seconds});
  }
  for (TimelineSpan& update : timeline.updates) {
    if (update.begin >= 0) update.begin += seconds, update.end += seconds;  // the others are the step's before
  }
  timeline.steps = std::move(reference.steps);
  for (RelayStep& step : prediction.steps) {
    for (int& other : step.waits_for) other += before;
    steps.push_back(std::move(step));
  }
  prediction.steps = std::move(steps);
}

}  // namespace

Prediction PredictStep(const PlanRequest& request, const RelayPlan& plan, const StepOnPaper& step) {
  const PlanNeeds needs = NeedsOf(request);
  const int workers = std::clamp(step.workers, 1, needs.num_vnodes);  // that have a vnode
  const std::vector<std::vector<int>> shares = EvenShares(needs.num_vnodes, workers);
  PassShape pass = LargestPass(request, needs);
  pass.vnodes = shares.back();
  pass.vnodes.resize(std::min(pass.vnodes.size(), static_cast<size_t>(needs.max_pass_vnodes)));
  ReducedPass reduced = Reduce(pass, plan, needs);
  if (step.dropped.empty()) {
    reduced.pass.inner = reduced.plan.PlacesOf(plan.inner.total / needs.items, reduced.pass.items());
  }
  reduced.pass.dropped = step.dropped;
  const std::optional<GroupParts> group = GroupOfLast(request, plan, shares);
  if (group.has_value()) {
    reduced.pass.group_rounds = static_cast<int>(std::max<int64_t>(1, reduced.Scaled(group->rounds())));
  }
  StepCosts costs = CostsOf(BesideOthers(ProfileOf(request), request.link, workers), *request.model, *request.run,
                            request.kernels, request.link, group.has_value() ? &*group : nullptr);
  // The daemon reads everybody's, one for each vnode or sum of some.
  const double all = group.has_value()
                         ? static_cast<double>(workers) / group->size()
                         : static_cast<double>(needs.num_vnodes) / static_cast<double>(shares.back().size());
  costs.contribution_seconds = [one = std::move(costs.contribution_seconds), all](const RelayStep& push) {
    return all * one(push);
  };
  Prediction prediction{.timeline = {},
                        .steps = BuildSchedule(*request.model, reduced.plan, reduced.pass),
                        .scale = reduced.scale,
                        .group_members = group.has_value() ? group->size() : 0};
  Timeline& timeline = prediction.timeline;
  timeline = Simulate(*request.model, prediction.steps, costs);
  timeline.step_seconds *= reduced.scale;
  for (double& seconds : timeline.compute_wait_seconds) seconds *= reduced.scale;
  for (double& seconds : timeline.busy_seconds) seconds *= reduced.scale;
  if (request.run->preferences.has_reference()) {
    const StepCosts alone = CostsOf(BesideOthers(ProfileOf(request), request.link, workers), *request.model,
                                    *request.run, request.kernels, request.link, /*group=*/nullptr);
    PrependReference(*request.model, reduced, alone, prediction);
  }
  return prediction;
}

}  // namespace eps::worker
