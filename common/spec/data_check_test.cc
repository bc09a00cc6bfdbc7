#include <string>
#include <utility>
#include <vector>

#include "common/model/model_spec.h"
#include "common/spec/run_config.h"
#include "common/spec/testing.h"
#include "common/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

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

TEST_F(RunConfigTest, BytesOfSeveralBytesAreRefused) {
  EXPECT_THAT(Load(kSmall, {{"data.tokenizer", "BYTES"}, {"data.token_bytes", "2"}}),
              StatusIs(kInvalid, "data.token_bytes: given, but data.tokenizer is BYTES"));
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

// ---- Sources

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

// ---- Evaluation

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

}  // namespace
}  // namespace eps
