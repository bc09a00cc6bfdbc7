#include "eps_server/checkpoint/serving_checkpoint.h"

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/checkpoint/run_state.h"
#include "common/checkpoint/testing.h"
#include "common/formats/model_folder_writer.h"
#include "common/model/model_spec.h"
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
  explicit ServedCheckpoint(Dtype wire = Dtype::kBf16) : run(SmallRun(wire)), model(BuildModel(run.model).value()) {
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

// The wire form, which is all that a worker sees.
void ExpectSameWire(const ModelSpec& model, const Store& a, const Store& b, Version version) {
  for (const BlobSpec& blob : model.blobs) {
    EXPECT_EQ(b.published(blob.id), version);
    const auto of_a = a.Wire(blob.id, version);
    const auto of_b = b.Wire(blob.id, version);
    ASSERT_EQ(of_a.size(), of_b.size());
    EXPECT_EQ(std::memcmp(of_a.data(), of_b.data(), of_a.size()), 0) << blob.name;
  }
}

TEST(ServingCheckpointTest, EveryWayToNameItFindsTheSameModel) {
  for (const Dtype wire : {Dtype::kBf16, Dtype::kF32}) {
    const ServedCheckpoint f(wire);
    const auto written = FilledStore(f.model, f.run, Version(5), 5);
    for (const char* path : {"checkpoints/step-00000005", "checkpoints/latest", "checkpoints", "checkpoints/", "."}) {
      ASSERT_OK_AND_ASSIGN(const ServingCheckpoint served, LoadCheckpointForServing(f.dir.File(path)));
      EXPECT_EQ(served.state.version, Version(5)) << path;
      EXPECT_EQ(served.state.losses, StateAt(5).losses);
      EXPECT_EQ(served.run.model, f.run.model);
      ExpectSameWire(f.model, *written, *served.store, Version(5));
    }
  }
}

TEST(ServingCheckpointTest, AnOlderOneIsTakenWhenItIsAskedFor) {
  const ServedCheckpoint f;
  ASSERT_OK_AND_ASSIGN(const ServingCheckpoint served,
                       LoadCheckpointForServing(f.dir.File("checkpoints/step-00000003")));
  EXPECT_EQ(served.state.version, Version(3));
}

TEST(ServingCheckpointTest, NoMomentsAreHeldAndTheRunIsOneThatAWorkerTakes) {
  const ServedCheckpoint f;
  ASSERT_OK_AND_ASSIGN(const ServingCheckpoint served, LoadCheckpointForServing(f.dir.path()));
  EXPECT_EQ(served.store->sizes().moment_bytes, 0);
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
  const auto fill = [](const TensorSpec& tensor, int64_t first, absl::Span<float> values) {
    InitTensorPart(tensor, 3, first, values);
    return absl::OkStatus();
  };
  ASSERT_OK(WriteModelFolder(dir.File("llama"), BuildModel(config).value(), {}, fill));
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

TEST(ServingCheckpointTest, AHuggingFaceFolderIsServedInFp32) {
  const ServedCheckpoint f;
  const std::string folder = f.dir.File("hf");
  ASSERT_OK(WriteModelFolder(folder, f.model, {.dtype = "F32"},
                             [](const TensorSpec& tensor, int64_t first, absl::Span<float> values) {
                               InitTensorPart(tensor, 3, first, values);
                               return absl::OkStatus();
                             }));
  ASSERT_OK_AND_ASSIGN(const ServingCheckpoint served, LoadCheckpointForServing(folder));
  EXPECT_EQ(served.store->wire_dtype(), Dtype::kF32);
  EXPECT_EQ(served.state.version, Version(0));
  const auto wanted = Store::Create(f.model, served.run).value();
  ASSERT_OK(InitStore(f.model, 1, *wanted));
  ExpectSameWire(f.model, *wanted, *served.store, Version(0));
  EXPECT_THAT(ParseRunConfig(SerializeRunConfig(served.run)), IsOkAndHolds(served.run));
}

}  // namespace
}  // namespace eps::server
