#include "gpu_worker/plan/step_costs.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/base/ids.h"
#include "common/model/model_spec.h"
#include "common/numeric/quantized.h"
#include "common/spec/run_config.h"
#include "common/tensor/dtype.h"
#include "gpu_worker/device/cpu/cpu_kernel_sizes.h"
#include "gpu_worker/layers/layer_shape.h"
#include "gpu_worker/plan/group_parts.h"
#include "gpu_worker/plan/profile.h"
#include "gpu_worker/plan/relay_step.h"
#include "gtest/gtest.h"

namespace eps::worker {
namespace {

using Kind = RelayStep::Kind;

// A run of blocks, and a profile that was measured with its very layers.
class StepCostsTest : public ::testing::Test {
 protected:
  StepCostsTest() {
    run_.model = {.num_layers = 4, .d_model = 64, .num_heads = 4, .context = 32, .vocab = 256};
    run_.batch = {.virtual_nodes = 1, .micro_batches = 2, .micro_batch = 2};
    Measure();
  }
  // The run as it is now.
  void Measure() {
    profile_.layers.clear();
    for (const LayerKind kind : kLayerKinds) {
      profile_.layers.push_back({.kind = kind,
                                 .shape = Shape(),
                                 .forward_seconds = 0.25,
                                 .recompute_seconds = 0.125,
                                 .backward_seconds = 0.5});
    }
  }
  LayerShape Shape() const {
    return MakeLayerShape(BuildModel(run_.model).value(), run_, CpuKernelSizes().compute_dtype);
  }
  // Of the first block.
  double Seconds(Kind kind) const { return SecondsOf({.kind = kind, .layer = LayerId(1)}); }
  double HeadSeconds(bool keeps_logits) const {
    const LayerId head(static_cast<int>(run_.model.num_layers) + 1);
    return SecondsOf({.kind = Kind::kHead, .layer = head, .keeps_logits = keeps_logits});
  }
  double SecondsOf(const RelayStep& step) const {
    const ModelSpec model = BuildModel(run_.model).value();
    return CostsOf(profile_, model, run_, CpuKernelSizes(), LinkKind::kInPlace).seconds(step);
  }
  bool IsExact() const { return HasExactTimes(profile_, BuildModel(run_.model).value(), run_, CpuKernelSizes()); }

