#include "gpu_worker/plan/planner.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/testing/status_matchers.h"
#include "gpu_worker/device/cpu/cpu_kernel_sizes.h"
#include "gpu_worker/plan/planner_testing.h"
#include "gpu_worker/plan/predict_step.h"

namespace eps::worker {
namespace {

std::vector<ArenaSpan> AllSpans(const RelayPlan& plan) {
  std::vector<ArenaSpan> spans = {plan.expanded_weights, plan.scratch, plan.records};
  for (const auto* slots : {&plan.weight_slots, &plan.gradient_slots, &plan.depth_first_gradient_slots,
                            &plan.push_slots, &plan.boundary_slots, &plan.token_slots, &plan.inner_slots}) {
    spans.insert(spans.end(), slots->begin(), slots->end());
  }
  return spans;
}

void ExpectSound(const RelayPlan& plan) {
  std::vector<ArenaSpan> spans = AllSpans(plan);
  std::sort(spans.begin(), spans.end(), [](const ArenaSpan& a, const ArenaSpan& b) {
    return a.offset_bytes != b.offset_bytes ? a.offset_bytes < b.offset_bytes : a.num_bytes < b.num_bytes;
  });
  int64_t end = 0;
  for (const ArenaSpan& span : spans) {
    EXPECT_EQ(span.offset_bytes % kArenaAlignBytes, 0);
    EXPECT_GE(span.offset_bytes, end);
    end = span.end_bytes();
  }
  EXPECT_EQ(end, plan.arena_bytes);
  EXPECT_TRUE(plan.leaving_inner_slots.empty() || plan.depth_first_blocks > 0);
  end = plan.push_slots.front().offset_bytes;
  for (const ArenaSpan& span : plan.leaving_inner_slots) {
    EXPECT_EQ(span.offset_bytes, end);
    EXPECT_EQ(span.num_bytes, plan.inner_slots.front().num_bytes);
    end = span.end_bytes();
    EXPECT_LE(end, plan.gradient_slots.back().end_bytes());
  }
  // No more inner activations have a slot than are there at once.
  EXPECT_LE(std::ssize(plan.inner_slots), std::max<int64_t>(1, plan.inner.total + plan.depth_first_blocks));
  if (plan.cap_bytes > 0) {
    EXPECT_LE(plan.arena_bytes, plan.cap_bytes);
  }
}

std::string Print(const RelayPlan& plan) {
  std::string text;
  for (const PlanLine& line : Describe(plan)) {
    absl::StrAppend(&text, line.what, " ", line.num_bytes, " (", line.why, ")\n");
  }
  return text;
}

TEST(PlannerTest, TheSmallestCapWorksAndOneByteLessDoesNot) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16}) {
    for (const InnerPolicy inner : {InnerPolicy::kAuto, InnerPolicy::kKeep, InnerPolicy::kRecompute}) {
      for (const bool resident : {false, true}) {
        TestRun run;
        run.run.precision = {.wire = dtype, .gradients = dtype};
        run.run.relay.inner = inner;
        run.run.relay.resident = resident;
        const int64_t smallest = run.Smallest();
        ASSERT_OK_AND_ASSIGN(const RelayPlan plan, run.Plan(smallest));
        ExpectSound(plan);
        EXPECT_EQ(plan.arena_bytes, smallest);
        const std::string want = absl::StrCat("needs at least ", smallest, " bytes");
        EXPECT_THAT(run.Plan(smallest - 1), StatusIs(absl::StatusCode::kResourceExhausted, want));
        EXPECT_THAT(run.Plan(1), StatusIs(absl::StatusCode::kResourceExhausted, want));
      }
    }
  }
}

TEST(PlannerTest, TheSmallestCapDependsOnNeitherDepthNorMicroBatchesNorVnodes) {
  const int64_t smallest = TestRun(4, 1).Smallest();
  EXPECT_EQ(TestRun(32, 1).Smallest(), smallest);
  EXPECT_EQ(TestRun(1, 1).Smallest(), smallest);
  EXPECT_EQ(TestRun(4, 16).Smallest(), smallest);
  EXPECT_EQ(TestRun(32, 16).Smallest(), smallest);
  TestRun more_vnodes(4, 1);
  more_vnodes.run.batch.virtual_nodes = 64;
  EXPECT_EQ(more_vnodes.Smallest(), smallest);
}

TEST(PlannerTest, WhereAMicroBatchIsAVnodeDepthFirstBlocksNeedNoGradientsOfTheirOwn) {
  TestRun run(4, /*micro_batches=*/1);
  run.run.relay.depth_first_blocks = 3;
  const int64_t smallest = run.Smallest();
  ASSERT_OK_AND_ASSIGN(const RelayPlan plan, run.Plan(smallest));
  ExpectSound(plan);
  EXPECT_EQ(plan.gradient_slots.size(), 1);
  EXPECT_TRUE(plan.depth_first_gradient_slots.empty());
  // Sums of several are under way side by side.
  ASSERT_OK_AND_ASSIGN(const RelayPlan more, run.Plan(0));
  ExpectSound(more);
  EXPECT_GT(more.gradient_slots.size(), 1);
  EXPECT_EQ(more.depth_first_gradient_slots.size(), 3 * more.gradient_slots.size());
  run.run.batch.micro_batches = 2;
  ASSERT_OK_AND_ASSIGN(const RelayPlan two, run.Plan(run.Smallest()));
  EXPECT_EQ(two.depth_first_gradient_slots.size(), 3 * two.gradient_slots.size());
  EXPECT_GT(run.Smallest() - smallest, 2 * two.depth_first_gradient_slots.front().num_bytes);
}

