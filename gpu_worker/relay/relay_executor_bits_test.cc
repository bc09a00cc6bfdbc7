#include "gpu_worker/relay/relay_executor.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/ids.h"
#include "common/choices/choices.h"
#include "common/spec/graph_use.h"
#include "common/spec/run_config.h"
#include "common/tensor/dtype.h"
#include "common/testing/status_matchers.h"
#include "gpu_worker/plan/arena_layout.h"
#include "gpu_worker/relay/relay_executor_testing.h"
#include "gpu_worker/transport/in_process.h"
#include "gtest/gtest.h"

namespace eps::worker {
namespace {

TEST_F(RelayExecutorTest, AHeadThatKeepsItsLogitsChangesNoBit) {
  RunConfig run = SmallRun();
  run.model = {.num_layers = 1, .d_model = 8, .num_heads = 2, .context = 5, .vocab = 9001, .init_seed = 1};
  run.batch = {.virtual_nodes = 2, .micro_batches = 2, .micro_batch = 1};
  for (const Dtype wire : {Dtype::kF32, Dtype::kBf16}) {
    run.precision = {.wire = wire, .gradients = wire};
    Use(run);
    for (const std::optional<Dtype> cuda : {std::optional<Dtype>(), std::optional<Dtype>(wire)}) {
      Way way{.cuda = cuda, .choice = PlanChoice{.keeps_logits = false}};
      const StepOutcome computed_twice = RunStep(way);
      way.choice->keeps_logits = true;
      ExpectSameBits(computed_twice, RunStep(way), absl::StrCat(DtypeName(wire), cuda.has_value() ? ", cuda" : ""));
    }
  }
}

TEST_F(RelayExecutorTest, WithFrozenTensorsNoChoiceOfThePlanChangesABit) {
  const std::vector<std::vector<int>> two = {{0, 1, 2}, {3}};
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16}) {
    for (const RunConfig& run : FrozenRuns(dtype)) {
      Use(run);
      const StepOutcome want = RunStep({});
      const std::string frozen = run.model.freeze[0];
      ExpectSameBits(want, RunStep({.inner = InnerPolicy::kKeep, .weight_slots = 1}), frozen + ", kept");
      ExpectSameBits(want, RunStep({.inner = InnerPolicy::kAuto, .more_bytes = -1, .workers = two}), frozen + ", all");
      ExpectSameBits(want, RunStep({.more_bytes = -1, .resident = true}), frozen + ", resident");
      ExpectSameBits(want, RunStep({.own_memory = true}), frozen + ", memory of its own");
      ExpectSameBits(want, RunStep({.in_place = true}), frozen + ", in place");
      ExpectSameBits(want, RunStep({.own_memory = true, .in_place = true}), frozen + ", copied from where it lies");
      if (dtype != Dtype::kF32) continue;  // in a group, sums are what leaves it
      ExpectSameBits(want, RunStep({.own_memory = true, .workers = {{0, 1}, {2, 3}}, .group = true}),
                     frozen + ", a group");
      ExpectSameBits(want, RunStep({.in_place = true, .workers = {{0, 1}, {2, 3}}, .group = true}),
                     frozen + ", a group in place");
    }
  }
}

