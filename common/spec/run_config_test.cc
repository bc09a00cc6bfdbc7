#include "common/spec/run_config.h"

#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/file_util.h"
#include "common/choices/choices.h"
#include "common/model/hf_config.h"
#include "common/model/model_spec.h"
#include "common/schedule/loss_scale.h"
#include "common/tensor/dtype.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// The example of the documentation.
constexpr char kExample[] = R"(
model { family: GPT2  layers: 12  d_model: 384  heads: 6  context: 256  vocab: 256  init_seed: 1 }
data { path: "kjv.txt"  tokenizer: BYTES  order: SHUFFLED  seed: 7 }
batch { virtual_nodes: 4  micro_batches: 2  micro_batch: 4 }       # sequences per step: 4 * 2 * 4
optimizer { adamw { beta1: 0.9  beta2: 0.95  eps: 1e-8  weight_decay: 0.1 }
            schedule { peak: 6e-4  warmup_steps: 20  decay: COSINE  final: 6e-5 }  clip { mode: EXACT  norm: 1.0 } }
precision { wire: BF16  gradients: BF16  moments: FP32 }
steps: 200
checkpoint { every_steps: 100  keep: 2  buffer_bytes: 4096  last: false }
)";

constexpr char kSmall[] = R"(
model { layers: 1 d_model: 8 heads: 2 context: 4 vocab: 9 }
data { path: "a.txt" }
optimizer { schedule { peak: 0.1 } }
steps: 3
)";

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
  "checkpoint": {"every_steps": 100, "keep": 2, "buffer_bytes": 4096, "last": false}
})";

class RunConfigTest : public ::testing::Test {
 protected:
  absl::StatusOr<RunConfig> LoadAs(const std::string& name, const std::string& text,
                                   const std::vector<FieldOverride>& overrides = {}) {
    EXPECT_OK(WriteFileAtomically(dir_.File(name), text));
    return LoadRunConfig(dir_.File(name), overrides);
  }
  absl::StatusOr<RunConfig> Load(const std::string& text, const std::vector<FieldOverride>& overrides = {}) {
    return LoadAs("run.textproto", text, overrides);
  }
  // kSmall with one field set, as a file would have it.
  absl::StatusOr<RunConfig> LoadWith(const std::string& path, const std::string& value) {
    return Load(kSmall, {{path, value}});
  }
  RunConfig MustLoad(const std::string& text, const std::vector<FieldOverride>& overrides = {}) {
    absl::StatusOr<RunConfig> config = Load(text, overrides);
    EXPECT_OK(config);
    return config.ok() ? *config : RunConfig{};
  }
  void WriteHfFolder(const std::string& config_json) {
    ASSERT_OK(MakeDirs(dir_.File("gpt2")));
    ASSERT_OK(WriteFileAtomically(dir_.File("gpt2/config.json"), config_json));
  }

  TempDir dir_;
};

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
  want.checkpoint = {.every_steps = 100, .keep = 2, .buffer_bytes = 4096, .last = false};
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
  EXPECT_EQ(config.precision, (PrecisionConfig{Dtype::kBf16, Dtype::kBf16, ChoiceRule::kFirst}));
  EXPECT_EQ(config.relay, RelayConfig{});
  EXPECT_EQ(config.transport, TransportChoice::kAuto);
  EXPECT_EQ(config.checkpoint, (CheckpointConfig{0, 2, 0, true}));
  EXPECT_EQ(config.model.residual_dropout, 0);
  EXPECT_EQ(config.model.layer_norm_eps, 1e-5);
}

TEST_F(RunConfigTest, AnExplicitZeroIsNoAbsentField) {
  const RunConfig config = MustLoad(kSmall, {{"optimizer.adamw.weight_decay", "0"}, {"optimizer.adamw.beta1", "0"}});
  EXPECT_EQ(config.optimizer.weight_decay, 0);
  EXPECT_EQ(config.optimizer.beta1, 0);
}

TEST_F(RunConfigTest, SgdTakesItsOwnDefaults) {
  const RunConfig config = MustLoad(kSmall, {{"optimizer.sgd.momentum", "0.5"}});
  EXPECT_EQ(config.optimizer.rule, OptimizerRule::kSgd);
  EXPECT_EQ(config.optimizer.momentum, 0.5);
  EXPECT_EQ(config.optimizer.weight_decay, 0);
}

TEST_F(RunConfigTest, RelayTransportAndPrecisionAreRead) {
  const RunConfig config = MustLoad(std::string(kSmall) + R"(
      relay { inner: RECOMPUTE boundaries: DEVICE resident: true weight_slots: 3 group_members: 4 }
      transport: GRPC  precision { wire: FP32 gradients: BF16 algorithms: FASTEST })");
  EXPECT_EQ(config.relay, (RelayConfig{InnerPolicy::kRecompute, BoundaryPolicy::kDevice, true, 3, 4}));
  EXPECT_EQ(config.transport, TransportChoice::kGrpc);
  EXPECT_EQ(config.precision, (PrecisionConfig{Dtype::kF32, Dtype::kBf16, ChoiceRule::kFastest}));
  EXPECT_THAT(ParseRunConfig(SerializeRunConfig(config)), IsOkAndHolds(config));
}

TEST_F(RunConfigTest, AModelOfTheLlamaFamilyIsReadWithItsDefaults) {
  const std::string base = std::string(kSmall);
  RunConfig config = MustLoad(base, {{"model.family", "LLAMA"}, {"model.d_ff", "20"}});
  const ModelConfig& model = config.model;
  EXPECT_EQ(model.family, ModelFamily::kLlama);
  EXPECT_EQ(model.num_kv_heads, model.num_heads);
  EXPECT_EQ(model.d_head, model.d_model / model.num_heads);
  EXPECT_EQ(model.d_ff, 20);
  EXPECT_EQ(model.max_positions, model.context);
  EXPECT_FALSE(model.tied_head);
  EXPECT_EQ(model.rotary, RotaryConfig{});
  EXPECT_THAT(ParseRunConfig(SerializeRunConfig(config)), IsOkAndHolds(config));
  config = MustLoad(base, {{"model.family", "LLAMA"},
                           {"model.d_ff", "20"},
                           {"model.kv_heads", "1"},
                           {"model.head_dim", "6"},
                           {"model.tied_head", "true"},
                           {"model.qkv_bias", "true"},
                           {"model.out_bias", "true"},
                           {"model.qk_norm", "true"},
                           {"model.sliding_window", "3"},
                           {"model.rope_theta", "500"},
                           {"model.rope_scaling.type", "LLAMA3"},
                           {"model.rope_scaling.factor", "8"},
                           {"model.rope_scaling.original_context", "99"},
                           {"model.max_positions", "1000"}});
  EXPECT_EQ(config.model.rotary, (RotaryConfig{500, RotaryConfig::Scaling::kLlama3, 8, 1, 4, 99}));
  EXPECT_EQ(config.model.max_positions, 1000);
  EXPECT_TRUE(config.model.qk_norm && config.model.out_bias && config.model.tied_head);
  EXPECT_THAT(ParseRunConfig(SerializeRunConfig(config)), IsOkAndHolds(config));
}