TEST(PlannerTest, AllSlotsButTheFirstHaveRoomForABlockAlone) {
  TestRun run;
  run.run.model.vocab = 4000;
  run.run.precision = {.wire = Dtype::kBf16, .gradients = Dtype::kBf16};
  run.run.relay.weight_slots = 3;
  run.run.relay.depth_first_blocks = 1;
  ASSERT_OK_AND_ASSIGN(const RelayPlan plan, run.Plan(0));
  ExpectSound(plan);
  EXPECT_EQ(plan.weight_slots_in_turn(), 3);
  const std::vector<int64_t> weights = {run.model.max_layer_bytes(Dtype::kBf16),
                                        run.model.max_block_bytes(Dtype::kBf16)};
  ASSERT_EQ(plan.weight_slots.size(), 4);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(plan.weight_slots[i].num_bytes, RoundUp(weights[std::min<size_t>(i, 1)], kArenaAlignBytes));
  }
  ASSERT_GT(plan.push_slots.size(), 1);  // of sums, in fp32
  EXPECT_EQ(plan.push_slots[0].num_bytes, RoundUp(weights[0] * 2, kArenaAlignBytes));
  EXPECT_EQ(plan.push_slots[1].num_bytes, RoundUp(weights[1] * 2, kArenaAlignBytes));
  EXPECT_THAT(Print(plan),
              ::testing::HasSubstr(absl::StrCat(
                  "(1 slot * ", FormatByteSize(plan.weight_slots[0].num_bytes), ", 3 slots * ",
                  FormatByteSize(plan.weight_slots[1].num_bytes),
                  ": one for the largest layer, the others for blocks, as they are pulled; of these one for each of "
                  "the last block, which is depth first)")));
  EXPECT_FALSE(plan.pushes_from_weight_slots);  // which has no room for fp32
  // A single vnode's gradients of head and embedding leave from the first weight slot.
  run.run.batch.virtual_nodes = 1;
  ASSERT_OK_AND_ASSIGN(const RelayPlan alone, run.Plan(0));
  EXPECT_TRUE(alone.pushes_from_weight_slots);
  for (const ArenaSpan& slot : alone.push_slots) EXPECT_EQ(slot.num_bytes, RoundUp(weights[1], kArenaAlignBytes));
}

TEST(PlannerTest, TheSmallestPlanIsTheSameForAnyDepth) {
  const int64_t smallest = TestRun(4).Smallest();
  const RelayPlan few = TestRun(4).Plan(smallest).value();
  const RelayPlan many = TestRun(32, 16).Plan(smallest).value();
  EXPECT_EQ(AllSpans(few), AllSpans(many));
  EXPECT_EQ(few.inner.kept, 0);
}

TEST(PlannerTest, ALargerCapIsNeverSlower) {
  TestRun run;
  run.host_stash_bytes = int64_t{1} << 40;
  const int64_t smallest = run.Smallest();
  const RelayPlan most = run.Plan(0).value();
  ExpectSound(most);
  EXPECT_EQ(most.inner.kept, 4 * 4 * 2);
  EXPECT_TRUE(most.inner.keeps_all());
  double seconds = 1e9;
  int swapping = 0, recomputing = 0;
  for (int64_t cap = smallest; cap <= most.arena_bytes + 4096; cap += 200000) {
    ASSERT_OK_AND_ASSIGN(const RelayPlan plan, run.Plan(cap));
    ExpectSound(plan);
    const double predicted = PredictStep(run.Request(cap), plan).timeline.step_seconds;
    EXPECT_LE(predicted, seconds * 1.01) << cap;
    seconds = std::min(seconds, predicted);
    swapping += plan.inner.swapped > 0 ? 1 : 0;
    recomputing += plan.inner.recomputed() > 0 ? 1 : 0;
  }
  EXPECT_EQ(run.Plan(most.arena_bytes).value().arena_bytes, most.arena_bytes);
  EXPECT_GT(swapping + recomputing, 5);
}

