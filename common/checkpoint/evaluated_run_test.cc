#include "common/checkpoint/evaluated_run.h"

#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/file_util.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/testing.h"
#include "common/model/model_spec.h"
#include "common/numeric/quantized.h"
#include "common/spec/run_config.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

constexpr char kTinyGpt2[] =
    R"({"model_type":"gpt2","n_layer":2,"n_embd":8,"n_head":2,"n_positions":5,"vocab_size":300})";

class EvaluatedRunTest : public ::testing::Test {
 protected:
  void Write(const std::string& name, const std::string& bytes) {
    EXPECT_OK(MakeDirs(DirName(dir_.File(name))));
    EXPECT_OK(WriteFileAtomically(dir_.File(name), bytes));
  }

  // The run has made a checkpoint, of which the manifest alone is there. Returns its folder.
  std::string Checkpoint(const RunConfig& run, int64_t step = 4) {
    Manifest manifest{.run = run, .state = StateAt(step), .files = {}};
    for (const absl::string_view name : kSummedFiles) {
      manifest.files[std::string(name)] = {.num_bytes = 1, .sha256 = std::string(64, '0'), .part_crcs = {0}};
    }
    Write("out/checkpoints/step-00000004/manifest.json", ManifestToJson(manifest));
    Write("out/checkpoints/latest", "step-00000004\n");
    return dir_.File("out/checkpoints/step-00000004");
  }
  static std::vector<FieldOverride> On(const std::string& path) { return {{"evaluation.path", path}}; }

  // By a message that says all of that.
  static void ExpectRefused(const std::string& path, const std::vector<FieldOverride>& overrides,
                            const std::vector<std::string>& words) {
    const absl::Status found = FindEvaluatedRun(path, overrides).status();
    for (const std::string& word : words) {
      EXPECT_THAT(found, StatusIs(absl::StatusCode::kInvalidArgument, word));
    }
  }

  TempDir dir_;
};

RunConfig OnHeldOut(RunConfig run = SmallRun()) {
  run.evaluation = {.held_out = 0.1, .every_steps = 50, .samples = 7};
  return run;
}

TEST_F(EvaluatedRunTest, ACheckpointsRunIsDueAtItsOwnStepAndAllButATensorIsFrozen) {
  RunConfig run = OnHeldOut();
  run.model_from = "/models/a";
  run.layer_drop.share = 0.5;
  run.model.freeze = {"*.bias"};
  const std::string folder = Checkpoint(run);
  for (const std::string& path : {folder, dir_.File("out"), dir_.File("out/checkpoints/latest")}) {
    ASSERT_OK_AND_ASSIGN(const EvaluatedRun found, FindEvaluatedRun(path, {}));
    EXPECT_EQ(found.folder, folder);
    const RunConfig& config = found.config;
    EXPECT_TRUE(config.evaluation.IsDue(4, config.steps));
    EXPECT_EQ(config.steps, 5);
    EXPECT_EQ(config.evaluation.held_out, 0.1);
    EXPECT_EQ(config.evaluation.samples, 7);
    EXPECT_EQ(config.data, run.data);
    EXPECT_EQ(config.batch, run.batch);
    EXPECT_EQ(config.precision, run.precision);
    EXPECT_EQ(config.model_from, "");
    EXPECT_EQ(config.optimizer.num_moments(), 0);
    EXPECT_FALSE(config.layer_drop.is_on());
    EXPECT_FALSE(config.checkpoint.last);
    ASSERT_OK_AND_ASSIGN(const ModelSpec model, BuildModel(config.model));
    int64_t trained = 0;
    for (const BlobSpec& blob : model.blobs) trained += blob.frozen ? 0 : blob.num_parameters();
    EXPECT_EQ(trained, config.model.d_model) << "a weight or a bias of the last norm";
    EXPECT_TRUE(model.layers.back().trains());
  }
}

