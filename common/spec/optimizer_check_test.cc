#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/model/model_spec.h"
#include "common/spec/parameter_groups.h"
#include "common/spec/run_config.h"
#include "common/spec/testing.h"
#include "common/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

// kSmall with these.
std::string WithGroups(const std::string& groups) {
  std::string text = kSmall;
  return text.insert(text.find("schedule"), groups + " ");
}

TEST_F(RunConfigTest, LionTakesItsOwnDefaults) {
  const RunConfig config = MustLoad(kSmall, {{"optimizer.lion.weight_decay", "0.5"}});
  EXPECT_EQ(config.optimizer.rule, OptimizerRule::kLion);
  EXPECT_EQ(config.optimizer.beta1, 0.9);
  EXPECT_EQ(config.optimizer.beta2, 0.99);
  EXPECT_EQ(config.optimizer.weight_decay, 0.5);
  EXPECT_EQ(config.optimizer.num_moments(), 1);
}

TEST_F(RunConfigTest, AdamTakesItsOwnDefaults) {
  const RunConfig config = MustLoad(kSmall, {{"optimizer.adam.beta1", "0.8"}});
  EXPECT_EQ(config.optimizer.rule, OptimizerRule::kAdam);
  EXPECT_EQ(config.optimizer.beta1, 0.8);
  EXPECT_EQ(config.optimizer.beta2, 0.999);
  EXPECT_EQ(config.optimizer.eps, 1e-8);
  EXPECT_EQ(config.optimizer.weight_decay, 0);
  EXPECT_EQ(config.optimizer.num_moments(), 2);
  EXPECT_THAT(ParseRunConfig(SerializeRunConfig(config)), IsOkAndHolds(config));
}

TEST_F(RunConfigTest, EveryScheduleIsReadAndWritten) {
  const std::string decay = "optimizer.schedule.decay", warmup = "optimizer.schedule.warmup_steps";
  const RunConfig stable =
      MustLoad(kSmall, {{decay, "ONE_MINUS_SQRT"}, {"optimizer.schedule.decay_steps", "7"}, {warmup, "2"}});
  EXPECT_EQ(stable.optimizer.decay, ScheduleDecay::kOneMinusSqrt);
  EXPECT_EQ(stable.optimizer.decay_steps, 7);
  const RunConfig inverse = MustLoad(kSmall, {{decay, "INVERSE_SQRT"}, {warmup, "2"}});
  EXPECT_EQ(inverse.optimizer.decay, ScheduleDecay::kInverseSqrt);
  for (const RunConfig& config : {stable, inverse}) {
    EXPECT_THAT(ParseRunConfig(SerializeRunConfig(config)), IsOkAndHolds(config));
  }
  EXPECT_THAT(Load(kSmall, {{decay, "INVERSE_SQRT"}}),
              StatusIs(kInvalid, "optimizer.schedule.warmup_steps: 0, must be at least 1 with INVERSE_SQRT"));
  for (const char* unending : {"CONSTANT", "INVERSE_SQRT"}) {
    EXPECT_THAT(Load(kSmall, {{decay, unending}, {warmup, "2"}, {"optimizer.schedule.decay_steps", "7"}}),
                StatusIs(kInvalid, "optimizer.schedule.decay_steps: given without a decay that has an end"));
  }
  EXPECT_THAT(Load(kSmall, {{decay, "LINEAR"}, {"optimizer.schedule.decay_steps", "0"}}),
              StatusIs(kInvalid, "optimizer.schedule.decay_steps: 0, must be"));
}

TEST_F(RunConfigTest, SgdTakesItsOwnDefaults) {
  const RunConfig config = MustLoad(kSmall, {{"optimizer.sgd.momentum", "0.5"}});
  EXPECT_EQ(config.optimizer.rule, OptimizerRule::kSgd);
  EXPECT_EQ(config.optimizer.momentum, 0.5);
  EXPECT_EQ(config.optimizer.weight_decay, 0);
}