// Room for the next inner activation is worth less than the boundaries that it takes, where copies are what is waited
// for. And blocks are depth first not only to keep more: with boundaries on the host, theirs are not copied.
TEST(PlannerTest, ALargerCapIsNotSlowerWhereInnerActivationsAndBoundariesCompete) {
  struct Case {
    std::string device;
    int64_t layers, d_model, context;
    BatchConfig batch;
    BoundaryPolicy boundaries = BoundaryPolicy::kAuto;
  };
  constexpr BoundaryPolicy kHost = BoundaryPolicy::kHost;
  const std::vector<Case> cases = {
      {"cuda", 12, 128, 256, {.virtual_nodes = 2, .micro_batches = 2, .micro_batch = 8}},
      {"cuda", 12, 128, 256, {.virtual_nodes = 2, .micro_batches = 2, .micro_batch = 8}, kHost},
      {"cuda", 8, 768, 128, {.virtual_nodes = 1, .micro_batches = 4, .micro_batch = 8}},
      {"cuda", 8, 768, 128, {.virtual_nodes = 1, .micro_batches = 4, .micro_batch = 8}, kHost},
      {"cpu", 6, 64, 256, {.virtual_nodes = 1, .micro_batches = 8, .micro_batch = 2}},
      {"cpu", 6, 384, 256, {.virtual_nodes = 1, .micro_batches = 2, .micro_batch = 8}},
  };
  for (const Case& each : cases) {
    TestRun run;
    run.run.model = {.num_layers = each.layers,
                     .d_model = each.d_model,
                     .num_heads = each.d_model / 64,
                     .context = each.context,
                     .vocab = 256};
    run.run.batch = each.batch;
    run.run.relay.boundaries = each.boundaries;
    run.host_stash_bytes = int64_t{1} << 40;
    const Profile profile = NominalProfile(each.device);
    PlanRequest request = run.Request(0);
    request.profile = &profile;
    request.link = LinkOf(each.device, TransportChoice::kAuto);
    const int64_t smallest = run.Smallest(), largest = MakeRelayPlan(request).value().arena_bytes;
    double seconds = 1e9;
    for (int i = 0; i <= 17; ++i) {
      request.cap_bytes = i == 17 ? 0 : smallest + (largest - smallest) * i / 16;
      ASSERT_OK_AND_ASSIGN(const RelayPlan plan, MakeRelayPlan(request));
      ExpectSound(plan);
      const double predicted = PredictStep(request, plan).timeline.step_seconds;
      EXPECT_LE(predicted, seconds * 1.005) << each.device << " " << each.layers << " " << request.cap_bytes;
      seconds = std::min(seconds, predicted);
    }
  }
}

// Of a vocabulary of several chunks, for every micro-batch in the room of one; of one chunk there is nothing to keep.
TEST(PlannerTest, TheHeadKeepsItsLogitsWhereThatIsWorthTheirRoom) {
  EXPECT_FALSE(TestRun().Plan(0).value().keeps_logits);
  TestRun run(4, 8);
  run.run.batch.virtual_nodes = 1;  // one gradient slot is all that there is
  run.run.model.vocab = 9000;
  const int64_t smallest = run.Smallest();
  ASSERT_OK_AND_ASSIGN(const RelayPlan least, run.Plan(smallest));
  EXPECT_FALSE(least.keeps_logits);
  EXPECT_EQ(least.arena_bytes, smallest);
  ASSERT_OK_AND_ASSIGN(const RelayPlan most, run.Plan(0));
  ExpectSound(most);
  EXPECT_TRUE(most.keeps_logits);
  EXPECT_TRUE(most.inner.keeps_all());
  const int64_t kept_bytes = 2 * (2 * 32) * 3008 * 4;  // two of three chunks, fp32
  EXPECT_EQ(most.scratch.num_bytes - least.scratch.num_bytes, kept_bytes);
  EXPECT_NE(Print(most).find("the head's logits are kept"), std::string::npos);
  EXPECT_EQ(Print(least).find("the head's logits are kept"), std::string::npos);
  // Before all inner activations are kept, which save less in as much room; never for more than the cap.
  double seconds = 1e9;
  int both = 0;
  for (int i = 0; i <= 16; ++i) {
    const int64_t cap = smallest + (most.arena_bytes - smallest) * i / 16;
    ASSERT_OK_AND_ASSIGN(const RelayPlan plan, run.Plan(cap));
    ExpectSound(plan);
    const double predicted = PredictStep(run.Request(cap), plan).timeline.step_seconds;
    EXPECT_LE(predicted, seconds * 1.005) << cap;
    seconds = std::min(seconds, predicted);
    both += plan.keeps_logits && !plan.inner.keeps_all() ? 1 : 0;
  }
  EXPECT_GT(both, 0);
  RelayPlan twice = most;
  twice.keeps_logits = false;
  EXPECT_LT(PredictStep(run.Request(0), most).timeline.step_seconds,
            PredictStep(run.Request(0), twice).timeline.step_seconds);
}

TEST(PlannerTest, TheLastBlocksAreDepthFirstWhereThatMakesTheStepShorter) {
  TestRun run;
  const int64_t smallest = run.Smallest();
  EXPECT_EQ(run.Plan(smallest).value().depth_first_blocks, 0);  // no room for a second gradient
  EXPECT_EQ(run.Plan(0).value().depth_first_blocks, 0);         // nothing to gain where all stays
  const int64_t cap = smallest + 1000000;
  ASSERT_OK_AND_ASSIGN(const RelayPlan plan, run.Plan(cap));
  ExpectSound(plan);
  const int blocks = plan.depth_first_blocks;
  ASSERT_GT(blocks, 0);
  EXPECT_EQ(plan.inner.total, (4 - blocks) * 4 * 2);
  EXPECT_LE(plan.inner.kept + blocks, static_cast<int64_t>(plan.inner_slots.size()));
  EXPECT_EQ(plan.weight_slots.size(), plan.weight_slots_in_turn() + static_cast<size_t>(blocks));
  EXPECT_EQ(plan.depth_first_gradient_slots.size(), static_cast<size_t>(blocks) * plan.gradient_slots.size());

  // Half of what a block costs on its way back is the price of not keeping what is inside.
  TestRun recomputes = run;
  recomputes.run.relay.inner = InnerPolicy::kRecompute;
  ASSERT_OK_AND_ASSIGN(const RelayPlan other, recomputes.Plan(cap));
  EXPECT_EQ(other.depth_first_blocks, 0);
  EXPECT_LT(PredictStep(run.Request(cap), plan).timeline.step_seconds,
            PredictStep(recomputes.Request(cap), other).timeline.step_seconds * 0.97);

  // Not in a group, nor where no block has a backward.
  TestRun frozen = run;
  PlanRequest group = run.Request(cap);
  group.max_group_members = 2;
  group.cap_bytes = SmallestCapBytes(group) + 1000000;
  EXPECT_EQ(MakeRelayPlan(group).value().depth_first_blocks, 0);
  frozen.run.model.freeze = {"transformer.h.*", "transformer.w*"};
  EXPECT_EQ(frozen.Plan(cap).value().depth_first_blocks, 0);
}

