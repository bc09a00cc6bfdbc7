#include "gpu_worker/plan/schedule.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gpu_worker/plan/schedule_testing.h"
#include "gtest/gtest.h"

namespace eps::worker {
namespace {

using Kind = RelayStep::Kind;

// What is computed and pushed of layers from this one on: "there 3 vnode 0".
std::vector<std::string> OrderFrom(int layer, const MadeSchedule& made) {
  std::vector<std::string> order;
  for (const RelayStep& step : made.Build()) {
    if (step.layer.value() < layer) continue;
    const char* what = step.kind == Kind::kForward    ? "there"
                       : step.kind == Kind::kHead     ? "head"
                       : step.kind == Kind::kBackward ? "back"
                       : step.kind == Kind::kPush     ? "push"
                                                      : nullptr;
    if (what == nullptr) continue;
    order.push_back(
        absl::StrCat(what, " ", step.layer.value(), " vnode ", step.vnode, step.may_wait ? "" : " at once"));
  }
  return order;
}

TEST(ScheduleTest, AMicroBatchPassesThroughBlocksThatAreDepthFirstTheHeadAndBackBeforeTheNextOneComes) {
  std::vector<std::string> want;
  for (const int vnode : {0, 0, 1, 1}) {
    want.push_back(absl::StrCat("there 3 vnode ", vnode));
    want.push_back(absl::StrCat("head 4 vnode ", vnode));
    want.push_back(absl::StrCat("back 3 vnode ", vnode));
  }
  want.insert(want.begin() + 5, "push 4 vnode 0");
  want.insert(want.begin() + 7, "push 3 vnode 0");
  want.insert(want.begin() + 13, "push 4 vnode 1 at once");  // the block's of vnode 0 may be waiting for it
  want.push_back("push 3 vnode 1");
  EXPECT_EQ(OrderFrom(3, MadeSchedule({.layers = 3, .vnodes = 2, .micro_batches = 2, .depth_first = 1})), want);

  want.clear();
  for (int item = 0; item < 3; ++item) {
    for (const char* turn : {"there 2", "there 3", "head 4", "back 3", "back 2"}) {
      want.push_back(absl::StrCat(turn, " vnode 0"));
    }
  }
  want.insert(want.begin() + 13, "push 4 vnode 0");
  want.insert(want.begin() + 15, "push 3 vnode 0");
  want.push_back("push 2 vnode 0");
  EXPECT_EQ(OrderFrom(2, MadeSchedule({.layers = 3, .vnodes = 1, .micro_batches = 3, .depth_first = 2})), want);
}

// One that nobody waits for may be late, and with one version (precision.wire_versions) ask for what is gone.
TEST(ScheduleTest, EachPullIsWaitedForByWhatItsLayerComputes) {
  const auto computes = [](const RelayStep& step) {
    return step.kind == Kind::kExpand || step.kind == Kind::kForward || step.kind == Kind::kRecompute ||
           step.kind == Kind::kHead || step.kind == Kind::kBackward;
  };
  for (int layers = 1; layers <= 4; ++layers) {
    for (int slots = 1; slots <= 3; ++slots) {
      for (const bool expands : {false, true}) {
        for (const bool large_tables : {false, true}) {
          for (int depth_first = 0; depth_first <= std::min(2, layers); ++depth_first) {
            for (const std::vector<int>& frozen : {std::vector<int>{}, {0}, {0, 1}}) {
              const ScheduleShape shape = {.layers = layers,
                                           .weight_slots = slots,
                                           .expands = expands,
                                           .frozen = frozen,
                                           .depth_first = depth_first,
                                           .large_tables = large_tables};
              const std::vector<RelayStep> steps = MadeSchedule(shape).Build();
              for (size_t i = 0; i < steps.size(); ++i) {
                if (steps[i].kind != Kind::kPull) continue;
                EXPECT_TRUE(std::any_of(steps.begin() + static_cast<ptrdiff_t>(i), steps.end(),
                                        [&](const auto& step) {
                                          return computes(step) && step.layer == steps[i].layer &&
                                                 std::find(step.waits_for.begin(), step.waits_for.end(),
                                                           static_cast<int>(i)) != step.waits_for.end();
                                        }))
                    << Print(shape) << ": the pull of layer " << steps[i].layer.value()
                    << (steps[i].backward ? " back" : "");
              }
            }
          }
        }
      }
    }
  }
}

// None waits for the block before the first of them.
TEST(ScheduleTest, BlocksThatAreDepthFirstArePulledOnceAndAhead) {
  const MadeSchedule made({.layers = 5, .vnodes = 1, .micro_batches = 2, .depth_first = 3});
  const std::vector<RelayStep> steps = made.Build();
  std::vector<std::string> pulls;
  for (const RelayStep& step : steps) {
    if (step.kind != Kind::kPull) continue;
    pulls.push_back(absl::StrCat(step.layer.value(), " into ", step.weights));
    if (step.backward) continue;
    for (const int other : step.waits_for) EXPECT_LT(steps[static_cast<size_t>(other)].layer, LayerId(2));
  }
  // The head takes the place of 1, which is pulled again as soon as the head is over. 2 is there still.
  EXPECT_EQ(pulls, (std::vector<std::string>{"0 into 0", "1 into 1", "2 into 2", "3 into 3", "4 into 4", "5 into 0",
                                             "6 into 1", "1 into 1"}));
}

// What is pushed last of the head and of blocks that are depth first; the embedding's from the first slot. With two
// vnodes the first one's gradients leave while the weights are needed.
TEST(ScheduleTest, TheLastGradientsLeaveFromWeightSlots) {
  const auto from_weights = [](const ScheduleShape& shape) {
    const MadeSchedule made(shape);
    std::vector<std::string> pushes;
    for (const RelayStep& step : made.Build()) {
      if (step.kind != Kind::kPush) continue;
      const int slot = step.push - shape.push_slots;
      pushes.push_back(absl::StrCat(step.layer.value(), slot >= 0 ? absl::StrCat(" from ", slot) : ""));
    }
    return pushes;
  };
  ScheduleShape shape{.layers = 4, .vnodes = 1, .micro_batches = 2, .depth_first = 2};
  shape.pushes_from_weight_slots = shape.large_tables = true;
  EXPECT_EQ(from_weights(shape), (std::vector<std::string>{"5 from 0", "4 from 1", "3 from 3", "2", "1", "0 from 0"}));
  shape.vnodes = 2;
  EXPECT_EQ(from_weights(shape), (std::vector<std::string>{"5", "4", "3", "5 from 0", "4 from 1", "3 from 3", "2", "2",
                                                           "1", "1", "0 from 0", "0 from 0"}));
}

TEST(ScheduleTest, WithTwoSlotsEverythingSwappedIsCopiedOnceThereAndBackButTheLastTwo) {
  const MadeSchedule made({.layers = 4, .vnodes = 2, .micro_batches = 3, .inner_slots = 2, .swapped = 24, .spare = 2});
  const std::vector<RelayStep> steps = made.Build();
  std::map<Kind, int> count;
  for (const RelayStep& step : steps) ++count[step.kind];
  EXPECT_EQ(count[Kind::kLoadInner], 24 - 2);
  EXPECT_EQ(count[Kind::kStoreInner], 24 - 2);
  EXPECT_EQ(count[Kind::kRecompute], 0);
}

// The last one has the memory that is needed last.
TEST(ScheduleTest, WhatIsSwappedLastLeavesFromWhereGradientsWillBe) {
  const MadeSchedule made(
      {.layers = 5, .vnodes = 1, .micro_batches = 4, .inner_slots = 2, .swapped = 12, .spare = 2, .depth_first = 2});
  const int slots = static_cast<int>(made.plan.inner_slots.size());
  const int leaving = static_cast<int>(made.plan.leaving_inner_slots.size());
  ASSERT_EQ(leaving, 3);
  std::vector<int> left, came_back;
  for (const RelayStep& step : made.Build()) {
    if (step.kind == Kind::kStoreInner) left.push_back(step.inner);
    if (step.kind == Kind::kLoadInner) came_back.push_back(step.inner);
  }
  ASSERT_EQ(left.size(), 12);
  left.erase(left.begin(), left.end() - leaving);
  EXPECT_THAT(left, ::testing::ElementsAre(slots + 2, slots + 1, slots));
  ASSERT_EQ(came_back.size(), 12);
  EXPECT_THAT(came_back, ::testing::Each(::testing::Lt(slots)));
}

// The way back begins with what is kept; its slots fetch what comes after it while it is computed.
TEST(ScheduleTest, SlotsThatAreLeftFetchAhead) {
  const MadeSchedule made({.layers = 6, .vnodes = 1, .micro_batches = 1, .inner_slots = 4, .swapped = 6, .spare = 2});
  const std::vector<RelayStep> steps = made.Build();
  std::vector<int> loaded_after;  // by load in order: backwards of blocks that are listed before it
  int backwards = 0;
  for (const RelayStep& step : steps) {
    if (step.kind == Kind::kBackward) ++backwards;
    if (step.kind == Kind::kLoadInner) loaded_after.push_back(backwards);
  }
  // Of six, two are kept and two were swapped last: their slots are left one after the other.
  EXPECT_EQ(loaded_after, (std::vector<int>{1, 2}));
}

TEST(ScheduleTest, AMicroBatchAloneIsHandedOnInItsSlot) {
  const MadeSchedule made({.layers = 6, .vnodes = 1, .micro_batches = 1});
  std::map<Kind, int> count;
  for (const RelayStep& step : made.Build()) {
    if (step.kind == Kind::kLoadBoundary) {
      EXPECT_TRUE(step.backward);
    }
    ++count[step.kind];
  }
  EXPECT_EQ(count[Kind::kLoadGradient] + count[Kind::kStoreGradient], 0);
  EXPECT_EQ(count[Kind::kLoadBoundary], count[Kind::kStoreBoundary]);
  EXPECT_LE(count[Kind::kLoadBoundary], 7 - 3);
}

// So that the exchange runs beside the backward of the layer below, and its sum does not wait for it before that has
// ended.
TEST(ScheduleTest, TheSumOfAGroupComesOneTurnBeforeTheNextLayersGradient) {
  const MadeSchedule made({.layers = 2, .vnodes = 2, .micro_batches = 3, .held = {0}, .group_rounds = 1});
  const std::vector<RelayStep> steps = made.Build();
  int backward_turns = 0, sums = 0;
  for (const RelayStep& step : steps) {
    if (step.kind == Kind::kBackward || step.kind == Kind::kHead) ++backward_turns;
    if (step.kind != Kind::kSumGroup) continue;
    ++sums;
    const bool last = sums == static_cast<int>(made.model.layers.size());
    EXPECT_EQ(backward_turns, last ? 3 * sums : 3 * sums + 2) << sums;
  }
  EXPECT_EQ(sums, static_cast<int>(made.model.layers.size()));
}

// What members exchange, in the order of their lists: on a GPU each exchange waits for the others to come to it, and none
// overtakes another.
std::vector<std::string> ExchangeOrder(const MadeSchedule& made) {
  std::vector<std::string> order;
  for (const RelayStep& step : made.Build()) {
    if (step.kind == Kind::kPull) order.push_back(absl::StrCat("weights ", step.layer.value()));
    if (step.kind == Kind::kExchange) order.push_back(absl::StrCat("gradient ", step.layer.value(), " ", step.round));
  }
  return order;
}

// Every member has a vnode; the rest are shared evenly, or are the last one's.
std::vector<std::vector<int>> SharesOf(int num_vnodes, int members, bool even) {
  std::vector<std::vector<int>> shares(static_cast<size_t>(members));
  for (int vnode = 0; vnode < num_vnodes; ++vnode) {
    const int member = even ? vnode * members / num_vnodes : std::min(vnode, members - 1);
    shares[static_cast<size_t>(member)].push_back(vnode);
  }
  return shares;
}

// With more or less room for gradients, inner activations, boundaries and logits, by which no exchange goes.
std::vector<MadeSchedule> MembersOfAGroup(ScheduleShape shape, const std::vector<std::vector<int>>& shares) {
  std::vector<MadeSchedule> members;
  for (const int gradient_slots : {1, 2}) {
    for (const std::vector<int>& share : shares) {
      const auto number = static_cast<int>(members.size());
      const int items = static_cast<int>(share.size()) * shape.micro_batches;
      shape.held = share;
      shape.gradient_slots = gradient_slots;
      shape.push_slots = 1 + number % 2;
      shape.inner_slots = 1 + number % 3 * items;
      shape.swapped = number % 4 * items;
      shape.keeps_all = number % 5 == 4;
      shape.boundary_slots = 4 + number % 3 * items;
      members.emplace_back(shape);
      members.back().plan.keeps_logits = number % 2 == 1;
    }
  }
  return members;
}

TEST(ScheduleTest, AllMembersOfAGroupHaveTheirExchangesInOneOrderOverBothStreams) {
  constexpr int kVnodes = 12, kResident = 4;  // behind the counts of weight slots
  const std::vector<std::vector<int>> drops = {{}, {1}, {2, 4}, {1, 2, 3}};
  for (int members = 2; members <= 8; ++members) {
    for (const bool even : {true, false}) {
      const auto shares = SharesOf(kVnodes, members, even);
      for (int slots = 1; slots <= kResident; ++slots) {
        for (const std::vector<int>& dropped : drops) {
          ScheduleShape shape{.layers = 4,
                              .vnodes = kVnodes,
                              .micro_batches = 2,
                              .weight_slots = slots,
                              .resident = slots == kResident,
                              .frozen = {2},
                              .dropped = dropped};
          for (const MadeSchedule& made : MembersOfAGroup(shape, shares)) {
            shape.group_rounds = std::max(shape.group_rounds, static_cast<int>(made.group_nodes().size()));
          }
          shape.held = shares.front();
          const std::vector<std::string> want = ExchangeOrder(MadeSchedule(shape));
          for (const MadeSchedule& made : MembersOfAGroup(shape, shares)) {
            ASSERT_EQ(ExchangeOrder(made), want) << members << " members; " << Print(made.shape);
          }
        }
      }
    }
  }
}

TEST(ScheduleTest, APullWaitsForNothingButItsSlot) {
  const MadeSchedule made({.layers = 4, .vnodes = 2, .micro_batches = 2});
  const std::vector<RelayStep> steps = made.Build();
  int pulls = 0;
  for (const RelayStep& step : steps) {
    if (step.kind != Kind::kPull) continue;
    // Two slots: the first two wait for nothing, later ones at most for the last reader of the slot's weights.
    EXPECT_LE(step.waits_for.size(), pulls < 2 ? 0u : 1u) << DebugString(step, made.model);
    for (const int other : step.waits_for) {
      EXPECT_EQ(steps[static_cast<size_t>(other)].weights, step.weights);
      EXPECT_EQ(steps[static_cast<size_t>(other)].stream(), StreamId::kCompute);
    }
    ++pulls;
  }
}

TEST(ScheduleTest, InputsAreLoadedWhileTheMicroBatchBeforeIsComputed) {
  const MadeSchedule made({.layers = 3, .vnodes = 2, .micro_batches = 2});
  const std::vector<RelayStep> steps = made.Build();
  int last_compute = -1, before_last = -1;
  for (size_t i = 0; i < steps.size(); ++i) {
    const RelayStep& step = steps[i];
    if (step.kind == Kind::kForward || step.kind == Kind::kHead || step.kind == Kind::kBackward) {
      before_last = last_compute;
      last_compute = static_cast<int>(i);
    }
    if (step.kind != Kind::kLoadBoundary) continue;
    // A load that is listed behind turn t may wait for turn t - 1, never for t, but where a layer's first input is its
    // predecessor's only, last output.
    for (const int other : step.waits_for) EXPECT_LE(other, before_last) << DebugString(step, made.model);
  }
}

// A gradient takes as long to leave as compute for a turn or two.
TEST(ScheduleTest, InputsOfTheNextTurnsAreLoadedBeforeAGradientLeaves) {
  const MadeSchedule made({.layers = 5, .vnodes = 1, .micro_batches = 4, .boundary_slots = 10});
  std::map<int, int> loads;  // by layer, on the way back
  int last_turn = -1;        // of a visit whose gradient has not left yet
  int checked = 0;
  const std::vector<RelayStep> steps = made.Build();
  for (size_t i = 0; i < steps.size(); ++i) {
    const RelayStep& step = steps[i];
    if (step.kind == Kind::kLoadBoundary && step.backward) ++loads[step.layer.value()];
    if (step.kind == Kind::kBackward && step.micro_batch == 3) last_turn = static_cast<int>(i);
    if (step.kind == Kind::kLoadBoundary && last_turn >= 0) {
      for (const int other : step.waits_for) EXPECT_LT(other, last_turn) << DebugString(step, made.model);
    }
    if (step.kind == Kind::kPush) last_turn = -1;
    if (step.kind != Kind::kPush || step.layer.value() < 2 || step.layer.value() > 3) continue;
    EXPECT_GE(loads[step.layer.value() - 1], 3) << DebugString(step, made.model);
    ++checked;
  }
  EXPECT_EQ(checked, 2);
}

// Behind gradients and boundaries that leave, compute would wait for these.
TEST(ScheduleTest, TokensWaitForNoOtherStream) {
  for (const int micro_batches : {1, 2, 5}) {
    const MadeSchedule made(
        {.layers = 3, .vnodes = 2, .micro_batches = micro_batches, .documents = micro_batches == 2});
    int loads = 0;
    for (const RelayStep& step : made.Build()) {
      if (step.kind != Kind::kLoadTokens) continue;
      ++loads;
      EXPECT_EQ(step.stream(), StreamId::kCompute);
      EXPECT_THAT(step.waits_for, ::testing::IsEmpty()) << DebugString(step, made.model);
    }
    EXPECT_EQ(loads, 3 * 2 * micro_batches);  // embedding, head, and the embedding's gradient
  }
}

TEST(ScheduleTest, AForwardOnlyPassEndsWithLogits) {
  for (const bool resident : {false, true}) {
    MadeSchedule made({.layers = 2,
                       .vnodes = 3,
                       .micro_batches = 2,
                       .push_slots = 2,
                       .resident = resident,
                       .held = {0},
                       .depth_first = resident ? 2 : 0});
    made.pass.forward_only = true;
    made.pass.micro_batches = 1;
    const std::vector<RelayStep> steps = made.Build();
    EXPECT_EQ(steps.back().kind, Kind::kLogits);
    for (const RelayStep& step : steps) {
      EXPECT_NE(step.kind, Kind::kBackward);
      EXPECT_NE(step.kind, Kind::kPush);
      EXPECT_NE(step.kind, Kind::kZeroGradient);
    }
  }
}

// Golden: the smallest relay there is.
TEST(ScheduleTest, PrintsAsALine) {
  const MadeSchedule made({.layers = 1, .vnodes = 1, .micro_batches = 1});
  std::string text;
  for (const RelayStep& step : made.Build()) absl::StrAppend(&text, DebugString(step, made.model), "\n");
  EXPECT_EQ(text, R"(pull embedding weights 0
pull h.0 weights 1
load_tokens embedding vnode 0 micro-batch 0 tokens 0
forward embedding vnode 0 micro-batch 0 weights 0 tokens 0 output 0 after 0
pull head back weights 0 after 3
expand h.0 weights 1 after 1
forward h.0 vnode 0 micro-batch 0 weights 1 input 0 output 1 inner 0
zero_gradient head back vnode 0 gradient 0
start_record head back vnode 0 record 0
load_tokens head back vnode 0 micro-batch 0 tokens 0
head head back vnode 0 micro-batch 0 weights 0 tokens 0 input 1 output 2 gradient 0 record 0 starts gradient after 4
store_record head back vnode 0 record 0 after 10
emit_leaf head back vnode 0 node {0} gradient 0 push 0 flags 0
push head back vnode 0 node {0} push 0 flags 0 after 12
zero_gradient h.0 back vnode 0 gradient 0
recompute h.0 back vnode 0 micro-batch 0 weights 1 input 0 inner 0
backward h.0 back vnode 0 micro-batch 0 weights 1 input 0 output 2 inner 0 gradient 0 starts gradient
emit_leaf h.0 back vnode 0 node {0} gradient 0 push 0 flags 0 after 13
push h.0 back vnode 0 node {0} push 0 flags 0 after 17
zero_gradient embedding back vnode 0 gradient 0
load_tokens embedding back vnode 0 micro-batch 0 tokens 0
backward embedding back vnode 0 micro-batch 0 tokens 0 output 2 gradient 0 starts gradient
emit_leaf embedding back vnode 0 node {0} gradient 0 push 0 flags 0 after 18
push embedding back vnode 0 node {0} push 0 flags 0 after 22
)");
}

}  // namespace
}  // namespace eps::worker
