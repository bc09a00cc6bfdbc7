#include "common/spec/run_config.h"

#include <filesystem>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/file_util.h"
#include "common/choices/choices.h"
#include "common/numeric/quantized.h"
#include "common/schedule/loss_scale.h"
#include "common/spec/moment_format.h"
#include "common/spec/testing.h"
#include "common/tensor/dtype.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// The same as kExample.
constexpr char kExampleJson[] = R"({
  "model": {"family": "GPT2", "layers": 12, "d_model": 384, "heads": 6, "context": 256, "vocab": 256, "init_seed": 1},
  "data": {"path": "kjv.txt", "tokenizer": "BYTES", "order": "SHUFFLED", "seed": 7},
  "batch": {"virtual_nodes": 4, "micro_batches": 2, "micro_batch": 4},
  "optimizer": {"adamw": {"beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1},
                "schedule": {"peak": 6e-4, "warmup_steps": 20, "decay": "COSINE", "final": 6e-5},
                "clip": {"mode": "EXACT", "norm": 1.0}},
  "precision": {"wire": "BF16", "gradients": "BF16", "moments": "FP32"},
  "steps": 200,
  "checkpoint": {"every_steps": 100, "keep": 2, "buffer_bytes": 4096, "last": false,
    "keep_every_steps": 300}
})";

RunConfig ExampleConfig(const TempDir& dir) {
  RunConfig want;
  want.model.num_layers = 12;
  want.model.d_model = 384;
  want.model.num_heads = 6;
  want.model.context = 256;
  want.model.vocab = 256;
  want.model.init_seed = 1;
  want.data.path = dir.File("kjv.txt");
  want.data.order = DataOrder::kShuffled;
  want.data.seed = 7;
  want.batch = {.virtual_nodes = 4, .micro_batches = 2, .micro_batch = 4};
  want.optimizer.beta2 = 0.95;
  want.optimizer.weight_decay = 0.1;
  want.optimizer.peak_learning_rate = 6e-4;
  want.optimizer.final_learning_rate = 6e-5;
  want.optimizer.warmup_steps = 20;
  want.optimizer.decay = ScheduleDecay::kCosine;
  want.optimizer.clip = ClipMode::kExact;
  want.optimizer.clip_norm = 1;
  want.checkpoint = {.every_steps = 100, .keep = 2, .buffer_bytes = 4096, .last = false, .keep_every_steps = 300};
  want.steps = 200;
  return want;
}

// ---- What is right

TEST_F(RunConfigTest, TheDocumentedExampleIsRead) {
  EXPECT_THAT(Load(kExample), IsOkAndHolds(ExampleConfig(dir_)));
  EXPECT_EQ(MustLoad(kExample).tokens_per_step(), 4 * 2 * 4 * 256);
}

TEST_F(RunConfigTest, JsonMeansTheSameAsTextproto) {
  EXPECT_THAT(LoadAs("run.json", kExampleJson), IsOkAndHolds(ExampleConfig(dir_)));
}

TEST_F(RunConfigTest, AbsentFieldsTakeTheirDefaults) {
  const RunConfig config = MustLoad(kSmall);
  EXPECT_EQ(config.data.tokenizer, TokenForm::kBytes);
  EXPECT_EQ(config.data.order, DataOrder::kSequential);
  EXPECT_EQ(config.batch, (BatchConfig{1, 1, 1}));
  EXPECT_EQ(config.optimizer.rule, OptimizerRule::kAdamW);
  EXPECT_EQ(config.optimizer.beta1, 0.9);
  EXPECT_EQ(config.optimizer.beta2, 0.999);
  EXPECT_EQ(config.optimizer.eps, 1e-8);
  EXPECT_EQ(config.optimizer.weight_decay, 0.01);
  EXPECT_EQ(config.optimizer.decay, ScheduleDecay::kConstant);
  EXPECT_EQ(config.optimizer.warmup_steps, 0);
  EXPECT_EQ(config.optimizer.clip, ClipMode::kNone);
  EXPECT_EQ(config.precision,
            (PrecisionConfig{.wire = Dtype::kBf16, .gradients = Dtype::kBf16, .moments = MomentFormat::kFp32}));
  EXPECT_EQ(config.relay, RelayConfig{});
  EXPECT_EQ(config.transport, TransportChoice::kAuto);
  EXPECT_EQ(config.checkpoint, (CheckpointConfig{0, 2, 0, true, 0}));
  EXPECT_EQ(config.model.residual_dropout, 0);
  EXPECT_EQ(config.model.layer_norm_eps, 1e-5);
}

TEST_F(RunConfigTest, AnExplicitZeroIsNoAbsentField) {
  const RunConfig config = MustLoad(kSmall, {{"optimizer.adamw.weight_decay", "0"}, {"optimizer.adamw.beta1", "0"}});
  EXPECT_EQ(config.optimizer.weight_decay, 0);
  EXPECT_EQ(config.optimizer.beta1, 0);
}