TEST(PlannerTest, ARunMaySayHowManyBlocksAreDepthFirst) {
  for (const InnerPolicy inner :
       {InnerPolicy::kAuto, InnerPolicy::kKeep, InnerPolicy::kSwap, InnerPolicy::kRecompute}) {
    for (const bool resident : {false, true}) {
      for (const auto& [told, blocks] : {std::pair(0, 0), {3, 3}, {4, 4}, {99, 4}}) {
        TestRun run;
        run.run.relay = {.inner = inner, .resident = resident, .depth_first_blocks = told};
        for (const int64_t cap : {int64_t{0}, run.Smallest(), run.Smallest() + 100000}) {
          ASSERT_OK_AND_ASSIGN(const RelayPlan plan, run.Plan(cap));
          ExpectSound(plan);
          EXPECT_EQ(plan.depth_first_blocks, blocks);
          EXPECT_EQ(plan.weight_slots.size(),
                    resident ? run.model.layers.size() : plan.weight_slots_in_turn() + static_cast<size_t>(blocks));
          EXPECT_EQ(plan.inner.total, (4 - blocks) * 4 * 2);
          EXPECT_TRUE(plan.inner.keeps_all() || inner != InnerPolicy::kKeep);
          // What is swapped may leave from all of the memory of gradients.
          const int64_t gradient_bytes = plan.gradient_slots.back().end_bytes() - plan.push_slots.front().offset_bytes;
          const int64_t fit = blocks > 0 ? gradient_bytes / plan.inner_slots.front().num_bytes : 0;
          const int64_t leaving = std::min(fit, plan.inner.total);
          EXPECT_EQ(std::ssize(plan.leaving_inner_slots), leaving);
          EXPECT_EQ(fit > 0, blocks > 0);
          const int64_t told_leaving = std::min(leaving, plan.inner.swapped);
          const std::string text = absl::StrCat(told_leaving, " of what is swapped leave from");
          EXPECT_EQ(absl::StrContains(Print(plan), text), told_leaving > 0) << Print(plan);
        }
        EXPECT_EQ(run.Plan(run.Smallest() - 1).status().code(), absl::StatusCode::kResourceExhausted);
      }
    }
  }
  TestRun frozen;
  frozen.run.model.freeze = {"transformer.h.0.*", "transformer.w*"};
  frozen.run.relay.depth_first_blocks = 4;
  EXPECT_EQ(frozen.Plan(0).value().depth_first_blocks, 3);
}

// Fewer activations wait, which may weigh more than weights and gradients.
TEST(PlannerTest, TheSmallestCapIsThatOfDepthFirstWhereActivationsMustBeOnTheDevice) {
  const auto run_of = [](int micro_batches) {
    TestRun run(/*layers=*/6, micro_batches);
    run.run.batch.virtual_nodes = 1;
    return run;
  };
  TestRun by_host = run_of(128), by_policy = run_of(128), resident = run_of(128);
  by_host.host_stash_bytes = 1 << 20;
  by_policy.run.relay.boundaries = BoundaryPolicy::kDevice;
  resident.run.relay.resident = true;
  for (TestRun* run : {&by_host, &by_policy, &resident}) {
    ASSERT_OK_AND_ASSIGN(const RelayPlan plan, run->Plan(run->Smallest()));
    ExpectSound(plan);
    EXPECT_EQ(plan.depth_first_blocks, 6);
    TestRun told = *run;
    told.run.relay.depth_first_blocks = 0;
    EXPECT_GT(told.Smallest(), run->Smallest());
    const absl::Status refused = told.Plan(run->Smallest()).status();
    EXPECT_NE(refused.message().find("relay.depth_first_blocks: 6"), absl::string_view::npos) << refused;
    // Of a few items it is none.
    TestRun few = *run;
    few.run.batch.micro_batches = 1;
    EXPECT_EQ(few.Plan(few.Smallest()).value().depth_first_blocks, 0);
  }
}