TEST_F(RelayExecutorTest, WithQuantizedTensorsNoChoiceOfThePlanChangesABit) {
  const std::vector<std::vector<int>> two = {{0, 1, 2}, {3}};
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16, Dtype::kF16}) {
    for (const RunConfig& run : QuantizedRuns(dtype)) {
      Use(run);
      const StepOutcome want = RunStep({});
      const std::string what = absl::StrCat(DtypeName(dtype), ", ", run.model.freeze.size(), " patterns, ");
      ExpectSameBits(want, RunStep({.inner = InnerPolicy::kKeep, .weight_slots = 1}), what + "kept");
      ExpectSameBits(want, RunStep({.weight_slots = 4, .workers = two}), what + "two workers");
      ExpectSameBits(want, RunStep({.more_bytes = -1, .resident = true}), what + "resident");
      ExpectSameBits(want, RunStep({.own_memory = true}), what + "memory of its own");
      ExpectSameBits(want, RunStep({.in_place = true}), what + "in place");
      ExpectSameBits(want, RunStep({.own_memory = true, .in_place = true}), what + "copied from where it lies");
      const StepOutcome on_gpu = RunStep({.cuda = dtype});
      ExpectSameBits(on_gpu, RunStep({.more_bytes = -1, .resident = true, .cuda = dtype}), what + "resident on a GPU");
      ExpectSameBits(on_gpu, RunStep({.in_place = true, .cuda = dtype, .workers = two}), what + "two on a GPU");
      if (dtype != Dtype::kF32) continue;  // in a group, sums are what leaves it
      ExpectSameBits(want, RunStep({.own_memory = true, .workers = {{0, 1}, {2, 3}}, .group = true}), what + "a group");
      ExpectSameBits(want, RunStep({.in_place = true, .workers = {{0, 1}, {2, 3}}, .group = true}),
                     what + "a group in place");
    }
  }
}

TEST_F(RelayExecutorTest, WithBlocksDroppedNoChoiceOfThePlanChangesABit) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16, Dtype::kF16}) {
    for (const auto& dropped : std::vector<std::vector<LayerId>>{
             {LayerId(1)}, {LayerId(4)}, {LayerId(2), LayerId(3)}, {LayerId(1), LayerId(2), LayerId(4)}}) {
      RunConfig run = SmallRun(dtype);
      run.model.num_layers = 4;
      run.model.embedding_dropout = run.model.attention_dropout = run.model.residual_dropout = 0.1;
      UseWithDropped(run, dropped);
      const StepOutcome want = RunStep({});
      const std::string what = absl::StrCat(DtypeName(dtype), ", ", dropped.size(), " dropped, ");
      ExpectSameBits(want, RunStep({.inner = InnerPolicy::kKeep, .weight_slots = 1}), what + "kept");
      ExpectSameBits(want, RunStep({.inner = InnerPolicy::kAuto, .more_bytes = 100000}), what + "some kept");
      ExpectSameBits(want, RunStep({.inner = InnerPolicy::kSwap, .more_bytes = 50000, .own_memory = true}),
                     what + "swapped");
      ExpectSameBits(want, RunStep({.more_bytes = -1, .resident = true}), what + "resident");
      ExpectSameBits(want, RunStep({.own_memory = true, .in_place = true}), what + "copied from where they lie");
      ExpectSameBits(want, RunStep({.max_pass_vnodes = 1}), what + "passes of one vnode");
      ExpectSameBits(want, RunStep({.inner = InnerPolicy::kAuto, .more_bytes = -1, .workers = {{0, 1, 2}, {3}}}),
                     what + "two workers");
      if (dtype != Dtype::kF32) continue;
      ExpectSameBits(want, RunStep({.own_memory = true, .workers = {{0, 1}, {2, 3}}, .group = true}), what + "a group");
    }
  }
}