TEST_F(RunConfigTest, RelayTransportAndPrecisionAreRead) {
  const RunConfig config = MustLoad(std::string(kSmall) + R"(
      relay { inner: RECOMPUTE boundaries: DEVICE resident: true weight_slots: 3 group_members: 4
              graphs: NEVER  vnode_shares: EVEN  device_models: ONE depth_first_blocks: 0 }
      transport: GRPC  precision { wire: FP32 gradients: BF16 algorithms: FASTEST })");
  EXPECT_EQ(config.relay, (RelayConfig{InnerPolicy::kRecompute, BoundaryPolicy::kDevice, true, 3, 4, GraphUse::kNever,
                                       VnodeShares::kEven, DeviceModelRule::kOne, 0}));
  EXPECT_EQ(config.transport, TransportChoice::kGrpc);
  EXPECT_EQ(config.precision,
            (PrecisionConfig{.wire = Dtype::kF32, .gradients = Dtype::kBf16, .algorithms = ChoiceRule::kFastest}));
  EXPECT_THAT(ParseRunConfig(SerializeRunConfig(config)), IsOkAndHolds(config));
}

TEST_F(RunConfigTest, Fp16BringsALossScale) {
  RunConfig config = MustLoad(kSmall, {{"precision.wire", "FP16"}});
  EXPECT_EQ(config.precision.wire, Dtype::kF16);
  EXPECT_EQ(config.precision.loss_scale, (LossScaleRule{65536, 2000}));
  EXPECT_TRUE(config.defers_updates());
  EXPECT_THAT(ParseRunConfig(SerializeRunConfig(config)), IsOkAndHolds(config));
  config =
      MustLoad(std::string(kSmall) + "precision { gradients: FP16 loss_scale { initial: 0.5 growth_interval: 0 } }");
  EXPECT_EQ(config.precision.gradients, Dtype::kF16);
  EXPECT_EQ(config.precision.loss_scale, (LossScaleRule{0.5, 0}));
  EXPECT_THAT(ParseRunConfig(SerializeRunConfig(config)), IsOkAndHolds(config));
  EXPECT_FALSE(MustLoad(kSmall).precision.loss_scale.has_value());
  EXPECT_FALSE(MustLoad(kSmall).defers_updates());
}

TEST_F(RunConfigTest, OneVersionOfTheWeightsIsAskedFor) {
  const RunConfig config = MustLoad(kSmall, {{"precision.wire_versions", "1"}});
  EXPECT_EQ(config.precision.wire_versions, 1);
  EXPECT_FALSE(config.keeps_weights_of_step());
  EXPECT_THAT(ParseRunConfig(SerializeRunConfig(config)), IsOkAndHolds(config));
  EXPECT_TRUE(MustLoad(kSmall).keeps_weights_of_step());
  EXPECT_TRUE(MustLoad(kSmall, {{"precision.wire_versions", "1"}, {"precision.wire", "FP16"}}).keeps_weights_of_step());
}

TEST_F(RunConfigTest, PlainAttentionIsAskedFor) {
  const RunConfig config = MustLoad(kSmall, {{"precision.plain_attention", "true"}});
  EXPECT_TRUE(config.precision.plain_attention);
  EXPECT_FALSE(MustLoad(kSmall).precision.plain_attention);
  EXPECT_THAT(ParseRunConfig(SerializeRunConfig(config)), IsOkAndHolds(config));
  EXPECT_THAT(DifferencesThatMatter(MustLoad(kSmall), config),
              ElementsAre("precision.plain_attention: was false, now true"));
}

TEST_F(RunConfigTest, Tf32IsOfFp32) {
  const RunConfig config = MustLoad(kSmall, {{"precision.wire", "FP32"}, {"precision.tf32", "true"}});
  EXPECT_TRUE(config.precision.tf32);
  EXPECT_THAT(ParseRunConfig(SerializeRunConfig(config)), IsOkAndHolds(config));
}

TEST_F(RunConfigTest, WhatDoesNotGoWithFp16IsRefused) {
  const FieldOverride fp16 = {"precision.gradients", "FP16"};
  const auto refused = [&](std::vector<FieldOverride> overrides, const char* why) {
    EXPECT_THAT(Load(kSmall, overrides), StatusIs(absl::StatusCode::kInvalidArgument, why));
  };
  for (const char* mode : {"PER_BLOB", "LAGGED"}) {
    refused({fp16, {"optimizer.clip.mode", mode}, {"optimizer.clip.norm", "1"}}, "optimizer.clip.mode: updates before");
  }
  for (const char* bad : {"3", "0", "-2", "33554432", "nan", "1e-9"}) {
    refused({fp16, {"precision.loss_scale.initial", bad}}, "precision.loss_scale.initial: ");
  }
  refused({fp16, {"precision.loss_scale.growth_interval", "-1"}}, "precision.loss_scale.growth_interval: -1");
}