TEST_F(RunConfigTest, LambTakesItsOwnDefaults) {
  const RunConfig config = MustLoad(kSmall, {{"optimizer.lamb.beta1", "0.8"}});
  EXPECT_EQ(config.optimizer.rule, OptimizerRule::kLamb);
  EXPECT_EQ(config.optimizer.beta1, 0.8);
  EXPECT_EQ(config.optimizer.beta2, 0.999);
  EXPECT_EQ(config.optimizer.eps, 1e-6);
  EXPECT_EQ(config.optimizer.weight_decay, 0.01);
  EXPECT_EQ(config.optimizer.max_trust_ratio, 0x1p64);
  EXPECT_EQ(config.optimizer.num_moments(), 2);
  const RunConfig bound = MustLoad(kSmall, {{"optimizer.lamb.max_trust_ratio", "10"}});
  EXPECT_EQ(bound.optimizer.max_trust_ratio, 10);
  EXPECT_THAT(ParseRunConfig(SerializeRunConfig(bound)), IsOkAndHolds(bound));
  EXPECT_THAT(ParseRunConfig(SerializeRunConfig(config)), IsOkAndHolds(config));
}

TEST_F(RunConfigTest, EveryClipModeIsRead) {
  EXPECT_EQ(MustLoad(kSmall, {{"optimizer.clip.mode", "PER_BLOB"}, {"optimizer.clip.norm", "2"}}).optimizer.clip,
            ClipMode::kPerBlob);
  EXPECT_EQ(MustLoad(kSmall, {{"optimizer.clip.mode", "LAGGED"}, {"optimizer.clip.norm", "2"}}).optimizer.clip,
            ClipMode::kLagged);
  EXPECT_EQ(MustLoad(kSmall, {{"optimizer.clip.mode", "NONE"}}).optimizer.clip, ClipMode::kNone);
}

TEST_F(RunConfigTest, OptimizerValuesOutsideTheirRangeAreNamed) {
  struct Case {
    const char *path, *value, *message;
  };
  for (const Case& c : {
           Case{"optimizer.adamw.beta1", "1", "optimizer.adamw.beta1: 1"},
           Case{"optimizer.adamw.beta2", "-0.5", "optimizer.adamw.beta2: -0.5"},
           Case{"optimizer.adamw.eps", "0", "optimizer.adamw.eps: 0, must be greater than 0"},
           Case{"optimizer.adamw.eps", "1e-300", "optimizer.adamw.eps: 1e-300, must be greater than 0"},
           Case{"optimizer.schedule.peak", "1e39", "optimizer.schedule.peak: 1e+39"},
           Case{"optimizer.adamw.weight_decay", "inf", "optimizer.adamw.weight_decay: inf"},
           Case{"optimizer.adam.beta1", "1", "optimizer.adam.beta1: 1"},
           Case{"optimizer.adam.eps", "0", "optimizer.adam.eps: 0, must be greater than 0"},
           Case{"optimizer.adam.weight_decay", "-1", "optimizer.adam.weight_decay: -1"},
           Case{"optimizer.sgd.momentum", "1", "optimizer.sgd.momentum: 1"},
           Case{"optimizer.lion.beta2", "1", "optimizer.lion.beta2: 1"},
           Case{"optimizer.lion.weight_decay", "-1", "optimizer.lion.weight_decay: -1"},
           Case{"optimizer.schedule.peak", "0", "optimizer.schedule.peak: 0, must be greater than 0"},
           Case{"optimizer.schedule.peak", "nan", "optimizer.schedule.peak: nan"},
           Case{"optimizer.schedule.peak", "inf", "optimizer.schedule.peak: inf"},
           Case{"optimizer.schedule.warmup_steps", "-1", "optimizer.schedule.warmup_steps: -1"},
           Case{"optimizer.schedule.final", "0.1", "optimizer.schedule.final: given without"},
           Case{"optimizer.clip.norm", "1", "optimizer.clip.mode: missing"},
           Case{"optimizer.clip.mode", "EXACT", "optimizer.clip.norm: missing, must be greater than 0"},
           Case{"optimizer.lamb.beta1", "1", "optimizer.lamb.beta1: 1"},
           Case{"optimizer.lamb.beta2", "-1", "optimizer.lamb.beta2: -1"},
           Case{"optimizer.lamb.eps", "0", "optimizer.lamb.eps: 0, must be greater than 0"},
           Case{"optimizer.lamb.weight_decay", "nan", "optimizer.lamb.weight_decay: nan"},
           Case{"optimizer.lamb.max_trust_ratio", "0", "optimizer.lamb.max_trust_ratio: 0, must be greater than 0"},
           Case{"optimizer.lamb.max_trust_ratio", "1e20",
                "optimizer.lamb.max_trust_ratio: 1e+20, must be at most 2^64"},
       }) {
    EXPECT_THAT(LoadWith(c.path, c.value), StatusIs(kInvalid, c.message)) << c.path << " = " << c.value;
  }
}