TEST_F(RelayExecutorTest, NoChoiceOfThePlanChangesABit) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16, Dtype::kF16}) {
    RunConfig run = SmallRun(dtype);
    run.model.embedding_dropout = run.model.attention_dropout = run.model.residual_dropout = 0.1;
    Use(run);
    const StepOutcome want = RunStep({});
    const std::string name(DtypeName(dtype));
    ExpectSameBits(want, RunStep({}), name + " again");
    ExpectSameBits(want, RunStep({.threads = 1}), name + " one thread");
    ExpectSameBits(want, RunStep({.inner = InnerPolicy::kKeep}), name + " keep");
    ExpectSameBits(want, RunStep({.inner = InnerPolicy::kAuto, .more_bytes = 200000}), name + " keep some");
    ExpectSameBits(want, RunStep({.inner = InnerPolicy::kAuto, .more_bytes = -1}), name + " no cap");
    ExpectSameBits(want, RunStep({.more_bytes = 60000}), name + " more gradient slots");
    ExpectSameBits(want, RunStep({.more_bytes = -1}), name + " most gradient slots");
    for (const int weight_slots : {1, 3, 5}) {
      ExpectSameBits(want, RunStep({.weight_slots = weight_slots}), absl::StrCat(name, " weight slots ", weight_slots));
    }
    ExpectSameBits(want, RunStep({.resident = true}), name + " resident");
    ExpectSameBits(want, RunStep({.inner = InnerPolicy::kKeep, .more_bytes = -1, .resident = true}),
                   name + " resident, kept");
    for (const bool own_memory : {false, true}) {
      for (const int64_t more_bytes : {0, 100000, -1}) {
        const std::string which = absl::StrCat(name, own_memory ? ", memory of its own, " : " ", more_bytes, " more");
        Way way{.inner = InnerPolicy::kSwap, .more_bytes = more_bytes, .own_memory = own_memory};
        way.boundaries = BoundaryPolicy::kHost;
        ExpectSameBits(want, RunStep(way), which + " swapped");
        way.inner = InnerPolicy::kAuto;
        ExpectSameBits(want, RunStep(way), which + " boundaries on the host");
        way.boundaries = BoundaryPolicy::kDevice;
        way.inner = InnerPolicy::kRecompute;
        ExpectSameBits(want, RunStep(way), which + " boundaries on the device");
      }
    }
    ExpectSameBits(want, RunStep({.max_pass_vnodes = 1}), name + " passes of one vnode");
    ExpectSameBits(want, RunStep({.inner = InnerPolicy::kKeep, .more_bytes = -1, .max_pass_vnodes = 3}),
                   name + " passes of three vnodes");
    ExpectSameBits(want, RunStep({.own_memory = true}), name + " memory of its own");
    ExpectSameBits(want, RunStep({.in_place = true}), name + " weights in place");
    ExpectSameBits(want, RunStep({.own_memory = true, .in_place = true}), name + " copied from where they lie");
  }
}

// Of each micro-batch in turn: the gradients of all these layers are under way, and leave, side by side.
TEST_F(RelayExecutorTest, BlocksThatAreDepthFirstChangeNoBit) {
  const std::vector<std::vector<int>> two = {{0, 2}, {1, 3}};
  for (const auto& [dtype, micro_batches] :
       {std::pair(Dtype::kF32, 2), {Dtype::kBf16, 2}, {Dtype::kF16, 2}, {Dtype::kF32, 1}, {Dtype::kBf16, 1}}) {
    RunConfig run = SmallRun(dtype);
    run.batch.micro_batches = micro_batches;
    run.model.embedding_dropout = run.model.attention_dropout = run.model.residual_dropout = 0.1;
    for (const char* freeze : {"", "transformer.h.2.*", "transformer.h.0.*", "transformer.ln_f.*"}) {
      if (*freeze != 0 && dtype != Dtype::kF32) continue;
      run.model.freeze.clear();
      if (*freeze != 0) run.model.freeze.push_back(freeze);
      Use(run);
      const StepOutcome want = RunStep({});
      for (const bool own_memory : {false, true}) {
        for (const auto& [gradient_slots, blocks] : {std::pair(1, 1), {3, 1}, {1, 2}, {3, 2}}) {
          const int64_t kept = gradient_slots == 1 ? 3 : 0;
          Way way{.inner = InnerPolicy::kAuto, .own_memory = own_memory};
          way.choice = PlanChoice{.inner_slots = kept + blocks + 1,
                                  .kept_inner = kept,
                                  .swapped_inner = 2,
                                  .weight_slots = gradient_slots == 1 ? 1 : 2,
                                  .gradient_slots = gradient_slots,
                                  .push_slots = gradient_slots == 1 ? 2 : 1,
                                  .depth_first_blocks = blocks};
          const std::string which =
              absl::StrCat(DtypeName(dtype), ", ", micro_batches, " micro-batches, frozen '", freeze, "', ",
                           gradient_slots, " slots, ", kept, " kept, ", blocks, " blocks depth first");
          ExpectSameBits(want, RunStep(way), which);
          way.workers = two;
          ExpectSameBits(want, RunStep(way), which + ", two workers");
          way.max_pass_vnodes = 1;
          ExpectSameBits(want, RunStep(way), which + ", passes of one vnode");
        }
      }
    }
  }
}