// Of each virtual node the host has gradients of all blocks that are depth first.
TEST(PlannerTest, TheHostBearsGradientsOfBlocksThatAreDepthFirst) {
  TestRun run;
  run.run.batch = {.virtual_nodes = 8, .micro_batches = 1, .micro_batch = 1};
  run.run.relay.depth_first_blocks = 0;
  ASSERT_OK_AND_ASSIGN(const RelayPlan none, run.Plan(0));
  run.run.relay.depth_first_blocks = 3;
  ASSERT_OK_AND_ASSIGN(const RelayPlan three, run.Plan(0));
  const int64_t head = run.model.layers.back().trainable_elems, block = run.model.layers[1].trainable_elems;
  EXPECT_EQ(three.host_push_bytes - none.host_push_bytes, 8 * (head + 3 * block) * SizeOf(run.run.precision.gradients));
  run.run.batch.virtual_nodes = 1;
  EXPECT_LE(run.Plan(0).value().host_push_bytes, none.host_push_bytes);
  // Where it is told what it has for activations these count among them.
  run.run.batch.virtual_nodes = 8;
  run.host_stash_bytes = three.host_push_bytes - none.host_push_bytes - 1;
  EXPECT_EQ(run.Plan(0).value().host_boundary_bytes, 0);
  // And no more blocks are chosen than it has room for.
  TestRun bounded;
  const int64_t one_bytes = 4 * (head + block) * SizeOf(bounded.run.precision.gradients);
  for (const int blocks : {0, 1}) {
    bounded.host_stash_bytes = blocks == 0 ? one_bytes - 1 : one_bytes;
    ASSERT_OK_AND_ASSIGN(const RelayPlan plan, bounded.Plan(bounded.Smallest() + 1000000));
    ExpectSound(plan);
    EXPECT_EQ(plan.depth_first_blocks, blocks);
  }
}

// Where weights are small beside activations, as those of many micro-batches are, nearly nothing is recomputed.
TEST(PlannerTest, ManyMicroBatchesOfASmallModelPassDepthFirst) {
  TestRun run;
  run.run.model.num_layers = 12;
  run.run.batch = {.virtual_nodes = 1, .micro_batches = 16, .micro_batch = 8};
  run.model = BuildModel(run.run.model).value();
  ASSERT_OK_AND_ASSIGN(const RelayPlan all, run.Plan(0));
  const int64_t cap = all.arena_bytes / 4;
  ASSERT_OK_AND_ASSIGN(const RelayPlan plan, run.Plan(cap));
  ExpectSound(plan);
  EXPECT_GE(plan.depth_first_blocks, 6);
  EXPECT_LE(plan.inner.recomputed() * 10, 12 * 16);
  EXPECT_LT(PredictStep(run.Request(cap), plan).timeline.step_seconds,
            PredictStep(run.Request(0), all).timeline.step_seconds * 1.05);
}

TEST(PlannerTest, BoundariesStayAsTheRunSays) {
  TestRun run;
  EXPECT_EQ(run.Plan(0).value().boundary_slots.size(), 41u);
  run.run.relay.boundaries = BoundaryPolicy::kHost;
  ASSERT_OK_AND_ASSIGN(const RelayPlan leaves, run.Plan(0));
  EXPECT_EQ(std::ssize(leaves.boundary_slots), RelayPlan::LeastBoundarySlots(leaves.depth_first_blocks));
  run.run.relay.boundaries = BoundaryPolicy::kDevice;
  ASSERT_OK_AND_ASSIGN(const RelayPlan stays, run.Plan(run.Smallest()));
  EXPECT_EQ(stays.boundary_slots.size(), 41u);
  EXPECT_EQ(stays.inner.kept, 0);
  EXPECT_THAT(run.Plan(run.Smallest() - 1), StatusIs(absl::StatusCode::kResourceExhausted, "relay.boundaries: HOST ("));
}

TEST(PlannerTest, SwapPutsAllOnTheHostAndTakesASecondSlotWhereThereIsRoom) {
  TestRun run;
  run.run.relay.inner = InnerPolicy::kSwap;
  ASSERT_OK_AND_ASSIGN(const RelayPlan least, run.Plan(run.Smallest()));
  EXPECT_EQ(least.inner, (InnerCounts{.total = 32, .kept = 0, .swapped = 32}));
  EXPECT_EQ(least.inner_slots.size(), 1u);
  EXPECT_EQ(least.host_inner_bytes, 32 * least.inner_slots[0].num_bytes);
  ASSERT_OK_AND_ASSIGN(const RelayPlan plan, run.Plan(run.Smallest() + (4 << 20)));
  EXPECT_EQ(plan.inner_slots.size(), 2u);
  TestRun recompute;
  recompute.run.relay.inner = InnerPolicy::kRecompute;
  EXPECT_EQ(run.Smallest(), recompute.Smallest());
}

TEST(PlannerTest, TheHostsMemoryBoundsWhatIsSwapped) {
  TestRun run;
  const int64_t cap = run.Smallest();
  const RelayPlan none = run.Plan(cap).value();
  EXPECT_EQ(none.host_inner_bytes, 0);
  int64_t swapped = 0;
  for (const int64_t inners : {1, 5, 40}) {
    run.host_stash_bytes = none.host_boundary_bytes + inners * none.inner_slots[0].num_bytes;
    ASSERT_OK_AND_ASSIGN(const RelayPlan plan, run.Plan(cap));
    EXPECT_LE(plan.host_boundary_bytes + plan.host_inner_bytes, run.host_stash_bytes);
    EXPECT_GE(plan.inner.swapped, swapped);
    swapped = plan.inner.swapped;
  }
  EXPECT_GT(swapped, 5);
  // Boundaries that the host has no room for stay on the device, which needs more then.
  for (const int64_t boundaries : {30, 1, 0}) {
    run.host_stash_bytes = boundaries * none.boundary_slots[0].num_bytes + 1;
    EXPECT_THAT(run.Plan(cap), StatusIs(absl::StatusCode::kResourceExhausted, "of host memory for activations ("));
    ASSERT_OK_AND_ASSIGN(const RelayPlan plan, run.Plan(run.Smallest()));
    ExpectSound(plan);
    EXPECT_LE(plan.host_boundary_slots, boundaries);
    EXPECT_EQ(plan.host_inner_bytes, 0);
  }
}