TEST_F(RunConfigTest, LayersAreDroppedOnlyWhereItIsSaid) {
  EXPECT_FALSE(MustLoad(kExample).layer_drop.is_on());
  const RunConfig run = MustLoad(kExample, {{"depth.drop.share", "0.25"}});
  EXPECT_EQ(run.layer_drop, (LayerDropConfig{.share = 0.25}));
  EXPECT_EQ(MustLoad(kExample, {{"depth.drop.share", "0.25"}, {"depth.drop.rule", "LINEAR"}}).layer_drop,
            (LayerDropConfig{.share = 0.25, .rule = DropRule::kLinear}));
  // None is what it was before there was any: old checkpoints go on.
  EXPECT_EQ(MustLoad(kExample, {{"depth.drop.share", "0"}, {"depth.drop.rule", "LINEAR"}}), MustLoad(kExample));
  EXPECT_THAT(SerializeRunConfig(MustLoad(kExample)), Not(HasSubstr("depth")));
  EXPECT_THAT(DifferencesThatMatter(MustLoad(kExample), run), ElementsAre("depth: was absent, now given"));
}

TEST_F(RunConfigTest, SharesThatDropAllOrNoneOfABertAreRefused) {
  EXPECT_THAT(LoadWith("depth.drop.share", "1"),
              StatusIs(kInvalid, "depth.drop.share: 1, must be at least 0 and less than 1"));
  EXPECT_THAT(LoadWith("depth.drop.share", "-0.1"), StatusIs(kInvalid, "depth.drop.share: -0.1"));
  EXPECT_THAT(LoadWith("depth.drop.share", "nan"), StatusIs(kInvalid, "depth.drop.share: nan"));
  EXPECT_THAT(LoadWith("depth.drop.rule", "SOME"), StatusIs(kInvalid, "one of UNIFORM, LINEAR"));
  EXPECT_THAT(LoadWith("depth.share", "0.1"), StatusIs(kInvalid, "depth.share: unknown field; known: drop"));
  EXPECT_THAT(
      Load(kSmall,
           {{"model.family", "BERT"}, {"model.d_ff", "16"}, {"depth.drop.share", "0.1"}, {"data.mask.token", "3"}}),
      StatusIs(kInvalid, "depth.drop.share: a BERT's block begins with the norm"));
}

class PreferencesTest : public RunConfigTest {
 protected:
  // kSmall on pairs, with more fields.
  absl::StatusOr<RunConfig> LoadPairs(const std::vector<FieldOverride>& more) {
    std::vector<FieldOverride> fields = {{"data.path", "a.jsonl"}, {"batch.micro_batch", "4"}};
    fields.insert(fields.end(), more.begin(), more.end());
    return Load(kSmall, fields);
  }
};

TEST_F(PreferencesTest, HaveARuleWithItsOwnNumbers) {
  EXPECT_FALSE(MustLoad(kSmall).preferences.is_on());
  ASSERT_OK_AND_ASSIGN(const RunConfig simpo,
                       LoadPairs({{"preferences.loss", "SIMPO"}, {"preferences.margin", "0.5"}}));
  EXPECT_EQ(simpo.preferences, (PreferenceConfig{.rule = PreferenceRule::kSimPo, .beta = 2, .margin = 0.5}));
  EXPECT_EQ(simpo.objective(), Objective::kPreferences);
  EXPECT_EQ(simpo.data.documents, DocumentMode::kPadded);
  EXPECT_EQ(simpo.samples_per_step(), 2);
  ASSERT_OK_AND_ASSIGN(
      const RunConfig dpo,
      LoadPairs({{"preferences.label_smoothing", "0.25"}, {"model.lora.rank", "2"}, {"model.lora.alpha", "2"}}));
  EXPECT_EQ(dpo.preferences, (PreferenceConfig{.rule = PreferenceRule::kDpo, .beta = 0.1, .label_smoothing = 0.25}));
  ASSERT_OK_AND_ASSIGN(const RunConfig orpo, LoadPairs({{"preferences.loss", "ORPO"}}));
  EXPECT_EQ(orpo.preferences, (PreferenceConfig{.rule = PreferenceRule::kOrpo, .beta = 0.1}));
  EXPECT_OK(LoadPairs({{"preferences.loss", "ORPO"}, {"depth.drop.share", "0.1"}}));
  for (const RunConfig& run : {simpo, dpo, orpo}) {
    ASSERT_OK_AND_ASSIGN(const RunConfig parsed, ParseRunConfig(SerializeRunConfig(run)));
    EXPECT_EQ(parsed, run);
  }
  ASSERT_OK_AND_ASSIGN(const RunConfig other, LoadPairs({{"preferences.loss", "SIMPO"}}));
  EXPECT_THAT(DifferencesThatMatter(simpo, other), ElementsAre(HasSubstr("preferences.margin")));
}