// Only the first slots have room for embedding and head: of weights that are copied, and of gradients. These leave from
// weight slots where they can.
TEST_F(RelayExecutorTest, TablesThatAreLargerThanBlocksChangeNoBit) {
  RunConfig run = SmallRun(Dtype::kBf16);
  run.model.num_layers = 5;
  run.model.vocab = 700;
  for (const int vnodes : {1, 4}) {
    run.batch.virtual_nodes = vnodes;
    Use(run);
    const StepOutcome want = RunStep({.resident = true});
    for (const bool own_memory : {false, true}) {
      for (const int weight_slots : {1, 2, 3, 4}) {
        for (const int blocks : {0, 2, 5}) {
          Way way{.inner = InnerPolicy::kAuto, .own_memory = own_memory};
          way.choice = PlanChoice{.inner_slots = blocks + 1,
                                  .weight_slots = weight_slots,
                                  .gradient_slots = vnodes == 1 ? 1 : 1 + weight_slots % 2 * 2,
                                  .push_slots = 1 + weight_slots % 3,
                                  .depth_first_blocks = blocks};
          const std::string which = absl::StrCat(vnodes, " vnodes, ", weight_slots, " slots, ", blocks,
                                                 " blocks depth first", own_memory ? ", memory of its own" : "");
          ExpectSameBits(want, RunStep(way), which);
          if (vnodes == 1) continue;
          way.workers = {{0, 2}, {1, 3}};
          ExpectSameBits(want, RunStep(way), which + ", two workers");
        }
      }
    }
  }
}

TEST_F(RelayExecutorTest, OnCudaNoChoiceOfThePlanNorOfWorkersChangesABit) {
  for (const Dtype act : {Dtype::kF32, Dtype::kBf16, Dtype::kF16}) {
    RunConfig run = SmallRun(act);
    run.model.embedding_dropout = run.model.attention_dropout = run.model.residual_dropout = 0.1;
    Use(run);
    const StepOutcome want = RunStep({.cuda = act});
    const std::string name = absl::StrCat("cuda ", std::string(DtypeName(act)));
    ExpectSameBits(want, RunStep({.cuda = act}), name + " again");
    ExpectSameBits(want, RunStep({.inner = InnerPolicy::kKeep, .cuda = act}), name + " keep");
    ExpectSameBits(want, RunStep({.inner = InnerPolicy::kAuto, .more_bytes = 200000, .cuda = act}),
                   name + " keep some");
    ExpectSameBits(want, RunStep({.inner = InnerPolicy::kKeep, .more_bytes = -1, .resident = true, .cuda = act}),
                   name + " resident, kept");
    ExpectSameBits(want, RunStep({.weight_slots = 3, .max_pass_vnodes = 1, .cuda = act}),
                   name + " three weight slots, passes of one vnode");
    ExpectSameBits(want, RunStep({.in_place = true, .cuda = act}), name + " copied from where they lie");
    ExpectSameBits(want, RunStep({.cuda = act, .workers = {{0, 1}, {2}, {3}}}), name + " three workers");
    ExpectSameBits(
        want,
        RunStep({.in_place = true, .cuda = act, .traits = {.most_pinned_bytes = 60000, .has_fused_attention = true}}),
        name + " with little memory pinned");
  }
}