TEST(PlannerTest, KeepAndRecomputeDoAsTheySay) {
  TestRun run;
  run.run.relay.inner = InnerPolicy::kKeep;
  EXPECT_EQ(run.Plan(0).value().inner.kept, 32);
  run.run.relay.inner = InnerPolicy::kRecompute;
  EXPECT_EQ(run.Plan(0).value().inner.kept, 0);
  TestRun one(1, 1);
  one.run.batch.virtual_nodes = 1;
  one.run.relay.inner = InnerPolicy::kRecompute;
  EXPECT_EQ(one.Plan(0).value().inner.kept, 0);
  one.run.relay.inner = InnerPolicy::kKeep;
  EXPECT_EQ(one.Plan(0).value().inner.kept, 1);
  EXPECT_EQ(one.Plan(0).value().inner_slots.size(), 1u);
}

TEST(PlannerTest, WhatDoesNotFitSaysWhatToChange) {
  TestRun run;
  run.run.relay.inner = InnerPolicy::kKeep;
  const int64_t smallest = run.Smallest();
  TestRun recompute;
  recompute.run.relay.inner = InnerPolicy::kRecompute;
  EXPECT_THAT(run.Plan(smallest - 256),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       absl::StrCat("relay.inner: RECOMPUTE (", recompute.Smallest(), " bytes)")));
  EXPECT_THAT(run.Plan(1), StatusIs(absl::StatusCode::kResourceExhausted, "relay.weight_slots: 1"));
  constexpr absl::string_view kInTiles = "batch.feed_forward_tile: 4096 (";
  EXPECT_FALSE(absl::StrContains(run.Plan(1).status().message(), kInTiles)) << "it has 64 rows";
  TestRun longer, in_tiles;
  longer.run.model.context = in_tiles.run.model.context = 16384;
  in_tiles.run.batch.feed_forward_tile = 4096;
  EXPECT_THAT(longer.Plan(1),
              StatusIs(absl::StatusCode::kResourceExhausted, absl::StrCat(kInTiles, in_tiles.Smallest(), " bytes)")));
  EXPECT_THAT(in_tiles.Plan(1), StatusIs(absl::StatusCode::kResourceExhausted, "batch.feed_forward_tile: 1024 ("));
  in_tiles.run.batch.feed_forward_tile = 1024;
  EXPECT_FALSE(absl::StrContains(in_tiles.Plan(1).status().message(), "feed_forward_tile"));
  longer.run.model.context = 2048;  // of two sequences
  EXPECT_THAT(longer.Plan(1), StatusIs(absl::StatusCode::kResourceExhausted, "batch.feed_forward_tile: 1024 ("));
  // The room for a group is the request's: a worker that can join none plans without.
  TestRun alone;
  PlanRequest group = alone.Request(1);
  group.max_group_members = 4;
  EXPECT_THAT(MakeRelayPlan(group), StatusIs(absl::StatusCode::kResourceExhausted,
                                             absl::StrCat("relay.group_members: 1 (", alone.Smallest(), " bytes)")));
  EXPECT_FALSE(absl::StrContains(alone.Plan(1).status().message(), "relay.group_members"));
}

TEST(PlannerTest, APassBeyondAllMeasureIsRefusedByField) {
  for (const InnerPolicy inner : {InnerPolicy::kAuto, InnerPolicy::kKeep, InnerPolicy::kRecompute}) {
    TestRun run(4, 16384);
    run.run.relay.inner = inner;
    run.run.batch.virtual_nodes = 65536;
    for (const int64_t cap : {int64_t{0}, int64_t{1} << 20}) {
      EXPECT_THAT(run.Plan(cap), StatusIs(absl::StatusCode::kInvalidArgument, "batch.micro_batches: 16384"));
    }
    EXPECT_GT(run.Smallest(), int64_t{1} << 60);
  }
  TestRun wide;
  wide.run.model.context = 1 << 20;
  wide.run.batch.micro_batch = 65536;
  EXPECT_THAT(wide.Plan(0), StatusIs(absl::StatusCode::kInvalidArgument, "batch.micro_batch: 65536"));
}

TEST(PlannerTest, MoreRoutedRowsThanNumbersOf32BitsAreRefusedByField) {
  TestRun run;
  run.run.model = {.family = ModelFamily::kLlama, .num_layers = 1, .d_model = 8, .num_heads = 1};
  run.run.model.context = run.run.model.max_positions = 1 << 20;
  run.run.model.vocab = 16;
  run.run.model.num_kv_heads = 1;
  run.run.model.d_head = run.run.model.d_ff = 8;
  run.run.model.experts = {.num = 1024, .per_token = 1024};
  run.run.batch.micro_batch = 1;
  EXPECT_NE(run.Plan(0).status().code(), absl::StatusCode::kInvalidArgument);  // 2^30 rows
  run.run.batch.micro_batch = 2;
  EXPECT_THAT(run.Plan(0), StatusIs(absl::StatusCode::kInvalidArgument,
                                    "model.experts.per_token: 1024 for each of 2 sequences of 1048576 tokens"));
}

