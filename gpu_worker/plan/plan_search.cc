#include "gpu_worker/plan/plan_search.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "common/spec/run_config.h"
#include "gpu_worker/plan/arena_layout.h"
#include "gpu_worker/plan/inner_places.h"
#include "gpu_worker/plan/inner_search.h"
#include "gpu_worker/plan/pass_shape.h"
#include "gpu_worker/plan/reduced_pass.h"
#include "gpu_worker/plan/step_costs.h"

namespace eps::worker {
namespace {

class PlanSearch {
 public:
  explicit PlanSearch(const PlanRequest& request)
      : request_(request),
        needs_(NeedsOf(request)),
        pass_(LargestPass(request, needs_)),
        cap_(request.cap_bytes > 0 ? request.cap_bytes : std::numeric_limits<int64_t>::max()),
        costs_(CostsOf(ProfileOf(request), *request.model, *request.run, request.kernels, request.link)) {}

  RelayPlan Run() {
    const PlanChoice breadth_first = LeastChoice(needs_, needs_.least_depth_first_blocks());
    const RelayPlan least = LayArena(request_, needs_, breadth_first);
    most_host_bytes_ = HostBytes(least) + std::max(HostBytes(least) / 2, kMoreHostBytes);
    start_ = least.arena_bytes <= cap_ ? breadth_first : LeastChoice(needs_);
    const std::vector<PlanChoice> others = OtherChoices();
    whole_search_ = search_steps_ = kMostSteps / static_cast<int64_t>(others.size() + kSearchesBeside);
    for (const PlanChoice& choice : others) TryMostInner(choice);
    Climb(others, /*depth_first_stride=*/1);
    // Once more from far away: between the two lie plans that are worse than either.
    PlanChoice deep = best_.choice;
    deep.depth_first_blocks = DepthFirstByMemory(deep);
    if (deep.depth_first_blocks > best_.choice.depth_first_blocks) {
      Best first = std::exchange(best_, {.choice = deep});
      TryWithGradientSlots(deep);
      if (has_plan()) Climb(others, kFarStride);
      if (best_.step_seconds >= first.step_seconds * (1 - kLeastGain)) best_ = std::move(first);
    }
    return std::move(best_.plan);
  }

 private:
  // What the search from one start may cost: steps of the schedules that it tries.
  static constexpr int64_t kMostSteps = 1'500'000;
  // Among how many searches these are divided: one for each other choice of gradient and push slots, and so many for
  // what a round tries beside.
  static constexpr size_t kSearchesBeside = 8;
  // Each number of depth-first blocks is tried by a search of so small a part, as there are many. The best one is then
  // searched whole.
  static constexpr int64_t kGlance = 8;
  // From far away, that number moves by so many blocks at first, then by half, and by one.
  static constexpr int kFarStride = 4;
  // A plan is better if its step is shorter by more than this part: less is the simulation's grain.
  static constexpr double kLeastGain = 5e-4;

  static constexpr int kMostWeightSlots = 8, kMostPushSlots = 8;

  // Where nobody says what the host has for activations: how much more than with all blocks breadth first boundaries
  // and gradients may take of it, if it is not half as much again.
  static constexpr int64_t kMoreHostBytes = int64_t{1} << 30;

  struct Best {
    PlanChoice choice;
    RelayPlan plan;
    double step_seconds = std::numeric_limits<double>::infinity();
  };

  // One thing after the other is changed of the best so far, as long as that helps.
  void Climb(const std::vector<PlanChoice>& others, int depth_first_stride) {
    most_steps_ = num_steps_ + kMostSteps;
    double before = std::numeric_limits<double>::infinity();
    while (best_.step_seconds < before && num_steps_ < most_steps_) {
      before = best_.step_seconds;
      if (needs_.keeping_head_bytes > 0) TryKeptLogits(depth_first_stride > 1);
      if (boundaries_are_free() && needs_.relay.inner == InnerPolicy::kAuto) TryOtherBoundaries();
      if (needs_.weight_slots_are_free()) TryWeightSlots();
      for (const PlanChoice& choice : others) TryGradientSlots(choice);
      if (!needs_.forms_groups()) TryPushSlots();
      if (needs_.most_depth_first_blocks() > needs_.least_depth_first_blocks()) TryOtherDepthFirst(depth_first_stride);
    }
  }

