#include "eps_server/step/vnode_balancer.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/ids.h"
#include "gtest/gtest.h"

namespace eps::server {
namespace {

using Kind = VnodeBalancer::Decision::Kind;

// ---- CountsByCost ----

double Longest(const std::vector<int>& counts, const std::vector<double>& costs) {
  double longest = 0;
  for (size_t i = 0; i < counts.size(); ++i) longest = std::max(longest, counts[i] * costs[i]);
  return longest;
}

// Of all ways to give out `left` from worker `next` on.
double LeastOfAll(int left, const std::vector<double>& costs, size_t next, int least) {
  if (next + 1 == costs.size()) return left >= least ? left * costs[next] : 1e9;
  double best = 1e9;
  for (int count = least; count <= left; ++count) {
    best = std::min(best, std::max(count * costs[next], LeastOfAll(left - count, costs, next + 1, least)));
  }
  return best;
}

TEST(CountsByCostTest, NoOtherCountsAreDoneEarlier) {
  const std::vector<std::vector<double>> all_costs = {{1}, {1, 1}, {1, 3}, {2.5, 1, 1.1}, {1, 1, 1, 7}, {9, 0.1, 3}};
  for (const std::vector<double>& costs : all_costs) {
    for (int vnodes = 1; vnodes <= 12; ++vnodes) {
      for (const int least : {0, 1}) {
        const std::vector<int> counts = CountsByCost(vnodes, costs, least);
        int sum = 0;
        for (const int count : counts) sum += count;
        EXPECT_EQ(sum, vnodes);
        const bool enough = vnodes >= least * static_cast<int>(costs.size());
        if (enough) {
          EXPECT_GE(*std::min_element(counts.begin(), counts.end()), least);
        }
        EXPECT_EQ(Longest(counts, costs), LeastOfAll(vnodes, costs, 0, enough ? least : 0));
      }
    }
  }
}

TEST(CountsByCostTest, OfEqualsTheLaterOnesGetMore) {
  EXPECT_EQ(CountsByCost(5, {2, 2, 2}, 1), (std::vector<int>{1, 2, 2}));
  EXPECT_EQ(CountsByCost(2, {2, 2, 2}, 1), (std::vector<int>{0, 1, 1}));
}

// ---- VnodeBalancer ----

// Workers whose pass takes vnodes times what each takes them, and steps that take what the slowest pass does and no
// less than `shared`.
struct Simulation {
  explicit Simulation(int num_vnodes) : vnodes(num_vnodes), balancer(num_vnodes) {}

  // Counts of the step.
  std::vector<int> Step() {
    std::vector<WorkerId> workers;
    for (const auto& [id, seconds] : vnode_seconds) workers.push_back(WorkerId(id));
    const std::vector<int> counts = balancer.BeginStep(workers);
    EXPECT_EQ(balancer.CountsOf(workers), counts);
    double longest = shared;
    for (size_t i = 0; i < counts.size(); ++i) {
      const double seconds = counts[i] * vnode_seconds[i].second;
      longest = std::max(longest, seconds);
      balancer.OnPass(workers[i], seconds);
    }
    if (before_end) before_end();
    const auto decision = balancer.EndStep(longest + 0.1);
    if (decision.has_value()) decisions.push_back(*decision);
    return counts;
  }
  std::vector<int> Windows(int windows) {
    std::vector<int> counts;
    for (int i = 0; i < windows * VnodeBalancer::kWindow; ++i) counts = Step();
    return counts;
  }
  std::vector<Kind> kinds() const {
    std::vector<Kind> kinds;
    for (const auto& decision : decisions) kinds.push_back(decision.kind);
    return kinds;
  }