// The largest sizes that are allowed still fit 64 bits.
TEST(PlannerTest, SizesDoNotOverflow) {
  TestRun run(4094, 1);
  run.run.model.context = 1 << 20;
  run.run.batch = {.virtual_nodes = 1024, .micro_batches = 1, .micro_batch = 256};
  run.run.relay.inner = InnerPolicy::kKeep;
  run.run.relay.resident = true;
  EXPECT_GT(run.Smallest(), int64_t{1} << 60);
  EXPECT_THAT(run.Plan(int64_t{1} << 40), StatusIs(absl::StatusCode::kResourceExhausted, "needs at least"));
}

// Over a network; the table, which is the first layer, takes longer to pull than a block to compute.
TEST(PlannerTest, LayersArePulledFurtherAheadWhereThatHelps) {
  TestRun run;
  run.run.model.vocab = 4000;
  const auto plan_with = [&](int weight_slots, int64_t cap_bytes = 0, int group_members = 0) {
    run.run.relay.weight_slots = weight_slots;
    PlanRequest request = run.Request(cap_bytes);
    request.link = LinkKind::kNetwork;
    request.max_group_members = group_members;
    const RelayPlan plan = MakeRelayPlan(request).value();
    ExpectSound(plan);
    return std::pair(plan, PredictStep(request, plan).timeline.step_seconds);
  };
  const auto [chosen, seconds] = plan_with(0);
  const auto [two, two_seconds] = plan_with(2);
  EXPECT_GT(chosen.weight_slots.size(), 2u);
  EXPECT_LT(seconds, two_seconds);
  EXPECT_EQ(plan_with(1).first.weight_slots.size(), 1u);
  EXPECT_EQ(two.weight_slots.size(), 2u);
  run.run.relay.weight_slots = 0;
  EXPECT_EQ(plan_with(0, run.Smallest()).first.weight_slots.size(), 2u);  // no room
  EXPECT_EQ(plan_with(0, 0, 2).first.weight_slots.size(), 2u);            // members go alike
}

TEST(PlannerTest, ResidentHoldsEveryLayerAndBoundary) {
  TestRun run;
  run.run.relay.resident = true;
  ASSERT_OK_AND_ASSIGN(const RelayPlan plan, run.Plan(0));
  ASSERT_EQ(plan.weight_slots.size(), 6u);
  for (size_t i = 0; i < 6; ++i) EXPECT_GE(plan.weight_slots[i].num_bytes, run.model.layers[i].num_elems * 2);
  EXPECT_EQ(plan.boundary_slots.size(), 5u * 4 * 2 + 1);
  EXPECT_EQ(plan.host_boundary_bytes, 0);
}

TEST(PlannerTest, GradientsHaveRoomForWhatTrainsAndInnerActivationsForWhatHasABackward) {
  TestRun all, some;
  all.run.model.vocab = some.run.model.vocab = 4000;  // the table is the largest layer
  some.run.model.freeze = {"*", "!transformer.h.3.*", "transformer.h.3.mlp.*"};
  ASSERT_OK_AND_ASSIGN(const RelayPlan plain, all.Plan(0));
  ASSERT_OK_AND_ASSIGN(const RelayPlan plan, some.Plan(0));
  ExpectSound(plan);
  const LayerSpec& block = some.model.layers[4];
  EXPECT_EQ(plan.push_slots[0].num_bytes, block.trainable_elems * (plan.max_subtree_leaves() == 1 ? 2 : 4));
  EXPECT_LT(plan.gradient_slots[0].num_bytes, block.num_elems * 4);
  EXPECT_GE(plan.gradient_slots[0].num_bytes, block.trainable_elems * 4);
  EXPECT_GE(plain.gradient_slots[0].num_bytes, 4000 * 64 * 4);
  EXPECT_EQ(plan.weight_slots[0].num_bytes, plain.weight_slots[0].num_bytes);
  EXPECT_TRUE(plan.inner.keeps_all());
  EXPECT_EQ(plan.inner_slots.size(), 8u);  // one block's, of 4 vnodes of 2
  EXPECT_EQ(plan.boundary_slots.size(), 2 * 8u + 1) << "its inputs and the head's, and what a turn gives";
  EXPECT_EQ(plan.host_redo_push_bytes, block.trainable_elems * 4 * SizeOf(some.run.precision.gradients));
  EXPECT_EQ(plan.host_push_bytes, std::min(plan.host_redo_push_bytes, 2 * plan.push_slots[0].num_bytes));
  // Only the head trains: no block is gone through on the way back, and one slot serves them all on the way there.
  some.run.model.freeze = {"*", "!transformer.ln_f.*"};
  for (const InnerPolicy inner : {InnerPolicy::kAuto, InnerPolicy::kKeep, InnerPolicy::kRecompute}) {
    some.run.relay.inner = inner;
    ASSERT_OK_AND_ASSIGN(const RelayPlan head, some.Plan(0));
    ExpectSound(head);
    EXPECT_EQ(head.inner_slots.size(), 1u);
    // Of 4 vnodes of 2 micro-batches the inputs of one layer at a time, and what the turn gives.
    EXPECT_EQ(head.boundary_slots.size(), 4u * 2 + 1);
    EXPECT_EQ(head.host_boundary_bytes, 0);
    ASSERT_OK_AND_ASSIGN(const RelayPlan smallest, some.Plan(some.Smallest()));
    EXPECT_EQ(smallest.host_boundary_slots, 4 * 2);
  }
}