  bool boundaries_are_free() const {
    return needs_.relay.boundaries == BoundaryPolicy::kAuto && !needs_.relay.resident;
  }
  int64_t Left(const PlanChoice& choice) const {
    return std::max<int64_t>(0, cap_ - LayArena(request_, needs_, choice).arena_bytes);
  }

  // Gradient and push slots that fit beside the least of everything else, the most first: they save bytes and sums that
  // the daemon would make, which a plan of one worker does not see, so they go only where something better has their
  // room.
  std::vector<PlanChoice> OtherChoices() const {
    std::vector<PlanChoice> choices;
    std::vector<int> gradient_slots = UsefulGradientSlots(needs_);
    std::reverse(gradient_slots.begin(), gradient_slots.end());
    for (const int gradients : gradient_slots) {
      for (const int pushes : {2, 1}) {
        PlanChoice choice = start_;
        choice.gradient_slots = gradients;
        choice.push_slots = pushes;
        if (LayArena(request_, needs_, choice).arena_bytes <= cap_) choices.push_back(choice);
      }
    }
    return choices;
  }

  // Of inner activations, those of one item of the blocks that are depth first included.
  int64_t LeastInnerSlots(const PlanChoice& choice) const {
    return LeastChoice(needs_, choice.depth_first_blocks).inner_slots;
  }
  int64_t MostInnerSlots(const PlanChoice& choice) const {
    return std::max<int64_t>(1, InnerTotal(needs_, choice) + choice.depth_first_blocks);
  }
  // As many as fit beside the choice's boundaries and are of use.
  int64_t InnerSlots(const PlanChoice& choice) const {
    const int64_t least = LeastInnerSlots(choice);
    const int64_t total = InnerTotal(needs_, choice);
    PlanChoice bare = choice;
    bare.inner_slots = least;
    const int64_t fit = least + Left(bare) / std::max<int64_t>(1, needs_.inner_slot_bytes());
    switch (needs_.relay.inner) {
      case InnerPolicy::kAuto:
        return std::min(MostInnerSlots(choice), fit);
      case InnerPolicy::kSwap:  // one is computed in while the other is copied
        return std::max(least, std::min<int64_t>(choice.depth_first_blocks + std::min<int64_t>(2, total), fit));
      case InnerPolicy::kKeep:
      case InnerPolicy::kRecompute:
        return least;
    }
    return least;
  }

  // Boundaries in place of inner activations: one, two, four and so on, up to all that there are; and the other way
  // round.
  void TryOtherBoundaries() {
    const PlanChoice from = best_.choice;
    const int64_t missing = needs_.most_boundary_slots(from.depth_first_blocks) - from.boundary_slots;
    const int64_t missing_bytes = missing * needs_.boundary_slot_bytes();
    const int64_t inner_bytes = std::max<int64_t>(1, needs_.inner_slot_bytes());
    const int64_t most =
        std::min((missing_bytes + inner_bytes - 1) / inner_bytes, from.inner_slots - LeastInnerSlots(from));
    for (int64_t fewer = 1; fewer < 2 * most; fewer *= 2) {
      TryMostBoundaries(from, from.inner_slots - std::min(fewer, most));
    }
    if (from.inner_slots < MostInnerSlots(from)) TryMostBoundaries(from, from.inner_slots + 1);
  }

  // The head's logits kept or not. The room for one micro-batch's saves a product of each, so that it is often worth
  // more than the inner activations that it takes the place of. With as many gradient slots as fit; and `far`: also
  // with as many blocks depth first as that room allows.
  void TryKeptLogits(bool far) {
    PlanChoice choice = best_.choice;
    choice.keeps_logits = !best_.choice.keeps_logits;
    TryWithGradientSlots(choice);
    if (!far) return;
    const int blocks = DepthFirstByMemory(choice);
    if (blocks == std::exchange(choice.depth_first_blocks, blocks)) return;
    TryWithGradientSlots(choice);
  }