constexpr char kBert[] = R"(
model { family: BERT layers: 1 d_model: 8 heads: 2 context: 4 vocab: 300 d_ff: 20 dropout: 0.1 classifier_dropout: 0.2 }
data { path: "a.txt" mask { token: 256 never: 10 never: 13 } }
optimizer { schedule { peak: 0.1 } }
steps: 3
)";

TEST_F(RunConfigTest, ABertIsReadWithItsDefaults) {
  RunConfig config = MustLoad(kBert);
  EXPECT_EQ(config.objective(), Objective::kMaskedTokens);
  EXPECT_EQ(config.model.num_types, 2);
  EXPECT_EQ(config.model.max_positions, 4);
  EXPECT_EQ(config.model.residual_dropout, 0.1);
  EXPECT_EQ(config.model.classifier_dropout, 0.2);
  EXPECT_EQ(config.data.mask, (MaskConfig{.share = 0.15, .token = 256, .never = {10, 13}}));
  EXPECT_THAT(ParseRunConfig(SerializeRunConfig(config)), IsOkAndHolds(config));
  EXPECT_THAT(DifferencesThatMatter(config, MustLoad(kBert, {{"data.mask.share", "0.2"}})),
              ElementsAre(HasSubstr("data.mask.share")));
}

constexpr char kClassifier[] = R"(
model { family: BERT layers: 1 d_model: 8 heads: 2 context: 4 vocab: 256 d_ff: 20 classes: 3 }
data { path: "a.tsv" text_column: "review" label_column: "stars" }
optimizer { schedule { peak: 0.1 } }
steps: 3
)";

TEST_F(RunConfigTest, AClassifierTakesTables) {
  RunConfig config = MustLoad(kClassifier);
  EXPECT_EQ(config.objective(), Objective::kClasses);
  EXPECT_EQ(config.model.labels_per_sample(), 1);
  EXPECT_TRUE(config.data.needs_tokenizing());
  EXPECT_EQ(config.data.documents, DocumentMode::kPadded);
  EXPECT_EQ(config.data.text_column, "review");
  EXPECT_THAT(ParseRunConfig(SerializeRunConfig(config)), IsOkAndHolds(config));
  const std::vector<std::pair<std::vector<FieldOverride>, std::string>> refused = {
      {{{"data.path", "a.txt"}}, "data.path: a classifier takes a table"},
      {{{"data.documents", "PACKED"}}, "data.documents: a classifier takes PADDED ones"},
      {{{"data.mask.share", "0.1"}}, "data.mask: given, but the model predicts no masked tokens"},
      {{{"model.classes", "0"}}, "data.path: a table (.tsv) is for a classifier"},
      {{{"model.classes", "1"}}, "model.classes: 1, must be 0, or between 2 and 65536"},
      {{{"data.label_column", ""}}, "data.label_column: missing beside data.text_column"},
      {{{"data.tokenizer", "TOKEN_IDS"}}, "data.tokenizer: TOKEN_IDS, but data.path is a table"}};
  for (const auto& [overrides, message] : refused) {
    EXPECT_THAT(Load(kClassifier, overrides), StatusIs(kInvalid, message)) << message;
  }
}

TEST_F(RunConfigTest, WhatABertDoesNotTakeIsRefused) {
  const std::vector<std::pair<std::vector<FieldOverride>, std::string>> refused = {
      {{{"model.head_dim", "4"}}, "model.head_dim: given, but it is of family: LLAMA"},
      {{{"data.mask.token", "300"}}, "data.mask.token: 300, must be at most 299"},
      {{{"data.mask.share", "0"}}, "data.mask.share: 0, must be greater than 0"},
      {{{"data.text_column", "a"}}, "data.text_column: given, but data.path is no table"}};
  for (const auto& [overrides, message] : refused) {
    EXPECT_THAT(Load(kBert, overrides), StatusIs(kInvalid, message)) << message;
  }
  EXPECT_THAT(Load(R"(model { family: BERT layers: 1 d_model: 8 heads: 2 context: 4 vocab: 300 d_ff: 20 }
                      data { path: "a.txt" } optimizer { schedule { peak: 0.1 } } steps: 3)"),
              StatusIs(kInvalid, "data.mask.token: missing"));
}

TEST_F(RunConfigTest, WhatIsOfTheOtherFamilyIsRefused) {
  EXPECT_THAT(Load(kSmall, {{"model.d_ff", "20"}}),
              StatusIs(kInvalid, "model.d_ff: given, but it is of family: LLAMA or BERT"));
  EXPECT_THAT(Load(kSmall, {{"model.rope_scaling.factor", "2"}}),
              StatusIs(kInvalid, "model.rope_scaling: given, but it is of family: LLAMA"));
  EXPECT_THAT(Load(kSmall, {{"model.classes", "2"}}),
              StatusIs(kInvalid, "model.classes: given, but it is of family: BERT"));
  EXPECT_THAT(Load(kSmall, {{"model.family", "LLAMA"}}), StatusIs(kInvalid, "model.d_ff: 0"));
  EXPECT_THAT(Load(kSmall, {{"model.family", "LLAMA"}, {"model.d_ff", "20"}, {"model.dropout", "0.1"}}),
              StatusIs(kInvalid, "model.embedding_dropout: 0.1, this family has none"));
}