TEST_F(EvaluatedRunTest, AdaptersAreTheModelsAndFrozenAsAllElse) {
  RunConfig run = OnHeldOut();
  run.model.lora = {.rank = 2, .alpha = 4, .targets = {"c_attn"}};
  run.model.freeze = {"!*.ln_1.*"};
  Checkpoint(run);
  ASSERT_OK_AND_ASSIGN(const EvaluatedRun found, FindEvaluatedRun(dir_.File("out"), {}));
  EXPECT_EQ(found.config.model.lora, run.model.lora);
  ASSERT_OK_AND_ASSIGN(const ModelSpec model, BuildModel(found.config.model));
  EXPECT_EQ(model.num_parameters(), BuildModel(run.model)->num_parameters());
  EXPECT_EQ(model.num_trainable_parameters(), run.model.d_model) << "a weight or a bias of the last norm";
  ExpectRefused(dir_.File("out"), {{"model.lora.alpha", "1"}}, {"model.lora.alpha", "leave it out"});
}

std::set<std::string> QuantizedTensors(const ModelConfig& config) {
  const ModelSpec model = BuildModel(config).value();
  std::set<std::string> names;
  for (const BlobSpec& blob : model.blobs) {
    if (!blob.is_quantized()) continue;
    for (const TensorSpec& tensor : blob.tensors) names.insert(tensor.name);
  }
  return names;
}

// Unless the run trained some of them, which are not to be rounded; where the wire holds all that they are they are in it.
TEST_F(EvaluatedRunTest, MatricesThatWereQuantizedStaySo) {
  for (const Dtype wire : {Dtype::kBf16, Dtype::kF16}) {
    for (const std::vector<std::string>& freeze :
         {std::vector<std::string>{}, {"!*.mlp.c_fc.*"}, {"!*.mlp.c_fc.bias", "!transformer.w*"}}) {
      RunConfig run = OnHeldOut();
      run.precision.wire = wire;
      if (wire == Dtype::kF16) run.precision.loss_scale = LossScaleRule();
      run.model.lora = {.rank = 2, .alpha = 4, .targets = {"c_attn"}};
      run.model.freeze = freeze;
      run.model.frozen_format = QuantizedFormat::kMxInt8;
      const std::string folder = Checkpoint(run);
      const auto evaluated = [&](const std::vector<FieldOverride>& overrides) {
        return FindEvaluatedRun(folder, overrides).value().config.model;
      };
      const bool trained_some = freeze.size() == 1;
      const std::set<std::string> quantized = QuantizedTensors(run.model);
      EXPECT_EQ(QuantizedTensors(evaluated({})),
                trained_some && wire == Dtype::kBf16 ? std::set<std::string>() : quantized);
      EXPECT_EQ(evaluated({{"precision.frozen", "WIRE"}}).frozen_format, std::nullopt);
      EXPECT_EQ(QuantizedTensors(evaluated({{"precision.frozen", "NF4"}})).size(),
                quantized.size() + (trained_some ? 2 : 0));  // of two blocks
    }
  }
  ExpectRefused(Checkpoint(OnHeldOut()), {{"precision.frozen", "INT4"}},
                {"precision.frozen: \"INT4\", must be one of"});
  EXPECT_EQ(
      FindEvaluatedRun(Checkpoint(OnHeldOut()), {{"precision.frozen", "MXINT8"}}).value().config.model.frozen_format,
      QuantizedFormat::kMxInt8);
}