  // How many of the last blocks are depth first. What they keep inside is one item's, so that less is recomputed or
  // swapped; their weights and gradients are all there instead, and their updates come late, one item before the way
  // back. Boundaries between them need no place, either: nothing is to be gained only where all of both stay. To where
  // neither more nor fewer help.
  void TryOtherDepthFirst(int stride) {
    const bool all_stays = best_.plan.inner.keeps_all() && best_.plan.host_boundary_slots == 0;
    if (all_stays && best_.choice.depth_first_blocks == 0) return;
    const PlanChoice before = best_.choice;
    search_steps_ = whole_search_ / kGlance;
    for (; stride > 0; stride /= 2) {
      int from = -1;
      while (from != best_.choice.depth_first_blocks) {
        from = best_.choice.depth_first_blocks;
        TryDepthFirst(from + stride);
        TryDepthFirst(from - stride);
      }
    }
    search_steps_ = whole_search_;
    if (best_.choice != before) Search(best_.choice);
  }
  void TryDepthFirst(int blocks) {
    if (blocks < needs_.least_depth_first_blocks() || blocks > needs_.most_depth_first_blocks()) return;
    PlanChoice choice = best_.choice;
    choice.depth_first_blocks = blocks;
    if (blocks != best_.choice.depth_first_blocks) TryWithGradientSlots(choice);
  }
  // The fewest with which the fewest inner activations are not kept and, where all are, the fewest boundaries go to the
  // host, all else as it is in `from`.
  int DepthFirstByMemory(const PlanChoice& from) const {
    const int least = needs_.least_depth_first_blocks();
    int best = least;
    std::pair<int64_t, int64_t> fewest{std::numeric_limits<int64_t>::max(), 0};
    for (int blocks = least; blocks <= needs_.most_depth_first_blocks(); ++blocks) {
      PlanChoice choice = from;
      choice.depth_first_blocks = blocks;
      choice.boundary_slots = LeastBoundarySlots(needs_, blocks);
      choice.inner_slots = LeastInnerSlots(choice);
      if (!Fits(choice)) continue;
      choice.inner_slots = InnerSlots(choice);
      std::pair<int64_t, int64_t> missing{MostInnerSlots(choice) - choice.inner_slots, 0};
      if (missing.first == 0) {
        choice.boundary_slots = MostBoundarySlots(choice);
        missing.second = LayArena(request_, needs_, choice).host_boundary_slots;
      }
      if (missing < fewest) best = blocks, fewest = missing;
    }
    return best;
  }

  // With the most gradient slots that fit beside the change, no more than the best so far has.
  void TryWithGradientSlots(PlanChoice choice) {
    const int most = best_.choice.gradient_slots;
    std::vector<int> gradient_slots = UsefulGradientSlots(needs_);
    std::reverse(gradient_slots.begin(), gradient_slots.end());
    for (const int slots : gradient_slots) {
      choice.gradient_slots = slots;
      if (slots <= most && TryChanged(choice)) return;
    }
  }

  // With more, layers are pulled earlier: of use where a layer takes longer to pull than the one before it to compute.
  void TryWeightSlots() {
    if (best_.choice.weight_slots > start_.weight_slots) {
      PlanChoice choice = best_.choice;
      --choice.weight_slots;
      TryChanged(choice);
    }
    for (int slots = best_.choice.weight_slots + 1; slots <= std::min<int64_t>(kMostWeightSlots, needs_.num_layers);
         ++slots) {
      PlanChoice choice = best_.choice;
      choice.weight_slots = slots;
      if (!TryChanged(choice) || best_.choice.weight_slots < slots) return;
    }
  }