TEST(PlannerTest, FewerVnodesInAPassNeedLess) {
  TestRun run;
  PlanRequest request = run.Request(0);
  request.max_pass_vnodes = 2;
  ASSERT_OK_AND_ASSIGN(const RelayPlan plan, MakeRelayPlan(request));
  EXPECT_EQ(plan.max_pass_vnodes, 2);
  EXPECT_EQ(plan.inner.kept, 4 * 2 * 2);
  EXPECT_EQ(plan.max_subtree_leaves(), 1);  // two leaves go as leaves in bf16
  EXPECT_EQ(plan.host_boundary_bytes, 0);
  request.cap_bytes = SmallestCapBytes(request);
  ASSERT_OK_AND_ASSIGN(const RelayPlan smallest, MakeRelayPlan(request));
  EXPECT_EQ(smallest.host_boundary_slots, 5 * 2 * 2);
  EXPECT_EQ(smallest.host_boundary_bytes, 5 * 2 * 2 * (2 * 32 * 64 * 4));
}

TEST(PlannerTest, Fp32WireNeedsNoExpandedWeights) {
  TestRun run;
  run.run.precision = {.wire = Dtype::kF32, .gradients = Dtype::kF32};
  EXPECT_EQ(run.Plan(0).value().expanded_weights.num_bytes, 0);
}

TEST(PlannerTest, ADeviceThatPinsHostMemorySaysHowMuch) {
  TestRun run;
  PlanRequest request = run.Request(0);
  EXPECT_EQ(MakeRelayPlan(request).value().host_pinned_bytes, 0);
  request.kernels.pins_host_memory = true;
  ASSERT_OK_AND_ASSIGN(const RelayPlan plan, MakeRelayPlan(request));
  const int64_t wire_bytes = run.model.num_parameters() * 2;
  EXPECT_EQ(plan.host_pinned_bytes, plan.host_boundary_bytes + plan.host_push_bytes + 2 * wire_bytes);
  EXPECT_EQ(Describe(plan).back().num_bytes, plan.host_pinned_bytes);
  EXPECT_EQ(Describe(plan).back().what, "host, pinned of it");
}

// A model that is deep, in a pass that is long: the search gives up no more than the steps it may look at.
TEST(PlannerTest, FourHundredLayersArePlanned) {
  for (const int micro_batches : {4, 64}) {
    TestRun run(400, micro_batches);
    const int64_t smallest = run.Smallest();
    const int64_t most = run.Plan(0).value().arena_bytes;
    ASSERT_OK_AND_ASSIGN(const RelayPlan plan, run.Plan(smallest + (most - smallest) / 3));
    ExpectSound(plan);
    EXPECT_GT(PredictStep(run.Request(plan.cap_bytes), plan).timeline.step_seconds, 0);
  }
}

// Golden: read it as `eps plan` shows it.
TEST(PlannerTest, PrintsEveryBufferWithItsReason) {
  TestRun run;
  EXPECT_EQ(Print(run.Plan(run.Smallest()).value()),
            R"(weights 200192 (2 slots * 97.8 KiB: the largest layer, as it is pulled)
expanded weights 199936 (one block in the compute dtype)
gradients 199936 (1 slot * 195.2 KiB: one vnode's, fp32)
push 100096 (1 slot * 97.8 KiB: a layer's gradient on its way out)
boundaries 65536 (4 slots * 16.0 KiB: two inputs, two outputs or gradients)
tokens 512 (1 slot * 512 B: token ids and labels)
inner activations 149504 (1 slot * 146.0 KiB: 0 kept, 32 recomputed)
scratch 166656 (the largest layer's, forward or backward)
records 256 (loss records and finite flags)
device total 1082624 (of 1.0 MiB allowed)
host boundaries 655360 (40: layers' inputs; gradients take the places of what is over)
host gradients 200192 (on their way to the daemon; with shared memory they lie in the inbox, beside 4.0 MiB of slots)
host, a pass's steps 585728 (enqueued at once, each with its event and its waits)
host total 1441280 (of each worker, beside its device's memory)
host gradients, at worst 1879040 (in a step in which another worker is lost, and its vnodes are run again here; in no total)
)");
  EXPECT_EQ(Print(run.Plan(0).value()),
            R"(weights 200192 (2 slots * 97.8 KiB: the largest layer, as it is pulled)
expanded weights 199936 (one block in the compute dtype)
gradients 599808 (3 slots * 195.2 KiB: sums of up to 4 vnodes, fp32)
push 399872 (2 slots * 195.2 KiB: a layer's gradient on its way out)
boundaries 671744 (41 slots * 16.0 KiB: the input of every layer that has a backward, and one gradient)
tokens 512 (1 slot * 512 B: token ids and labels)
inner activations 4784128 (32 slots * 146.0 KiB: all kept, nothing is recomputed)
scratch 166656 (the largest layer's, forward or backward)
records 256 (loss records and finite flags)
device total 7023104 (no cap given)
host boundaries 0 (boundaries stay on the device)
host gradients 399872 (on their way to the daemon; with shared memory they lie in the inbox, beside 4.0 MiB of slots)
host, a pass's steps 585728 (enqueued at once, each with its event and its waits)
host total 985600 (of each worker, beside its device's memory)
host gradients, at worst 1879040 (in a step in which another worker is lost, and its vnodes are run again here; in no total)
)");
}

}  // namespace
}  // namespace eps::worker
