#include "gpu_worker/plan/planner.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "common/base/byte_size.h"
#include "common/base/status_macros.h"
#include "common/schedule/vnode_batch.h"
#include "gpu_worker/plan/group_parts.h"
#include "gpu_worker/plan/inner_search.h"
#include "gpu_worker/plan/schedule.h"

namespace eps::worker {
namespace {

// Passes of more turns are searched, and predicted, with fewer micro-batches, which are alike.
constexpr int64_t kMostTurnsSimulated = 16'384;

Profile ProfileOf(const PlanRequest& request) {
  return request.profile != nullptr ? *request.profile : NominalProfile("cpu");
}

PassShape PassOf(const PlanRequest& request, const PlanNeeds& needs) {
  const RunConfig& run = *request.run;
  PassShape pass = {.num_vnodes = needs.num_vnodes,
                    .micro_batches = run.batch.micro_batches,
                    .gradients = run.precision.gradients,
                    .expands = run.precision.wire != request.kernels.compute_dtype,
                    .has_documents = run.data.has_documents()};
  pass.vnodes.resize(static_cast<size_t>(needs.max_pass_vnodes));
  std::iota(pass.vnodes.begin(), pass.vnodes.end(), 0);
  return pass;
}

// A pass with fewer micro-batches, and slots in proportion; the pass itself, unless it is large.
struct Reduced {
  PassShape pass;
  RelayPlan plan;
  double scale = 1;  // micro-batches of the pass itself for each of this one

  int64_t items() const { return static_cast<int64_t>(pass.vnodes.size()) * pass.micro_batches; }
};

int64_t Scaled(int64_t count, const Reduced& reduced) {
  constexpr double kRounding = 1e-9;  // of what divides evenly
  return static_cast<int64_t>(static_cast<double>(count) / reduced.scale + kRounding);
}

Reduced Reduce(const PassShape& pass, const RelayPlan& plan, const PlanNeeds& needs) {
  Reduced reduced{.pass = pass, .plan = plan};
  const int64_t most_items = std::max<int64_t>(1, kMostTurnsSimulated / (2 * needs.num_layers));
  const int64_t all_items = reduced.items();
  if (all_items <= most_items) return reduced;
  reduced.pass.micro_batches = static_cast<int>(std::min<int64_t>(pass.micro_batches, most_items));
  reduced.pass.vnodes.resize(static_cast<size_t>(std::max<int64_t>(1, most_items / reduced.pass.micro_batches)));
  const auto items = static_cast<int64_t>(reduced.pass.vnodes.size()) * reduced.pass.micro_batches;
  reduced.scale = static_cast<double>(all_items) / static_cast<double>(items);
  const auto slots = static_cast<int64_t>(plan.inner_slots.size());
  reduced.plan.inner = {.total = Scaled(plan.inner.total, reduced),
                        .kept = Scaled(plan.inner.kept, reduced),
                        .swapped = Scaled(plan.inner.swapped, reduced)};
  const int64_t spare = slots - plan.inner.kept;
  reduced.plan.inner_slots.resize(static_cast<size_t>(std::max<int64_t>(1, reduced.plan.inner.kept + spare)));
  const int64_t boundaries = (needs.num_layers - 1) * items;
  const int64_t staying = static_cast<int64_t>(plan.boundary_slots.size()) - RelayPlan::kLeastBoundarySlots;
  reduced.plan.boundary_slots.resize(static_cast<size_t>(RelayPlan::kLeastBoundarySlots + Scaled(staying, reduced)));
  reduced.plan.host_boundary_slots = boundaries;
  return reduced;
}

class Planner {
 public:
  explicit Planner(const PlanRequest& request)
      : request_(request),
        needs_(NeedsOf(request)),
        pass_(PassOf(request, needs_)),
        cap_(request.cap_bytes > 0 ? request.cap_bytes : std::numeric_limits<int64_t>::max()),
        costs_(CostsOf(ProfileOf(request), *request.model, *request.run, request.kernels, request.link)) {}