  // Of use where gradients come one behind the other, faster than they leave: of small layers, and of blocks that are
  // depth first.
  void TryPushSlots() {
    for (int slots = best_.choice.push_slots + 1; slots <= kMostPushSlots; ++slots) {
      PlanChoice choice = best_.choice;
      choice.push_slots = slots;
      if (!TryChanged(choice) || best_.choice.push_slots < slots) return;
    }
  }

  // More of them may leave no room for what the best so far has: also beside the least of all else, with boundaries in
  // what is left.
  void TryGradientSlots(const PlanChoice& others) {
    PlanChoice choice = best_.choice;
    choice.gradient_slots = others.gradient_slots;
    choice.push_slots = others.push_slots;
    TryChanged(choice);
    if (others.gradient_slots > best_.choice.gradient_slots) TryMostBoundaries(others, LeastInnerSlots(others));
  }

  // What the best so far has of boundaries and inner activations need not both fit beside a change: with as many of the
  // former, then of the latter; whether either fits.
  bool TryChanged(const PlanChoice& choice) {
    const bool fits = TryMostBoundaries(choice, choice.inner_slots);
    return TryMostInner(choice) || fits;
  }

  // With as many inner activations as fit beside the choice's boundaries, or else beside fewer; whether it fits.
  bool TryMostInner(PlanChoice choice) {
    choice.inner_slots = LeastInnerSlots(choice);
    choice.boundary_slots = std::max(choice.boundary_slots, LeastBoundarySlots(needs_, choice.depth_first_blocks));
    const int64_t too_much = LayArena(request_, needs_, choice).arena_bytes - cap_;
    if (too_much > 0) {
      const int64_t boundary_bytes = std::max<int64_t>(1, needs_.boundary_slot_bytes());
      choice.boundary_slots -= (too_much + boundary_bytes - 1) / boundary_bytes;
      if (choice.boundary_slots < LeastBoundarySlots(needs_, choice.depth_first_blocks)) return false;
    }
    return TryMostBoundaries(choice, InnerSlots(choice));
  }

  // The device; and the host, which has every virtual node's gradient of blocks that are depth first, and fewer
  // boundaries.
  bool Fits(const PlanChoice& choice) const {
    const RelayPlan plan = LayArena(request_, needs_, choice);
    if (plan.arena_bytes > cap_) return false;
    if (choice.depth_first_blocks <= start_.depth_first_blocks) return true;
    if (needs_.host_stash_bytes <= 0) return HostBytes(plan) <= most_host_bytes_;
    return needs_.pushes_at_once_bytes(choice.depth_first_blocks) <= needs_.host_stash_bytes;
  }
  static int64_t HostBytes(const RelayPlan& plan) { return plan.host_boundary_bytes + plan.host_push_bytes; }

  // As many as fit beside all else, where they are free.
  int64_t MostBoundarySlots(const PlanChoice& choice) const {
    if (!boundaries_are_free()) return choice.boundary_slots;
    const int64_t slots = Left(choice) / std::max<int64_t>(1, needs_.boundary_slot_bytes());
    return std::min(choice.boundary_slots + slots, needs_.most_boundary_slots(choice.depth_first_blocks));
  }

  // With so many inner activations, or as many as there are, and boundaries in what they leave; whether it fits.
  bool TryMostBoundaries(PlanChoice choice, int64_t inner_slots) {
    const int64_t least = LeastInnerSlots(choice);
    if (inner_slots < least) return false;
    choice.inner_slots = std::min(inner_slots, std::max(least, MostInnerSlots(choice)));
    choice.kept_inner = choice.swapped_inner = 0;
    choice.boundary_slots = LeastBoundarySlots(needs_, choice.depth_first_blocks);
    if (!Fits(choice)) return false;
    choice.boundary_slots = MostBoundarySlots(choice);
    const bool is_over = has_plan() && (num_steps_ >= most_steps_ || HasNothingMore(choice));
    if (!is_over && std::find(tried_.begin(), tried_.end(), choice) == tried_.end()) {
      tried_.push_back(choice);
      Search(choice);
    }
    return true;
  }