TEST_F(RunConfigTest, Fp16BringsALossScale) {
  RunConfig config = MustLoad(kSmall, {{"precision.wire", "FP16"}});
  EXPECT_EQ(config.precision.wire, Dtype::kF16);
  EXPECT_EQ(config.precision.loss_scale, (LossScaleRule{65536, 2000}));
  EXPECT_TRUE(config.holds_updates());
  EXPECT_THAT(ParseRunConfig(SerializeRunConfig(config)), IsOkAndHolds(config));
  config =
      MustLoad(std::string(kSmall) + "precision { gradients: FP16 loss_scale { initial: 0.5 growth_interval: 0 } }");
  EXPECT_EQ(config.precision.gradients, Dtype::kF16);
  EXPECT_EQ(config.precision.loss_scale, (LossScaleRule{0.5, 0}));
  EXPECT_THAT(ParseRunConfig(SerializeRunConfig(config)), IsOkAndHolds(config));
  EXPECT_FALSE(MustLoad(kSmall).precision.loss_scale.has_value());
  EXPECT_FALSE(MustLoad(kSmall).holds_updates());
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

TEST_F(RunConfigTest, EveryClipModeIsRead) {
  EXPECT_EQ(MustLoad(kSmall, {{"optimizer.clip.mode", "PER_BLOB"}, {"optimizer.clip.norm", "2"}}).optimizer.clip,
            ClipMode::kPerBlob);
  EXPECT_EQ(MustLoad(kSmall, {{"optimizer.clip.mode", "LAGGED"}, {"optimizer.clip.norm", "2"}}).optimizer.clip,
            ClipMode::kLagged);
  EXPECT_EQ(MustLoad(kSmall, {{"optimizer.clip.mode", "NONE"}}).optimizer.clip, ClipMode::kNone);
}

TEST_F(RunConfigTest, OneDropoutIsAllThreeAndANamedOneGoesFirst) {
  const RunConfig config = MustLoad(kSmall, {{"model.dropout", "0.1"}, {"model.attention_dropout", "0"}});
  EXPECT_EQ(config.model.embedding_dropout, 0.1);
  EXPECT_EQ(config.model.attention_dropout, 0);
  EXPECT_EQ(config.model.residual_dropout, 0.1);
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

TEST_F(RunConfigTest, BinFilesHoldTokenIds) {
  RunConfig config = MustLoad(kSmall, {{"data.path", "ids.bin"}});
  EXPECT_EQ(config.data.tokenizer, TokenForm::kTokenFile);
  EXPECT_EQ(config.data.token_bytes, 2);
  config = MustLoad(kSmall, {{"data.path", "ids.bin"}, {"data.token_bytes", "4"}});
  EXPECT_EQ(config.data.token_bytes, 4);
  config = MustLoad(kSmall, {{"data.path", "ids.dat"}, {"data.token_bytes", "4"}});
  EXPECT_EQ(config.data.tokenizer, TokenForm::kTokenFile);
  config = MustLoad(kSmall, {{"data.path", "ids.bin"}, {"data.tokenizer", "BYTES"}});
  EXPECT_EQ(config.data.tokenizer, TokenForm::kBytes);
}

TEST_F(RunConfigTest, TextsAreTokenizedByTheModelsOwnTokenizerWhereThereIsOne) {
  RunConfig config = MustLoad(kSmall, {{"data.path", "chat.jsonl"}});
  EXPECT_TRUE(config.data.is_jsonl);
  EXPECT_TRUE(config.data.needs_tokenizing());
  EXPECT_EQ(config.data.tokenizer, TokenForm::kBytes);
  EXPECT_EQ(config.data.documents, DocumentMode::kPacked);
  EXPECT_EQ(config.data.chat_template, "auto");
  EXPECT_FALSE(config.data.counts_all);
  config = MustLoad(kSmall, {{"data.path", "chat.jsonl"},
                             {"data.tokenizer_path", "model"},
                             {"data.documents", "PADDED"},
                             {"data.chat_template", "chatml"},
                             {"data.count", "ALL"}});
  EXPECT_EQ(config.data.tokenizer, TokenForm::kModel);
  EXPECT_EQ(config.data.tokenizer_path, dir_.File("model"));
  EXPECT_EQ(config.data.documents, DocumentMode::kPadded);
  EXPECT_EQ(config.data.chat_template, "chatml");
  EXPECT_TRUE(config.data.counts_all);
  config = MustLoad(kSmall, {{"data.path", "a.txt"}, {"data.tokenizer_path", "model"}});
  EXPECT_EQ(config.data.documents, DocumentMode::kJoined);
  EXPECT_TRUE(config.data.needs_tokenizing());
}

TEST_F(RunConfigTest, WhatDataCannotBeTogetherIsRefused) {
  const auto refused = [&](const std::vector<FieldOverride>& fields, const std::string& why) {
    EXPECT_THAT(Load(kSmall, fields), StatusIs(kInvalid, why));
  };
  refused({{"data.documents", "PACKED"}}, "data.documents: bytes have none");
  refused({{"data.path", "a.jsonl"}, {"data.documents", "JOINED"}}, "data.documents: JOINED, but");
  refused({{"data.path", "a.jsonl"}, {"data.tokenizer", "TOKEN_IDS"}}, "data.tokenizer: TOKEN_IDS, but");
  refused({{"data.count", "ALL"}}, "data.count: given, but data.path is not JSONL");
  refused({{"data.chat_template", "plain"}}, "data.chat_template: given, but data.path is not JSONL");
  refused({{"data.tokenizer", "MODEL"}}, "data.tokenizer_path: missing");
  refused({{"data.tokenizer", "BYTES"}, {"data.tokenizer_path", "x"}}, "data.tokenizer_path: given, but");
  refused({{"data.tokenizer", "MODEL"}, {"data.tokenizer_path", "x"}, {"data.token_bytes", "2"}},
          "data.token_bytes: given, but data.tokenizer is MODEL");
}

TEST_F(RunConfigTest, AnEvaluationIsOfAFileOrOfWhatIsHeldOut) {
  RunConfig config =
      MustLoad(kSmall, {{"evaluation.path", "b.txt"}, {"evaluation.every_steps", "50"}, {"evaluation.samples", "9"}});
  EXPECT_EQ(config.evaluation, (EvaluationConfig{dir_.File("b.txt"), 0, 50, 9}));
  DataConfig of_evaluation = config.data;
  of_evaluation.path = dir_.File("b.txt");
  of_evaluation.path_field = "evaluation.path";
  EXPECT_EQ(config.evaluation_data(), of_evaluation);
  config = MustLoad(kSmall, {{"evaluation.held_out", "0.25"}, {"evaluation.every_steps", "50"}});
  EXPECT_EQ(config.evaluation, (EvaluationConfig{"", 0.25, 50, 0}));
  EXPECT_EQ(config.evaluation.HeldOut(101), 25);
  EXPECT_EQ(config.evaluation.HeldOut(2), 1);
  EXPECT_EQ(config.evaluation.HeldOut(1), 0);
  EXPECT_TRUE(config.evaluation.IsDue(100, 120) && config.evaluation.IsDue(120, 120));
  EXPECT_FALSE(config.evaluation.IsDue(0, 120) || config.evaluation.IsDue(99, 120));
}

// kSmall without its data.path, and with these sources.
std::string WithSources(const std::string& sources) {
  const std::string text = kSmall;
  const size_t begin = text.find("data {"), end = text.find('}', begin);
  return text.substr(0, begin) + "data { " + sources + " }" + text.substr(end + 1);
}

TEST_F(RunConfigTest, SourcesHaveWeightsAndWhatTheyLeaveOutIsTheDatas) {
  const RunConfig config = MustLoad(WithSources(R"(
      order: SHUFFLED  seed: 7  tokenizer_path: "model"  chat_template: "chatml"
      sources { path: "chat.jsonl" }
      sources { path: "book.txt"  weight: 0.5 }
      sources { path: "ids.bin"  weight: 2  token_bytes: 4 }
      sources { path: "raw.txt"  tokenizer: BYTES })"));
  ASSERT_EQ(config.sources.size(), 4u);
  EXPECT_EQ(config.data.path, "");
  EXPECT_EQ(config.data.seed, 7u);
  EXPECT_EQ(config.data.documents, DocumentMode::kPacked);
  const DataConfig& chat = config.sources[0].data;
  EXPECT_EQ(chat.path, dir_.File("chat.jsonl"));
  EXPECT_EQ(chat.path_field, "data.sources[0].path");
  EXPECT_EQ(chat.tokenizer_path, dir_.File("model"));
  EXPECT_EQ(chat.chat_template, "chatml");
  EXPECT_EQ(chat.documents, DocumentMode::kPacked);
  EXPECT_EQ(config.sources[0].weight, 1);
  EXPECT_EQ(config.sources[1].weight, 0.5);
  EXPECT_EQ(config.sources[1].data.tokenizer, TokenForm::kModel);
  EXPECT_EQ(config.sources[1].data.documents, DocumentMode::kJoined);
  EXPECT_EQ(config.sources[2].data.tokenizer, TokenForm::kTokenFile);
  EXPECT_EQ(config.sources[2].data.token_bytes, 4);
  EXPECT_EQ(config.sources[3].data.tokenizer, TokenForm::kBytes);
  EXPECT_EQ(config.sources[3].data.order, DataOrder::kShuffled);
  EXPECT_THAT(ParseRunConfig(SerializeRunConfig(config)), IsOkAndHolds(config));
}

TEST_F(RunConfigTest, ASourceTakesNoFieldOfTheDataThatIsNotForItsFile) {
  const RunConfig config = MustLoad(WithSources(R"(
      tokenizer: MODEL  tokenizer_path: "model"  documents: PADDED  count: ALL
      sources { path: "chat.jsonl" }
      sources { path: "book.txt" }
      sources { path: "loose.txt"  documents: JOINED }
      sources { path: "raw.txt"  tokenizer: BYTES }
      sources { path: "ids"  tokenizer: TOKEN_IDS })"));
  const auto documents = [&](size_t i) { return config.sources.at(i).data.documents; };
  EXPECT_EQ(documents(0), DocumentMode::kPadded);
  EXPECT_TRUE(config.sources[0].data.counts_all);
  EXPECT_EQ(documents(1), DocumentMode::kPadded);
  EXPECT_EQ(documents(2), DocumentMode::kJoined);
  EXPECT_EQ(documents(3), DocumentMode::kJoined);
  EXPECT_EQ(config.sources[3].data.tokenizer_path, "");
  EXPECT_EQ(documents(4), DocumentMode::kPadded);
  EXPECT_EQ(config.sources[4].data.tokenizer, TokenForm::kTokenFile);
  EXPECT_THAT(ParseRunConfig(SerializeRunConfig(config)), IsOkAndHolds(config));
}

TEST_F(RunConfigTest, AnEvaluationBesideSourcesHasTheFormOfTheFirst) {
  const std::string text = WithSources(R"(sources { path: "chat.jsonl" } sources { path: "raw.txt" })") +
                           R"( evaluation { path: "held.jsonl"  every_steps: 5 })";
  const RunConfig config = MustLoad(text);
  EXPECT_EQ(config.evaluation_data().path, dir_.File("held.jsonl"));
  EXPECT_TRUE(config.evaluation_data().is_jsonl);
  EXPECT_EQ(config.evaluation_data().path_field, "evaluation.path");
  EXPECT_THAT(
      Load(text, {{"evaluation.path", "held.txt"}}),
      StatusIs(kInvalid,
               "evaluation.path: held.txt is no JSONL and no table by its ending, other than data.sources[0].path"));
}

TEST_F(RunConfigTest, WhatIsWrongWithASourceIsNamedByItsPlace) {
  const auto refused = [&](const std::string& data, const std::string& why) {
    EXPECT_THAT(Load(WithSources(data)), StatusIs(kInvalid, why));
  };
  const std::string good = "sources { path: \"a.txt\" } ";
  refused("path: \"a.txt\" " + good, "data.sources: given beside data.path");
  refused(good + "sources { weight: 2 }", "data.sources[1].path: missing");
  for (const char* weight : {"0", "-1", "nan", "inf"}) {
    refused(good + "sources { path: \"b\"  weight: " + weight + " }", "data.sources[1].weight: ");
  }
  refused(good + "sources { path: \"b.txt\"  documents: PACKED }", "data.sources[1].documents: bytes have none");
  refused(good + "sources { path: \"b.txt\"  count: ALL }", "data.sources[1].count: given, but data.sources[1].path");
  refused(good + "sources { path: \"b.bin\"  token_bytes: 3 }", "data.sources[1].token_bytes: 3");
  refused(good + "sources { path: \"b.bin\"  documents: 7 }", "7");
  std::string many;
  for (int i = 0; i < 257; ++i) many += good;
  refused(many, "data.sources: 257, must be at most 256");
}

TEST_F(RunConfigTest, AFieldOfOneSourceCanBeSet) {
  const std::string text = WithSources("sources { path: \"a.txt\" } sources { path: \"b.txt\" }");
  EXPECT_EQ(MustLoad(text, {{"data.sources[1].weight", "3"}}).sources[1].weight, 3);
  for (const char* bad : {"data.sources.weight", "data.sources[2].weight", "data.sources[x].weight", "data.sources[1]",
                          "data.sources[-1].weight", "data.sources[].weight"}) {
    EXPECT_THAT(Load(text, {{bad, "3"}}),
                StatusIs(kInvalid, "name a field of one of them, as sources[0].path; there are 2"));
  }
  EXPECT_THAT(Load(text, {{"data[0].seed", "3"}}), StatusIs(kInvalid, "data takes no [...]"));
}

TEST_F(RunConfigTest, SourcesThatDifferChangeBits) {
  const std::string text = WithSources("sources { path: \"a.txt\" } sources { path: \"b.txt\" }");
  EXPECT_THAT(DifferencesThatMatter(MustLoad(text), MustLoad(text)), IsEmpty());
  EXPECT_THAT(DifferencesThatMatter(MustLoad(text), MustLoad(text, {{"data.sources[1].weight", "3"}})),
              ElementsAre("data.sources[1].weight: was 1, now 3"));
  EXPECT_THAT(DifferencesThatMatter(MustLoad(text), MustLoad(WithSources("sources { path: \"a.txt\" }"))),
              ElementsAre("data.sources: were 2, now 1"));
}

TEST_F(RunConfigTest, WhatAnEvaluationCannotBeIsRefused) {
  const auto refused = [&](const std::vector<FieldOverride>& fields, const std::string& why) {
    EXPECT_THAT(Load(kSmall, fields), StatusIs(kInvalid, why));
  };
  const FieldOverride path = {"evaluation.path", "b.txt"}, every = {"evaluation.every_steps", "5"};
  refused({path}, "evaluation.every_steps: 0, must be at least 1");
  refused({every}, "evaluation: give path, or held_out");
  refused({every, path, {"evaluation.held_out", "0.1"}}, "evaluation: path and held_out are given");
  refused({every, {"evaluation.path", ""}}, "evaluation.path: is empty");
  refused({every, {"evaluation.path", "b.jsonl"}}, "evaluation.path: b.jsonl is JSONL");
  refused({{"data.path", "a.jsonl"}, every, path}, "evaluation.path: b.txt is no JSONL");
  refused({every, path, {"evaluation.samples", "0"}}, "evaluation.samples: 0, must be at least 1");
  for (const char* bad : {"0", "1", "-0.5", "nan"}) {
    refused({every, {"evaluation.held_out", bad}}, "evaluation.held_out: ");
  }
}

TEST_F(RunConfigTest, OfAnEvaluationOnlyWhatIsHeldOutChangesBits) {
  const FieldOverride every = {"evaluation.every_steps", "5"};
  const RunConfig none = MustLoad(kSmall);
  const RunConfig file = MustLoad(kSmall, {{"evaluation.path", "b.txt"}, every});
  const RunConfig tenth = MustLoad(kSmall, {{"evaluation.held_out", "0.1"}, every});
  EXPECT_THAT(DifferencesThatMatter(none, file), IsEmpty());
  EXPECT_THAT(DifferencesThatMatter(file, none), IsEmpty());
  EXPECT_THAT(DifferencesThatMatter(tenth, MustLoad(kSmall, {{"evaluation.held_out", "0.1"},
                                                             {"evaluation.every_steps", "6"},
                                                             {"evaluation.samples", "7"}})),
              IsEmpty());
  EXPECT_THAT(DifferencesThatMatter(file, tenth), ElementsAre("evaluation.held_out: was absent, now 0.1"));
}

TEST_F(RunConfigTest, OverridesGoOverTheFileInTheirOrder) {
  const RunConfig config = MustLoad(kExample, {{"steps", "5"},
                                               {"batch.micro_batch", "2"},
                                               {"batch.micro_batch", "3"},
                                               {"data.order", "SEQUENTIAL"},
                                               {"optimizer.schedule.peak", "1e-3"},
                                               {"relay.resident", "true"},
                                               {"data.path", "b c.txt"}});
  EXPECT_EQ(config.steps, 5);
  EXPECT_EQ(config.batch.micro_batch, 3);
  EXPECT_EQ(config.data.order, DataOrder::kSequential);
  EXPECT_EQ(config.optimizer.peak_learning_rate, 1e-3);
  EXPECT_TRUE(config.relay.resident);
  EXPECT_EQ(config.data.path, dir_.File("b c.txt"));
}

TEST_F(RunConfigTest, TheLargestSeedsAreKept) {
  const RunConfig config = MustLoad(kSmall, {{"model.init_seed", "18446744073709551615"}});
  EXPECT_EQ(config.model.init_seed, std::numeric_limits<uint64_t>::max());
}

// ---- model.from

constexpr char kFrom[] = R"(
model { from: "gpt2" }  data { path: "a.txt" }  optimizer { schedule { peak: 0.1 } }  steps: 3)";

TEST_F(RunConfigTest, AModelFromAFolderHasThatFoldersShapeAndDropouts) {
  ModelConfig model;
  model.num_layers = 2;
  model.d_model = 8;
  model.num_heads = 2;
  model.context = 16;
  model.vocab = 99;
  model.attention_dropout = 0.25;
  WriteHfFolder(ModelConfigToJson(model));
  const RunConfig config = MustLoad(kFrom);
  EXPECT_EQ(config.model, model);
  EXPECT_EQ(config.model_from, dir_.File("gpt2"));
  EXPECT_EQ(MustLoad(kFrom, {{"model.init_seed", "3"}}).model.init_seed, 3u);
  EXPECT_EQ(MustLoad(kFrom, {{"model.dropout", "0"}}).model.attention_dropout, 0);
}

TEST_F(RunConfigTest, AModelFromAFolderSurvivesSerialisationWithoutTheFolder) {
  WriteHfFolder(R"({"model_type":"gpt2","n_layer":2,"n_embd":8,"n_head":2,"n_positions":5,"vocab_size":9})");
  const RunConfig config = MustLoad(kFrom);
  std::filesystem::remove_all(dir_.File("gpt2"));
  EXPECT_THAT(ParseRunConfig(SerializeRunConfig(config)), IsOkAndHolds(config));
}

TEST_F(RunConfigTest, AShapeBesideAFolderIsRefused) {
  WriteHfFolder(R"({"model_type":"gpt2","n_layer":2,"n_embd":8,"n_head":2,"n_positions":5,"vocab_size":9})");
  for (const std::string field : {"layers", "d_model", "heads", "context", "vocab"}) {
    EXPECT_THAT(Load(kFrom, {{"model." + field, "2"}}),
                StatusIs(kInvalid, "model." + field + ": given beside model.from"));
  }
}

TEST_F(RunConfigTest, AFolderThatIsMissingOrWrongIsNamed) {
  EXPECT_THAT(Load(kFrom), StatusIs(absl::StatusCode::kNotFound, "model.from: "));
  EXPECT_THAT(Load(kFrom), StatusIs(absl::StatusCode::kNotFound, dir_.File("gpt2/config.json")));
  WriteHfFolder(R"({"model_type":"t5","n_layer":2,"n_embd":8,"n_head":2,"n_positions":5,"vocab_size":9})");
  EXPECT_THAT(Load(kFrom), StatusIs(kInvalid, "gpt2/config.json: model_type: \"t5\""));
  WriteHfFolder(R"({"model_type":"llama","num_hidden_layers":2,"hidden_size":8,"num_attention_heads":2,
                    "intermediate_size":20,"max_position_embeddings":5,"vocab_size":9})");
  ASSERT_OK_AND_ASSIGN(RunConfig config, Load(kFrom, {{"model.context", "3"}}));
  EXPECT_EQ(config.model.family, ModelFamily::kLlama);
  EXPECT_EQ(config.model.context, 3);
  EXPECT_EQ(config.model.max_positions, 5);
  EXPECT_THAT(Load(kFrom, {{"model.context", "6"}}), StatusIs(kInvalid, "model.context: 6, the model is made for 5"));
  EXPECT_THAT(Load(kFrom, {{"model.kv_heads", "1"}}), StatusIs(kInvalid, "model.kv_heads: given beside model.from"));
  EXPECT_THAT(Load(kFrom, {{"model.from", ""}}), StatusIs(kInvalid, "model.from: is empty"));
}

// ---- What is wrong

TEST_F(RunConfigTest, AMissingFileIsNamed) {
  EXPECT_THAT(LoadRunConfig(dir_.File("none.textproto"), {}),
              StatusIs(absl::StatusCode::kNotFound, dir_.File("none.textproto")));
}

TEST_F(RunConfigTest, AnotherEndingIsRefused) {
  EXPECT_THAT(LoadAs("run.yaml", kSmall), StatusIs(kInvalid, "ends in .textproto or .json"));
}

TEST_F(RunConfigTest, AnUnknownFieldIsNamedWithItsLineAndTheKnownOnes) {
  const absl::StatusOr<RunConfig> result = Load("steps: 3\nbatch { virtual_nodes: 1 micro_batche: 3 }\n");
  EXPECT_THAT(result, StatusIs(kInvalid,
                               "run.textproto:2:38: batch.micro_batche: unknown field; known: "
                               "virtual_nodes, micro_batches, micro_batch"));
  EXPECT_THAT(Load("# a { comment\nstep: 3"), StatusIs(kInvalid, "2:5: step: unknown field; known: model, data"));
  EXPECT_THAT(Load("optimizer { adamw { betas: 3 } }"), StatusIs(kInvalid, "optimizer.adamw.betas: unknown field"));
  EXPECT_THAT(Load("data { path: \"a { \\\" b\" } foo { }"), StatusIs(kInvalid, ": foo: unknown field"));
  EXPECT_THAT(Load("steps: 3\n\tfoo: 1"), StatusIs(kInvalid, ": foo: unknown field"));
}

TEST_F(RunConfigTest, AWrongTypeIsNamedWithItsLineAndField) {
  EXPECT_THAT(Load("model {\n  layers: \"twelve\" }"), StatusIs(kInvalid, "2:11: model.layers: Expected integer"));
  EXPECT_THAT(Load("model { layers: 1.5 }"), StatusIs(kInvalid, "model.layers: "));
  EXPECT_THAT(Load("model { init_seed: -1 }"), StatusIs(kInvalid, "model.init_seed: "));
  EXPECT_THAT(Load("model { layers: 99999999999999999999 }"), StatusIs(kInvalid, "model.layers: "));
  EXPECT_THAT(Load("batch { micro_batch: 4294967296 }"), StatusIs(kInvalid, "batch.micro_batch: "));
  EXPECT_THAT(Load("data { order: RANDOM }"), StatusIs(kInvalid, "data.order: "));
  EXPECT_THAT(Load("data { path: 3 }"), StatusIs(kInvalid, "data.path: "));
  EXPECT_THAT(Load("relay { resident: maybe }"), StatusIs(kInvalid, "relay.resident"));
  EXPECT_THAT(Load("optimizer { schedule { warmup_steps: 3 peak: 6e-4 final: x } }"),
              StatusIs(kInvalid, "optimizer.schedule.final: "));
  EXPECT_THAT(Load("model: 3"), StatusIs(kInvalid, "model: "));
  EXPECT_THAT(Load("model { layers: 1 layers: 2 }"), StatusIs(kInvalid, "model.layers: "));
}

TEST_F(RunConfigTest, TextThatIsNoTextprotoIsRefusedWithItsPlace) {
  EXPECT_THAT(Load("model { layers: 1"), StatusIs(kInvalid, "run.textproto:1:"));
  EXPECT_THAT(Load("}"), StatusIs(kInvalid, "run.textproto:1:1: "));
  EXPECT_THAT(Load(std::string("\xFF\x00\x01", 3)), StatusIs(kInvalid, "run.textproto:1:"));
  EXPECT_THAT(Load("data { path: \"unterminated"), StatusIs(kInvalid, "run.textproto:1:"));
  EXPECT_THAT(Load(""), StatusIs(kInvalid, "model: missing"));
}

TEST_F(RunConfigTest, ANumberThatNamesNoEnumValueIsRefused) {
  EXPECT_THAT(Load("data { order: 17 }"), StatusIs(kInvalid, "data.order: 17 names no value"));
  EXPECT_THAT(LoadAs("run.json", R"({"data": {"order": 17}})"), StatusIs(kInvalid, "data.order"));
}

TEST_F(RunConfigTest, JsonErrorsNameTheField) {
  EXPECT_THAT(LoadAs("run.json", R"({"model": {"layerz": 3}})"), StatusIs(kInvalid, "layerz"));
  EXPECT_THAT(LoadAs("run.json", R"({"model": {"layers": "twelve"}})"), StatusIs(kInvalid, "layers"));
  EXPECT_THAT(LoadAs("run.json", R"({"model": {"layers": 1.5}})"), StatusIs(kInvalid, "layers"));
  EXPECT_THAT(LoadAs("run.json", R"({"batch": {"micro_batch": 4294967296}})"), StatusIs(kInvalid, "micro_batch"));
  EXPECT_THAT(LoadAs("run.json", R"({"data": {"order": "RANDOM"}})"), StatusIs(kInvalid, "order"));
  EXPECT_THAT(LoadAs("run.json", R"({"data": 3})"), StatusIs(kInvalid, "data"));
  EXPECT_THAT(LoadAs("run.json", "{"), StatusIs(kInvalid, "run.json: "));
  EXPECT_THAT(LoadAs("run.json", "[]"), StatusIs(kInvalid, "run.json: "));
  EXPECT_THAT(LoadAs("run.json", std::string(200000, '[')), StatusIs(kInvalid, "run.json: "));
}

TEST_F(RunConfigTest, AnOverrideDoesNotChangeTheOptimizersRule) {
  EXPECT_THAT(Load(kExample, {{"optimizer.sgd.momentum", "0.5"}}),
              StatusIs(kInvalid, "optimizer.sgd.momentum: the run has adamw, not sgd"));
}

TEST_F(RunConfigTest, AMemberThatJsonHasTwiceIsNamed) {
  EXPECT_THAT(LoadAs("run.json", R"({"model": {"layers": 1}, "model": {"heads": 1}})"),
              StatusIs(kInvalid, "model: given twice"));
  EXPECT_THAT(LoadAs("run.json", R"({"optimizer": {"adamw": {"beta1": 0.5, "eps": 1, "beta1": 0.5}}})"),
              StatusIs(kInvalid, "optimizer.adamw.beta1: given twice"));
}

TEST_F(RunConfigTest, OverrideErrorsNameThePath) {
  EXPECT_THAT(LoadWith("batch.foo", "1"),
              StatusIs(kInvalid, "batch.foo: unknown field; known: virtual_nodes, micro_batches, micro_batch"));
  EXPECT_THAT(LoadWith("foo.bar", "1"), StatusIs(kInvalid, "foo.bar: unknown field; known: model, data"));
  EXPECT_THAT(LoadWith("", "1"), StatusIs(kInvalid, "unknown field"));
  EXPECT_THAT(LoadWith("batch", "1"), StatusIs(kInvalid, "batch: is a group; set one of its fields: virtual_nodes"));
  EXPECT_THAT(LoadWith("steps.x", "1"), StatusIs(kInvalid, "steps.x: steps is a value and has no field x"));
  EXPECT_THAT(LoadWith("steps", "many"), StatusIs(kInvalid, "steps: \"many\", must be a whole number"));
  EXPECT_THAT(LoadWith("steps", "3 4"), StatusIs(kInvalid, "steps: \"3 4\""));
  EXPECT_THAT(LoadWith("steps", ""), StatusIs(kInvalid, "steps: \"\""));
  EXPECT_THAT(LoadWith("model.init_seed", "-1"), StatusIs(kInvalid, "model.init_seed: \"-1\", must be a whole number"));
  EXPECT_THAT(LoadWith("data.order", "RANDOM"),
              StatusIs(kInvalid, "data.order: \"RANDOM\", must be one of SEQUENTIAL, SHUFFLED"));
  EXPECT_THAT(LoadWith("data.order", "9"), StatusIs(kInvalid, "data.order"));
  EXPECT_THAT(LoadWith("relay.resident", "maybe"), StatusIs(kInvalid, "relay.resident: \"maybe\", must be true or"));
  EXPECT_THAT(LoadWith("optimizer.schedule.peak", "big"), StatusIs(kInvalid, "must be a number"));
}

TEST_F(RunConfigTest, ZeroOrAbsentStepsAreRefused) {
  EXPECT_THAT(LoadWith("steps", "0"), StatusIs(kInvalid, "steps: 0, must be at least 1"));
  EXPECT_THAT(LoadWith("steps", "-4"), StatusIs(kInvalid, "steps: -4, must be at least 1"));
  EXPECT_THAT(Load(R"(model { layers: 1 d_model: 8 heads: 2 context: 4 vocab: 9 }
                      data { path: "a.txt" } optimizer { schedule { peak: 0.1 } })"),
              StatusIs(kInvalid, "steps: 0, must be at least 1"));
}

TEST_F(RunConfigTest, HeadsThatDoNotDivideTheWidthAreRefused) {
  EXPECT_THAT(Load(kExample, {{"model.heads", "5"}}),
              StatusIs(kInvalid, "run.textproto: model.heads: 5 does not divide model.d_model 384"));
}

TEST_F(RunConfigTest, RequiredFieldsAreNamedWhenTheyAreMissing) {
  EXPECT_THAT(Load("steps: 3"), StatusIs(kInvalid, "model: missing"));
  EXPECT_THAT(Load("model { d_model: 8 }"), StatusIs(kInvalid, "model.layers: 0"));
  EXPECT_THAT(Load("model { layers: 1 d_model: 8 heads: 2 context: 4 vocab: 9 } steps: 3"),
              StatusIs(kInvalid, "data.path: missing"));
  EXPECT_THAT(Load(R"(model { layers: 1 d_model: 8 heads: 2 context: 4 vocab: 9 } data { path: "a" } steps: 3)"),
              StatusIs(kInvalid, "optimizer.schedule.peak: 0, must be greater than 0"));
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
           Case{"optimizer.adamw.beta1", "1", "optimizer.adamw.beta1: 1"},
           Case{"optimizer.adamw.beta2", "-0.5", "optimizer.adamw.beta2: -0.5"},
           Case{"optimizer.adamw.eps", "0", "optimizer.adamw.eps: 0, must be greater than 0"},
           Case{"optimizer.adamw.eps", "1e-300", "optimizer.adamw.eps: 1e-300, must be greater than 0"},
           Case{"optimizer.schedule.peak", "1e39", "optimizer.schedule.peak: 1e+39"},
           Case{"optimizer.adamw.weight_decay", "inf", "optimizer.adamw.weight_decay: inf"},
           Case{"optimizer.sgd.momentum", "1", "optimizer.sgd.momentum: 1"},
           Case{"optimizer.schedule.peak", "0", "optimizer.schedule.peak: 0, must be greater than 0"},
           Case{"optimizer.schedule.peak", "nan", "optimizer.schedule.peak: nan"},
           Case{"optimizer.schedule.peak", "inf", "optimizer.schedule.peak: inf"},
           Case{"optimizer.schedule.warmup_steps", "-1", "optimizer.schedule.warmup_steps: -1"},
           Case{"optimizer.schedule.final", "0.1", "optimizer.schedule.final: given without"},
           Case{"optimizer.clip.norm", "1", "optimizer.clip.mode: missing"},
           Case{"optimizer.clip.mode", "EXACT", "optimizer.clip.norm: 0, must be greater than 0"},
           Case{"precision.moments", "BF16", "precision.moments: BF16 is not available yet"},
           Case{"precision.tf32", "true", "precision.tf32: is of products of FP32 operands"},
           Case{"precision.loss_scale.initial", "2", "precision.loss_scale: has a meaning only where"},
           Case{"relay.weight_slots", "0", "relay.weight_slots: 0, must be at least 1"},
           Case{"relay.group_members", "65", "relay.group_members: 65, must be at most 64"},
           Case{"relay.boundaries", "DEVICE", "relay.boundaries: DEVICE is not available yet without relay.resident"},
           Case{"checkpoint.keep", "0", "checkpoint.keep: 0, must be at least 1"},
           Case{"checkpoint.every_steps", "-1", "checkpoint.every_steps: -1"},
           Case{"checkpoint.buffer_bytes", "-1", "checkpoint.buffer_bytes: -1"},
           Case{"checkpoint.buffer_bytes", "1125899906842625", "checkpoint.buffer_bytes: 1125899906842625"},
           Case{"steps", "1000000000001", "steps: 1000000000001, must be at most"},
       }) {
    EXPECT_THAT(LoadWith(c.path, c.value), StatusIs(kInvalid, c.message)) << c.path << " = " << c.value;
  }
}