// Step after step on one executor each, as graphs are of what comes again, with dropout under other keys. Boundaries on
// the host and swapped activations are copied between what graphs hold.
TEST_F(RelayExecutorTest, GraphsChangeNoBit) {
  for (const InnerPolicy inner : {InnerPolicy::kRecompute, InnerPolicy::kKeep, InnerPolicy::kSwap}) {
    int64_t launched_without_dropout = 0;
    for (const double dropout : {0.0, 0.1}) {
      RunConfig run = SmallRun(Dtype::kBf16);
      run.model.embedding_dropout = run.model.residual_dropout = run.model.attention_dropout = dropout;
      Use(run);
      std::atomic<int64_t> launched{0};
      Way way{.inner = inner, .more_bytes = inner == InnerPolicy::kKeep ? -1 : 0, .cuda = Dtype::kBf16};
      way.boundaries = inner == InnerPolicy::kKeep ? BoundaryPolicy::kAuto : BoundaryPolicy::kHost;
      const std::vector<StepOutcome> want = RunSteps(way);
      way.graphs = GraphUse::kAlways;
      way.traits.graphs_launched = &launched;
      const std::vector<StepOutcome> got = RunSteps(way);
      const std::string what = absl::StrCat("inner ", static_cast<int>(inner), ", dropout ", dropout, ", step ");
      for (size_t i = 0; i < want.size(); ++i) ExpectSameBits(want[i], got[i], absl::StrCat(what, i));
      if (dropout == 0) {
        launched_without_dropout = launched;
        EXPECT_GT(launched, 0) << what;
      } else {
        // An evaluation drops nothing, and is other work than a forward pass.
        EXPECT_GT(launched, launched_without_dropout / 2) << what;
      }
    }
  }
}

TEST_F(RelayExecutorTest, OnCudaFusedAttentionGivesTheGradientsAndTheSameBits) {
  RunConfig run = SmallRun(Dtype::kBf16);
  run.model.residual_dropout = 0.1;
  Use(run);
  const Dtype act = Dtype::kBf16;
  const StepOutcome want = RunStep({.cuda = act});
  ExpectSameBits(want, RunStep({.inner = InnerPolicy::kKeep, .cuda = act}), "keep");
  ExpectSameBits(want, RunStep({.inner = InnerPolicy::kKeep, .more_bytes = -1, .resident = true, .cuda = act}),
                 "resident, kept");
  ExpectSameBits(want, RunStep({.cuda = act, .workers = {{0, 1}, {2}, {3}}}), "three workers");
  RunConfig in_fp32 = SmallRun();
  in_fp32.model.residual_dropout = 0.1;
  Use(in_fp32);
  ExpectNearReference(RunStep({.cuda = act}), 0.04, 0.004);  // as CudaGivesTheGradientsOfTheWholeModel
}

// In 16 bits attention is the library's: a window of Llama's, documents of the classifier's, dropout of all.
TEST_F(RelayExecutorTest, OfOtherFamiliesNoChoiceOfThePlanNorOfWorkersChangesABit) {
  for (const auto& [run, cuda] : {std::pair(LlamaRun(Dtype::kBf16), std::optional<Dtype>()),
                                  std::pair(LlamaRun(Dtype::kBf16), std::optional(Dtype::kBf16)),
                                  std::pair(ExpertsRun(Dtype::kBf16), std::optional<Dtype>()),
                                  std::pair(ExpertsRun(Dtype::kBf16), std::optional(Dtype::kBf16)),
                                  std::pair(BertRun(Dtype::kBf16), std::optional<Dtype>()),
                                  std::pair(BertRun(Dtype::kBf16), std::optional(Dtype::kBf16)),
                                  std::pair(ClassifierRun(Dtype::kBf16), std::optional<Dtype>()),
                                  std::pair(ClassifierRun(Dtype::kBf16), std::optional(Dtype::kBf16)),
                                  std::pair(DpoRun(Dtype::kBf16), std::optional<Dtype>()),
                                  std::pair(DpoRun(Dtype::kBf16), std::optional(Dtype::kBf16)),
                                  std::pair(SimPoRun(Dtype::kBf16), std::optional<Dtype>()),
                                  std::pair(SimPoRun(Dtype::kBf16), std::optional(Dtype::kBf16))}) {
    Use(run);
    const StepOutcome want = RunStep({.cuda = cuda});
    ExpectSameBits(want, RunStep({.inner = InnerPolicy::kKeep, .cuda = cuda}), "keep");
    ExpectSameBits(want, RunStep({.inner = InnerPolicy::kKeep, .more_bytes = -1, .resident = true, .cuda = cuda}),
                   "resident, kept");
    ExpectSameBits(want, RunStep({.weight_slots = 3, .max_pass_vnodes = 1, .cuda = cuda}), "passes of one vnode");
    ExpectSameBits(want, RunStep({.in_place = true, .cuda = cuda}), "in place");
    ExpectSameBits(want, RunStep({.cuda = cuda, .workers = {{0, 1}, {2}, {3}}}), "three workers");
  }
}