  bool has_plan() const { return best_.step_seconds < std::numeric_limits<double>::infinity(); }
  // Whether `choice` has no more of anything than the best so far. Less of one thing helps only by what takes its room.
  bool HasNothingMore(const PlanChoice& choice) const {
    return choice.depth_first_blocks == best_.choice.depth_first_blocks &&
           choice.keeps_logits <= best_.choice.keeps_logits && choice.inner_slots <= best_.choice.inner_slots &&
           choice.boundary_slots <= best_.choice.boundary_slots && choice.weight_slots <= best_.choice.weight_slots &&
           choice.gradient_slots <= best_.choice.gradient_slots && choice.push_slots <= best_.choice.push_slots;
  }

  void Search(PlanChoice choice) {
    RelayPlan plan = LayArena(request_, needs_, choice);
    const InnerSolution inner = Solve(plan);
    num_steps_ += inner.num_steps;
    if (inner.step_seconds >= best_.step_seconds * (1 - kLeastGain)) return;
    best_.step_seconds = inner.step_seconds;
    choice.kept_inner = inner.counts.kept;
    choice.swapped_inner = inner.counts.swapped;
    best_.choice = choice;
    best_.plan = LayArena(request_, needs_, choice);
    const int64_t blocks = best_.plan.inner.total / needs_.items;
    if (best_.plan.PlacesOf(blocks, needs_.items) != inner.places && !inner.places.empty()) {
      best_.plan.inner_places = inner.places;
    }
  }

  // Of the pass, with its counts; places are there if it was searched itself.
  InnerSolution Solve(const RelayPlan& plan) const {
    const ReducedPass reduced = Reduce(pass_, plan, needs_);
    InnerProblem problem{.model = request_.model,
                         .costs = &costs_,
                         .plan = reduced.plan,
                         .pass = reduced.pass,
                         .most_swapped = reduced.Scaled(MostSwapped(plan)),
                         .policy = needs_.relay.inner,
                         .most_steps = search_steps_};
    // In proportion, but for one slot, or those of the blocks that are depth first.
    const int64_t slots = static_cast<int64_t>(plan.inner_slots.size());
    const int64_t aside = RelayPlan::LeastInnerSlots(plan.depth_first_blocks);
    problem.plan.inner_slots.resize(static_cast<size_t>(aside + reduced.Scaled(slots - aside)));
    InnerSolution solution = SearchInner(problem);
    if (reduced.scale == 1) return solution;
    const auto grown = [&](int64_t count) { return static_cast<int64_t>(static_cast<double>(count) * reduced.scale); };
    const int64_t spare = static_cast<int64_t>(problem.plan.inner_slots.size()) - solution.counts.kept;
    InnerCounts counts{.total = plan.inner.total};
    counts.kept = std::clamp<int64_t>(slots - spare, 0, std::min(slots, counts.total));
    counts.kept = std::min<int64_t>(counts.kept, slots - plan.depth_first_blocks);
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
    const int64_t left =
        request_.host_stash_bytes - plan.host_boundary_bytes - needs_.pushes_at_once_bytes(plan.depth_first_blocks);
    return std::clamp<int64_t>(left / std::max<int64_t>(1, needs_.inner_slot_bytes()), 0, plan.inner.total);
  }

  const PlanRequest& request_;
  const PlanNeeds needs_;
  const PassShape pass_;
  const int64_t cap_;
  const StepCosts costs_;
  PlanChoice start_;             // of the search
  int64_t most_host_bytes_ = 0;  // of boundaries and gradients, where nobody says
  // The search's budget, in schedule steps built and simulated.
  int64_t whole_search_ = 0;         // the most for one choice
  int64_t search_steps_ = 0;         // the same at present: whole_search_, or a part of it for a glance
  int64_t num_steps_ = 0;            // spent so far
  int64_t most_steps_ = kMostSteps;  // at which Climb ends
  std::vector<PlanChoice> tried_;    // without what is kept and swapped
  Best best_;
};

}  // namespace

RelayPlan SearchPlan(const PlanRequest& request) { return PlanSearch(request).Run(); }

}  // namespace eps::worker
