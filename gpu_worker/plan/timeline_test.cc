#include "gpu_worker/plan/timeline.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "gpu_worker/plan/relay_plan.h"
#include "gpu_worker/plan/schedule.h"
#include "gtest/gtest.h"

namespace eps::worker {
namespace {

using Kind = RelayStep::Kind;

// A schedule and what its steps cost.
struct Made {
  explicit Made(int layers = 3, int items = 2, int weight_slots = 2) {
    ModelConfig config = {.num_layers = layers, .d_model = 4, .num_heads = 1, .context = 2, .vocab = 4};
    model = BuildModel(config).value();
    plan.weight_slots.resize(static_cast<size_t>(weight_slots));
    for (auto* slots : {&plan.push_slots, &plan.token_slots}) slots->resize(2);
    plan.boundary_slots.resize(4);
    plan.inner_slots.resize(1);
    plan.gradient_slots.resize(1);
    plan.inner.total = int64_t{layers} * items;
    plan.host_boundary_slots = int64_t{layers + 1} * items;
    steps = BuildSchedule(model, plan, {.vnodes = {0}, .num_vnodes = 1, .micro_batches = items});
    costs.seconds = [this](const RelayStep& step) {
      const auto found = seconds.find(step.kind);
      return found == seconds.end() ? 0.0 : found->second;
    };
    costs.update_seconds.assign(model.blobs.size(), 0.0);
  }
  Timeline Run() const { return Simulate(model, steps, costs); }
  int Count(Kind kind) const {
    return static_cast<int>(
        std::count_if(steps.begin(), steps.end(), [&](const RelayStep& step) { return step.kind == kind; }));
  }