// What the optimizer, or the products of fp32, would rule out.
TEST_F(EvaluatedRunTest, AnotherWireIsNotRefusedForWhatTrainingAloneHas) {
  RunConfig run = OnHeldOut();
  run.optimizer.clip = ClipMode::kPerBlob;
  run.optimizer.clip_norm = 1;
  run.precision.wire = run.precision.gradients = Dtype::kF32;
  run.precision.tf32 = true;
  const std::string folder = Checkpoint(run);
  for (const char* wire : {"BF16", "FP16", "FP32"}) {
    EXPECT_OK(FindEvaluatedRun(folder, {{"precision.wire", wire}}));
  }
  for (const std::vector<FieldOverride>& same : {std::vector<FieldOverride>{}, {{"precision.wire", "FP32"}}}) {
    EXPECT_TRUE(FindEvaluatedRun(folder, same)->config.precision.tf32);
  }
}

TEST_F(EvaluatedRunTest, AFileTakesThePlaceOfWhatTheRunEvaluates) {
  Checkpoint(OnHeldOut());
  ASSERT_OK_AND_ASSIGN(const EvaluatedRun found, FindEvaluatedRun(dir_.File("out"), On("/data/other")));
  EXPECT_EQ(found.config.evaluation.path, "/data/other");
  EXPECT_EQ(found.config.evaluation.held_out, 0);
  EXPECT_EQ(found.config.evaluation.samples, 0);
  EXPECT_TRUE(found.config.evaluation.IsDue(4, found.config.steps));
  // As it is seen from here.
  ASSERT_OK_AND_ASSIGN(const EvaluatedRun here, FindEvaluatedRun(dir_.File("out"), On("other")));
  EXPECT_EQ(here.config.evaluation.path, std::filesystem::absolute("other").string());
  ASSERT_OK_AND_ASSIGN(const EvaluatedRun set, FindEvaluatedRun(dir_.File("out"), {{"evaluation.path", "/data/a"},
                                                                                   {"evaluation.samples", "3"},
                                                                                   {"batch.micro_batch", "2"}}));
  EXPECT_EQ(set.config.evaluation.samples, 3);
  EXPECT_EQ(set.config.batch.micro_batch, 2);
}

TEST_F(EvaluatedRunTest, ARunThatEvaluatesNothingHasToBeToldOnWhat) {
  Checkpoint(SmallRun());
  ExpectRefused(dir_.File("out"), {}, {"evaluation.path: missing", "--data"});
  EXPECT_OK(FindEvaluatedRun(dir_.File("out"), On("/data/other")).status());
}

TEST_F(EvaluatedRunTest, AFileOfAnotherFormThanTheRunsDataIsRefused) {
  RunConfig run = SmallRun();
  Checkpoint(run);
  for (const char* path : {"/data/a.jsonl", "/data/a.tsv", "/data/a.bin"}) {
    ExpectRefused(dir_.File("out"), On(path), {path, "/data/text, text"});
  }
  run.data.path = "/data/a.bin";
  run.data.tokenizer = TokenForm::kTokenFile;
  Checkpoint(run);
  ExpectRefused(dir_.File("out"), On("/data/text"), {"`eps tokenize`"});
  EXPECT_OK(FindEvaluatedRun(dir_.File("out"), On("/data/b.bin")).status());
  // Of data that are what their name does not say, other files may be so too.
  run.data.path = "/data/ids";
  Checkpoint(run);
  EXPECT_OK(FindEvaluatedRun(dir_.File("out"), On("/data/other")).status());
}

TEST_F(EvaluatedRunTest, TheModelIsTheCheckpoints) {
  Checkpoint(OnHeldOut());
  ExpectRefused(dir_.File("out"), {{"batch.micro_batch", "0"}}, {"batch.micro_batch"});
  ExpectRefused(dir_.File("out"), {{"model.context", "3"}}, {"model.context: 3, must be 5"});
  for (const char* field : {"model.layers", "model.freeze", "steps", "optimizer.schedule.peak", "checkpoint.last",
                            "depth.drop.share", "evaluation.every_steps", "evaluation.at_start"}) {
    ExpectRefused(dir_.File("out"), {{field, "1"}}, {field, "leave it out"});
  }
  RunConfig llama = OnHeldOut();
  llama.model.family = ModelFamily::kLlama;
  llama.model.num_kv_heads = 2;
  llama.model.d_head = 12;
  llama.model.d_ff = 8;
  llama.model.max_positions = 64;
  Checkpoint(llama);
  ASSERT_OK_AND_ASSIGN(const EvaluatedRun longer, FindEvaluatedRun(dir_.File("out"), {{"model.context", "8"}}));
  EXPECT_EQ(longer.config.model.context, 8);
}