  RelayPlan Plan() {
    const std::vector<PlanChoice> others = OtherChoices();
    most_steps_ = kMostSteps / static_cast<int64_t>(others.size() + 4);
    for (const PlanChoice& choice : others) TryMostInner(choice);
    // One thing after the other is changed of the best so far, as long as that helps.
    double before = std::numeric_limits<double>::infinity();
    while (best_seconds_ < before && num_steps_ < kMostSteps) {
      before = best_seconds_;
      if (needs_.keeping_head_bytes > 0) TryKeptLogits();
      if (boundaries_are_free() && needs_.relay.inner == InnerPolicy::kAuto) TryOtherBoundaries();
      if (needs_.may_be_back_to_back()) TryBackToBack();
      if (needs_.weight_slots_are_free()) TryWeightSlots();
      for (const PlanChoice& choice : others) TryGradientSlots(choice);
    }
    return std::move(best_plan_);
  }

 private:
  // What the search may cost: steps of the schedules that it tries.
  static constexpr int64_t kMostSteps = 1'500'000;
  // A plan is better if its step is shorter by more than this part: less is the simulation's grain.
  static constexpr double kLeastGain = 5e-4;

  static constexpr int kMostWeightSlots = 8;

  bool boundaries_are_free() const {
    return needs_.relay.boundaries == BoundaryPolicy::kAuto && !needs_.relay.resident;
  }
  int64_t Left(const PlanChoice& choice) const {
    return std::max<int64_t>(0, cap_ - LayArena(request_, needs_, choice).arena_bytes);
  }

  // Gradient and push slots that fit beside the least of everything else, the most first: they save bytes and sums that
  // the daemon would make, which a plan of one worker does not see, so they go only where something better has their room.
  std::vector<PlanChoice> OtherChoices() const {
    std::vector<PlanChoice> choices;
    std::vector<int> gradient_slots = UsefulGradientSlots(needs_);
    std::reverse(gradient_slots.begin(), gradient_slots.end());
    for (const int gradients : gradient_slots) {
      for (const int pushes : {2, 1}) {
        PlanChoice choice = LeastChoice(needs_);
        choice.gradient_slots = gradients;
        choice.push_slots = pushes;
        if (LayArena(request_, needs_, choice).arena_bytes <= cap_) choices.push_back(choice);
      }
    }
    return choices;
  }

  // Of inner activations, as many as fit beside the choice's boundaries and are of use.
  int64_t InnerSlots(const PlanChoice& choice) const {
    const int64_t least = LeastChoice(needs_).inner_slots;
    const int64_t total = InnerTotal(needs_, choice);
    PlanChoice bare = choice;
    bare.inner_slots = least;
    const int64_t fit = least + Left(bare) / std::max<int64_t>(1, needs_.inner_slot_bytes());
    switch (needs_.relay.inner) {
      case InnerPolicy::kAuto:
        return std::clamp<int64_t>(total + (choice.last_block_is_back_to_back ? 1 : 0), 1, fit);
      case InnerPolicy::kSwap:  // one is computed in while the other is copied
        return std::clamp<int64_t>(std::min<int64_t>(2, total), 1, fit);
      case InnerPolicy::kKeep:
      case InnerPolicy::kRecompute:
        return least;
    }
    return least;
  }

  // Boundaries in place of inner activations: one, two, four and so on, up to all that there are; and the other way round.
  void TryOtherBoundaries() {
    const PlanChoice from = best_;
    const int64_t missing_bytes = (needs_.most_boundary_slots() - from.boundary_slots) * needs_.boundary_slot_bytes();
    const int64_t inner_bytes = std::max<int64_t>(1, needs_.inner_slot_bytes());
    const int64_t most = std::min((missing_bytes + inner_bytes - 1) / inner_bytes, from.inner_slots - 1);
    for (int64_t fewer = 1; fewer < 2 * most; fewer *= 2) {
      TryMostBoundaries(from, from.inner_slots - std::min(fewer, most));
    }
    const int64_t of_use = InnerTotal(needs_, from) + (from.last_block_is_back_to_back ? 1 : 0);
    if (from.inner_slots < of_use) TryMostBoundaries(from, from.inner_slots + 1);
  }

