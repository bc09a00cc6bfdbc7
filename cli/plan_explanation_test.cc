#include "cli/plan_explanation.h"

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "cli/cap_curve.h"
#include "cli/whole_plan.h"
#include "common/base/file_util.h"
#include "common/spec/run_config.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "gmock/gmock.h"
#include "gpu_worker/plan/profile.h"
#include "gtest/gtest.h"

namespace eps::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Of 8 blocks, in two vnodes of two micro-batches.
WholePlanRequest RequestFor(int64_t host_memory_bytes = 0) {
  const TempDir dir;
  EXPECT_OK(WriteFileAtomically(dir.File("run.textproto"), R"(
      model { layers: 8 d_model: 64 heads: 4 context: 128 vocab: 128 }
      data { path: "a.bin" } batch { virtual_nodes: 2 micro_batches: 2 micro_batch: 4 }
      optimizer { schedule { peak: 1 } } steps: 1)"));
  auto run = LoadRunConfig(dir.File("run.textproto"), {});
  EXPECT_OK(run.status());
  return {.run = *std::move(run), .host_memory_bytes = host_memory_bytes};
}

TEST(PlanExplanationTest, EveryBlockIsToldOnceWithAllOfItsMicroBatches) {
  WholePlanRequest request = RequestFor();
  ASSERT_OK_AND_ASSIGN(const WholePlan most, MakeWholePlan(request));
  request.device_memory_bytes = (most.smallest_cap_bytes + most.device.arena_bytes) / 2;
  ASSERT_OK_AND_ASSIGN(const WholePlan plan, MakeWholePlan(request));
  std::vector<std::pair<size_t, size_t>> told;
  ASSERT_OK_AND_ASSIGN(const PlanExplanation explanation,
                       Explain(request, plan, [&](size_t done, size_t all) { told.emplace_back(done, all); }));
  EXPECT_THAT(told, ::testing::ElementsAre(std::pair(0, 2), std::pair(1, 2), std::pair(2, 2)));
  ASSERT_FALSE(explanation.blocks.empty());
  EXPECT_EQ(explanation.blocks.front().first, "h.0");
  EXPECT_EQ(explanation.blocks.back().last, "h.7");
  int64_t kept = 0;
  for (const BlockPlaces& blocks : explanation.blocks) {
    EXPECT_EQ(blocks.kept + blocks.swapped + blocks.recomputed, blocks.depth_first ? 0 : 4);
    const int64_t count = 1 + std::stoi(blocks.last.substr(2)) - std::stoi(blocks.first.substr(2));
    kept += count * blocks.kept;
  }
  EXPECT_EQ(kept, plan.device.inner.kept);
  // All of it fits into a GiB.
  ASSERT_TRUE(explanation.seconds_with_more_device.has_value());
  EXPECT_LT(*explanation.seconds_with_more_device, plan.step.timeline.step_seconds);
  EXPECT_EQ(*explanation.seconds_with_more_device, most.step.timeline.step_seconds);
  EXPECT_THAT(ExplanationText(explanation, plan), HasSubstr("h.7"));
}

TEST(PlanExplanationTest, BlocksThatAreDepthFirstAreToldAsThat) {
  WholePlanRequest request = RequestFor();
  ASSERT_OK_AND_ASSIGN(const WholePlan most, MakeWholePlan(request));
  request.device_memory_bytes = (3 * most.smallest_cap_bytes + most.device.arena_bytes) / 4;
  ASSERT_OK_AND_ASSIGN(const WholePlan plan, MakeWholePlan(request));
  const int blocks = plan.device.depth_first_blocks;
  ASSERT_GT(blocks, 0);
  ASSERT_LT(blocks, 8);
  ASSERT_OK_AND_ASSIGN(const PlanExplanation explanation, Explain(request, plan));
  ASSERT_GE(explanation.blocks.size(), 2u);
  EXPECT_TRUE(explanation.blocks.back().depth_first);
  EXPECT_EQ(explanation.blocks.back().first, absl::StrCat("h.", 8 - blocks));
  EXPECT_EQ(explanation.blocks.back().last, "h.7");
  EXPECT_EQ(explanation.blocks[explanation.blocks.size() - 2].last, absl::StrCat("h.", 7 - blocks));
  EXPECT_THAT(ExplanationText(explanation, plan), HasSubstr("depth first: there and back"));
}

TEST(PlanExplanationTest, WhatHasAllThatItCanUseIsSaidToHave) {
  const WholePlanRequest request = RequestFor();
  ASSERT_OK_AND_ASSIGN(const WholePlan plan, MakeWholePlan(request));
  ASSERT_OK_AND_ASSIGN(const PlanExplanation explanation, Explain(request, plan));
  EXPECT_FALSE(explanation.seconds_with_more_device.has_value());
  EXPECT_FALSE(explanation.seconds_with_more_host.has_value());
  const std::string text = ExplanationText(explanation, plan);
  EXPECT_THAT(text, HasSubstr("h.0 to h.7"));
  EXPECT_THAT(text, HasSubstr("the plan has all that it can use"));
  EXPECT_THAT(text, Not(HasSubstr("recomputed")));
}

// All inner activations are kept, and boundaries go to the host.
TEST(PlanExplanationTest, APlanWhoseBoundariesLeaveTheDeviceCanUseMore) {
  WholePlanRequest request = RequestFor();
  request.run.relay.inner = InnerPolicy::kKeep;
  ASSERT_OK_AND_ASSIGN(const WholePlan most, MakeWholePlan(request));
  request.device_memory_bytes = most.smallest_cap_bytes;
  ASSERT_OK_AND_ASSIGN(const WholePlan plan, MakeWholePlan(request));
  ASSERT_TRUE(plan.device.inner.keeps_all());
  ASSERT_GT(plan.device.host_boundary_slots, 0);
  ASSERT_OK_AND_ASSIGN(const PlanExplanation explanation, Explain(request, plan));
  EXPECT_EQ(explanation.seconds_with_more_device, most.step.timeline.step_seconds);
  EXPECT_THAT(ExplanationText(explanation, plan), Not(HasSubstr("the plan has all that it can use")));
  // Where it is told that they do, it can not.
  request.run.relay.boundaries = BoundaryPolicy::kHost;
  ASSERT_OK_AND_ASSIGN(const WholePlan told, MakeWholePlan(request));
  ASSERT_OK_AND_ASSIGN(const PlanExplanation why, Explain(request, told));
  EXPECT_FALSE(why.seconds_with_more_device.has_value());
}

TEST(PlanExplanationTest, APlanIsExplainedAlsoWhereMoreMicroBatchesDoNotFit) {
  WholePlanRequest request = RequestFor();
  request.run.relay.inner = InnerPolicy::kKeep;
  ASSERT_OK_AND_ASSIGN(const WholePlan most, MakeWholePlan(request));
  request.device_memory_bytes = most.smallest_cap_bytes;
  ASSERT_OK_AND_ASSIGN(const WholePlan plan, MakeWholePlan(request));
  ASSERT_OK_AND_ASSIGN(const PlanExplanation explanation, Explain(request, plan));
  EXPECT_FALSE(explanation.hiding_is_known);
  EXPECT_THAT(ExplanationText(explanation, plan), HasSubstr("more micro-batches do not fit"));
}

// Weights come over a network that is very slow: only with many tokens is compute busy for longer.
TEST(PlanExplanationTest, TransfersHideFromTheTokensThatItSays) {
  WholePlanRequest request = RequestFor();
  request.run.transport = TransportChoice::kGrpc;
  request.run.relay.boundaries = BoundaryPolicy::kDevice;
  const auto busy = [&](int micro_batches) {
    request.run.batch.micro_batches = micro_batches;
    const auto plan = MakeWholePlan(request);
    EXPECT_OK(plan.status());
    return *plan;
  };
  const WholePlan plan = busy(2);
  ASSERT_OK_AND_ASSIGN(const PlanExplanation explanation, Explain(request, plan));
  ASSERT_TRUE(explanation.hiding_tokens.has_value());
  const double micro_batches = 2 * *explanation.hiding_tokens / static_cast<double>(plan.run.tokens_per_step());
  const auto most = busy(static_cast<int>(micro_batches) + 2).step.timeline;
  EXPECT_EQ(most.bound(), worker::Activity::kCompute);
  if (micro_batches > 2) {
    EXPECT_NE(busy(static_cast<int>(micro_batches) / 2).step.timeline.bound(), most.bound());
  }
}

TEST(CapCurveTest, MoreMemoryIsNeverSlowerAndNoPolicyBeatsThePlan) {
  const WholePlanRequest request = RequestFor(int64_t{1} << 30);
  size_t told = 0;
  ASSERT_OK_AND_ASSIGN(const std::vector<CapPoint> points,
                       CapCurve(request, [&](size_t done, size_t) { told = done; }));
  EXPECT_EQ(told, points.size());
  // What the search may miss (bench/run plan).
  constexpr double kMissed = 1.02;
  for (size_t i = 0; i < points.size(); ++i) {
    if (i > 0) {
      EXPECT_GT(points[i].cap_bytes, points[i - 1].cap_bytes);
      EXPECT_LE(points[i].planned, kMissed * points[i - 1].planned);
    }
    ASSERT_TRUE(points[i].recomputed.has_value() && points[i].swapped.has_value());
    EXPECT_LE(points[i].planned, kMissed * *points[i].recomputed);
    EXPECT_LE(points[i].planned, kMissed * *points[i].swapped);
  }
  EXPECT_LT(points.back().planned, *points.back().recomputed);
  const std::string svg = CapCurveSvg("a curve", points);
  EXPECT_THAT(svg, HasSubstr("everything swapped"));
  EXPECT_THAT(svg, HasSubstr("device memory (MiB)"));
}

}  // namespace
}  // namespace eps::cli