TEST_F(PreferencesTest, ThatCannotBeAreRefusedByField) {
  const auto refused = [&](const std::vector<FieldOverride>& fields, const std::string& message) {
    EXPECT_THAT(LoadPairs(fields), StatusIs(absl::StatusCode::kInvalidArgument, message));
  };
  const FieldOverride simpo = {"preferences.loss", "SIMPO"}, dpo = {"preferences.loss", "DPO"};
  const FieldOverride rank = {"model.lora.rank", "2"}, alpha = {"model.lora.alpha", "2"};
  refused({dpo}, "preferences.loss: DPO compares with the model without its adapters");
  refused({simpo, {"preferences.beta", "0"}}, "preferences.beta: 0, must be greater than 0");
  refused({simpo, {"preferences.margin", "-1"}}, "preferences.margin: -1");
  refused({simpo, {"preferences.label_smoothing", "0.1"}},
          "preferences.label_smoothing: given, but it is of loss: DPO");
  refused({dpo, rank, alpha, {"preferences.label_smoothing", "0.5"}},
          "preferences.label_smoothing: 0.5, must be at least 0 and less than 0.5");
  refused({dpo, rank, alpha, {"preferences.margin", "1"}}, "preferences.margin: given, but it is of loss: SIMPO");
  const FieldOverride orpo = {"preferences.loss", "ORPO"};
  refused({orpo, {"preferences.margin", "1"}}, "preferences.margin: given, but it is of loss: SIMPO");
  refused({orpo, {"preferences.label_smoothing", "0.1"}}, "preferences.label_smoothing: given, but it is of loss: DPO");
  refused({simpo, {"batch.micro_batch", "3"}}, "batch.micro_batch: 3, must be even");
  refused({simpo, {"data.documents", "PACKED"}}, "data.documents: pairs of answers");
  refused({simpo, {"data.uncounted", "KEPT"}}, "data.uncounted: given");
  refused({dpo, rank, alpha, {"depth.drop.share", "0.1"}}, "depth.drop.share: DPO compares with the whole model");
  refused({simpo, {"data.count", "ALL"}}, "data.count: ALL, but of pairs");
  refused({simpo, {"data.path", "a.txt"}}, "data.path: `preferences` wants JSONL");
}

TEST_F(RunConfigTest, AnOffloadHasAPathAndWhatStaysInMemory) {
  EXPECT_FALSE(MustLoad(kExample).optimizer_offload.is_on());
  EXPECT_THAT(SerializeRunConfig(MustLoad(kExample)), Not(HasSubstr("offload")));  // as older programs read it
  const RunConfig run = MustLoad(kExample, {{"optimizer_offload.path", "disk"}});
  EXPECT_EQ(run.optimizer_offload, (OptimizerOffloadConfig{.path = dir_.File("disk")}));
  const RunConfig some = MustLoad(
      kExample, {{"optimizer_offload.path", "/mnt/a"}, {"optimizer_offload.memory_bytes", "1125899906842624"}});
  EXPECT_EQ(some.optimizer_offload, (OptimizerOffloadConfig{.path = "/mnt/a", .memory_bytes = int64_t{1} << 50}));
  EXPECT_THAT(ParseRunConfig(SerializeRunConfig(some)), IsOkAndHolds(some));
  EXPECT_THAT(LoadWith("optimizer_offload.memory_bytes", "5"), StatusIs(kInvalid, "optimizer_offload.path: missing"));
  EXPECT_THAT(Load(kSmall, {{"optimizer_offload.path", "a"}, {"optimizer_offload.memory_bytes", "-1"}}),
              StatusIs(kInvalid, "optimizer_offload.memory_bytes: -1, must be at least 0"));
  EXPECT_THAT(LoadWith("optimizer_offload.nvme_path", "a"),
              StatusIs(kInvalid, "optimizer_offload.nvme_path: unknown field; known: path, memory_bytes"));
}

TEST_F(RunConfigTest, PathsAreTakenFromTheFolderOfTheFile) {
  EXPECT_EQ(MustLoad(kSmall).data.path, dir_.File("a.txt"));
  EXPECT_EQ(MustLoad(kSmall, {{"data.path", "x/../b.txt"}}).data.path, dir_.File("b.txt"));
  EXPECT_EQ(MustLoad(kSmall, {{"data.path", "/data/b.txt"}}).data.path, "/data/b.txt");
}

TEST_F(RunConfigTest, PathsAreAbsoluteEvenWhenTheFileWasNamedWithoutAFolder) {
  ASSERT_OK(WriteFileAtomically(dir_.File("here.textproto"), kSmall));
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(dir_.path());
  const absl::StatusOr<RunConfig> config = LoadRunConfig("here.textproto", {});
  const std::filesystem::path here = std::filesystem::current_path();
  std::filesystem::current_path(before);
  ASSERT_OK(config);
  EXPECT_EQ(config->data.path, (here / "a.txt").string());
}

