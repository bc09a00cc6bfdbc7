#include "gpu_worker/faults/relay_faults.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/model/model_spec.h"
#include "common/testing/status_matchers.h"
#include "gpu_worker/plan/relay_plan.h"
#include "gpu_worker/plan/schedule.h"
#include "gtest/gtest.h"

namespace eps::worker {
namespace {

using Kind = RelayStep::Kind;

ModelSpec FourBlocks() {
  ModelConfig config;
  config.num_layers = 4;
  config.d_model = 16;
  config.num_heads = 2;
  config.context = 8;
  config.vocab = 64;
  return *BuildModel(config);
}

// Two slots for whatever a pass needs; where they lie does not matter here.
RelayPlan Relayed() {
  RelayPlan plan;
  for (auto* slots : {&plan.weight_slots, &plan.push_slots, &plan.token_slots}) slots->resize(2);
  plan.gradient_slots.resize(1);
  plan.boundary_slots.resize(4);
  plan.inner_slots.resize(1);
  plan.inner.total = 4 * 4;
  plan.host_boundary_slots = 5 * 4;
  plan.max_pass_vnodes = plan.num_vnodes = 2;
  return plan;
}

class RelayFaultsTest : public testing::Test {
 protected:
  std::vector<RelayStep> Right() const {
    return BuildSchedule(model_, plan_, {.vnodes = {0, 1}, .num_vnodes = 2, .micro_batches = 2});
  }
  std::vector<RelayStep> Wrong(const std::string& fault) const {
    std::vector<RelayStep> steps = Right();
    const auto alter = ParseRelayFault(fault);
    EXPECT_TRUE(alter.ok()) << alter.status();
    (*alter)(model_, plan_, steps);
    return steps;
  }
  std::string Show(const RelayStep& step) const { return DebugString(step, model_); }

  const ModelSpec model_ = FourBlocks();
  RelayPlan plan_ = Relayed();
};

TEST_F(RelayFaultsTest, EveryFaultChangesAFewStepsOfItsLayerAlone) {
  for (const char* fault : {"stale_weights", "stale_weights_forward", "swap_stash"}) {
    const std::vector<RelayStep> right = Right(), wrong = Wrong(std::string(fault) + "@h.1");
    ASSERT_EQ(right.size(), wrong.size());
    int changed = 0;
    for (size_t i = 0; i < right.size(); ++i) {
      EXPECT_EQ(right[i].kind, wrong[i].kind);
      if (Show(right[i]) == Show(wrong[i])) continue;
      ++changed;
      EXPECT_EQ(model_.layer(right[i].layer).name, "h.1") << fault << ": " << Show(wrong[i]);
    }
    EXPECT_GT(changed, 0) << fault;
  }
}

TEST_F(RelayFaultsTest, ADroppedMicroBatchIsWipedAndTheNextOneStartsTheGradient) {
  const std::vector<RelayStep> right = Right();
  std::vector<RelayStep> wrong = Wrong("drop_micro_batch@h.2");
  ASSERT_EQ(wrong.size(), right.size() + 1);
  const auto wiped = std::adjacent_find(wrong.begin(), wrong.end(), [](const RelayStep& a, const RelayStep& b) {
    return a.kind == Kind::kBackward && b.kind == Kind::kZeroGradient;
  });
  ASSERT_NE(wiped, wrong.end());
  EXPECT_EQ(model_.layer(wiped->layer).name, "h.2");
  EXPECT_EQ(wiped->micro_batch, 0);
  const auto next = std::find_if(wiped + 1, wrong.end(), [&](const RelayStep& step) {
    return step.kind == Kind::kBackward && step.layer == wiped->layer && step.vnode == wiped->vnode;
  });
  ASSERT_NE(next, wrong.end());
  EXPECT_EQ(next->micro_batch, 1);
  EXPECT_TRUE(std::exchange(next->starts_gradient, false));
  // Every step waits for the same others as before.
  const auto at = static_cast<int>(wiped - wrong.begin()) + 1;
  wrong.erase(wrong.begin() + at);
  for (size_t i = 0; i < right.size(); ++i) {
    for (int& other : wrong[i].waits_for) other -= other > at ? 1 : 0;
    EXPECT_EQ(Show(right[i]), Show(wrong[i]));
  }
}

TEST_F(RelayFaultsTest, AResidentPlanAndAnUnknownLayerStayRight) {
  const auto shown = [&](const std::vector<RelayStep>& steps) {
    std::string text;
    for (const RelayStep& step : steps) text += Show(step) + "\n";
    return text;
  };
  EXPECT_EQ(shown(Wrong("swap_stash@h.9")), shown(Right()));
  plan_.resident = true;
  plan_.weight_slots.resize(model_.layers.size());
  plan_.boundary_slots.resize(model_.layers.size() * 4);
  plan_.host_boundary_slots = 0;
  EXPECT_EQ(shown(Wrong("stale_weights@h.1")), shown(Right()));
}

TEST_F(RelayFaultsTest, AnotherTextIsRefused) {
  for (const char* text : {"", "swap_stash", "swap_stash@", "nothing@h.1"}) {
    EXPECT_THAT(ParseRelayFault(text), StatusIs(absl::StatusCode::kInvalidArgument)) << text;
  }
}

}  // namespace
}  // namespace eps::worker