  int vnodes;
  VnodeBalancer balancer;
  std::vector<std::pair<int, double>> vnode_seconds;  // by worker's id, rising
  double shared = 0;
  std::function<void()> before_end;
  std::vector<VnodeBalancer::Decision> decisions;
};

TEST(VnodeBalancerTest, EqualsHaveAsMany) {
  Simulation run(8);
  run.vnode_seconds = {{1, 1.0}, {2, 1.02}};
  EXPECT_EQ(run.Windows(10), (std::vector<int>{4, 4}));
  EXPECT_TRUE(run.decisions.empty());
}

TEST(VnodeBalancerTest, AFasterOneGetsMoreOnceThatHasProvedFaster) {
  Simulation run(8);
  run.vnode_seconds = {{1, 1.0}, {4, 3.0}};
  EXPECT_EQ(run.Windows(1), (std::vector<int>{4, 4}));
  EXPECT_EQ(run.Windows(1), (std::vector<int>{6, 2}));
  EXPECT_EQ(run.Windows(10), (std::vector<int>{6, 2}));
  ASSERT_EQ(run.kinds(), (std::vector<Kind>{Kind::kTried, Kind::kKept}));
  for (const VnodeBalancer::Decision& decision : run.decisions) {
    ASSERT_EQ(decision.workers.size(), 2u);
    EXPECT_EQ(decision.workers[0].worker, WorkerId(1));
    EXPECT_EQ(decision.workers[0].vnodes, 6);
    EXPECT_DOUBLE_EQ(decision.workers[0].vnode_seconds, 1);
    EXPECT_EQ(decision.workers[1].worker, WorkerId(4));
    EXPECT_EQ(decision.workers[1].vnodes, 2);
    EXPECT_DOUBLE_EQ(decision.workers[1].vnode_seconds, 3);
  }
  EXPECT_TRUE(run.decisions[0].changes_counts());
  EXPECT_FALSE(run.decisions[1].changes_counts());
  EXPECT_DOUBLE_EQ(run.decisions[0].step_seconds, 12.1);
  EXPECT_DOUBLE_EQ(run.decisions[0].promised_step_seconds, 6.1);
  EXPECT_DOUBLE_EQ(run.decisions[1].step_seconds, 6.1);
  EXPECT_DOUBLE_EQ(run.decisions[1].step_seconds_before, 12.1);
}

TEST(VnodeBalancerTest, WhatGainsLittleIsNotTried) {
  Simulation run(64);
  run.vnode_seconds = {{1, 1.0}, {2, 1.05}};
  run.Windows(3);
  EXPECT_TRUE(run.decisions.empty());
  run.vnode_seconds = {{1, 1.0}, {2, 1.2}};
  EXPECT_EQ(run.Windows(3), (std::vector<int>{35, 29}));
}

TEST(VnodeBalancerTest, WhatAllShareIsNotShortenedByOtherCountsSoTheyAreTakenBackAndRarelyTriedAgain) {
  Simulation run(8);
  run.vnode_seconds = {{1, 1.0}, {2, 3.0}};
  run.shared = 20;  // the optimizer's, for instance
  EXPECT_EQ(run.Windows(2), (std::vector<int>{6, 2}));
  EXPECT_EQ(run.Windows(1), (std::vector<int>{4, 4}));
  ASSERT_EQ(run.kinds(), (std::vector<Kind>{Kind::kTried, Kind::kTakenBack}));
  EXPECT_EQ(run.decisions[1].workers[0].vnodes, 4);
  // One window passes, then two, then four: in 13 windows more there are three trials.
  run.Windows(13);
  const std::vector<Kind> kinds = run.kinds();
  EXPECT_EQ(std::count(kinds.begin(), kinds.end(), Kind::kTried), 4);
  // Some 64 of them at most: the last trials of many are as far apart.
  run.Windows(1000);
  const auto before = run.kinds().size();
  run.Windows(66);
  EXPECT_EQ(run.kinds().size(), before + 2);
}

TEST(VnodeBalancerTest, FollowsWhatChanges) {
  Simulation run(8);
  run.vnode_seconds = {{1, 1.0}, {2, 3.0}};
  EXPECT_EQ(run.Windows(3), (std::vector<int>{6, 2}));
  run.vnode_seconds = {{1, 1.0}, {2, 1.0}};  // what else ran there has ended
  EXPECT_EQ(run.Windows(3), (std::vector<int>{4, 4}));
  run.vnode_seconds = {{1, 7.0}, {2, 1.0}};
  EXPECT_EQ(run.Windows(3), (std::vector<int>{1, 7}));
}

TEST(VnodeBalancerTest, WhoComesIsTakenForOneLikeTheOthersAndWhoStaysForWhatItWas) {
  Simulation run(12);
  run.vnode_seconds = {{1, 1.0}, {2, 3.0}};
  EXPECT_EQ(run.Windows(3), (std::vector<int>{9, 3}));
  run.vnode_seconds.emplace_back(3, 1.0);
  EXPECT_EQ(run.Step(), (std::vector<int>{7, 2, 3}));  // 2 seconds a vnode
  EXPECT_EQ(run.Windows(3), (std::vector<int>{5, 1, 6}));
  run.vnode_seconds.erase(run.vnode_seconds.begin());
  EXPECT_EQ(run.Step(), (std::vector<int>{3, 9}));
  run.vnode_seconds = {{7, 1.0}, {8, 1.0}};  // nobody who is known
  EXPECT_EQ(run.Step(), (std::vector<int>{6, 6}));
}

TEST(VnodeBalancerTest, OfMoreWorkersThanVnodesWhatWasKnownLeavesOutNobodyElse) {
  Simulation run(4);
  run.vnode_seconds = {{1, 1.0}, {2, 10.0}};
  EXPECT_EQ(run.Windows(3), (std::vector<int>{3, 1}));
  for (const int id : {3, 4, 5}) run.vnode_seconds.emplace_back(id, 1.0);
  EXPECT_EQ(run.Windows(2), (std::vector<int>{0, 1, 1, 1, 1}));
  run.vnode_seconds.resize(2);  // and what was known is still
  EXPECT_EQ(run.Step(), (std::vector<int>{3, 1}));
}

TEST(VnodeBalancerTest, ATrialThatNobodyHasJudgedIsNoneOnceTheWorkersChange) {
  Simulation run(8);
  run.vnode_seconds = {{1, 1.0}, {2, 3.0}};
  run.shared = 20;
  EXPECT_EQ(run.Windows(1), (std::vector<int>{4, 4}));
  EXPECT_EQ(run.Step(), (std::vector<int>{6, 2}));
  run.vnode_seconds.emplace_back(3, 1.0);
  EXPECT_EQ(run.Step(), (std::vector<int>{2, 3, 3}));
}

TEST(VnodeBalancerTest, APassThatIsSaidToBeLongerThanItsStepIsAsLong) {
  Simulation run(8);
  run.vnode_seconds = {{1, 1.0}, {2, 1.0}};
  run.before_end = [&] { run.balancer.OnPass(WorkerId(2), 1e308); };
  EXPECT_EQ(run.Windows(4), (std::vector<int>{4, 4}));
  EXPECT_TRUE(run.decisions.empty());
}

TEST(VnodeBalancerTest, ALostWorkersStepAndSilentWorkersSayNothing) {
  Simulation run(8);
  run.vnode_seconds = {{1, 1.0}, {2, 3.0}};
  run.before_end = [&] { run.balancer.SkipStep(); };
  EXPECT_EQ(run.Windows(3), (std::vector<int>{4, 4}));
  run.before_end = [&] { run.balancer.OnPass(WorkerId(2), 0); };
  EXPECT_EQ(run.Windows(3), (std::vector<int>{4, 4}));
  EXPECT_TRUE(run.decisions.empty());
  run.before_end = nullptr;
  EXPECT_EQ(run.Windows(2), (std::vector<int>{6, 2}));
  EXPECT_TRUE(run.balancer.CountsOf({WorkerId(1)}).empty());
  // Steps that other code shares out, as those of groups, are not begun here.
  EXPECT_FALSE(run.balancer.EndStep(1).has_value());
}

TEST(VnodeBalancerTest, OneThatHoldsAllUpKeepsOneVnodeAndIsNamedOnce) {
  Simulation run(4);
  run.vnode_seconds = {{1, 1.0}, {2, 10.0}};
  EXPECT_EQ(run.Windows(5), (std::vector<int>{3, 1}));
  ASSERT_EQ(run.kinds(), (std::vector<Kind>{Kind::kTried, Kind::kKept, Kind::kWorkerSlow}));
  EXPECT_EQ(run.decisions[2].slow_worker, WorkerId(2));
  EXPECT_DOUBLE_EQ(run.decisions[2].step_seconds, 10.1);
  EXPECT_DOUBLE_EQ(run.decisions[2].promised_step_seconds, 4.1);
}

TEST(VnodeBalancerTest, WhereNobodyCanHaveMoreNothingIsTried) {
  for (const int vnodes : {1, 2, 3}) {
    Simulation run(vnodes);
    run.vnode_seconds = {{1, 1.0}, {2, 50.0}, {3, 1.0}};
    run.Windows(3);
    EXPECT_TRUE(run.decisions.empty());
  }
  Simulation alone(4);
  alone.vnode_seconds = {{1, 1.0}};
  EXPECT_EQ(alone.Windows(3), (std::vector<int>{4}));
  EXPECT_TRUE(alone.decisions.empty());
}

}  // namespace
}  // namespace eps::server