TEST_F(RelayExecutorTest, WorkersThatPreferOtherAlgorithmsFollowOneChoiceToTheBit) {
  const std::vector<std::string> rising = {"rising", "falling"}, falling = {"falling", "rising"};
  constexpr Dtype kAct = Dtype::kBf16;
  Use(SmallRun(kAct));
  const StepOutcome alone = RunStep({.cuda = kAct, .algorithms = {rising}});
  // Left to themselves they give other bits: what they follow matters.
  const StepOutcome other = RunStep({.cuda = kAct, .algorithms = {falling}});
  EXPECT_NE(alone.use_gradients[1][0], other.use_gradients[1][0]);
  const Choices made = ChoicesOf(model_, run_, {.cuda = kAct, .algorithms = {rising}}, ChoiceRule::kFirst);
  ExpectSameBits(alone, RunStep({.cuda = kAct, .algorithms = {falling}, .choices = made}), "told");
  ExpectSameBits(
      alone,
      RunStep({.cuda = kAct, .workers = {{0, 1}, {2}, {3}}, .algorithms = {rising, falling, falling}, .choices = made}),
      "three workers");
}

TEST_F(RelayExecutorTest, ASurveyFindsEveryProductOfEveryPlan) {
  // A vocabulary of two chunks, whose products have other shapes.
  RunConfig run = SmallRun(Dtype::kBf16);
  run.model = {.num_layers = 2, .d_model = 8, .num_heads = 2, .context = 5, .vocab = 4100, .init_seed = 1};
  run.batch = {.virtual_nodes = 3, .micro_batches = 2, .micro_batch = 1};
  Use(run);
  const Way least = {.cuda = Dtype::kBf16};
  const Choices made = ChoicesOf(model_, run_, least, ChoiceRule::kFirst);
  const StepOutcome want = RunStep(least);
  // A product without a choice would be an error.
  for (Way way : {least, Way{.inner = InnerPolicy::kKeep, .more_bytes = -1, .resident = true, .cuda = Dtype::kBf16},
                  Way{.more_bytes = -1, .weight_slots = 3, .max_pass_vnodes = 1, .cuda = Dtype::kBf16}}) {
    EXPECT_EQ(ChoicesOf(model_, run_, way, ChoiceRule::kFirst), made);
    way.choices = made;
    ExpectSameBits(want, RunStep(way), "told");
  }
}

TEST_F(RelayExecutorTest, ChoicesThatWereTriedLeaveAStepAsItWas) {
  Use(SmallRun(Dtype::kBf16));
  const Way way = {.cuda = Dtype::kBf16, .algorithms = {{"rising", "falling"}}};
  const StepOutcome want = RunStep(way);
  std::unique_ptr<InProcessStore> store = NewStore();
  Worker worker(model_, run_, way, *store);
  worker.executor->Survey(*worker.device->survey());
  // Runs products all over the arena, before the first step.
  ASSERT_OK_AND_ASSIGN(Choices made, worker.device->Choose(ChoiceRule::kFastest));
  for (auto& [key, value] : made) value = value == "falling" ? "rising" : value;  // attention's stays
  ASSERT_OK(worker.device->Follow(made));
  const auto result = worker.executor->Run(all_);
  ASSERT_OK(result);
  StepOutcome outcome;
  for (const VnodeRecord& record : result->records) outcome.records[record.vnode] = record;
  Collect(*store, outcome);
  ExpectSameBits(want, outcome, "after a trial");
  EXPECT_EQ(worker.device->arena_high_water_bytes(), worker.plan.arena_bytes);
}