  ModelSpec model;
  RelayPlan plan;
  std::vector<RelayStep> steps;
  std::map<Kind, double> seconds;
  StepCosts costs;
};

double Wait(const Timeline& timeline, WaitCause cause) {
  return timeline.compute_wait_seconds[static_cast<size_t>(cause)];
}
double Busy(const Timeline& timeline, Activity activity) {
  return timeline.busy_seconds[static_cast<size_t>(activity)];
}

TEST(TimelineTest, WhatIsComputedAloneAddsUp) {
  Made made;
  made.seconds = {{Kind::kForward, 1}, {Kind::kRecompute, 0.5}, {Kind::kBackward, 2}, {Kind::kHead, 3}};
  made.costs.between_steps_seconds = 0.25;
  const Timeline timeline = made.Run();
  // Embedding and 3 blocks there, 3 recomputed, 3 blocks and the embedding back, the head: each twice.
  const double compute = 2 * (4 * 1 + 3 * 0.5 + 4 * 2 + 3);
  EXPECT_DOUBLE_EQ(timeline.step_seconds, compute + 0.25);
  EXPECT_DOUBLE_EQ(Busy(timeline, Activity::kCompute), compute);
  EXPECT_DOUBLE_EQ(Wait(timeline, WaitCause::kNone), 0.25);
  EXPECT_EQ(timeline.bound(), Activity::kCompute);
}

TEST(TimelineTest, APullHidesBehindTheLayerBeforeWithTwoSlotsAndNotWithOne) {
  for (const int slots : {1, 2}) {
    Made made(/*layers=*/4, /*items=*/2, slots);
    made.seconds = {{Kind::kPull, 1}, {Kind::kForward, 1}, {Kind::kBackward, 1}, {Kind::kHead, 1}};
    const Timeline timeline = made.Run();
    const double compute = 2 * (5 + 1 + 5);
    const int pulls = made.Count(Kind::kPull);
    EXPECT_EQ(pulls, slots == 1 ? 6 + 4 : 6 + 3);
    const double waited = slots == 1 ? pulls : 1;  // for the first layer alone
    EXPECT_DOUBLE_EQ(timeline.step_seconds, compute + waited);
    EXPECT_DOUBLE_EQ(Wait(timeline, WaitCause::kPull), waited);
  }
}

TEST(TimelineTest, TheFirstLayersNextStepWaitsForItsUpdateAndTheOthersAreUpdatedUnderTheBackward) {
  Made made;
  made.seconds = {{Kind::kForward, 1}, {Kind::kBackward, 1}, {Kind::kHead, 1}};
  made.costs.update_seconds.assign(made.model.blobs.size(), 0.5);
  const Timeline timeline = made.Run();
  // Blobs of the embedding are updated last: two of them, the token table being the head's, too.
  EXPECT_EQ(made.model.layers.front().blobs.size(), 2u);
  EXPECT_DOUBLE_EQ(timeline.step_seconds, 2 * (4 + 1 + 4) + 2 * 0.5);
  EXPECT_DOUBLE_EQ(Wait(timeline, WaitCause::kVersion), 2 * 0.5);
  EXPECT_EQ(timeline.updates.size(), made.model.blobs.size());
}

TEST(TimelineTest, AnUpdateIsInterruptedForOnesThatArePulledBeforeIt) {
  Made made(/*layers=*/4);
  made.seconds = {{Kind::kForward, 1}, {Kind::kBackward, 1}, {Kind::kHead, 1}};
  made.costs.update_seconds.assign(made.model.blobs.size(), 0.5);
  const auto last_block = static_cast<size_t>(made.model.layers[4].blobs[0].blob.value());
  made.costs.update_seconds[last_block] = 10;
  const Timeline timeline = made.Run();
  // It begins 14 after the step did, is interrupted for three blocks and both blobs of the embedding, and is over 4
  // before the next forward wants it.
  EXPECT_DOUBLE_EQ(timeline.step_seconds, 2 * (5 + 1 + 5) + 2 * 0.5);
  EXPECT_DOUBLE_EQ(Wait(timeline, WaitCause::kVersion), 2 * 0.5);
  double seconds = 0;
  int spans = 0;
  for (const TimelineSpan& span : timeline.updates) {
    if (span.index != static_cast<int>(last_block)) continue;
    seconds += span.end - span.begin;
    ++spans;
  }
  EXPECT_DOUBLE_EQ(seconds, 10);
  EXPECT_GT(spans, 1);
}

// Of the tied token table, blob 0, behind the head's gradient; of another blob of one layer, behind the step's first
// one.
TEST(TimelineTest, WhatIsUpdatedEarlyIsNotWaitedForAtTheEnd) {
  Made made;
  made.seconds = {{Kind::kForward, 1}, {Kind::kBackward, 1}, {Kind::kHead, 1}};
  made.costs.update_seconds.assign(made.model.blobs.size(), 0.5);
  made.costs.early_update_seconds.assign(made.model.blobs.size(), 0.0);
  made.costs.early_update_seconds[0] = 0.375;
  made.costs.early_update_seconds[1] = 0.25;
  const Timeline timeline = made.Run();
  const double rest = (0.5 - 0.375) + (0.5 - 0.25);
  EXPECT_DOUBLE_EQ(timeline.step_seconds, 2 * (4 + 1 + 4) + rest);
  const double head_pushed = rest + 2 * 4 + 2;
  std::vector<std::vector<double>> begins(made.model.blobs.size());
  double seconds = 0;
  for (const TimelineSpan& span : timeline.updates) {
    begins[static_cast<size_t>(span.index)].push_back(span.begin);
    seconds += span.end - span.begin;
  }
  ASSERT_EQ(begins[0].size(), 2u);  // the step before's rest, and what is early
  EXPECT_DOUBLE_EQ(*std::max_element(begins[0].begin(), begins[0].end()), head_pushed);
  EXPECT_DOUBLE_EQ(*std::max_element(begins[1].begin(), begins[1].end()), head_pushed + 0.375);
  EXPECT_DOUBLE_EQ(seconds, 0.5 * static_cast<double>(made.model.blobs.size()));
}

// Where updates are behind, what was to be early is made with the rest.
TEST(TimelineTest, WhatIsEarlyAndWaitsIsMadeWithTheRest) {
  Made made;
  made.costs.update_seconds.assign(made.model.blobs.size(), 1.0);
  made.costs.early_update_seconds.assign(made.model.blobs.size(), 0.5);
  const Timeline timeline = made.Run();
  EXPECT_DOUBLE_EQ(timeline.step_seconds, static_cast<double>(made.model.blobs.size()));
  EXPECT_DOUBLE_EQ(Busy(timeline, Activity::kUpdate), static_cast<double>(made.model.blobs.size()));
}

// The token table's of the head are in long before those of the embedding, and count with these.
TEST(TimelineTest, ContributionsAreReadWithTheUpdateOfTheirBlob) {
  Made made;
  made.costs.contribution_seconds = [&](const RelayStep& push) {  // a second an element
    return static_cast<double>(made.model.layer(push.layer).trainable_elems);
  };
  const Timeline timeline = made.Run();
  std::vector<double> seconds(made.model.blobs.size());
  for (const TimelineSpan& span : timeline.updates) seconds[static_cast<size_t>(span.index)] += span.end - span.begin;
  for (const BlobSpec& blob : made.model.blobs) {
    EXPECT_NEAR(seconds[static_cast<size_t>(blob.id.value())],
                static_cast<double>(blob.num_elems * static_cast<int64_t>(blob.uses.size())), 1e-6);
  }
}

TEST(TimelineTest, HeldUpdatesFollowTheNormFirstLayerFirst) {
  Made made(/*layers=*/4);
  made.seconds = {{Kind::kForward, 1}, {Kind::kBackward, 1}, {Kind::kHead, 1}};
  made.costs.update_seconds.assign(made.model.blobs.size(), 0.5);
  made.costs.sum_seconds.assign(made.model.blobs.size(), 0.25);
  const Timeline timeline = made.Run();
  // Behind the pass: two sums of the embedding; then its two updates. The others are made under the forward.
  EXPECT_DOUBLE_EQ(timeline.step_seconds, 2 * (5 + 1 + 5) + 2 * 0.25 + 2 * 0.5);
  EXPECT_EQ(timeline.updates.size(), 2 * made.model.blobs.size());
}

TEST(TimelineTest, ActivitiesThatShareTheMachineSlowEachOtherDown) {
  Made made(/*layers=*/2, /*items=*/1);
  made.seconds = {{Kind::kForward, 1}, {Kind::kBackward, 1}, {Kind::kHead, 1}, {Kind::kPush, 2}};
  made.costs.sharing[static_cast<size_t>(Activity::kCompute)][static_cast<size_t>(Activity::kOut)] = 0.5;
  made.costs.sharing[static_cast<size_t>(Activity::kOut)][static_cast<size_t>(Activity::kCompute)] = 0.5;
  const Timeline timeline = made.Run();
  // Three forwards and the head alone: 4. Then three backwards beside pushes of the head and the blocks at half speed:
  // 6, in which 3 of their 8 seconds are pushed; the rest alone.
  EXPECT_DOUBLE_EQ(timeline.step_seconds, 4 + 6 + (8 - 3));
  EXPECT_DOUBLE_EQ(Busy(timeline, Activity::kOut), 11);
  EXPECT_EQ(timeline.bound(), Activity::kOut);
}

TEST(TimelineTest, WhatAStreamWaitsForIsHandedOver) {
  Made made(/*layers=*/4, /*items=*/2, /*weight_slots=*/1);
  made.seconds = {{Kind::kPull, 1}, {Kind::kForward, 1}, {Kind::kBackward, 1}, {Kind::kHead, 1}};
  made.costs.sharing[static_cast<size_t>(Activity::kIn)][static_cast<size_t>(Activity::kCompute)] = 0.1;
  const double seconds = made.Run().step_seconds;
  made.costs.handover_seconds = 0.125;
  const Timeline timeline = made.Run();
  // The slot goes to and fro between pulls and computing, but for the first pull, which waits for nobody; the last
  // gradient to its push. A handover takes its time, and no speed from anybody.
  EXPECT_DOUBLE_EQ(timeline.step_seconds, seconds + 0.125 * (2 * made.Count(Kind::kPull) - 1 + 1));
  EXPECT_DOUBLE_EQ(Busy(timeline, Activity::kCompute), 2 * (5 + 1 + 5));
  EXPECT_DOUBLE_EQ(Busy(timeline, Activity::kIn), made.Count(Kind::kPull));
  EXPECT_DOUBLE_EQ(Wait(timeline, WaitCause::kPull), made.Count(Kind::kPull) * (1 + 2 * 0.125) - 0.125);
}

TEST(TimelineTest, AHandoverSlowsNobodyDown) {
  Made made(/*layers=*/4, /*items=*/2, /*weight_slots=*/2);
  made.seconds = {{Kind::kPull, 1}, {Kind::kForward, 100}, {Kind::kBackward, 100}, {Kind::kHead, 100}};
  made.costs.sharing[static_cast<size_t>(Activity::kIn)][static_cast<size_t>(Activity::kCompute)] = 0.1;
  made.costs.handover_seconds = 0.125;
  const Timeline timeline = made.Run();
  std::vector<TimelineSpan> pulls;
  for (const TimelineSpan& span : timeline.steps) {
    if (made.steps[static_cast<size_t>(span.index)].kind == Kind::kPull) pulls.push_back(span);
  }
  // The second follows the first at once; compute, which has waited for the first, is there a handover later.
  EXPECT_DOUBLE_EQ(pulls[0].end, 1);
  EXPECT_DOUBLE_EQ(pulls[1].begin, 1);
  EXPECT_NEAR(pulls[1].end, 1 + 0.125 + (1 - 0.125) / 0.1, 1e-9);
}

TEST(TimelineTest, StreamsKeepTheirOrderAndStepsTheirWaits) {
  for (const int weight_slots : {1, 2, 3}) {
    Made made(/*layers=*/5, /*items=*/3, weight_slots);
    double next = 0.1;
    std::vector<double> seconds;
    for (size_t i = 0; i < made.steps.size(); ++i) seconds.push_back(next = next * 7.3 - static_cast<int>(next * 7.3));
    made.costs.seconds = [&](const RelayStep& step) { return seconds[static_cast<size_t>(&step - made.steps.data())]; };
    made.costs.handover_seconds = 0.02;
    made.costs.sharing[0][1] = 0.7, made.costs.sharing[1][0] = 0.9, made.costs.sharing[2][0] = 0.6;
    const Timeline timeline = made.Run();
    ASSERT_EQ(timeline.steps.size(), made.steps.size());
    std::vector<TimelineSpan> by_step(made.steps.size());
    for (const TimelineSpan& span : timeline.steps) by_step[static_cast<size_t>(span.index)] = span;
    std::map<StreamId, double> ended;
    double waited = 0;
    for (size_t i = 0; i < made.steps.size(); ++i) {
      const RelayStep& step = made.steps[i];
      EXPECT_GE(by_step[i].begin, ended[step.stream()]) << i;
      EXPECT_GE(by_step[i].end - by_step[i].begin, seconds[i] * 0.999) << i;
      for (const int other : step.waits_for) EXPECT_GE(by_step[i].begin, by_step[static_cast<size_t>(other)].end);
      ended[step.stream()] = by_step[i].end;
    }
    for (const double seconds_of_cause : timeline.compute_wait_seconds) waited += seconds_of_cause;
    EXPECT_NEAR(waited + Busy(timeline, Activity::kCompute), timeline.step_seconds, 1e-9);
  }
}

}  // namespace
}  // namespace eps::worker
