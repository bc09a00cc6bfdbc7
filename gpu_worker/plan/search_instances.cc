#include "gpu_worker/plan/search_instances.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace eps::worker {
namespace {

// Numbers from a seed, the same everywhere.
class Numbers {
 public:
  explicit Numbers(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u + 1) {}
  double Between(double low, double high) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return low + (high - low) * static_cast<double>(state_ >> 11) * 0x1p-53;
  }
  int64_t UpTo(int64_t low, int64_t high) {
    return std::min(high, low + static_cast<int64_t>(Between(0, static_cast<double>(high - low + 1))));
  }

 private:
  uint64_t state_;
};

}  // namespace

SearchInstance::SearchInstance(uint64_t seed, int64_t most_places) {
  Numbers draw(seed);
  int64_t layers = 0, items = 0;
  do {
    layers = draw.UpTo(1, 8);
    items = draw.UpTo(1, 4);
  } while (layers * items < 2 || layers * items > most_places);
  ModelConfig config = {.num_layers = layers, .d_model = 4, .num_heads = 1, .context = 2, .vocab = 4};
  if (draw.Between(0, 1) < 0.2 && layers > 1) config.freeze = {"transformer.w*", "transformer.h.0.*"};
  model = BuildModel(config).value();
  RelayPlan& plan = problem.plan;
  plan.weight_slots.resize(static_cast<size_t>(draw.UpTo(1, 3)));
  plan.push_slots.resize(static_cast<size_t>(draw.UpTo(1, 2)));
  plan.gradient_slots.resize(1);
  plan.token_slots.resize(2);
  const int64_t boundaries = (layers + 2 - std::max(1, model.lowest_trainable_layer().value())) * items;
  const int64_t kept_boundaries = draw.UpTo(0, boundaries);
  plan.boundary_slots.resize(static_cast<size_t>(4 + kept_boundaries));
  plan.host_boundary_slots = boundaries - kept_boundaries;
  plan.inner_slots.resize(static_cast<size_t>(draw.UpTo(1, layers * items)));
  problem.pass = {.vnodes = {0}, .num_vnodes = 1, .micro_batches = static_cast<int>(items)};
  problem.most_swapped = draw.Between(0, 1) < 0.3 ? draw.UpTo(0, layers * items) : layers * items;
  const double forward = draw.Between(0.5, 1.5), swap = forward * draw.Between(0.1, 3);
  const double pull = draw.Between(0, 2), push = draw.Between(0, 2), boundary = swap * draw.Between(0.02, 0.2);
  const double recompute = forward * draw.Between(0.6, 1), head = draw.Between(0.2, 4);
  costs.seconds = [=](const RelayStep& step) {
    switch (step.kind) {
      case RelayStep::Kind::kPull:
        return pull;
      case RelayStep::Kind::kPush:
        return push;
      case RelayStep::Kind::kForward:
        return forward;
      case RelayStep::Kind::kRecompute:
        return recompute;
      case RelayStep::Kind::kBackward:
        return 2 * forward;
      case RelayStep::Kind::kHead:
        return head;
      case RelayStep::Kind::kLoadInner:
      case RelayStep::Kind::kStoreInner:
        return swap;
      case RelayStep::Kind::kLoadBoundary:
      case RelayStep::Kind::kStoreBoundary:
      case RelayStep::Kind::kLoadGradient:
      case RelayStep::Kind::kStoreGradient:
        return boundary;
      default:
        return 0.001;
    }
  };
  costs.update_seconds.assign(model.blobs.size(), draw.Between(0, 2));
  for (auto& row : costs.sharing) {
    for (double& part : row) part = draw.Between(0.5, 1);
  }
  problem.model = &model;
  problem.costs = &costs;
}

InnerSolution BestOfAll(const InnerProblem& problem, size_t num_places) {
  InnerSolution best{.step_seconds = std::numeric_limits<double>::infinity()};
  std::vector<InnerPlace> places(num_places, InnerPlace::kRecompute);
  do {
    if (!IsFeasible(problem, places)) continue;
    const double seconds = StepSecondsWith(problem, places);
    if (seconds < best.step_seconds) best.places = places, best.step_seconds = seconds;
  } while (NextPlaces(places));
  return best;
}

}  // namespace eps::worker