TEST_F(RunConfigTest, BytesOfSeveralBytesAreRefused) {
  EXPECT_THAT(Load(kSmall, {{"data.tokenizer", "BYTES"}, {"data.token_bytes", "2"}}),
              StatusIs(kInvalid, "data.token_bytes: given, but data.tokenizer is BYTES"));
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

// ---- Canonical text

TEST_F(RunConfigTest, WhatIsSerialisedIsParsedWithTheSameBits) {
  for (RunConfig config :
       {MustLoad(kExample), MustLoad(kSmall), MustLoad(kSmall, {{"optimizer.sgd.momentum", "0.9"}}),
        MustLoad(kSmall, {{"data.path", "x.bin"}, {"data.token_bytes", "4"}, {"data.documents", "PADDED"}}),
        MustLoad(kSmall, {{"data.path", "x.jsonl"}, {"data.tokenizer_path", "model"}, {"data.count", "ALL"}}),
        MustLoad(kSmall, {{"evaluation.path", "b.txt"}, {"evaluation.every_steps", "5"}, {"evaluation.samples", "9"}}),
        MustLoad(kSmall, {{"evaluation.held_out", "0.1"}, {"evaluation.every_steps", "5"}}),
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
                                            {"transport", "GRPC"},
                                            {"checkpoint.every_steps", "7"},
                                            {"checkpoint.keep", "9"},
                                            {"checkpoint.buffer_bytes", "12345678"},
                                            {"checkpoint.last", "true"}});
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
           Case{"steps", "300", "200", "300"},
       }) {
    const std::vector<std::string> differences =
        DifferencesThatMatter(MustLoad(kExample), MustLoad(kExample, {{c.path, c.value}}));
    ASSERT_FALSE(differences.empty()) << c.path;
    EXPECT_EQ(differences[0], std::string(c.path) + ": was " + c.was + ", now " + c.now);
  }
}