// ---- What is wrong

TEST_F(RunConfigTest, AMissingFileIsNamed) {
  EXPECT_THAT(LoadRunConfig(dir_.File("none.textproto"), {}),
              StatusIs(absl::StatusCode::kNotFound, dir_.File("none.textproto")));
}

TEST_F(RunConfigTest, AnotherEndingIsRefused) {
  EXPECT_THAT(LoadAs("run.yaml", kSmall), StatusIs(kInvalid, "ends in .textproto or .json"));
}

TEST_F(RunConfigTest, ZeroOrAbsentStepsAreRefused) {
  EXPECT_THAT(LoadWith("steps", "0"), StatusIs(kInvalid, "steps: 0, must be at least 1"));
  EXPECT_THAT(LoadWith("steps", "-4"), StatusIs(kInvalid, "steps: -4, must be at least 1"));
  EXPECT_THAT(Load(R"(model { layers: 1 d_model: 8 heads: 2 context: 4 vocab: 9 }
                      data { path: "a.txt" } optimizer { schedule { peak: 0.1 } })"),
              StatusIs(kInvalid, "steps: missing, must be at least 1"));
}

TEST_F(RunConfigTest, RequiredFieldsAreNamedWhenTheyAreMissing) {
  EXPECT_THAT(Load("steps: 3"), StatusIs(kInvalid, "model: missing"));
  EXPECT_THAT(Load("model { d_model: 8 }"), StatusIs(kInvalid, "model.layers: missing"));
  const std::string shape = "layers: 1 d_model: 8 heads: 2 context: 4 vocab: 9";
  for (const std::string family : {"LLAMA", "BERT"}) {
    EXPECT_THAT(Load("model { family: " + family + " " + shape + " }"), StatusIs(kInvalid, "model.d_ff: missing"));
  }
  for (const std::string name : {"d_model", "heads", "context", "vocab"}) {
    std::string others = shape;
    const size_t begin = others.find(name);
    others.erase(begin, others.find(' ', others.find(':', begin) + 2) - begin);
    EXPECT_THAT(Load("model { " + others + " }"), StatusIs(kInvalid, "model." + name + ": missing"));
  }
  EXPECT_THAT(Load("model { layers: 1 d_model: 8 heads: 2 context: 4 vocab: 9 } steps: 3"),
              StatusIs(kInvalid, "data.path: missing"));
  EXPECT_THAT(Load(R"(model { layers: 1 d_model: 8 heads: 2 context: 4 vocab: 9 } data { path: "a" } steps: 3)"),
              StatusIs(kInvalid, "optimizer.schedule.peak: missing, must be greater than 0"));
}

TEST_F(RunConfigTest, AByteOrderMarkIsNoPartOfAFile) {
  const std::string mark = "\xEF\xBB\xBF";
  ASSERT_OK_AND_ASSIGN(const RunConfig want, LoadAs("run.textproto", kSmall));
  EXPECT_THAT(LoadAs("run.textproto", mark + kSmall), IsOkAndHolds(want));
  EXPECT_THAT(LoadAs("run.json", mark + R"({"steps": 0})"), StatusIs(kInvalid, "model: missing"));
  EXPECT_THAT(LoadAs("run.json", mark + "{\n7}"), StatusIs(kInvalid, "line 2, column 1"));
  EXPECT_THAT(LoadAs("run.textproto", mark + "stepz: 3"), StatusIs(kInvalid, "run.textproto:1:6: stepz"));
}

