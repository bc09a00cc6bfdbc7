#include "eps_server/checkpoint/serving_checkpoint.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/checkpoint/run_state.h"
#include "common/checkpoint/testing.h"
#include "common/formats/model_folder_writer.h"
#include "common/model/model_spec.h"
#include "common/numeric/quantized.h"
#include "common/spec/run_config.h"
#include "common/tensor/dtype.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "eps_server/checkpoint/checkpointer.h"
#include "eps_server/checkpoint/testing.h"
#include "eps_server/store/store.h"
#include "gtest/gtest.h"

namespace eps::server {
namespace {

// A run's DIR with checkpoints of steps 3 and 5.
struct ServedCheckpoint {
  explicit ServedCheckpoint(Dtype wire = Dtype::kBf16) : ServedCheckpoint(SmallRun(wire)) {}
  explicit ServedCheckpoint(RunConfig of) : run(std::move(of)), model(BuildModel(run.model).value()) {
    const auto checkpointer = Checkpointer::Create(dir.File("checkpoints"), model, run).value();
    for (const int64_t step : {3, 5}) {
      const auto store = FilledStore(model, run, Version(step), static_cast<uint64_t>(step));
      EXPECT_OK(checkpointer->Write(*store, StateAt(step), {AllBlobs(model), [](BlobId) {}}));
    }
  }
  RunConfig run;
  ModelSpec model;
  TempDir dir;
};

// The bytes of each tensor that a worker sees; which blob it is in depends on what trains.
std::map<std::string, std::vector<std::byte>> WireByName(const ModelSpec& model, const Store& store, Version version) {
  std::map<std::string, std::vector<std::byte>> tensors;
  const int64_t elem_bytes = SizeOf(store.wire_dtype());
  for (const BlobSpec& blob : model.blobs) {
    for (const TensorSpec& tensor : blob.tensors) {
      const auto bytes = store.Wire(blob.id, version)
                             .subspan(static_cast<size_t>(tensor.offset_elems * elem_bytes),
                                      static_cast<size_t>(tensor.num_elems() * elem_bytes));
      tensors[tensor.name].assign(bytes.begin(), bytes.end());
    }
  }
  return tensors;
}

// A Hugging Face folder.
void WriteFolder(const std::string& folder, const ModelSpec& model, const std::string& dtype) {
  EXPECT_OK(WriteModelFolder(folder, model, {.dtype = dtype},
                             [](const TensorSpec& tensor, int64_t first, absl::Span<float> values) {
                               InitTensorPart(tensor, 3, first, values);
                               return absl::OkStatus();
                             }));
}

TEST(ServingCheckpointTest, EveryWayToNameItFindsTheSameModel) {
  for (const Dtype wire : {Dtype::kBf16, Dtype::kF32}) {
    const ServedCheckpoint f(wire);
    const auto written = FilledStore(f.model, f.run, Version(5), 5);
    for (const char* path : {"checkpoints/step-00000005", "checkpoints/latest", "checkpoints", "checkpoints/", "."}) {
      ASSERT_OK_AND_ASSIGN(const ServingCheckpoint served, LoadCheckpointForServing(f.dir.File(path)));
      EXPECT_EQ(served.state.version, Version(5)) << path;
      EXPECT_EQ(served.state.losses, StateAt(5).losses);
      EXPECT_EQ(WireByName(served.model, *served.store, Version(5)), WireByName(f.model, *written, Version(5)));
      for (const BlobSpec& blob : served.model.blobs) EXPECT_EQ(served.store->published(blob.id), Version(5));
    }
  }
}

TEST(ServingCheckpointTest, AnOlderOneIsTakenWhenItIsAskedFor) {
  const ServedCheckpoint f;
  ASSERT_OK_AND_ASSIGN(const ServingCheckpoint served,
                       LoadCheckpointForServing(f.dir.File("checkpoints/step-00000003")));
  EXPECT_EQ(served.state.version, Version(3));
}

TEST(ServingCheckpointTest, HardlyMoreThanTheWireFormIsHeldAndTheRunIsOneThatAWorkerTakes) {
  const ServedCheckpoint f;
  ASSERT_OK_AND_ASSIGN(const ServingCheckpoint served, LoadCheckpointForServing(f.dir.path()));
  EXPECT_LT(served.store->sizes().total_bytes(), 2 * f.model.num_elems() + 1024);
  EXPECT_THAT(ParseRunConfig(SerializeRunConfig(served.run)), IsOkAndHolds(served.run));
}

TEST(ServingCheckpointTest, WhatIsReadIsCheckedAndTheOptimizerIsNotRead) {
  const ServedCheckpoint f;
  const std::string folder = f.dir.File("checkpoints/step-00000005");
  FlipByte(folder + "/optimizer.safetensors", 900);
  EXPECT_OK(LoadCheckpointForServing(folder));
  FlipByte(folder + "/model.safetensors", 5000);
  EXPECT_THAT(LoadCheckpointForServing(folder),
              StatusIs(absl::StatusCode::kDataLoss, "model.safetensors: found sha256"));
}

TEST(ServingCheckpointTest, AStepFolderWithoutItsManifestDoesNotPassAsSomethingElse) {
  const ServedCheckpoint f;
  const std::string folder = f.dir.File("checkpoints/step-00000005");
  std::filesystem::remove(folder + "/manifest.json");
  EXPECT_THAT(LoadCheckpointForServing(folder), StatusIs(absl::StatusCode::kDataLoss, "manifest.json: found nothing"));
}

TEST(ServingCheckpointTest, NothingOnDiskIsChanged) {
  const ServedCheckpoint f;
  std::filesystem::create_directory(f.dir.File("checkpoints/.tmp-step-00000007"));  // a run is writing it
  const auto before = TreeOf(f.dir.path());
  EXPECT_OK(LoadCheckpointForServing(f.dir.path()));
  EXPECT_EQ(TreeOf(f.dir.path()), before);
}

TEST(ServingCheckpointTest, WhereThereIsNoneItSaysWhatItLookedFor) {
  TempDir dir;
  EXPECT_THAT(LoadCheckpointForServing(dir.File("none")), StatusIs(absl::StatusCode::kNotFound, "none"));
  EXPECT_THAT(LoadCheckpointForServing(dir.path()), StatusIs(absl::StatusCode::kNotFound, "a folder checkpoints"));
}

TEST(ServingCheckpointTest, AContextIsCutWherePositionsAreNoParameters) {
  TempDir dir;
  ModelConfig config = {.family = ModelFamily::kLlama, .num_layers = 1, .d_model = 12, .num_heads = 2, .context = 4096};
  config.vocab = 17;
  config.max_positions = 4096;
  config.num_kv_heads = 1;
  config.d_head = 6;
  config.d_ff = 20;
  WriteFolder(dir.File("llama"), BuildModel(config).value(), "F32");
  ASSERT_OK_AND_ASSIGN(const ServingCheckpoint served,
                       LoadCheckpointForServing(dir.File("llama"), {.max_context = 64}));
  EXPECT_EQ(served.run.model.context, 64);
  EXPECT_EQ(served.run.model.max_positions, 4096);
  ASSERT_OK_AND_ASSIGN(const ServingCheckpoint whole, LoadCheckpointForServing(dir.File("llama")));
  EXPECT_EQ(whole.run.model.context, 4096);
  const ServedCheckpoint f;  // a GPT-2, whose positions are a table
  ASSERT_OK_AND_ASSIGN(const ServingCheckpoint table, LoadCheckpointForServing(f.dir.path(), {.max_context = 1}));
  EXPECT_EQ(table.run.model.context, f.model.config.context);
}

TEST(ServingCheckpointTest, AHuggingFaceFolderOfFp32IsServedInFp32) {
  const ServedCheckpoint f;
  const std::string folder = f.dir.File("hf");
  WriteFolder(folder, f.model, "F32");
  ASSERT_OK_AND_ASSIGN(const ServingCheckpoint served, LoadCheckpointForServing(folder));
  EXPECT_EQ(served.store->wire_dtype(), Dtype::kF32);
  EXPECT_EQ(served.state.version, Version(0));
  RunConfig in_fp32 = f.run;
  in_fp32.precision.wire = Dtype::kF32;
  const auto wanted = Store::Create(f.model, in_fp32).value();
  ASSERT_OK(InitStore(f.model, 1, *wanted));
  EXPECT_EQ(WireByName(served.model, *served.store, Version(0)), WireByName(f.model, *wanted, Version(0)));
  EXPECT_THAT(ParseRunConfig(SerializeRunConfig(served.run)), IsOkAndHolds(served.run));
}

TEST(ServingCheckpointTest, WhatIsAskedForOfTheWireAndOfMatricesHolds) {
  const ServedCheckpoint f;
  const std::string folder = f.dir.File("hf");
  WriteFolder(folder, f.model, "BF16");
  for (const std::string& path : {folder, f.dir.path()}) {
    const auto served = [&](std::vector<FieldOverride> overrides) {
      return LoadCheckpointForServing(path, {.overrides = std::move(overrides)});
    };
    EXPECT_EQ(served({})->run.precision.wire, Dtype::kBf16);  // as the folder's tensors are, and the run was
    for (const auto& [name, wire] : {std::pair("FP32", Dtype::kF32), {"FP16", Dtype::kF16}}) {
      ASSERT_OK_AND_ASSIGN(const ServingCheckpoint in_it, served({{"precision.wire", name}}));
      EXPECT_EQ(in_it.store->wire_dtype(), wire);
      EXPECT_THAT(ParseRunConfig(SerializeRunConfig(in_it.run)), IsOkAndHolds(in_it.run));
    }
    ASSERT_OK_AND_ASSIGN(const ServingCheckpoint small, served({{"precision.frozen", "NF4"}}));
    EXPECT_GT(small.store->sizes().quantized_bytes, 0);
    EXPECT_EQ(small.run.model.frozen_format, QuantizedFormat::kNf4);
    EXPECT_THAT(served({{"precision.frozen", "NF4"}, {"steps", "3"}}),
                StatusIs(absl::StatusCode::kInvalidArgument, "--set: steps: a model is served by precision.wire"));
    EXPECT_THAT(served({{"precision.wire", "FP8"}}), StatusIs(absl::StatusCode::kInvalidArgument, "precision.wire"));
  }
}

// Whatever the loss was scaled by, and its gradient clipped: nothing is trained.
TEST(ServingCheckpointTest, EveryRunIsServedInAnyWire) {
  std::vector<RunConfig> runs(3, SmallRun(Dtype::kF16));
  runs[0].precision.loss_scale = LossScaleRule();
  runs[1] = SmallRun(Dtype::kF32);
  runs[1].precision.tf32 = true;
  runs[2] = SmallRun(Dtype::kBf16);
  runs[2].optimizer.clip = ClipMode::kPerBlob;
  runs[2].optimizer.clip_norm = 1;
  for (const RunConfig& run : runs) {
    const ServedCheckpoint f(run);
    for (const char* wire : {"FP16", "BF16", "FP32"}) {
      EXPECT_OK(LoadCheckpointForServing(f.dir.path(), {.overrides = {{"precision.wire", wire}}}));
    }
  }
}

}  // namespace
}  // namespace eps::server