TEST_F(EvaluatedRunTest, WhatWasTrainedOnIsNotCalledHeldOut) {
  Checkpoint(OnHeldOut());
  ExpectRefused(dir_.File("out"), {{"evaluation.held_out", "0.9"}}, {"evaluation.held_out: 0.9", "has held out 0.1"});
  EXPECT_OK(FindEvaluatedRun(dir_.File("out"), {{"evaluation.held_out", "0.1"}}).status());
  Checkpoint(SmallRun());
  ExpectRefused(dir_.File("out"), {{"evaluation.held_out", "0.2"}}, {"evaluation.held_out: 0.2", "held out nothing"});
}

TEST_F(EvaluatedRunTest, OfSeveralSourcesTheFileIsReadAsThatOneWhoseFormItHas) {
  RunConfig run = SmallRun();
  run.sources = {{.data = run.data, .weight = 1}, {.data = run.data, .weight = 2}};
  run.sources[0].data.path = "/data/a.jsonl";
  run.sources[0].data.is_jsonl = true;
  run.sources[0].data.documents = run.data.documents = DocumentMode::kPacked;
  run.sources[1].data.path = "/data/b.txt";
  for (int i = 0; i < 2; ++i) {
    run.sources[i].data.field = absl::StrCat("data.sources[", i, "]");
    run.sources[i].data.path_field = absl::StrCat(run.sources[i].data.field, ".path");
  }
  run.data.path.clear();
  Checkpoint(run);
  ASSERT_OK_AND_ASSIGN(const EvaluatedRun text, FindEvaluatedRun(dir_.File("out"), On("/data/c.txt")));
  EXPECT_FALSE(text.config.evaluation_data().is_jsonl);
  ASSERT_OK_AND_ASSIGN(const EvaluatedRun lines, FindEvaluatedRun(dir_.File("out"), On("/data/c.jsonl")));
  EXPECT_TRUE(lines.config.evaluation_data().is_jsonl);
  ExpectRefused(dir_.File("out"), On("/data/c.tsv"), {"/data/c.tsv is a table", "`eps export`"});
}

TEST_F(EvaluatedRunTest, AHuggingFaceFolderIsARunsFirstVersionOnThatFile) {
  Write("model/config.json", kTinyGpt2);
  Write("held.txt", "a text");
  const std::string model = dir_.File("model");
  ExpectRefused(model, {}, {"evaluation.path: missing", "--data"});
  std::vector<FieldOverride> fields = On(dir_.File("held.txt"));
  ExpectRefused(model, fields, {"data.tokenizer: missing"});
  fields.push_back({"data.tokenizer", "BYTES"});
  ASSERT_OK_AND_ASSIGN(const EvaluatedRun found, FindEvaluatedRun(model, fields));
  EXPECT_EQ(found.folder, model);
  EXPECT_EQ(found.config.model_from, model);
  EXPECT_EQ(found.config.steps, 1);
  EXPECT_TRUE(found.config.evaluation.IsDue(0, 1));
  EXPECT_EQ(found.config.evaluation.path, dir_.File("held.txt"));
  EXPECT_EQ(found.config.model.context, 5);
}

TEST_F(EvaluatedRunTest, WhatIsNoCheckpointIsNotFound) {
  EXPECT_THAT(FindEvaluatedRun(dir_.File("none"), On("/data/text")).status(),
              StatusIs(absl::StatusCode::kNotFound, "none"));
}

}  // namespace
}  // namespace eps