TEST_F(RunConfigTest, ValuesOutsideTheirRangeAreNamed) {
  struct Case {
    const char *path, *value, *message;
  };
  for (const Case& c : {
           Case{"model.layers", "0", "model.layers: 0"},
           Case{"model.layers", "-1", "model.layers: -1"},
           Case{"model.vocab", "16777217", "model.vocab: 16777217"},
           Case{"model.dropout", "1", "model.dropout: 1, must be at least 0 and less than 1"},
           Case{"model.dropout", "nan", "model.dropout: nan"},
           Case{"model.attention_dropout", "-0.1", "model.attention_dropout: -0.1"},
           Case{"model.layer_norm_eps", "0", "model.layer_norm_eps: 0"},
           Case{"data.path", "", "data.path: missing"},
           Case{"data.token_bytes", "3", "data.token_bytes: 3, must be 2 or 4"},
           Case{"batch.virtual_nodes", "0", "batch.virtual_nodes: 0, must be at least 1"},
           Case{"batch.virtual_nodes", "65537", "batch.virtual_nodes: 65537, must be at most 65536"},
           Case{"batch.micro_batches", "-1", "batch.micro_batches: -1, must be at least 1"},
           Case{"batch.micro_batch", "0", "batch.micro_batch: 0, must be at least 1"},
           Case{"batch.feed_forward_tile", "-64", "batch.feed_forward_tile: -64, must be at least 0"},
           Case{"batch.feed_forward_tile", "100", "batch.feed_forward_tile: 100, must be a multiple of 64"},
           Case{"batch.feed_forward_tile", "16777280", "batch.feed_forward_tile: 16777280, must be at most 16777216"},
           Case{"precision.moments", "FP16", "precision.moments: \"FP16\", must be one of FP32, BF16, FP8"},
           Case{"precision.wire", "FP8", "precision.wire: \"FP8\", must be one of FP32, BF16, FP16"},
           Case{"precision.frozen", "INT4", "precision.frozen: \"INT4\", must be one of WIRE, MXINT8, NF4"},
           Case{"precision.frozen", "MXINT8", "precision.frozen: no matrix of a block is frozen"},
           Case{"precision.tf32", "true", "precision.tf32: is of products of FP32 operands"},
           Case{"precision.loss_scale.initial", "2", "precision.loss_scale: has a meaning only where"},
           Case{"precision.wire_versions", "0", "precision.wire_versions: 0, must be at least 1"},
           Case{"precision.wire_versions", "3", "precision.wire_versions: 3, must be at most 2"},
           Case{"relay.weight_slots", "0", "relay.weight_slots: 0, must be at least 1"},
           Case{"relay.depth_first_blocks", "-1", "relay.depth_first_blocks: -1, must be at least 0"},
           Case{"relay.depth_first_blocks", "65537", "relay.depth_first_blocks: 65537, must be at most 65536"},
           Case{"relay.group_members", "65", "relay.group_members: 65, must be at most 64"},
           Case{"checkpoint.keep", "0", "checkpoint.keep: 0, must be at least 1"},
           Case{"checkpoint.every_steps", "-1", "checkpoint.every_steps: -1"},
           Case{"checkpoint.keep_every_steps", "-1", "checkpoint.keep_every_steps: -1"},
           Case{"checkpoint.keep_every_steps", "150",
                "checkpoint.keep_every_steps: 150, must be a multiple of checkpoint.every_steps, "},
           Case{"checkpoint.buffer_bytes", "-1", "checkpoint.buffer_bytes: -1"},
           Case{"checkpoint.buffer_bytes", "1125899906842625", "checkpoint.buffer_bytes: 1125899906842625"},
           Case{"steps", "1000000000001", "steps: 1000000000001, must be at most"},
       }) {
    EXPECT_THAT(LoadWith(c.path, c.value), StatusIs(kInvalid, c.message)) << c.path << " = " << c.value;
  }
}

TEST_F(RunConfigTest, ProductsThatWouldOverflowAreRefused) {
  EXPECT_THAT(
      Load(kSmall,
           {{"batch.virtual_nodes", "65536"}, {"batch.micro_batches", "1048576"}, {"batch.micro_batch", "65536"}}),
      StatusIs(kInvalid, "batch: 4503599627370496 sequences of 4 tokens per step"));
  EXPECT_THAT(
      Load(kSmall, {{"batch.virtual_nodes", "65536"}, {"batch.micro_batches", "1048576"}, {"steps", "1000000000000"}}),
      StatusIs(kInvalid, "steps: 1000000000000 of 68719476736 sequences"));
}

TEST_F(RunConfigTest, PathsAreSeenFromHere) {
  ASSERT_OK_AND_ASSIGN(const std::vector<FieldOverride> fields,
                       WithPathsFromHere({{"evaluation.path", "a/b.txt"},
                                          {"data.tokenizer_path", "/models/a"},
                                          {"data.path", "c.txt"},
                                          {"model.from", "d"},
                                          {"evaluation.path", ""},
                                          {"data.sources[1].path", "e.txt"},
                                          {"data.sources[1].tokenizer_path", "f"},
                                          {"data.sources[1].weight", "2"}}));
  const std::string here = std::filesystem::current_path().string();
  EXPECT_EQ(fields[0].value, here + "/a/b.txt");
  EXPECT_EQ(fields[1].value, "/models/a");
  EXPECT_EQ(fields[2].value, here + "/c.txt");
  EXPECT_EQ(fields[3].value, "d");
  EXPECT_EQ(fields[4].value, "") << "which whoever reads it refuses";
  EXPECT_EQ(fields[5].value, here + "/e.txt");
  EXPECT_EQ(fields[6].value, here + "/f");
  EXPECT_EQ(fields[7].value, "2");
}

// ---- Canonical text

