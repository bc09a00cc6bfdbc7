#include "gpu_worker/plan/inner_search.h"

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "gpu_worker/plan/search_instances.h"
#include "gtest/gtest.h"

namespace eps::worker {
namespace {

std::string Text(const std::vector<InnerPlace>& places) {
  std::string text;
  for (const InnerPlace place : places) {
    text += place == InnerPlace::kKeep ? 'K' : place == InnerPlace::kSwap ? 'S' : 'R';
  }
  return text;
}

TEST(InnerSearchTest, FindsTheBestOfAllOfFewPlacesAndNearlyAlwaysOfSomeMore) {
  constexpr int kInstances = 150;
  int exact = 0, few = 0;
  for (int seed = 0; seed < kInstances; ++seed) {
    const SearchInstance instance(static_cast<uint64_t>(seed), /*most_places=*/8);
    const InnerSolution found = SearchInner(instance.problem);
    EXPECT_TRUE(IsFeasible(instance.problem, found.places)) << seed;
    EXPECT_DOUBLE_EQ(StepSecondsWith(instance.problem, found.places), found.step_seconds);
    const double best = BestOfAll(instance.problem, found.places.size()).step_seconds;
    const bool is_few = found.counts.total <= kMostPlacesOfAll;
    few += is_few ? 1 : 0;
    EXPECT_LE(found.step_seconds, (is_few ? 1 + 1e-9 : 1.02) * best)
        << "instance " << seed << ", " << instance.problem.num_slots() << " slots: " << Text(found.places);
    if (found.step_seconds <= best * (1 + 1e-9)) ++exact;
  }
  EXPECT_GE(exact, few + (kInstances - few) * 9 / 10);
  EXPECT_GT(few, 50);
  EXPECT_LT(few, kInstances - 20);
}

TEST(InnerSearchTest, NextPlacesGoesThroughAllOfThem) {
  std::set<std::vector<InnerPlace>> seen;
  std::vector<InnerPlace> places(3, InnerPlace::kRecompute);
  do {
    EXPECT_TRUE(seen.insert(places).second) << Text(places);
  } while (NextPlaces(places));
  EXPECT_EQ(seen.size(), 27u);
  EXPECT_EQ(Text(places), "RRR");
}

TEST(InnerSearchTest, WhatMayCostLittleIsStillASolution) {
  SearchInstance instance(/*seed=*/3, /*most_places=*/6);
  instance.problem.plan.inner_slots.resize(1);
  instance.problem.most_steps = 1;
  const InnerSolution first = SearchInner(instance.problem);
  EXPECT_TRUE(IsFeasible(instance.problem, first.places));
  EXPECT_DOUBLE_EQ(StepSecondsWith(instance.problem, first.places), first.step_seconds);
  instance.problem.most_steps = 4'000'000;
  const InnerSolution all = SearchInner(instance.problem);
  EXPECT_LE(all.step_seconds, first.step_seconds);
  EXPECT_GT(all.num_steps, 10 * first.num_steps);
}

TEST(InnerSearchTest, WhatSwapsFasterThanItComputesSwapsAndTheOtherWayRound) {
  for (const double swap : {0.01, 50.0}) {
    SearchInstance instance(/*seed=*/3, /*most_places=*/12);
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
  SearchInstance instance(/*seed=*/5, /*most_places=*/12);
  instance.problem.plan.inner_slots.resize(40);
  EXPECT_TRUE(SearchInner(instance.problem).counts.keeps_all());
}

TEST(InnerSearchTest, PoliciesAndTheHostsRoomBind) {
  SearchInstance instance(/*seed=*/8, /*most_places=*/12);
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