  RunConfig run_;
  Profile profile_ = NominalProfile("cpu");
};

TEST_F(StepCostsTest, WhatWasMeasuredInItsShapeIsTakenAsItIs) {
  EXPECT_TRUE(IsExact());
  EXPECT_EQ(Seconds(Kind::kForward), 0.25);
  EXPECT_EQ(Seconds(Kind::kRecompute), 0.125);
  EXPECT_EQ(Seconds(Kind::kBackward), 0.5);
}

TEST_F(StepCostsTest, AnotherShapeIsScaledByItsOperationsAndBytes) {
  run_.batch.micro_batch *= 3;
  EXPECT_FALSE(IsExact());
  EXPECT_DOUBLE_EQ(Seconds(Kind::kForward), 3 * 0.25);
  EXPECT_DOUBLE_EQ(Seconds(Kind::kBackward), 3 * 0.5);
}

TEST_F(StepCostsTest, InTilesBackwardMakesAgainWhatRecomputeLeavesOut) {
  run_.model.d_model = 1024;
  run_.batch.micro_batch = 4;  // 128 rows
  Measure();
  run_.batch.feed_forward_tile = 128;
  EXPECT_TRUE(IsExact()) << "all rows";
  run_.batch.feed_forward_tile = 64;
  EXPECT_FALSE(IsExact());
  // Of 12 products as large as attention's last, forward, 8 are recomputed as a whole, and 4 in tiles; 24 become 28.
  EXPECT_EQ(Seconds(Kind::kForward), 0.25);
  EXPECT_NEAR(Seconds(Kind::kRecompute), 0.125 * 4 / 8, 0.005);
  EXPECT_NEAR(Seconds(Kind::kBackward), 0.5 * 28 / 24, 0.005);
  Measure();
  EXPECT_TRUE(IsExact());
  run_.batch.feed_forward_tile = 0;
  EXPECT_FALSE(IsExact()) << "measured in tiles";
}

TEST_F(StepCostsTest, OfSeveralShapesTheNearestIsScaled) {
  LayerTimes wide = profile_.layers[1];
  wide.shape.C *= 16;
  wide.forward_seconds = 1000;
  profile_.layers.insert(profile_.layers.begin(), wide);
  run_.batch.micro_batch *= 3;
  EXPECT_DOUBLE_EQ(Seconds(Kind::kForward), 3 * 0.25);
}

TEST_F(StepCostsTest, ABlockThatWasFrozenWhenItWasMeasuredHasABackwardAllTheSame) {
  profile_.layers[1].backward_seconds = 0;
  EXPECT_FALSE(IsExact());
  EXPECT_DOUBLE_EQ(Seconds(Kind::kForward), 0.25);
  // Two products for each of the forward's, with as many bytes: more than the forward, and less than three of it.
  EXPECT_GT(Seconds(Kind::kBackward), 1.2 * 0.25);
  EXPECT_LT(Seconds(Kind::kBackward), 3 * 0.25);
  // One that did train is preferred, however far its shape is.
  LayerTimes wide = profile_.layers[1];
  wide.shape.B *= 5;
  wide.forward_seconds = 5 * 0.25;
  wide.backward_seconds = 5 * 1.5;
  profile_.layers.push_back(wide);
  EXPECT_DOUBLE_EQ(Seconds(Kind::kBackward), 1.5);
}

TEST_F(StepCostsTest, ALeafThatIsPushedAloneIsReadOnceAndWrittenOnce) {
  for (const Dtype gradients : {Dtype::kBf16, Dtype::kF32}) {
    run_.precision.gradients = gradients;
    const auto elems = static_cast<double>(BuildModel(run_.model).value().layers[1].trainable_elems);
    EXPECT_DOUBLE_EQ(Seconds(Kind::kEmitLeaf),
                     elems * static_cast<double>(4 + SizeOf(gradients)) / profile_.gradient_bytes_per_second);
  }
}

TEST_F(StepCostsTest, ABackwardThatStartsAGradientSavesReadingIt) {
  const ModelSpec model = BuildModel(run_.model).value();
  const StepCosts costs = CostsOf(profile_, model, run_, CpuKernelSizes(), LinkKind::kInPlace);
  for (const auto& [layer, kind, weights] :
       {std::tuple(LayerId(1), Kind::kBackward, 12 * run_.model.d_model * run_.model.d_model),
        std::tuple(model.layers.back().id, Kind::kHead, run_.model.vocab * run_.model.d_model)}) {
    const double adds = costs.seconds({.kind = kind, .layer = layer});
    const double starts = costs.seconds({.kind = kind, .layer = layer, .starts_gradient = true});
    const auto read = static_cast<double>(weights * int64_t{sizeof(float)});
    EXPECT_NEAR(adds - starts, read / profile_.gradient_bytes_per_second, 1e-12);
    const double zeroed = costs.seconds({.kind = Kind::kZeroGradient, .layer = layer});
    const auto all = static_cast<double>(GradientElems(model, model.layer(layer)) * int64_t{sizeof(float)});
    EXPECT_NEAR(zeroed, (all - read) / profile_.gradient_bytes_per_second, 1e-12);
  }
}

TEST_F(StepCostsTest, AHeadThatKeepsItsLogitsSavesMostOfAForward) {
  EXPECT_EQ(HeadSeconds(true), 0.5);  // it has one chunk
  run_.model.vocab = 4 * 4096;
  run_.model.d_model = 1024;  // the product is most of what it does
  profile_.layers[2].shape = Shape();
  EXPECT_EQ(HeadSeconds(false), 0.5);
  // All but a quarter of the product, and what the forward reads and writes.
  EXPECT_LT(HeadSeconds(true), 0.5 - 0.25 * 0.5);
  EXPECT_GT(HeadSeconds(true), 0.5 - 0.25 * 0.75);
}

TEST_F(StepCostsTest, AMemberOfAGroupPullsAndPushesItsPartAndExchangesTheRest) {
  run_.model.d_model = 1024;  // many chunks
  run_.batch.virtual_nodes = 4;
  run_.precision = {.wire = Dtype::kBf16, .gradients = Dtype::kBf16};
  profile_.in_bytes_per_second = 3e9;
  profile_.out_bytes_per_second = 2e9;
  const ModelSpec model = BuildModel(run_.model).value();
  const GroupBounds bounds = {.num_vnodes = 4, .max_pass_vnodes = 4, .max_subtree_leaves = 2, .area_elems = 1 << 30};
  const LayerId block(1);
  const auto of_block = static_cast<double>(model.layer(block).num_elems);
  double pushed = 0, read = 0;
  for (const int rank : {0, 1}) {
    const GroupParts group =
        GroupParts::Make(model, {.group = 1, .rank = rank, .vnodes = {{0, 1}, {2, 3}}}, bounds).value();
    const auto own = static_cast<double>(group.PartElems(block, rank)), others = of_block - own;
    EXPECT_GT(own, 0);
    EXPECT_GT(others, 0);
    const auto costs_of = [&](const char* device, LinkKind link) {
      profile_.device = device;
      return CostsOf(profile_, model, run_, CpuKernelSizes(), link, &group);
    };
    const auto step = [&](Kind kind) { return RelayStep{.kind = kind, .layer = block, .round = 0}; };

    // A node in fp32: copied into the other's memory, and out of it.
    const StepCosts cpu = costs_of("cpu", LinkKind::kInPlace);
    EXPECT_DOUBLE_EQ(cpu.seconds(step(Kind::kExchange)), 4 * of_block / 2e9);
    EXPECT_EQ(cpu.seconds(step(Kind::kPull)), 0);  // read in place, and not exchanged
    EXPECT_DOUBLE_EQ(cpu.seconds(step(Kind::kEmitGradient)), 8 * (of_block + own) / profile_.gradient_bytes_per_second);
    EXPECT_DOUBLE_EQ(cpu.seconds(step(Kind::kSumGroup)), 3 * 4 * own / profile_.gradient_bytes_per_second);
    // Over a link, both ways at once.
    const StepCosts cuda = costs_of("cuda:0", LinkKind::kHostMemory);
    EXPECT_DOUBLE_EQ(cuda.seconds(step(Kind::kExchange)), 4 * std::max(own, others) / 2e9);
    EXPECT_DOUBLE_EQ(cuda.seconds(step(Kind::kPull)), 2 * own / 3e9 + 2 * std::max(own, others) / 2e9);
    pushed += cuda.seconds(step(Kind::kPushPart)) * 2e9;
    read = cuda.contribution_seconds(step(Kind::kPushPart)) * profile_.update_bytes_per_second;
  }
  EXPECT_DOUBLE_EQ(pushed, 4 * of_block);  // one sum of all vnodes, in fp32
  EXPECT_DOUBLE_EQ(read, pushed);
}

// As UpdateCounts::moved_bytes has it: of an element of a bf16 wire with fp32 moments.
TEST_F(StepCostsTest, PassesForNormsReadMasterMomentsAndContributionsOnceMore) {
  struct Case {
    OptimizerRule rule;
    ClipMode clip;
    double update_bytes, contribution_reads;
  };
  for (const Case& c :
       {Case{OptimizerRule::kAdamW, ClipMode::kLagged, 24, 1}, Case{OptimizerRule::kAdamW, ClipMode::kPerBlob, 24, 2},
        Case{OptimizerRule::kAdamW, ClipMode::kExact, 28, 1}, Case{OptimizerRule::kLamb, ClipMode::kNone, 36, 2},
        Case{OptimizerRule::kLamb, ClipMode::kPerBlob, 36, 3}, Case{OptimizerRule::kLamb, ClipMode::kExact, 44, 1}}) {
    run_.optimizer.rule = c.rule;
    run_.optimizer.clip = c.clip;
    run_.optimizer.clip_norm = 1;
    const ModelSpec model = BuildModel(run_.model).value();
    const StepCosts costs = CostsOf(profile_, model, run_, CpuKernelSizes(), LinkKind::kInPlace);
    const LayerSpec& block = model.layer(LayerId(1));
    const double rate = profile_.update_bytes_per_second;
    const BlobId blob = block.blobs[0].blob;
    EXPECT_DOUBLE_EQ(costs.update_seconds[static_cast<size_t>(blob.value())] * rate,
                     c.update_bytes * static_cast<double>(model.blob(blob).num_elems));
    const double read = costs.contribution_seconds({.kind = Kind::kPush, .layer = block.id, .node = {0, 1}}) * rate;
    const auto once = static_cast<double>(block.trainable_elems * SizeOf(run_.precision.gradients));
    EXPECT_DOUBLE_EQ(read, c.contribution_reads * once);
  }
}

// 10 bytes a parameter are read and written, but for those of the first blobs, which stay in memory.
TEST_F(StepCostsTest, UpdatesWaitForTheDiskThatTheirStateLiesOn) {
  run_.optimizer_offload = {.path = "/disk"};
  profile_.disk_bytes_per_second = 1e6;
  const ModelSpec model = BuildModel(run_.model).value();
  const auto costs = [&] {
    return CostsOf(profile_, model, run_, CpuKernelSizes(), LinkKind::kInPlace).update_seconds;
  };
  const auto bytes = [&](size_t blob) { return 10 * static_cast<double>(model.blobs[blob].num_elems); };
  const std::vector<double> all = costs();
  for (size_t b = 0; b < all.size(); ++b) EXPECT_DOUBLE_EQ(all[b], 2 * bytes(b) / 1e6);
  run_.optimizer_offload.memory_bytes = static_cast<int64_t>(bytes(0) + bytes(1) / 2);
  const std::vector<double> some = costs();
  EXPECT_LT(some[0], all[0] / 100);
  EXPECT_DOUBLE_EQ(some[1], all[1] / 2);
  EXPECT_DOUBLE_EQ(some[2], all[2]);
  profile_.disk_bytes_per_second = 1e15;  // faster than memory
  const std::vector<double> fast = costs();
  run_.optimizer_offload = {};
  EXPECT_EQ(fast, costs());
}

// Of the token table alone, by how many rows a text of Zipf's law leaves out, and where nothing waits for a norm.
TEST_F(StepCostsTest, RowsThatNoTokenReadsAreUpdatedEarly) {
  const ModelSpec model = BuildModel(run_.model).value();
  const auto early_share = [&](const RunConfig& run) {
    const StepCosts costs = CostsOf(profile_, model, run, CpuKernelSizes(), LinkKind::kInPlace);
    for (size_t blob = 1; blob < model.blobs.size(); ++blob) EXPECT_EQ(costs.early_update_seconds[blob], 0);
    return costs.early_update_seconds[0] / costs.update_seconds[0];
  };
  double all = 0, unread = 0;
  for (int64_t rank = 1; rank <= run_.model.vocab; ++rank) all += 1 / (static_cast<double>(rank) + 2.7);
  for (int64_t rank = 1; rank <= run_.model.vocab; ++rank) {
    const double share = 1 / (static_cast<double>(rank) + 2.7) / all;
    unread += std::exp(-static_cast<double>(run_.tokens_per_step()) * share);
  }
  // But for ranks that are taken together.
  EXPECT_NEAR(early_share(run_), unread / static_cast<double>(run_.model.vocab), 1e-4);
  RunConfig lagged = run_, exact = run_, per_blob = run_, lamb = run_, one_version = run_;
  lagged.optimizer.clip = ClipMode::kLagged;
  EXPECT_EQ(early_share(lagged), early_share(run_));
  exact.optimizer.clip = ClipMode::kExact;
  per_blob.optimizer.clip = ClipMode::kPerBlob;
  lamb.optimizer.rule = OptimizerRule::kLamb;
  one_version.precision.wire_versions = 1;
  for (const RunConfig& run : {exact, per_blob, lamb, one_version}) EXPECT_EQ(early_share(run), 0);
  // So few rows are left out that they are not worth it.
  RunConfig many = run_;
  many.batch.micro_batches = 100;
  EXPECT_EQ(early_share(many), 0);
}

TEST_F(StepCostsTest, AdaptersCostALittleAndSpareTheGradientsOfWhatTheyAreBeside) {
  run_.model.d_model = 2048;  // where products are what takes time
  run_.model.num_heads = 16;
  profile_.layers[1].shape = Shape();
  run_.model.lora = {.rank = 4, .alpha = 4};
  EXPECT_FALSE(IsExact());
  EXPECT_GT(Seconds(Kind::kForward), 0.25);
  EXPECT_LT(Seconds(Kind::kForward), 1.1 * 0.25);
  EXPECT_LT(Seconds(Kind::kBackward), 0.7 * 0.5);
  EXPECT_GT(Seconds(Kind::kBackward), 0.5 * 0.5);
}

TEST_F(StepCostsTest, TimesAreOfTheAdaptersThatWereMeasured) {
  run_.model.lora = {.rank = 4, .alpha = 4};
  profile_.layers[1].shape = Shape();
  EXPECT_TRUE(IsExact());
  const RunConfig measured = run_;
  run_.model.lora.targets = {"c_attn"};
  EXPECT_FALSE(IsExact());
  run_ = measured;
  run_.model.lora.dropout = 0.1;
  EXPECT_FALSE(IsExact());
  run_ = measured;
  run_.model.freeze = {"!*.weight"};
  EXPECT_FALSE(IsExact());
  run_ = measured;
  for (const QuantizedFormat format : {QuantizedFormat::kMxInt8, QuantizedFormat::kNf4}) {
    run_.model.frozen_format = format;
    EXPECT_FALSE(IsExact());
  }
  Measure();
  EXPECT_TRUE(IsExact());
  run_.model.frozen_format = QuantizedFormat::kMxInt8;
  EXPECT_FALSE(IsExact());
}

TEST_F(StepCostsTest, BlocksWithExpertsAreScaledFromSuchBlocks) {
  ModelConfig& model = run_.model;
  model.family = ModelFamily::kLlama;
  model.max_positions = model.context;
  model.num_kv_heads = model.num_heads;
  model.d_head = model.d_model / model.num_heads;
  model.d_ff = 128;
  Measure();  // of a block without
  const Profile without = profile_;
  model.experts = {.num = 8, .per_token = 2};
  EXPECT_FALSE(IsExact());
  EXPECT_GT(Seconds(Kind::kForward), 0.25);  // twice the rows, and the weights of eight
  Measure();
  EXPECT_TRUE(IsExact());
  profile_.layers[1].forward_seconds = 7;
  profile_.layers.insert(profile_.layers.begin(), without.layers.begin(), without.layers.end());
  run_.batch.micro_batch *= 3;
  EXPECT_GT(Seconds(Kind::kForward), 7);
  model.experts.per_token = 3;
  EXPECT_FALSE(IsExact());
}

TEST_F(StepCostsTest, ABlockThatIsFrozenNeedsNoBackward) {
  profile_.layers[1].backward_seconds = 0;
  profile_.layers[0].backward_seconds = 0;
  run_.model.freeze = {"transformer.h.*", "transformer.w*"};
  EXPECT_TRUE(IsExact());
}

}  // namespace
}  // namespace eps::worker
