#include "gpu_worker/plan/inner_search.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"

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

// A machine and a model, drawn: products, links and updates of speeds that differ by what machines differ by.
struct Instance {
  Instance(uint64_t seed, int64_t most_places) {
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
    const int64_t boundaries = (layers + 1) * items;
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
  Instance(const Instance&) = delete;

  ModelSpec model;
  StepCosts costs;
  InnerProblem problem;
};

double BestOfAll(const InnerProblem& problem, size_t num_places) {
  double best = 1e300;
  std::vector<InnerPlace> places(num_places, InnerPlace::kRecompute);
  while (true) {
    if (IsFeasible(problem, places)) best = std::min(best, StepSecondsWith(problem, places));
    size_t i = 0;
    while (i < num_places && places[i] == InnerPlace::kSwap) places[i++] = InnerPlace::kRecompute;
    if (i == num_places) return best;
    places[i] = places[i] == InnerPlace::kRecompute ? InnerPlace::kKeep : InnerPlace::kSwap;
  }
}

std::string Text(const std::vector<InnerPlace>& places) {
  std::string text;
  for (const InnerPlace place : places) {
    text += place == InnerPlace::kKeep ? 'K' : place == InnerPlace::kSwap ? 'S' : 'R';
  }
  return text;
}

TEST(InnerSearchTest, NearlyAlwaysFindsTheBestOfAllWhereAllCanBeTried) {
  constexpr int kInstances = 150;
  int exact = 0;
  for (int seed = 0; seed < kInstances; ++seed) {
    const Instance instance(static_cast<uint64_t>(seed), /*most_places=*/7);
    const InnerSolution found = SearchInner(instance.problem);
    EXPECT_TRUE(IsFeasible(instance.problem, found.places)) << seed;
    EXPECT_DOUBLE_EQ(StepSecondsWith(instance.problem, found.places), found.step_seconds);
    const double best = BestOfAll(instance.problem, found.places.size());
    EXPECT_LE(found.step_seconds, 1.02 * best)
        << "instance " << seed << ", " << instance.problem.num_slots() << " slots: " << Text(found.places);
    if (found.step_seconds <= best * (1 + 1e-9)) ++exact;
  }
  EXPECT_GE(exact, kInstances * 9 / 10);
}

TEST(InnerSearchTest, WhatSwapsFasterThanItComputesSwapsAndTheOtherWayRound) {
  for (const double swap : {0.01, 50.0}) {
    Instance instance(/*seed=*/3, /*most_places=*/12);
    instance.problem.plan.inner_slots.resize(2);
    instance.problem.most_swapped = 100;
    const auto seconds = instance.costs.seconds;
    instance.costs.seconds = [&](const RelayStep& step) {
      const bool swaps = step.kind == RelayStep::Kind::kLoadInner || step.kind == RelayStep::Kind::kStoreInner;
      return swaps ? swap : seconds(step);
    };
    const InnerSolution found = SearchInner(instance.problem);
    if (swap < 1) {
      EXPECT_EQ(found.counts.recomputed(), 0) << Text(found.places);
    } else {
      EXPECT_LT(found.step_seconds, swap) << Text(found.places);
      EXPECT_EQ(found.counts.recomputed(), found.counts.total - 2) << Text(found.places);
    }
  }
}

TEST(InnerSearchTest, WithASlotForEachEverythingIsKept) {
  Instance instance(/*seed=*/5, /*most_places=*/12);
  instance.problem.plan.inner_slots.resize(40);
  EXPECT_TRUE(SearchInner(instance.problem).counts.keeps_all());
}

TEST(InnerSearchTest, PoliciesAndTheHostsRoomBind) {
  Instance instance(/*seed=*/8, /*most_places=*/12);
  instance.problem.plan.inner_slots.resize(2);
  instance.problem.policy = InnerPolicy::kSwap;
  instance.problem.most_swapped = 1;
  const InnerSolution swapped = SearchInner(instance.problem);
  EXPECT_EQ(swapped.counts.swapped, 1);
  EXPECT_EQ(swapped.counts.kept, 0);
  instance.problem.policy = InnerPolicy::kRecompute;
  EXPECT_EQ(SearchInner(instance.problem).counts.recomputed(), swapped.counts.total);
}

}  // namespace
}  // namespace eps::worker