TEST_F(RunConfigTest, WhatIsSerialisedIsParsedWithTheSameBits) {
  for (RunConfig config :
       {MustLoad(kExample), MustLoad(kSmall), MustLoad(kSmall, {{"optimizer.sgd.momentum", "0.9"}}),
        MustLoad(kSmall, {{"optimizer.lion.beta1", "0.95"}}),
        MustLoad(kSmall, {{"data.path", "x.bin"}, {"data.token_bytes", "4"}, {"data.documents", "PADDED"}}),
        MustLoad(kSmall, {{"data.path", "x.jsonl"}, {"data.tokenizer_path", "model"}, {"data.count", "ALL"}}),
        MustLoad(kSmall, {{"evaluation.path", "b.txt"}, {"evaluation.every_steps", "5"}, {"evaluation.samples", "9"}}),
        MustLoad(kSmall,
                 {{"evaluation.held_out", "0.1"}, {"evaluation.every_steps", "5"}, {"evaluation.at_start", "true"}}),
        MustLoad(kExample, {{"depth.drop.share", "0.2"}, {"depth.drop.rule", "LINEAR"}}),
        MustLoad(kSmall, {{"data.path", "x.bin"}, {"data.token_bytes", "4"}, {"relay.inner", "KEEP"}})}) {
    config.optimizer.peak_learning_rate = 0.1 + 0.2;
    config.optimizer.warmup_steps = 123456789012;
    config.model.layer_norm_eps = 1e-5 / 3;
    config.model.attention_dropout = 1.0 / 3;
    EXPECT_THAT(ParseRunConfig(SerializeRunConfig(config)), IsOkAndHolds(config));
  }
}

TEST_F(RunConfigTest, SerialisedTextIsAFixedPointAndStatesDefaults) {
  const std::string text = SerializeRunConfig(MustLoad(kSmall));
  ASSERT_OK_AND_ASSIGN(const RunConfig again, ParseRunConfig(text));
  EXPECT_EQ(SerializeRunConfig(again), text);
  EXPECT_THAT(text, HasSubstr("weight_decay: 0.01"));
  EXPECT_THAT(text, HasSubstr("wire: BF16"));
  EXPECT_THAT(text, HasSubstr("keep: 2"));
}

TEST_F(RunConfigTest, SerialisedTextIsARunSpecThatCanBeLoaded) {
  const RunConfig config = MustLoad(kExample);
  EXPECT_THAT(Load(SerializeRunConfig(config)), IsOkAndHolds(config));
}

TEST_F(RunConfigTest, PathsWithOddCharactersSurvive) {
  RunConfig config = MustLoad(kSmall);
  config.data.path = "/a \"b\"\n\\c\t\xC3\xA9\xFF.txt";
  EXPECT_THAT(ParseRunConfig(SerializeRunConfig(config)), IsOkAndHolds(config));
}

TEST_F(RunConfigTest, ParsedTextIsCheckedAgain) {
  RunConfig config = MustLoad(kSmall);
  config.steps = 0;
  EXPECT_THAT(ParseRunConfig(SerializeRunConfig(config)), StatusIs(kInvalid, "steps: 0"));
  EXPECT_THAT(ParseRunConfig("nonsense"), StatusIs(kInvalid));
  EXPECT_THAT(ParseRunConfig(""), StatusIs(kInvalid, "model: missing"));
}

// ---- Resuming

TEST_F(RunConfigTest, TheSameRunHasNoDifferences) {
  EXPECT_THAT(DifferencesThatMatter(MustLoad(kExample), MustLoad(kExample)), IsEmpty());
}

TEST_F(RunConfigTest, WhatChangesNoBitsMayDiffer) {
  const RunConfig now = MustLoad(kExample, {{"relay.inner", "RECOMPUTE"},
                                            {"relay.resident", "true"},
                                            {"relay.weight_slots", "4"},
                                            {"relay.device_models", "ONE"},
                                            {"relay.depth_first_blocks", "1"},
                                            {"transport", "GRPC"},
                                            {"checkpoint.every_steps", "50"},
                                            {"checkpoint.keep", "9"},
                                            {"checkpoint.buffer_bytes", "12345678"},
                                            {"checkpoint.last", "true"},
                                            {"checkpoint.keep_every_steps", "0"},
                                            {"precision.wire_versions", "1"},
                                            {"optimizer_offload.path", "/disk"},
                                            {"optimizer_offload.memory_bytes", "12345"}});
  EXPECT_THAT(DifferencesThatMatter(MustLoad(kExample), now), IsEmpty());
}