TEST_F(RunConfigTest, RatesAndDecaysWhoseProductLeavesFp32AreRefused) {
  EXPECT_OK(Load(kSmall, {{"optimizer.adamw.weight_decay", "3e38"}}));
  EXPECT_THAT(Load(kSmall, {{"optimizer.adamw.weight_decay", "3e38"}, {"optimizer.schedule.peak", "10"}}),
              StatusIs(kInvalid, "optimizer.schedule.peak: a learning rate of 10 times a weight decay of 3e+38"));
  const std::string rising = WithGroups("groups { tensors: \"*\" learning_rate_scale: 1e30 }");
  EXPECT_THAT(
      Load(rising, {{"optimizer.schedule.decay", "LINEAR"}, {"optimizer.schedule.final", "1e9"}}),
      StatusIs(kInvalid, "optimizer.groups[0].learning_rate_scale: 1e+30, times optimizer.schedule's peak or final"));
  EXPECT_THAT(Load(WithGroups("groups { tensors: \"*\" learning_rate_scale: 100 weight_decay: 1e38 }")),
              StatusIs(kInvalid,
                       "optimizer.groups[0].learning_rate_scale: a learning rate of 10 times a weight decay of 1e+38"));
}

// ---- Parameter groups

TEST_F(RunConfigTest, ATensorIsInTheLastGroupThatChoosesIt) {
  const RunConfig config = MustLoad(WithGroups(R"(
      groups { tensors: "transformer.h.*" tensors: "!*.bias" learning_rate_scale: 0.5 }
      groups { tensors: "*.attn.c_attn.*" weight_decay: 0 })"));
  EXPECT_THAT(config.optimizer.groups,
              ElementsAre(ParameterGroupConfig{{"transformer.h.*", "!*.bias"}, 0.5, std::nullopt},
                          ParameterGroupConfig{{"*.attn.c_attn.*"}, 1, 0}));
  EXPECT_THAT(ParseRunConfig(SerializeRunConfig(config)), IsOkAndHolds(config));
  const auto assigned = AssignParameterGroups(*BuildModel(config.model), config.optimizer.groups);
  ASSERT_OK(assigned);
  EXPECT_THAT(*assigned, UnorderedElementsAre(
                             Pair("transformer.h.0.attn.c_attn.bias", 1), Pair("transformer.h.0.attn.c_attn.weight", 1),
                             Pair("transformer.h.0.attn.c_proj.weight", 0), Pair("transformer.h.0.ln_1.weight", 0),
                             Pair("transformer.h.0.ln_2.weight", 0), Pair("transformer.h.0.mlp.c_fc.weight", 0),
                             Pair("transformer.h.0.mlp.c_proj.weight", 0)));
}

TEST_F(RunConfigTest, GroupsMayChooseAdaptersByTheirNames) {
  const std::string text = WithGroups(R"(groups { tensors: "*.lora_B.weight" learning_rate_scale: 16 }
                                         groups { tensors: "*.mlp.*" weight_decay: 0 })");
  const std::vector<FieldOverride> adapters = {
      {"model.lora.rank", "2"}, {"model.lora.targets", "c_attn"}, {"model.lora.targets", "c_fc"}};
  const RunConfig config = MustLoad(text, adapters);
  const std::string h = "transformer.h.0.";
  EXPECT_THAT(
      AssignParameterGroups(*BuildModel(config.model), config.optimizer.groups),
      IsOkAndHolds(UnorderedElementsAre(Pair(h + "attn.c_attn.lora_B.weight", 0), Pair(h + "mlp.c_fc.lora_A.weight", 1),
                                        Pair(h + "mlp.c_fc.lora_B.weight", 1))));
  EXPECT_THAT(Load(WithGroups(R"(groups { tensors: "*.c_proj.*" weight_decay: 0 })"), adapters),
              StatusIs(kInvalid, "optimizer.groups[0].tensors: chooses no tensor that is trained"));
}

TEST_F(RunConfigTest, GroupsThatDifferChangeBits) {
  const std::string text = WithGroups("groups { tensors: \"*\" learning_rate_scale: 2 }");
  EXPECT_THAT(DifferencesThatMatter(MustLoad(text), MustLoad(text)), IsEmpty());
  EXPECT_THAT(DifferencesThatMatter(MustLoad(text), MustLoad(text, {{"optimizer.groups[0].learning_rate_scale", "3"}})),
              ElementsAre("optimizer.groups[0].learning_rate_scale: was 2, now 3"));
  EXPECT_THAT(DifferencesThatMatter(MustLoad(text), MustLoad(kSmall)), ElementsAre("optimizer.groups: were 1, now 0"));
}

TEST_F(RunConfigTest, AGroupThatMeansNothingIsRefused) {
  const auto refused = [&](const std::string& groups, const std::string& message) {
    EXPECT_THAT(Load(WithGroups(groups)), StatusIs(kInvalid, message)) << groups;
  };
  const std::string good = "groups { tensors: \"*\" weight_decay: 0 } ";
  refused(good + "groups { tensors: \"*.bias\" }",
          "optimizer.groups[1]: changes nothing; give learning_rate_scale, weight_decay or both");
  refused(good + "groups { weight_decay: 1 }", "optimizer.groups[1].tensors: missing; \"*\" is all");
  refused(
      good + "groups { tensors: \"*.biases\" weight_decay: 1 }",
      "optimizer.groups[1].tensors: \"*.biases\" matches no tensor; names are those of an exported folder, such as ");
  for (const char* scale : {"0", "-1", "nan", "inf", "1e-60"}) {
    refused(absl::StrCat("groups { tensors: \"*\" learning_rate_scale: ", scale, " }"),
            "optimizer.groups[0].learning_rate_scale: ");
  }
  // 0.1 times it.
  refused("groups { tensors: \"*\" learning_rate_scale: 1e-37 }",
          "learning_rate_scale: 1e-37, times optimizer.schedule's peak");
  EXPECT_THAT(
      Load(WithGroups("groups { tensors: \"*\" learning_rate_scale: 1e38 }"), {{"optimizer.schedule.peak", "100"}}),
      StatusIs(kInvalid, "learning_rate_scale: 1e+38, times optimizer.schedule's peak"));
  for (const char* none : {"tensors: \"!*.bias\"", "tensors: \"*.bias\" tensors: \"!*\""}) {
    refused(absl::StrCat("groups { ", none, " weight_decay: 1 }"),
            "optimizer.groups[0].tensors: chooses no tensor that is trained");
  }
  EXPECT_THAT(Load(WithGroups("groups { tensors: \"*.wte.*\" weight_decay: 1 }"), {{"model.freeze", "*.wte.*"}}),
              StatusIs(kInvalid, "optimizer.groups[0].tensors: chooses no tensor that is trained"));
  for (const char* decay : {"-1", "nan", "inf"}) {
    refused(absl::StrCat("groups { tensors: \"*\" weight_decay: ", decay, " }"), "optimizer.groups[0].weight_decay: ");
  }
  std::string many;
  for (int i = 0; i <= kMaxParameterGroups; ++i) many += good;
  refused(many, "optimizer.groups: 65, must be at most 64");
  std::string wide;
  for (int i = 0; i < 4; ++i) {
    wide += "groups { weight_decay: 1 ";
    for (int p = 0; p < kMaxParameterGroupPatterns / 4 + (i == 0 ? 1 : 0); ++p) wide += "tensors: \"*\" ";
    wide += "} ";
  }
  refused(wide, "optimizer.groups: 257 patterns, must be at most 256");
}

}  // namespace
}  // namespace eps
