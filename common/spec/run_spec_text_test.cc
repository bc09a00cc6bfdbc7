#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/spec/run_config.h"
#include "common/spec/testing.h"
#include "common/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

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
  EXPECT_THAT(Load("data { order: RANDOM }"), StatusIs(kInvalid,
                                                       "data.order: Unknown enumeration value of \"RANDOM\" for field "
                                                       "\"order\"; must be one of SEQUENTIAL, SHUFFLED"));
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
  const auto refused = [this](const std::string& text, const std::string& message) {
    EXPECT_THAT(LoadAs("run.json", text), StatusIs(kInvalid, "run.json: " + message)) << text;
  };
  refused(R"({"steps": 3, "batch": {"micro_batche": 3}})",
          "batch.micro_batche: unknown field; known: virtual_nodes, micro_batches, micro_batch");
  refused(R"({"model": {"layers": "twelve"}})", R"(model.layers: "twelve", must be a whole number)");
  refused(R"({"model": {"layers": 1.5}})", "model.layers: 1.5, must be a whole number");
  refused(R"({"model": {"init_seed": -1}})", "model.init_seed: -1, must be a whole number, at least 0");
  refused(R"({"batch": {"micro_batch": 4294967296}})", "batch.micro_batch: 4294967296, must be a whole number");
  refused(R"({"data": {"order": "RANDOM"}})", R"(data.order: "RANDOM", must be one of SEQUENTIAL, SHUFFLED)");
  refused(R"({"data": {"path": 3}})", "data.path: 3, must be a text");
  refused(R"({"data": 3})", "data: 3, must be a group of path, tokenizer");
  refused(R"({"data": {"sources": [{"path": "a"}, {"pathe": "b"}]}})", "data.sources[1].pathe: unknown field; known: ");
  refused(R"({"data": {"sources": {"path": "a"}}})", "data.sources: ");
  refused(R"({"relay": {"resident": "maybe"}})", R"(relay.resident: "maybe", must be true or false)");
  refused("[]", "not an object");
  refused(R"({"steps": )" + std::string(200000, '[') + std::string(200000, ']') + "}", "objects and lists lie within");
  // What protobuf would take.
  refused(R"({"steps": "4"})", R"(steps: "4", must be a whole number)");
  refused(R"({"steps": null})", "steps: null, must be a whole number");
  refused(R"({"relay": {"resident": "true"}})", R"(relay.resident: "true", must be true or false)");
  refused(R"({"model": {"family": 0}})", "model.family: 0, must be one of GPT2, ");
  refused(R"({"model": {"dModel": 8}})", "model.dModel: unknown field; known: ");
  refused(R"({"data": {"sources": [3]}})", "data.sources[0]: 3, must be a group of path");
}

TEST_F(RunConfigTest, OnlyANumberIsToldWhatItsTypeCanHold) {
  const std::string words = "must be a whole number", limit = ", at most 2147483647";
  EXPECT_THAT(LoadWith("batch.micro_batch", "99999999999"), StatusIs(kInvalid, words + limit));
  EXPECT_THAT(LoadAs("run.json", R"({"batch": {"micro_batch": 99999999999}})"), StatusIs(kInvalid, words + limit));
  for (const absl::Status& status :
       {LoadWith("batch.micro_batch", "four").status(), LoadWith("batch.micro_batch", "010").status(),
        LoadAs("run.json", R"({"batch": {"micro_batch": "4"}})").status()}) {
    EXPECT_THAT(status, StatusIs(kInvalid, words));
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("at most")));
  }
  EXPECT_THAT(LoadWith("batch.micro_batch", "65537"), StatusIs(kInvalid, "batch.micro_batch: 65537, must be at most "));
}

TEST_F(RunConfigTest, ATextWithAZeroByteIsRefused) {
  EXPECT_THAT(LoadAs("run.json", R"({"data": {"path": "a\u0000b"}})"),
              StatusIs(kInvalid, "data.path: has a zero byte"));
  EXPECT_THAT(Load("data { sources { path: \"a\" } sources { path: \"a\\000\" } }"),
              StatusIs(kInvalid, "data.sources[1].path: has a zero byte"));
}

TEST_F(RunConfigTest, TextThatIsNoJsonIsRefusedWithItsPlace) {
  EXPECT_THAT(LoadAs("run.json", "{"), StatusIs(kInvalid, "run.json: parse error at line 1, column 2"));
  EXPECT_THAT(LoadAs("run.json", "{\"steps\": 3,\n \"batch\" 4}"), StatusIs(kInvalid, "at line 2, column 10"));
  EXPECT_THAT(LoadAs("run.json", R"({"steps": 3,})"), StatusIs(kInvalid, "at line 1, column 13"));
  EXPECT_THAT(LoadAs("run.json", ""), StatusIs(kInvalid, "run.json: parse error"));
  EXPECT_THAT(LoadAs("run.json", std::string(200000, '[')), StatusIs(kInvalid, "run.json: "));
}

TEST_F(RunConfigTest, TwoOfAChoiceAreNamedInTheSameWordsInEitherForm) {
  const std::string words = R"(Field "adamw" is specified along with field "adam", another member of oneof "rule".)";
  EXPECT_THAT(LoadAs("run.json", R"({"optimizer": {"adam": {}, "adamw": {"beta1": 0.5}}})"),
              StatusIs(kInvalid, "run.json: optimizer.adamw: " + words));
  EXPECT_THAT(Load("optimizer { adam {} adamw {} }"), StatusIs(kInvalid, "optimizer.adamw: " + words));
}

TEST_F(RunConfigTest, ANumberThatIsTooLargeIsNamedWithItsPlace) {
  EXPECT_THAT(LoadAs("run.json", "{\"steps\": 3,\n \"optimizer\": {\"schedule\": {\"peak\": -1e999 }}}"),
              StatusIs(kInvalid, "run.json: line 2, column 37: optimizer.schedule.peak: -1e999, must be a number"));
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
  EXPECT_THAT(LoadWith("steps", "many"),
              StatusIs(kInvalid, "run.textproto with --set: steps: \"many\", must be a whole number"));
  EXPECT_THAT(LoadWith("steps", "3 4"), StatusIs(kInvalid, "steps: \"3 4\""));
  EXPECT_THAT(LoadWith("steps", "010"), StatusIs(kInvalid, "steps: \"010\", must be a whole number")) << "not 8";
  EXPECT_THAT(LoadWith("steps", ""), StatusIs(kInvalid, "steps: \"\""));
  EXPECT_THAT(LoadWith("model.init_seed", "-1"), StatusIs(kInvalid, "model.init_seed: \"-1\", must be a whole number"));
  EXPECT_THAT(LoadWith("data.order", "RANDOM"),
              StatusIs(kInvalid, "data.order: \"RANDOM\", must be one of SEQUENTIAL, SHUFFLED"));
  EXPECT_THAT(LoadWith("data.order", "1"), StatusIs(kInvalid, "data.order: \"1\", must be one of SEQUENTIAL"));
  EXPECT_THAT(LoadWith("relay.resident", "maybe"), StatusIs(kInvalid, "relay.resident: \"maybe\", must be true or"));
  EXPECT_THAT(LoadWith("optimizer.schedule.peak", "big"), StatusIs(kInvalid, "must be a number"));
}

TEST_F(RunConfigTest, AnOverrideDoesNotChangeTheOptimizersRule) {
  EXPECT_THAT(Load(kExample, {{"optimizer.sgd.momentum", "0.5"}}),
              StatusIs(kInvalid, "optimizer.sgd.momentum: the run has adamw, not sgd"));
}

}  // namespace
}  // namespace eps