  // The head's logits kept or not. The room for one micro-batch's saves a product of each, so that it is often worth more
  // than the inner activations that it takes the place of. With as many gradient slots as fit.
  void TryKeptLogits() {
    PlanChoice choice = best_;
    choice.keeps_logits = !best_.keeps_logits;
    TryWithGradientSlots(choice);
  }

  // Back to back or not. It is of use where inner activations would be recomputed or swapped: one block's need no place any
  // more. With as many gradient slots as fit, which the last block has as well.
  void TryBackToBack() {
    PlanChoice choice = best_;
    if (best_.last_block_is_back_to_back) {
      choice.last_block_is_back_to_back = false;
      TryChanged(choice);
      return;
    }
    if (best_plan_.inner.keeps_all()) return;
    choice.weight_slots = std::max(2, best_.weight_slots);
    choice.push_slots = 2;
    choice.last_block_is_back_to_back = true;
    TryWithGradientSlots(choice);
  }

  // With the most gradient slots that fit beside the change, no more than the best so far has.
  void TryWithGradientSlots(PlanChoice choice) {
    const int most = best_.gradient_slots;
    std::vector<int> gradient_slots = UsefulGradientSlots(needs_);
    std::reverse(gradient_slots.begin(), gradient_slots.end());
    for (const int slots : gradient_slots) {
      choice.gradient_slots = slots;
      if (slots <= most && TryChanged(choice)) return;
    }
  }

  // With more, layers are pulled earlier: of use where a layer takes longer to pull than the one before it to compute.
  void TryWeightSlots() {
    if (best_.weight_slots > LeastChoice(needs_).weight_slots) {
      PlanChoice choice = best_;
      --choice.weight_slots;
      TryChanged(choice);
    }
    for (int slots = best_.weight_slots + 1; slots <= std::min<int64_t>(kMostWeightSlots, needs_.num_layers); ++slots) {
      PlanChoice choice = best_;
      choice.weight_slots = slots;
      if (!TryChanged(choice) || best_.weight_slots < slots) return;
    }
  }

  void TryGradientSlots(const PlanChoice& others) {
    PlanChoice choice = best_;
    choice.gradient_slots = others.gradient_slots;
    choice.push_slots = others.push_slots;
    if (choice.last_block_is_back_to_back && choice.push_slots < 2) return;
    TryChanged(choice);
  }

  // What the best so far has of boundaries and inner activations need not both fit beside a change: with as many of the
  // former, then of the latter; whether either fits.
  bool TryChanged(const PlanChoice& choice) {
    const bool fits = TryMostBoundaries(choice, choice.inner_slots);
    return TryMostInner(choice) || fits;
  }

  // With as many inner activations as fit beside the choice's boundaries, or else beside fewer; whether it fits.
  bool TryMostInner(PlanChoice choice) {
    choice.inner_slots = LeastChoice(needs_).inner_slots;
    const int64_t too_much = LayArena(request_, needs_, choice).arena_bytes - cap_;
    if (too_much > 0) {
      const int64_t boundary_bytes = std::max<int64_t>(1, needs_.boundary_slot_bytes());
      choice.boundary_slots -= (too_much + boundary_bytes - 1) / boundary_bytes;
      if (choice.boundary_slots < LeastChoice(needs_).boundary_slots) return false;
    }
    return TryMostBoundaries(choice, InnerSlots(choice));
  }

  // With so many inner activations, and boundaries in what they leave; whether it fits.
  bool TryMostBoundaries(PlanChoice choice, int64_t inner_slots) {
    if (inner_slots < 1) return false;
    choice.inner_slots = inner_slots;
    choice.kept_inner = choice.swapped_inner = 0;
    choice.boundary_slots = LeastChoice(needs_).boundary_slots;
    if (LayArena(request_, needs_, choice).arena_bytes > cap_) return false;
    if (boundaries_are_free()) {
      const int64_t slots = Left(choice) / std::max<int64_t>(1, needs_.boundary_slot_bytes());
      choice.boundary_slots = std::min(choice.boundary_slots + slots, needs_.most_boundary_slots());
    }
    const bool is_over = has_plan() && (num_steps_ >= kMostSteps || HasNothingMore(choice));
    if (!is_over && std::find(tried_.begin(), tried_.end(), choice) == tried_.end()) {
      tried_.push_back(choice);
      Search(choice);
    }
    return true;
  }