TEST_F(RunConfigTest, EachFieldThatChangesBitsIsNamedWithBothValues) {
  struct Case {
    const char *path, *value, *was, *now;
  };
  for (const Case& c : {
           Case{"model.layers", "11", "12", "11"},
           Case{"model.d_model", "390", "384", "390"},
           Case{"model.context", "128", "256", "128"},
           Case{"model.init_seed", "2", "1", "2"},
           Case{"model.attention_dropout", "0.1", "0", "0.1"},
           Case{"data.order", "SEQUENTIAL", "SHUFFLED", "SEQUENTIAL"},
           Case{"data.seed", "8", "7", "8"},
           Case{"data.tokenizer", "TOKEN_IDS", "BYTES", "TOKEN_IDS"},
           Case{"batch.virtual_nodes", "8", "4", "8"},
           Case{"batch.micro_batches", "1", "2", "1"},
           Case{"batch.micro_batch", "8", "4", "8"},
           Case{"batch.feed_forward_tile", "128", "0", "128"},
           Case{"optimizer.adamw.beta2", "0.999", "0.95", "0.999"},
           Case{"optimizer.adamw.weight_decay", "0", "0.1", "0"},
           Case{"optimizer.schedule.peak", "0.001", "0.0006", "0.001"},
           Case{"optimizer.schedule.decay", "LINEAR", "COSINE", "LINEAR"},
           Case{"optimizer.clip.mode", "LAGGED", "EXACT", "LAGGED"},
           Case{"optimizer.clip.norm", "2", "1", "2"},
           Case{"precision.wire", "FP32", "BF16", "FP32"},
           Case{"precision.gradients", "FP32", "BF16", "FP32"},
           Case{"precision.algorithms", "FASTEST", "FIRST", "FASTEST"},
           Case{"precision.gradients", "FP16", "BF16", "FP16"},
           Case{"precision.moments", "BF16", "FP32", "BF16"},
           Case{"precision.moments", "FP8", "FP32", "FP8"},
           Case{"steps", "300", "200", "300"},
       }) {
    const std::vector<std::string> differences =
        DifferencesThatMatter(MustLoad(kExample), MustLoad(kExample, {{c.path, c.value}}));
    ASSERT_FALSE(differences.empty()) << c.path;
    EXPECT_EQ(differences[0], std::string(c.path) + ": was " + c.was + ", now " + c.now);
  }
}

TEST_F(RunConfigTest, TheFormOfWhatIsFrozenMatters) {
  const std::vector<FieldOverride> lora = {{"model.lora.rank", "2"}};
  std::vector<FieldOverride> quantized = lora;
  quantized.push_back({"precision.frozen", "MXINT8"});
  const RunConfig was = MustLoad(kExample, lora), now = MustLoad(kExample, quantized);
  EXPECT_EQ(now.model.frozen_format, QuantizedFormat::kMxInt8);
  EXPECT_THAT(DifferencesThatMatter(was, now), ElementsAre("precision.frozen: was WIRE, now MXINT8"));
  quantized.back() = {"precision.frozen", "NF4"};
  const RunConfig smaller = MustLoad(kExample, quantized);
  EXPECT_EQ(smaller.model.frozen_format, QuantizedFormat::kNf4);
  EXPECT_THAT(DifferencesThatMatter(now, smaller), ElementsAre("precision.frozen: was MXINT8, now NF4"));
  EXPECT_EQ(SerializeRunConfig(was).find("frozen"), std::string::npos);  // programs of before there was any read it
}

TEST_F(RunConfigTest, AnotherRuleAndAnotherTextAreNamed) {
  EXPECT_THAT(DifferencesThatMatter(MustLoad(kSmall), MustLoad(kSmall, {{"optimizer.sgd.momentum", "0"}})),
              ElementsAre("optimizer.adamw: was given, now absent", "optimizer.sgd: was absent, now given"));
  EXPECT_THAT(DifferencesThatMatter(MustLoad(kSmall), MustLoad(kSmall, {{"data.path", "/b.txt"}})),
              ElementsAre("data.path: was \"" + dir_.File("a.txt") + "\", now \"/b.txt\""));
}

TEST(WorkersTest, AreAtMostAsManyAsVirtualNodes) {
  EXPECT_OK(CheckWorkers("--workers", 4, {.virtual_nodes = 4}));
  EXPECT_THAT(
      CheckWorkers("--workers", 5, {.virtual_nodes = 4}),
      StatusIs(absl::StatusCode::kInvalidArgument, "--workers: 5, must be at most 4, as batch.virtual_nodes is"));
}

TEST(FieldOverrideTest, WhatIsBehindTheFirstEqualsSignIsTheValue) {
  ASSERT_OK_AND_ASSIGN(const FieldOverride field, ParseFieldOverride("data.path=a=b.txt"));
  EXPECT_EQ(field.path, "data.path");
  EXPECT_EQ(field.value, "a=b.txt");
  EXPECT_EQ(ParseFieldOverride("data.path=").value().value, "");
  for (const char* bad : {"", "=", "=3", "steps"}) {
    EXPECT_THAT(ParseFieldOverride(bad), StatusIs(absl::StatusCode::kInvalidArgument, "field.path=value")) << bad;
  }
}

}  // namespace
}  // namespace eps