TEST_F(RelayExecutorTest, NoSplitOfVnodesAmongWorkersChangesABit) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16, Dtype::kF16}) {
    RunConfig run = SmallRun(dtype);
    run.batch.virtual_nodes = 5;
    run.model.residual_dropout = 0.1;
    Use(run);
    const StepOutcome want = RunStep({.more_bytes = -1});
    const std::vector<std::vector<std::vector<int>>> splits = {
        {{0, 1}, {2, 3, 4}}, {{0}, {1}, {2, 3}, {4}}, {{0, 2, 4}, {1, 3}}, {{4}, {0, 1, 2, 3}}};
    for (const auto& split : splits) {
      for (const int64_t more_bytes : {0, -1}) {
        ExpectSameBits(want, RunStep({.inner = InnerPolicy::kAuto, .more_bytes = more_bytes, .workers = split}),
                       absl::StrCat(std::string(DtypeName(dtype)), " ", split.size(), " workers"));
      }
    }
  }
}

TEST_F(RelayExecutorTest, ALayerThatLeavesInPiecesGivesTheSameBits) {
  Use(RunOfSeveralChunks(Dtype::kBf16, 4));
  ASSERT_EQ(model_.blob(BlobId(0)).num_chunks(), 4);  // the last one short
  ASSERT_EQ(model_.blob(model_.layers[1].blobs[0].blob).num_chunks(), 2);
  const StepOutcome whole = RunStep({});
  EXPECT_EQ(whole.pushes, (2 + 2 + 2) * 4);
  constexpr int64_t kTwoChunks = 2 * kChunkElems * 2;  // of bf16
  const std::pair<std::string, Way> ways[] = {
      {"cpu", {.push_piece_bytes = kTwoChunks}},
      {"memory of its own", {.own_memory = true, .push_piece_bytes = kTwoChunks}},
      {"in the inbox", {.in_place = true, .push_piece_bytes = kTwoChunks}},
      {"two workers", {.workers = {{0, 3}, {1, 2}}, .push_piece_bytes = kTwoChunks}},
  };
  for (const auto& [name, way] : ways) {
    const StepOutcome pieces = RunStep(way);
    ExpectSameBits(whole, pieces, name);
    EXPECT_EQ(pieces.pushes, (3 + 2 + 3) * 4) << name;  // of the table two, the blocks and the small ones whole
  }
  // A sum in fp32 has twice the bytes.
  const StepOutcome sum = RunStep({.more_bytes = -1, .push_piece_bytes = kTwoChunks});
  ExpectSameBits(whole, sum, "sum");
  EXPECT_EQ(sum.pushes, 5 + 2 * 2 + 5);
  for (const bool in_place : {false, true}) {
    const Way group = {.in_place = in_place, .workers = EvenShares(4, 2), .group = true};
    Way in_pieces = group;
    in_pieces.push_piece_bytes = 1;
    const StepOutcome pieces = RunStep(in_pieces);
    ExpectSameBits(whole, pieces, "group");
    EXPECT_EQ(pieces.pushes, sum.pushes);  // each chunk by itself, too
  }
}

TEST_F(RelayExecutorTest, OnCudaALayerThatLeavesInPiecesGivesTheSameBits) {
  Use(RunOfSeveralChunks(Dtype::kF32, 2));
  for (const bool in_place : {false, true}) {
    const StepOutcome whole = RunStep({.in_place = in_place, .cuda = Dtype::kF32});
    const StepOutcome pieces = RunStep({.in_place = in_place, .cuda = Dtype::kF32, .push_piece_bytes = 1});
    ExpectSameBits(whole, pieces, in_place ? "in the inbox" : "elsewhere");
    EXPECT_EQ(whole.pushes, (2 + 2 + 2) * 2);
    EXPECT_EQ(pieces.pushes, (5 + 2 * 2 + 5) * 2);
  }
}

}  // namespace
}  // namespace eps::worker