  bool has_plan() const { return best_seconds_ < std::numeric_limits<double>::infinity(); }
  // Than the best so far. Less of something is of use for what gets its room alone.
  bool HasNothingMore(const PlanChoice& choice) const {
    return choice.last_block_is_back_to_back == best_.last_block_is_back_to_back &&
           choice.keeps_logits <= best_.keeps_logits && choice.inner_slots <= best_.inner_slots &&
           choice.boundary_slots <= best_.boundary_slots && choice.weight_slots <= best_.weight_slots &&
           choice.gradient_slots <= best_.gradient_slots && choice.push_slots <= best_.push_slots;
  }

  void Search(PlanChoice choice) {
    RelayPlan plan = LayArena(request_, needs_, choice);
    const InnerSolution inner = Solve(plan);
    num_steps_ += inner.num_steps;
    if (inner.step_seconds >= best_seconds_ * (1 - kLeastGain)) return;
    best_seconds_ = inner.step_seconds;
    choice.kept_inner = inner.counts.kept;
    choice.swapped_inner = inner.counts.swapped;
    best_ = choice;
    best_plan_ = LayArena(request_, needs_, choice);
    const int64_t blocks = best_plan_.inner.total / needs_.items;
    if (best_plan_.PlacesOf(blocks, needs_.items) != inner.places && !inner.places.empty()) {
      best_plan_.inner_places = inner.places;
    }
  }

  // Of the pass, with its counts; places are there if it was searched itself.
  InnerSolution Solve(const RelayPlan& plan) const {
    const Reduced reduced = Reduce(pass_, plan, needs_);
    InnerProblem problem{.model = request_.model,
                         .costs = &costs_,
                         .plan = reduced.plan,
                         .pass = reduced.pass,
                         .most_swapped = Scaled(MostSwapped(plan), reduced),
                         .policy = needs_.relay.inner,
                         .most_steps = most_steps_};
    // In proportion, one slot aside.
    const int64_t slots = static_cast<int64_t>(plan.inner_slots.size());
    problem.plan.inner_slots.resize(static_cast<size_t>(1 + Scaled(slots - 1, reduced)));
    InnerSolution solution = SearchInner(problem);
    if (reduced.scale == 1) return solution;
    const auto grown = [&](int64_t count) { return static_cast<int64_t>(static_cast<double>(count) * reduced.scale); };
    const int64_t spare = static_cast<int64_t>(problem.plan.inner_slots.size()) - solution.counts.kept;
    InnerCounts counts{.total = plan.inner.total};
    counts.kept = std::clamp<int64_t>(slots - spare, 0, std::min(slots, counts.total));
    if (counts.kept == slots && plan.last_block_is_back_to_back()) --counts.kept;
    // What is kept of a layer in part needs a slot beside it for its other micro-batches.
    if (counts.kept == slots && !counts.keeps_all() && slots % needs_.items != 0) --counts.kept;
    const bool swaps_all = solution.counts.recomputed() == 0;
    counts.swapped = std::min(
        {swaps_all ? counts.total : grown(solution.counts.swapped), MostSwapped(plan), counts.total - counts.kept});
    return {.places = {},
            .counts = counts,
            .step_seconds = solution.step_seconds * reduced.scale,
            .num_steps = solution.num_steps};
  }
  int64_t MostSwapped(const RelayPlan& plan) const {
    if (request_.host_stash_bytes <= 0) return needs_.relay.inner == InnerPolicy::kSwap ? plan.inner.total : 0;
    const int64_t left = request_.host_stash_bytes - plan.host_boundary_bytes;
    return std::clamp<int64_t>(left / std::max<int64_t>(1, needs_.inner_slot_bytes()), 0, plan.inner.total);
  }

