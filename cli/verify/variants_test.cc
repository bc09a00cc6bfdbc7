#include "cli/verify/variants.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "common/spec/run_config.h"
#include "common/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps::cli {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

RunConfig TinyRun() {
  RunConfig run;
  run.model.num_layers = 4;
  run.model.d_model = 16;
  run.model.num_heads = 2;
  run.model.context = 8;
  run.model.vocab = 64;
  run.batch = {.virtual_nodes = 2, .micro_batches = 2, .micro_batch = 1};
  run.steps = 4;
  return run;
}

std::vector<Variant> Planned(const VariantRequest& request) {
  const auto variants = PlanVariants(request);
  EXPECT_TRUE(variants.ok()) << variants.status();
  return variants.ok() ? *variants : std::vector<Variant>();
}

std::vector<std::string> Names(const std::vector<Variant>& variants) {
  std::vector<std::string> names;
  for (const Variant& variant : variants) names.push_back(variant.name.substr(0, variant.name.find(" (")));
  return names;
}

const Variant& Named(const std::vector<Variant>& variants, const std::string& name) {
  return *std::find_if(variants.begin(), variants.end(),
                       [&](const Variant& variant) { return absl::StartsWith(variant.name, name); });
}

TEST(VariantsTest, ARunWithMuchRoomIsComparedWithEverythingElse) {
  EXPECT_THAT(Names(Planned({.run = TinyRun()})),
              ElementsAre("as the RunSpec says", "everything resident", "relayed, all blocks depth first",
                          "relayed, smallest cap", "everything recomputed", "everything swapped", "2 workers",
                          "2 workers as a group", "over gRPC"));
}

TEST(VariantsTest, WhatTheBaselineIsAlreadyIsNotRunAgain) {
  RunConfig run = TinyRun();
  run.relay.resident = true;
  run.relay.inner = InnerPolicy::kRecompute;
  run.transport = TransportChoice::kGrpc;
  EXPECT_THAT(Names(Planned({.run = run})),
              ElementsAre("as the RunSpec says", "relayed, all blocks depth first", "relayed, smallest cap",
                          "nothing recomputed", "everything swapped", "2 workers", "2 workers as a group",
                          "through shared memory"));
}

TEST(VariantsTest, WhatIsKeptSwappedOrRecomputedIsSoOfAllBlocksWhateverTheRunSays) {
  RunConfig run = TinyRun();
  run.relay.depth_first_blocks = 4;
  const std::vector<Variant> variants = Planned({.run = run});
  EXPECT_THAT(Names(variants), ElementsAre("as the RunSpec says", "everything resident", "relayed, smallest cap",
                                           "everything recomputed", "nothing recomputed", "everything swapped",
                                           "2 workers", "2 workers as a group", "over gRPC"));
  for (const char* name : {"relayed, smallest cap", "everything recomputed", "nothing recomputed", "everything swapped",
                           "2 workers as a group"}) {
    EXPECT_THAT(Named(variants, name).set, ::testing::Contains("relay.depth_first_blocks=0")) << name;
  }
}

TEST(VariantsTest, ARunThatSwapsEverythingIsNotSwappedAgain) {
  RunConfig run = TinyRun();
  run.relay.inner = InnerPolicy::kSwap;
  run.relay.boundaries = BoundaryPolicy::kHost;
  EXPECT_THAT(Names(Planned({.run = run, .topics = {VerifyTopic::kSwap}})),
              ElementsAre("as the RunSpec says", "nothing swapped"));
}

TEST(VariantsTest, WhatHasNoRoomIsSkippedAndSaysWhatItNeeds) {
  const int64_t smallest = Named(Planned({.run = TinyRun()}), "relayed, smallest cap").device_memory_bytes;
  ASSERT_GT(smallest, 0);
  RunConfig run = TinyRun();
  run.relay.weight_slots = 1;
  const std::vector<Variant> variants = Planned({.run = run, .device_memory_bytes = smallest});
  for (const char* name : {"everything resident", "nothing recomputed", "nothing swapped"}) {
    EXPECT_THAT(Named(variants, name).skipped, AllOf(HasSubstr("needs at least"), Not(HasSubstr("less would do"))))
        << name;
  }
  EXPECT_EQ(Named(variants, "2 workers").skipped, "");
  EXPECT_THAT(PlanVariants({.run = run, .device_memory_bytes = smallest - 1}),
              StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST(VariantsTest, TopicsChoose) {
  RunConfig three = TinyRun();
  three.batch.virtual_nodes = 3;
  EXPECT_THAT(Names(Planned({.run = three, .workers = 3, .topics = {VerifyTopic::kWorkers}})),
              ElementsAre("as the RunSpec says", "3 workers", "3 workers as a group"));
}

TEST(VariantsTest, OneVirtualNodeLeavesNothingForASecondWorker) {
  RunConfig run = TinyRun();
  run.batch.virtual_nodes = 1;
  EXPECT_THAT(Named(Planned({.run = run}), "2 workers").skipped, HasSubstr("virtual_nodes"));
}

TEST(VariantsTest, OnAGpuWorkIsEnqueuedAsGraphsToo) {
  RunConfig run = TinyRun();
  const VariantRequest request{.run = run, .device = "cuda", .topics = {VerifyTopic::kRelay}};
  EXPECT_THAT(Names(Planned(request)),
              ElementsAre("as the RunSpec says", "everything resident", "work that comes again as graphs",
                          "relayed, all blocks depth first", "relayed, smallest cap"));
}

// Whatever else a variant sets, its bits are the RunSpec's.
TEST(VariantsTest, VariantsSetNothingThatChangesBits) {
  for (const Variant& variant : Planned({.run = TinyRun()})) {
    for (const std::string& field : variant.set) {
      EXPECT_TRUE(absl::StartsWith(field, "relay.") || absl::StartsWith(field, "transport=")) << field;
    }
  }
}

TEST(VariantsTest, MoreWorkersThanVirtualNodesAreRefused) {
  RunConfig run = TinyRun();
  EXPECT_THAT(
      PlanVariants({.run = run, .workers = 3}),
      StatusIs(absl::StatusCode::kInvalidArgument, "--workers: 3, must be 2 to 2, as batch.virtual_nodes is 2"));
  run.batch.virtual_nodes = 1;  // two is what nobody asked for
  EXPECT_THAT(Named(Planned({.run = run}), "2 workers").skipped, HasSubstr("batch.virtual_nodes is 1"));
}

}  // namespace
}  // namespace eps::cli
