#include "gpu_worker/plan/predict_step.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <vector>

#include "common/base/ids.h"
#include "common/model/model_spec.h"
#include "common/spec/run_config.h"
#include "common/tensor/dtype.h"
#include "common/testing/status_matchers.h"
#include "gpu_worker/plan/planner.h"
#include "gpu_worker/plan/planner_testing.h"
#include "gpu_worker/plan/relay_step.h"
#include "gpu_worker/plan/step_costs.h"

namespace eps::worker {
namespace {

TEST(PredictStepTest, AStepThatLeavesBlocksOutIsPredictedToBeShorter) {
  for (const ClipMode clip : {ClipMode::kNone, ClipMode::kExact}) {  // the latter's updates wait for all gradients
    TestRun run;
    run.run.optimizer.clip = clip;
    const int64_t smallest = run.Smallest();
    for (const int64_t cap : {smallest, smallest + 300000, int64_t{0}}) {
      ASSERT_OK_AND_ASSIGN(const RelayPlan plan, run.Plan(cap));
      double seconds = PredictStep(run.Request(cap), plan).timeline.step_seconds;
      std::vector<LayerId> dropped;
      for (const int layer : {1, 3, 4}) {
        dropped.push_back(LayerId(layer));
        const double shorter = PredictStep(run.Request(cap), plan, {.dropped = dropped}).timeline.step_seconds;
        EXPECT_LT(shorter, seconds) << cap;
        seconds = shorter;
      }
    }
  }
}

TEST(PredictStepTest, AReferenceIsAForwardPassBeforeTheOtherOne) {
  for (const int group_members : {1, 2}) {
    TestRun run;
    run.run.model.lora = {.rank = 2, .alpha = 2};
    run.run.data.documents = DocumentMode::kPadded;
    const auto predicted = [&] {
      PlanRequest request = run.Request(run.Smallest() + 300000);
      request.max_group_members = group_members;
      return PredictStep(request, MakeRelayPlan(request).value(), {.workers = group_members});
    };
    const Prediction plain = predicted();
    run.run.preferences.rule = PreferenceRule::kDpo;
    const Prediction dpo = predicted();
    const auto compute = static_cast<size_t>(Activity::kCompute);
    const double more = dpo.timeline.busy_seconds[compute] / plain.timeline.busy_seconds[compute];
    EXPECT_GT(more, 1.2);
    EXPECT_LT(more, 1.6);
    EXPECT_GT(dpo.timeline.step_seconds, 1.1 * plain.timeline.step_seconds);
    EXPECT_LT(dpo.timeline.step_seconds, 1.7 * plain.timeline.step_seconds);
    // Both are drawn, one behind the other, as one list of steps.
    ASSERT_EQ(dpo.timeline.steps.size(), dpo.steps.size());
    for (size_t i = 0; i < dpo.steps.size(); ++i) {
      for (const int other : dpo.steps[i].waits_for) EXPECT_LT(other, static_cast<int>(i));
    }
    std::set<int> seen;
    double last_forward = 0, first_backward = dpo.timeline.step_seconds;
    for (const TimelineSpan& span : dpo.timeline.steps) {
      seen.insert(span.index);
      EXPECT_GE(span.begin, 0);
      EXPECT_LE(span.end * dpo.scale, dpo.timeline.step_seconds * 1.001);
      const RelayStep::Kind kind = dpo.steps[static_cast<size_t>(span.index)].kind;
      if (kind == RelayStep::Kind::kLoss) last_forward = std::max(last_forward, span.end);
      if (kind == RelayStep::Kind::kHead) first_backward = std::min(first_backward, span.begin);
    }
    EXPECT_EQ(seen.size(), dpo.steps.size());
    EXPECT_GT(last_forward, 0);
    EXPECT_LE(last_forward, first_backward);
  }
}

// Each has fewer vnodes; what they share is the daemon and the host's memory.
TEST(PredictStepTest, AStepOfSeveralWorkersIsPredictedToBeShorterByWhatTheyDoNotShare) {
  for (const ClipMode clip : {ClipMode::kNone, ClipMode::kExact}) {
    for (const LinkKind link : {LinkKind::kInPlace, LinkKind::kHostMemory, LinkKind::kNetwork}) {
      TestRun run;
      run.run.optimizer.clip = clip;
      PlanRequest request = run.Request(run.Smallest() + 300000);
      request.link = link;
      ASSERT_OK_AND_ASSIGN(const RelayPlan plan, MakeRelayPlan(request));
      const Prediction one = PredictStep(request, plan);
      double seconds = one.timeline.step_seconds;
      for (const int workers : {2, 4}) {
        const Prediction some = PredictStep(request, plan, {.workers = workers});
        EXPECT_GT(some.timeline.step_seconds, one.timeline.step_seconds / workers) << workers;
        EXPECT_LT(some.timeline.step_seconds, seconds) << workers;
        EXPECT_LT(some.steps.size(), one.steps.size());
        seconds = some.timeline.step_seconds;
      }
      // Of three the last has two vnodes, as each of two. The fifth and more have none.
      EXPECT_GT(PredictStep(request, plan, {.workers = 3}).timeline.step_seconds, seconds);
      EXPECT_EQ(PredictStep(request, plan, {.workers = 8}).timeline.step_seconds, seconds);
    }
  }
}

// Each of two has half of a pass that is too long to be simulated whole: the same places in the same proportion.
TEST(PredictStepTest, AWorkersShareOfALongPassSwapsAsMuchOfIt) {
  TestRun run(30, 400);
  run.run.relay.inner = InnerPolicy::kSwap;
  PlanRequest request = run.Request(run.Smallest());
  ASSERT_OK_AND_ASSIGN(RelayPlan plan, MakeRelayPlan(request));
  ASSERT_EQ(plan.inner.swapped, plan.inner.total);
  plan.inner.swapped /= 2;
  plan.inner_places.clear();
  for (const int workers : {1, 2, 4}) {
    const Prediction step = PredictStep(request, plan, {.workers = workers});
    EXPECT_GT(step.scale, 1) << workers;
    int64_t forwards = 0, recomputes = 0;
    for (const RelayStep& each : step.steps) {
      const bool is_block = run.model.layer(each.layer).kind == LayerKind::kBlock;
      if (each.kind == RelayStep::Kind::kForward && is_block) ++forwards;
      if (each.kind == RelayStep::Kind::kRecompute) ++recomputes;
    }
    EXPECT_NEAR(static_cast<double>(recomputes) / static_cast<double>(forwards), 0.5, 0.01) << workers;
  }
}

TEST(PredictStepTest, MembersOfAGroupArePredictedWithTheirExchanges) {
  TestRun run;
  run.run.model.d_model = 1024;  // blobs of many chunks, of which each member has a part
  run.run.precision = {.wire = Dtype::kF32, .gradients = Dtype::kF32};
  PlanRequest request = run.Request(0);
  request.link = LinkKind::kNetwork;
  const auto kinds = [](const Prediction& step) {
    std::set<RelayStep::Kind> kinds;
    for (const RelayStep& each : step.steps) kinds.insert(each.kind);
    return kinds;
  };
  const auto predict = [&](int max_group_members, int workers) {
    request.max_group_members = max_group_members;
    return PredictStep(request, MakeRelayPlan(request).value(), {.workers = workers});
  };
  const Prediction group = predict(2, 2), apart = predict(0, 2);
  EXPECT_EQ(group.group_members, 2);
  EXPECT_THAT(kinds(group), ::testing::IsSupersetOf(
                                {RelayStep::Kind::kExchange, RelayStep::Kind::kSumGroup, RelayStep::Kind::kPushPart}));
  EXPECT_FALSE(kinds(group).contains(RelayStep::Kind::kPush));
  EXPECT_EQ(apart.group_members, 0);
  EXPECT_FALSE(kinds(apart).contains(RelayStep::Kind::kExchange));
  // Each pulls a half over the network, which is what a step of this run waits for.
  EXPECT_LT(group.timeline.step_seconds, apart.timeline.step_seconds);

  // As many as there are, as many as a group may have, and the last one alone.
  EXPECT_EQ(predict(4, 2).group_members, 2);
  EXPECT_EQ(predict(2, 4).group_members, 2);
  EXPECT_EQ(predict(4, 4).group_members, 4);
  EXPECT_EQ(predict(4, 1).group_members, 0);
  EXPECT_EQ(predict(3, 4).group_members, 0);
  // Of six the second three have one vnode that is no sibling of theirs, and in 16 bits nothing to sum it with.
  run.run.batch.virtual_nodes = 6;
  EXPECT_EQ(predict(3, 6).group_members, 3);
  run.run.precision = {.wire = Dtype::kBf16, .gradients = Dtype::kBf16};
  EXPECT_EQ(predict(3, 6).group_members, 0);
}

// With a single gradient slot each vnode is a node, and a round of its own.
TEST(PredictStepTest, LongStepsOfGroupsHaveAsManyExchangesForTheirLength) {
  TestRun run(30, 4);
  run.run.precision = {.wire = Dtype::kF32, .gradients = Dtype::kF32};
  run.run.batch.virtual_nodes = 256;
  PlanRequest request = run.Request(0);
  request.max_group_members = 2;
  RelayPlan plan = MakeRelayPlan(request).value();
  plan.gradient_slots.resize(1);
  plan.group_area.num_bytes = int64_t{1} << 40;
  const Prediction step = PredictStep(request, plan, {.workers = 2});
  EXPECT_GT(step.scale, 1.5);
  EXPECT_EQ(step.group_members, 2);
  const auto exchanges = std::count_if(step.steps.begin(), step.steps.end(), [](const RelayStep& each) {
    return each.kind == RelayStep::Kind::kExchange && each.layer == LayerId(1);
  });
  EXPECT_NEAR(static_cast<double>(exchanges) * step.scale, 128, 4);
}

}  // namespace
}  // namespace eps::worker