  const PlanRequest& request_;
  const PlanNeeds needs_;
  const PassShape pass_;
  const int64_t cap_;
  const StepCosts costs_;
  int64_t most_steps_ = 0;         // of one choice's search
  int64_t num_steps_ = 0;          // of all searches so far
  std::vector<PlanChoice> tried_;  // without what is kept and swapped
  PlanChoice best_;
  RelayPlan best_plan_;
  double best_seconds_ = std::numeric_limits<double>::infinity();
};

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

// What the user could change, each with the cap that would then do.
std::string Suggestions(const PlanRequest& request, int64_t needed_bytes) {
  std::vector<std::string> lines;
  const auto suggest = [&](absl::string_view what, auto change) {
    RunConfig run = *request.run;
    change(run);
    PlanRequest changed = request;
    changed.run = &run;
    const int64_t bytes = SmallestCapBytes(changed);
    if (bytes < needed_bytes) lines.push_back(absl::StrCat(what, " (", bytes, " bytes)"));
  };
  suggest("relay.resident: false", [](RunConfig& run) { run.relay.resident = false; });
  suggest("relay.boundaries: HOST", [](RunConfig& run) { run.relay.boundaries = BoundaryPolicy::kHost; });
  suggest("relay.inner: RECOMPUTE", [](RunConfig& run) { run.relay.inner = InnerPolicy::kRecompute; });
  suggest("relay.weight_slots: 1", [](RunConfig& run) { run.relay.weight_slots = 1; });
  suggest("batch.micro_batch: 1", [](RunConfig& run) { run.batch.micro_batch = 1; });
  PlanRequest more_host = request;
  more_host.host_stash_bytes = 0;
  const int64_t with_more_host = SmallestCapBytes(more_host);
  if (with_more_host < needed_bytes) {
    lines.push_back(absl::StrCat("more than ", request.host_stash_bytes, " bytes of host memory for activations (",
                                 with_more_host, " bytes)"));
  }
  if (lines.empty()) return "";
  return absl::StrCat("; less would do with ", absl::StrJoin(lines, ", "));
}

}  // namespace

absl::Status CheckFits(const PlanRequest& request) {
  EPS_RETURN_IF_ERROR(CheckPass(request));
  const int64_t smallest = SmallestCapBytes(request);
  if (request.cap_bytes < 0 || (request.cap_bytes > 0 && request.cap_bytes < smallest)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("device memory of ", request.cap_bytes, " bytes is too small: this run needs at least ", smallest,
                     " bytes (", FormatByteSize(smallest), ")", Suggestions(request, smallest)));
  }
  return absl::OkStatus();
}

absl::StatusOr<RelayPlan> MakeRelayPlan(const PlanRequest& request) {
  EPS_RETURN_IF_ERROR(CheckFits(request));
  return Planner(request).Plan();
}

int64_t SmallestCapBytes(const PlanRequest& request) {
  if (!CheckPass(request).ok()) return std::numeric_limits<int64_t>::max();
  const PlanNeeds needs = NeedsOf(request);
  return LayArena(request, needs, LeastChoice(needs)).arena_bytes;
}

Prediction PredictStep(const PlanRequest& request, const RelayPlan& plan, const StepOnPaper& step) {
  const PlanNeeds needs = NeedsOf(request);
  const int workers = std::clamp(step.workers, 1, needs.num_vnodes);  // that have a vnode
  const std::vector<std::vector<int>> shares = EvenShares(needs.num_vnodes, workers);
  PassShape pass = PassOf(request, needs);
  pass.vnodes = shares.back();
  pass.vnodes.resize(std::min(pass.vnodes.size(), static_cast<size_t>(needs.max_pass_vnodes)));
  Reduced reduced = Reduce(pass, plan, needs);
  if (step.dropped.empty()) {
    reduced.pass.inner = reduced.plan.PlacesOf(plan.inner.total / needs.items, reduced.items());
  }
  reduced.pass.dropped = step.dropped;
  const std::optional<GroupParts> group = GroupOfLast(request, plan, shares);
  if (group.has_value()) {
    reduced.pass.group_rounds = static_cast<int>(std::max<int64_t>(1, Scaled(group->rounds(), reduced)));
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
  return prediction;
}

}  // namespace eps::worker
