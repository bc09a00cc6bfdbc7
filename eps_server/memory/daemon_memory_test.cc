#include "eps_server/memory/daemon_memory.h"

#include "common/model/model_spec.h"
#include "common/spec/moment_format.h"
#include "common/spec/run_config.h"
#include "common/tensor/dtype.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps::server {
namespace {

using ::testing::HasSubstr;

TEST(DaemonMemoryTest, BytesPerParameterAreWhatTheHeaderOfTheStoreSays) {
  // Every tensor is a multiple of the alignment, so there is no padding.
  const ModelSpec model =
      BuildModel({.num_layers = 2, .d_model = 64, .num_heads = 1, .context = 64, .vocab = 64}).value();
  ASSERT_EQ(model.num_elems(), model.num_parameters());
  RunConfig run;
  run.precision = {.wire = Dtype::kBf16, .gradients = Dtype::kBf16};
  EXPECT_EQ(ComputeDaemonMemory(model, run).model_state_bytes(), 14 * model.num_parameters());
  run.precision.moments = MomentFormat::kBf16;
  EXPECT_EQ(ComputeDaemonMemory(model, run).model_state_bytes(), 10 * model.num_parameters());
  EXPECT_EQ(ComputeDaemonMemory(model, run).capture_all_bytes, 8 * model.num_parameters());
  run.precision.moments = MomentFormat::kFp8;
  EXPECT_EQ(ComputeDaemonMemory(model, run).model_state_bytes(),
            8 * model.num_parameters() + model.num_parameters() / 16);
  // Chunks are copied to multiples of 64 bytes.
  EXPECT_NEAR(static_cast<double>(ComputeDaemonMemory(model, run).capture_all_bytes),
              6.0625 * static_cast<double>(model.num_parameters()), 64.0 * static_cast<double>(model.blobs.size()));
  run.precision.moments = MomentFormat::kFp32;
  run.precision.wire = Dtype::kF32;
  EXPECT_EQ(ComputeDaemonMemory(model, run).model_state_bytes(), 16 * model.num_parameters());
  run.optimizer.rule = OptimizerRule::kSgd;
  EXPECT_EQ(ComputeDaemonMemory(model, run).model_state_bytes(), 8 * model.num_parameters());
}

TEST(DaemonMemoryTest, OnlyExactClippingHoldsGradients) {
  const ModelSpec model =
      BuildModel({.num_layers = 2, .d_model = 64, .num_heads = 1, .context = 64, .vocab = 64}).value();
  RunConfig run;
  EXPECT_EQ(ComputeDaemonMemory(model, run).hold_bytes, 0);
  run.optimizer.clip = ClipMode::kExact;
  EXPECT_EQ(ComputeDaemonMemory(model, run).hold_bytes, 4 * model.num_elems());
}

TEST(DaemonMemoryTest, SaysHowManyVersionsAreKeptAndWhatThatCosts) {
  const ModelSpec model =
      BuildModel({.num_layers = 2, .d_model = 64, .num_heads = 1, .context = 64, .vocab = 64}).value();
  RunConfig run;
  run.precision.wire = Dtype::kBf16;
  const auto wire = [&] { return Describe(ComputeDaemonMemory(model, run)).front(); };
  EXPECT_EQ(wire().num_bytes, 4 * model.num_elems());
  EXPECT_THAT(wire().why, HasSubstr("two versions, so that a lost worker's part is run again"));
  run.precision.wire_versions = 1;
  EXPECT_EQ(wire().num_bytes, 2 * model.num_elems());
  EXPECT_THAT(wire().why, HasSubstr("one version (precision.wire_versions): a lost worker costs the steps"));
  run.optimizer.clip = ClipMode::kExact;
  EXPECT_THAT(wire().why, HasSubstr("one version (precision.wire_versions), as updates wait"));
  run.precision.wire_versions = 2;
  EXPECT_THAT(wire().why, HasSubstr("two versions; precision.wire_versions: 1 takes half of it, at no cost here"));
}

TEST(DaemonMemoryTest, QuantizedMatricesHaveALineOfTheirOwn) {
  RunConfig run;
  run.model = {
      .num_layers = 2, .d_model = 64, .num_heads = 1, .context = 64, .vocab = 64, .lora = {.rank = 2, .alpha = 2}};
  run.model.frozen_format = QuantizedFormat::kNf4;
  const std::vector<DaemonMemoryLine> smaller = Describe(ComputeDaemonMemory(BuildModel(run.model).value(), run));
  EXPECT_EQ(smaller[2].num_bytes, 2 * 12 * 64 * 64 / 32 * 17);
  EXPECT_THAT(smaller[2].why, HasSubstr("in NF4, 17/32 bytes a parameter"));
  run.model.frozen_format = QuantizedFormat::kMxInt8;
  const std::vector<DaemonMemoryLine> lines = Describe(ComputeDaemonMemory(BuildModel(run.model).value(), run));
  EXPECT_EQ(lines[1].what, "frozen weights on the wire");
  EXPECT_EQ(lines[2].what, "frozen matrices of blocks");
  EXPECT_EQ(lines[2].num_bytes, 2 * 12 * 64 * 64 / 32 * 33);
  EXPECT_THAT(lines[2].why, HasSubstr("in MXINT8, 33/32 bytes a parameter"));
  const DaemonMemory memory = ComputeDaemonMemory(BuildModel(run.model).value(), run);
  EXPECT_EQ(memory.store.weights_bytes(), lines[0].num_bytes + lines[1].num_bytes + lines[2].num_bytes);
}

TEST(DaemonMemoryTest, WhatLiesOnADiskIsInNoTotal) {
  RunConfig run;
  run.precision.wire = Dtype::kBf16;
  const ModelSpec model =
      BuildModel({.num_layers = 8, .d_model = 1024, .num_heads = 8, .context = 64, .vocab = 64}).value();
  const DaemonMemory all = ComputeDaemonMemory(model, run);
  run.optimizer_offload = {.path = "/disk", .memory_bytes = 100'000'000};
  const DaemonMemory memory = ComputeDaemonMemory(model, run);
  const int64_t chunk_bytes = 10 * kChunkElems;
  EXPECT_EQ(memory.store.frame_bytes, 32 * chunk_bytes);
  const int64_t kept_bytes = 10 * model.num_elems() - memory.store.offloaded_bytes;
  EXPECT_LE(kept_bytes, 100'000'000);
  EXPECT_GT(kept_bytes, 100'000'000 - chunk_bytes);
  EXPECT_EQ(all.total_bytes() - memory.total_bytes(), memory.store.offloaded_bytes - memory.store.frame_bytes);
  const std::vector<DaemonMemoryLine> lines = Describe(memory);
  EXPECT_EQ(lines[1].num_bytes, kept_bytes);
  EXPECT_EQ(lines[2].num_bytes, memory.store.frame_bytes);
  int64_t sum = 0;
  for (const DaemonMemoryLine& line : lines) sum += line.num_bytes;
  EXPECT_EQ(sum, memory.total_bytes());
  // Memory that holds all of it: as if it were not asked for.
  run.optimizer_offload.memory_bytes = 10 * model.num_elems();
  EXPECT_EQ(ComputeDaemonMemory(model, run).total_bytes(), all.total_bytes());
}

TEST(DaemonMemoryTest, ACheckpointTakesTheStateUpToTheBufferAndTheSameBesideItForAnyModel) {
  RunConfig run;
  run.steps = 1000;
  run.precision.wire = Dtype::kBf16;
  const auto memory_of = [&run](int layers) {
    return ComputeDaemonMemory(
        BuildModel({.num_layers = layers, .d_model = 1024, .num_heads = 8, .context = 64, .vocab = 64}).value(), run);
  };
  for (const int layers : {1, 6}) {
    const DaemonMemory memory = memory_of(layers);
    EXPECT_EQ(memory.checkpoint_bytes, (2 << 20) + 256 * 1000);
    EXPECT_EQ(memory.capture_all_bytes, memory.model_state_bytes() / 14 * 12);  // AdamW
    EXPECT_EQ(memory.capture_bytes, memory.capture_all_bytes);
  }
  EXPECT_EQ(memory_of(24).capture_bytes, 1 << 30);
  run.checkpoint.buffer_bytes = 100'000'000;
  EXPECT_EQ(memory_of(24).capture_bytes, 100'000'000);
  run.checkpoint.buffer_bytes = 1;
  EXPECT_EQ(memory_of(24).capture_bytes, 12 * kChunkElems);
}

TEST(DaemonMemoryTest, AFrozenParameterCostsItsWireFormAlone) {
  ModelConfig config = {.num_layers = 3, .d_model = 64, .num_heads = 1, .context = 64, .vocab = 640};
  RunConfig run;
  run.optimizer.clip = ClipMode::kExact;
  config.freeze = {"*", "!transformer.h.2.*"};
  const ModelSpec model = BuildModel(config).value();
  const int64_t trained = model.num_trainable_elems(), frozen = model.num_elems() - trained;
  for (const Dtype wire : {Dtype::kBf16, Dtype::kF16, Dtype::kF32}) {
    run.precision.wire = wire;
    const DaemonMemory memory = ComputeDaemonMemory(model, run);
    const int64_t per_trained = wire == Dtype::kBf16 ? 14 : 16;
    EXPECT_EQ(memory.model_state_bytes(), per_trained * trained + SizeOf(wire) * frozen);
    EXPECT_EQ(memory.hold_bytes, 4 * trained);
    EXPECT_EQ(memory.capture_all_bytes, 12 * trained);
    EXPECT_EQ(memory.contribution_window_bytes, 16 * model.layers[3].num_elems);
    int64_t sum = 0;
    for (const DaemonMemoryLine& line : Describe(memory)) sum += line.num_bytes;
    EXPECT_EQ(sum, memory.total_bytes());
  }
}

TEST(DaemonMemoryTest, ManyWorkersHaveMoreGradientsInFlight) {
  const ModelSpec model =
      BuildModel({.num_layers = 2, .d_model = 64, .num_heads = 2, .context = 16, .vocab = 5000}).value();
  RunConfig run;
  run.batch.virtual_nodes = 16;
  run.precision.gradients = Dtype::kBf16;
  const int64_t table = model.blobs[0].num_elems;
  EXPECT_EQ(ComputeDaemonMemory(model, run).contribution_window_bytes, 16 * table);
  EXPECT_EQ(ComputeDaemonMemory(model, run, 8).contribution_window_bytes, 2 * 32 * table);
}

TEST(DaemonMemoryTest, TheLinesAddUpToTheTotal) {
  const ModelSpec model =
      BuildModel({.num_layers = 2, .d_model = 48, .num_heads = 3, .context = 20, .vocab = 100}).value();
  RunConfig run;
  run.optimizer.clip = ClipMode::kExact;
  const DaemonMemory memory = ComputeDaemonMemory(model, run);
  int64_t sum = 0;
  for (const DaemonMemoryLine& line : Describe(memory)) sum += line.num_bytes;
  EXPECT_EQ(sum, memory.total_bytes());
}

}  // namespace
}  // namespace eps::server