TEST_F(RunConfigTest, AnotherRuleAndAnotherTextAreNamed) {
  EXPECT_THAT(DifferencesThatMatter(MustLoad(kSmall), MustLoad(kSmall, {{"optimizer.sgd.momentum", "0"}})),
              ElementsAre("optimizer.adamw: was given, now absent", "optimizer.sgd: was absent, now given"));
  EXPECT_THAT(DifferencesThatMatter(MustLoad(kSmall), MustLoad(kSmall, {{"data.path", "/b.txt"}})),
              ElementsAre("data.path: was \"" + dir_.File("a.txt") + "\", now \"/b.txt\""));
}

TEST_F(RunConfigTest, FrozenTensorsAreKeptInOrderAndMatter) {
  std::string text = kSmall;
  text.insert(text.find("layers"), R"(freeze: ["*", "!transformer.h.0.*"] )");
  const RunConfig run = MustLoad(text, {{"model.freeze", "*.bias"}});
  EXPECT_THAT(run.model.freeze, ElementsAre("*", "!transformer.h.0.*", "*.bias"));
  ASSERT_OK_AND_ASSIGN(const RunConfig again, ParseRunConfig(SerializeRunConfig(run)));
  EXPECT_EQ(again, run);
  EXPECT_THAT(
      DifferencesThatMatter(MustLoad(text), run),
      ElementsAre(R"(model.freeze: was ["*", "!transformer.h.0.*"], now ["*", "!transformer.h.0.*", "*.bias"])"));
  EXPECT_THAT(DifferencesThatMatter(MustLoad(kSmall), MustLoad(kSmall, {{"model.freeze", "*.bias"}})),
              ElementsAre(R"(model.freeze: was absent, now ["*.bias"])"));
  EXPECT_THAT(LoadWith("model.freeze", "*.biass"), StatusIs(kInvalid, R"(model.freeze: "*.biass" matches no tensor)"));
  EXPECT_THAT(LoadWith("model.freeze", "*"), StatusIs(kInvalid, "model.freeze: every tensor is frozen"));
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
