#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/base/file_util.h"
#include "common/formats/document_index_writer.h"
#include "common/model/model_spec.h"
#include "common/spec/run_config.h"
#include "common/spec/testing.h"
#include "common/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

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

TEST_F(RunConfigTest, IdsOfFourBytesAreNotTakenForTwiceAsManyOfTwo) {
  std::string four, zeros(400, '\0');
  for (int id = 0; id < 100; ++id) four += {static_cast<char>(id), '\0', '\0', '\0'};
  ASSERT_OK(WriteFileAtomically(dir_.File("four.bin"), four));
  EXPECT_THAT(Load(kSmall, {{"data.path", "four.bin"}}),
              StatusIs(kInvalid, "data.token_bytes: not given, and every second id of "));
  for (const char* said : {"2", "4"}) {
    EXPECT_OK(Load(kSmall, {{"data.path", "four.bin"}, {"data.token_bytes", said}}).status());
  }
  ASSERT_OK(WriteFileAtomically(dir_.File("zeros.bin"), zeros));
  EXPECT_OK(Load(kSmall, {{"data.path", "zeros.bin"}}).status());
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

TEST_F(RunConfigTest, SpecialTokensAndBadLinesAreTakenAsTold) {
  const RunConfig config =
      MustLoad(kSmall, {{"data.path", "chat.jsonl"}, {"data.special_tokens", "AS_TOKENS"}, {"data.bad_lines", "SKIP"}});
  EXPECT_TRUE(config.data.specials_as_tokens);
  EXPECT_TRUE(config.data.skips_bad_lines);
  EXPECT_THAT(ParseRunConfig(SerializeRunConfig(config)), IsOkAndHolds(config));
  const RunConfig usual = MustLoad(kSmall, {{"data.path", "chat.jsonl"}});
  EXPECT_FALSE(usual.data.specials_as_tokens);
  EXPECT_FALSE(usual.data.skips_bad_lines);
  EXPECT_THAT(DifferencesThatMatter(usual, config),
              ElementsAre("data.special_tokens: was absent, now AS_TOKENS", "data.bad_lines: was absent, now SKIP"));
  EXPECT_THAT(
      Load(kSmall, {{"data.special_tokens", "AS_TEXT"}}),
      StatusIs(kInvalid, "data.special_tokens: given, but data.path is neither JSONL nor text for a tokenizer"));
  EXPECT_THAT(Load(kSmall, {{"data.path", "a.txt"}, {"data.tokenizer_path", "model"}, {"data.bad_lines", "SKIP"}}),
              StatusIs(kInvalid, "data.bad_lines: given, but data.path is neither JSONL nor a table"));
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
  refused({{"data.path", "a.jsonl"}, {"data.chat_template", "llama4"}},
          "data.chat_template: \"llama4\", must be auto, llama3, llama31, chatml, ");
  refused({{"data.tokenizer", "MODEL"}}, "data.tokenizer_path: missing");
  refused({{"data.tokenizer", "BYTES"}, {"data.tokenizer_path", "x"}}, "data.tokenizer_path: given, but");
  refused({{"data.tokenizer", "MODEL"}, {"data.tokenizer_path", "x"}, {"data.token_bytes", "2"}},
          "data.token_bytes: given, but data.tokenizer is MODEL");
}

// ---- What a file is

TEST_F(RunConfigTest, AnEndingMeansWhatItMeansToEpsTokenize) {
  for (const char* name : {"a.jsonl", "a.JSONL", "a.ndjson", "a.json"}) {
    EXPECT_TRUE(MustLoad(kSmall, {{"data.path", name}}).data.is_jsonl) << name;
  }
  EXPECT_EQ(MustLoad(kSmall, {{"data.path", "a.BIN"}}).data.tokenizer, TokenForm::kTokenFile);
  EXPECT_THAT(Load(kSmall, {{"data.path", "a.TSV"}}), StatusIs(kInvalid, "a table (.tsv) is for a classifier"));
}

TEST_F(RunConfigTest, AFormatGoesBeforeTheEnding) {
  const RunConfig text = MustLoad(kSmall, {{"data.path", "a.json"}, {"data.format", "TEXT"}});
  EXPECT_FALSE(text.data.is_jsonl);
  EXPECT_EQ(text.data.documents, DocumentMode::kJoined);
  EXPECT_THAT(ParseRunConfig(SerializeRunConfig(text)), IsOkAndHolds(text));
  const RunConfig jsonl = MustLoad(kSmall, {{"data.path", "a.txt"}, {"data.format", "JSONL"}});
  EXPECT_TRUE(jsonl.data.is_jsonl);
  EXPECT_THAT(ParseRunConfig(SerializeRunConfig(jsonl)), IsOkAndHolds(jsonl));
  EXPECT_EQ(MustLoad(kSmall, {{"data.path", "a.bin"}, {"data.format", "TEXT"}}).data.tokenizer, TokenForm::kBytes);
  EXPECT_THAT(Load(kSmall, {{"data.path", "a.bin"}, {"data.format", "TEXT"}, {"data.tokenizer", "TOKEN_IDS"}}),
              StatusIs(kInvalid, "data.format: given, but the file holds token ids"));
  EXPECT_THAT(DifferencesThatMatter(text, MustLoad(kSmall, {{"data.path", "a.json"}, {"data.documents", "PACKED"}})),
              ::testing::Contains("data.format: was TEXT, now JSONL"));
}

TEST_F(RunConfigTest, AFileThatBeginsLikeSomethingElseIsRefused) {
  const auto write = [&](const std::string& name, const std::string& bytes) {
    ASSERT_OK(WriteFileAtomically(dir_.File(name), bytes));
  };
  const auto refused = [&](const std::string& name, const std::string& bytes, const std::string& why) {
    write(name, bytes);
    EXPECT_THAT(Load(kSmall, {{"data.path", name}}), StatusIs(kInvalid, "data.path: " + name + " " + why));
    EXPECT_OK(Load(kSmall, {{"data.path", name}, {"data.format", "TEXT"}}));
  };
  refused("chat.jsonl.gz", "\x1f\x8b\x08 etc", "is compressed by gzip");
  refused("chat.txt", "{\"text\": \"a\"}\n", "is JSON");
  refused("chat.json", "[\n  {\"text\": \"a\"}]", "is a JSON array");
  refused("x.parquet", "PAR1 etc", "is Parquet");
  refused("utf16.txt", "\xff\xfe etc", "is UTF-16");
  refused("ids.dat", std::string("\7\0\3\0", 4), "is no text: the byte at offset 1 is zero");
  EXPECT_OK(Load(kSmall, {{"data.path", "ids.dat"}, {"data.tokenizer", "BYTES"}}));  // bytes may be any
  EXPECT_THAT(Load(kSmall, {{"data.path", "x.parquet"}, {"data.tokenizer", "BYTES"}}), StatusIs(kInvalid, "Parquet"));
  write("good.txt", "text");
  EXPECT_THAT(
      Load(kSmall, {{"data.path", "good.txt"}, {"evaluation.path", "x.parquet"}, {"evaluation.every_steps", "1"}}),
      StatusIs(kInvalid, "evaluation.path: x.parquet is Parquet"));
  EXPECT_THAT(Load(kSmall, {{"data.path", "ids.bin"}, {"data.tokenizer", "MODEL"}, {"data.tokenizer_path", "t"}}),
              StatusIs(kInvalid, "data.tokenizer: MODEL, but data.path holds token ids by its ending (.bin)"));
}

TEST_F(RunConfigTest, WhatIsSaidOfTheDataIsSaidOfTheEvaluationToo) {
  ASSERT_OK(WriteFileAtomically(dir_.File("good.txt"), "text"));
  ASSERT_OK(WriteFileAtomically(dir_.File("like.json"), "[\"a poem\"]"));
  ASSERT_OK(WriteFileAtomically(dir_.File("bytes.txt"), std::string("\7\0\3\0", 4)));
  const auto load = [&](const std::string& path, std::vector<FieldOverride> more) {
    more.insert(more.end(), {{"evaluation.path", path}, {"evaluation.every_steps", "1"}});
    return Load(kSmall, more);
  };
  const FieldOverride good = {"data.path", "good.txt"}, as_text = {"data.format", "TEXT"};
  EXPECT_OK(load("like.json", {good, as_text}));
  EXPECT_OK(load("bytes.txt", {good, as_text}));
  EXPECT_OK(load("bytes.txt", {good, {"data.tokenizer", "BYTES"}}));
  EXPECT_THAT(load("like.json", {good}), StatusIs(kInvalid, "evaluation.path: like.json is JSONL by its ending"));
  EXPECT_THAT(load("bytes.txt", {good}),
              StatusIs(kInvalid,
                       "evaluation.path: bytes.txt is no text: the byte at offset 1 is zero; text is UTF-8, and "
                       "a file of token ids is called .bin; data.format: TEXT takes it and the data"));
  ASSERT_OK(WriteFileAtomically(dir_.File("packed.txt"), "\x1f\x8b\x08 rest"));
  const auto packed = load("packed.txt", {good});
  EXPECT_THAT(packed, StatusIs(kInvalid, "packed.txt is compressed by gzip by its first bytes: unpack it first"));
  EXPECT_THAT(std::string(packed.status().message()), Not(HasSubstr("format: TEXT")));
  // As the first source's.
  std::string sources = kSmall;
  sources.replace(sources.find("path: \"a.txt\""), 13, R"(sources { path: "good.txt" format: TEXT })");
  EXPECT_OK(Load(sources, {{"evaluation.path", "like.json"}, {"evaluation.every_steps", "1"}}));
}

TEST_F(RunConfigTest, AModelsFolderWithoutATokenizerAsksForOne) {
  WriteHfFolder(R"({"model_type":"gpt2","n_layer":2,"n_embd":8,"n_head":2,"n_positions":5,"vocab_size":999})");
  const std::string text = R"(
    model { from: "gpt2" }  data { path: "a.txt" }  optimizer { schedule { peak: 0.1 } }  steps: 3)";
  EXPECT_THAT(Load(text), StatusIs(kInvalid, "data.tokenizer: missing: " + dir_.File("gpt2") + ", model.from, has"));
  EXPECT_THAT(Load(text, {{"data.path", "a.jsonl"}}), StatusIs(kInvalid, "data.tokenizer: missing"));
  EXPECT_EQ(MustLoad(text, {{"data.tokenizer", "BYTES"}}).data.tokenizer, TokenForm::kBytes);
  EXPECT_EQ(MustLoad(text, {{"data.path", "a.bin"}}).data.tokenizer, TokenForm::kTokenFile);
  ASSERT_OK(WriteFileAtomically(dir_.File("gpt2/tokenizer.json"), "{}"));
  EXPECT_EQ(MustLoad(text).data.tokenizer, TokenForm::kModel);
}

// ---- The index beside a token file

class TokenFileRunTest : public RunConfigTest {
 protected:
  // ids.bin of 4 tokens, and its index. counted: of the last 4.
  void WriteIds(int token_bytes, bool may_be_cut, int64_t counted, const std::string& name = "ids.bin") {
    ASSERT_OK(WriteFileAtomically(dir_.File(name), std::string(static_cast<size_t>(4 * token_bytes), '\0')));
    ASSERT_OK_AND_ASSIGN(auto writer, DocumentIndexWriter::Create(DocumentIndexPath(dir_.File(name)),
                                                                  {.token_bytes = token_bytes,
                                                                   .tokenizer_fingerprint = std::string(64, 'a'),
                                                                   .may_be_cut = may_be_cut}));
    const std::vector<TokenRange> ranges = {{4 - counted, 4}};
    ASSERT_OK(writer->Add({.num_tokens = 4, .counted = ranges, .label = {}, .second_part = {}}));
    ASSERT_OK(writer->Finish());
  }
  DataConfig DataOf(const std::vector<FieldOverride>& more = {}) {
    std::vector<FieldOverride> fields = {{"data.path", "ids.bin"}};
    fields.insert(fields.end(), more.begin(), more.end());
    return MustLoad(kSmall, fields).data;
  }
  absl::StatusOr<RunConfig> LoadIds(const std::string& field, const std::string& value) {
    return Load(kSmall, {{"data.path", "ids.bin"}, {field, value}});
  }
};

TEST_F(TokenFileRunTest, TheIndexSaysHowTheIdsAreRead) {
  ASSERT_NO_FATAL_FAILURE(WriteIds(4, true, 4));
  EXPECT_EQ(DataOf().token_bytes, 4);
  EXPECT_EQ(DataOf().documents, DocumentMode::kJoined);  // a text of which all is counted
  EXPECT_EQ(DataOf({{"data.documents", "PACKED"}}).documents, DocumentMode::kPacked);
  EXPECT_THAT(LoadIds("data.token_bytes", "2"),
              StatusIs(kInvalid, "data.token_bytes: 2, but " + dir_.File("ids.bin.docs") + " is of ids of 4 bytes"));
  for (const bool may_be_cut : {true, false}) {
    ASSERT_NO_FATAL_FAILURE(WriteIds(2, may_be_cut, may_be_cut ? 3 : 4));
    EXPECT_EQ(DataOf().token_bytes, 2);
    EXPECT_EQ(DataOf().documents, DocumentMode::kPacked);
    EXPECT_THAT(LoadIds("data.documents", "JOINED"),
                StatusIs(kInvalid, may_be_cut ? "some of its tokens are not counted" : "no document of it may be cut"));
    EXPECT_EQ(DataOf({{"data.documents", "PADDED"}}).documents, DocumentMode::kPadded);
  }
}

TEST_F(TokenFileRunTest, AnIndexOfAnotherFileOrADamagedOneIsNamed) {
  ASSERT_NO_FATAL_FAILURE(WriteIds(2, true, 4));
  ASSERT_OK(WriteFileAtomically(dir_.File("ids.bin"), std::string(10, '\0')));
  EXPECT_THAT(LoadIds("data.seed", "1"),
              StatusIs(kInvalid, "data.path: " + dir_.File("ids.bin.docs") + " is of 4 tokens of 2 bytes, but"));
  ASSERT_OK(WriteFileAtomically(dir_.File("ids.bin.docs"), std::string(80, 'x')));
  EXPECT_THAT(LoadIds("data.seed", "1"), StatusIs(kInvalid, "magic (offset 0)"));
}

TEST_F(TokenFileRunTest, ASourceGoesByItsOwnIndex) {
  ASSERT_NO_FATAL_FAILURE(WriteIds(4, false, 2));
  ASSERT_NO_FATAL_FAILURE(WriteIds(2, true, 4, "text.bin"));
  const std::string text = R"(
    model { layers: 1 d_model: 8 heads: 2 context: 4 vocab: 9 }  optimizer { schedule { peak: 0.1 } }  steps: 3
    data { documents: JOINED  sources { path: "ids.bin" }  sources { path: "text.bin" } })";
  const RunConfig config = MustLoad(text);
  EXPECT_EQ(config.sources[0].data.documents, DocumentMode::kPacked);  // what all share does not fit here
  EXPECT_EQ(config.sources[0].data.token_bytes, 4);
  EXPECT_EQ(config.sources[1].data.documents, DocumentMode::kJoined);
  EXPECT_THAT(ParseRunConfig(SerializeRunConfig(config)), IsOkAndHolds(config));
  EXPECT_THAT(LoadResumedRunConfig(dir_.File("run.textproto"), {}, config), IsOkAndHolds(config));
  EXPECT_THAT(Load(text, {{"data.sources[0].documents", "JOINED"}}),
              StatusIs(kInvalid, "data.sources[0].documents: JOINED"));
}

TEST_F(TokenFileRunTest, AnEvaluationHasIdsOfTheSameForm) {
  ASSERT_NO_FATAL_FAILURE(WriteIds(2, true, 4));
  const auto load = [&](const std::string& path) {
    return Load(kSmall, {{"data.path", "ids.bin"}, {"evaluation.path", path}, {"evaluation.every_steps", "1"}});
  };
  ASSERT_NO_FATAL_FAILURE(WriteIds(4, true, 4, "wide.bin"));
  EXPECT_THAT(load("wide.bin"), StatusIs(kInvalid, "is of ids of 4 bytes, and data.path of 2"));
  const absl::StatusOr<RunConfig> before = load("chat.bin");  // without an index
  ASSERT_OK(before);
  ASSERT_NO_FATAL_FAILURE(WriteIds(2, true, 3, "chat.bin"));
  EXPECT_THAT(load("chat.bin"), StatusIs(kInvalid, "evaluation.path: JOINED, but"));
  EXPECT_THAT(
      LoadResumedRunConfig(dir_.File("run.textproto"),
                           {{"data.path", "ids.bin"}, {"evaluation.path", "chat.bin"}, {"evaluation.every_steps", "1"}},
                           *before),
      IsOkAndHolds(*before));
}

// ---- Runs of earlier versions

// What a version that had no `format` and no `uncounted` wrote.
std::string WithoutNewFields(const RunConfig& config) {
  std::vector<std::string> lines;
  const std::string text = SerializeRunConfig(config);
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!absl::StrContains(line, "format:") && !absl::StrContains(line, "uncounted:")) lines.emplace_back(line);
  }
  return absl::StrJoin(lines, "\n");
}

TEST_F(TokenFileRunTest, ARunThatIsGoneOnWithKeepsWhatItBeganWith) {
  const RunConfig before = MustLoad(kSmall, {{"data.path", "ids.bin"}});  // without an index, or without a look at it
  ASSERT_NO_FATAL_FAILURE(WriteIds(4, false, 2));
  ASSERT_EQ(DataOf().documents, DocumentMode::kPacked);
  ASSERT_OK_AND_ASSIGN(const RunConfig was, ParseRunConfig(WithoutNewFields(before)));
  EXPECT_EQ(was, before);
  const std::string file = dir_.File("run.textproto");
  EXPECT_THAT(LoadResumedRunConfig(file, {{"data.path", "ids.bin"}}, was), IsOkAndHolds(was));
  EXPECT_THAT(LoadResumedRunConfig(file, {{"data.path", "ids.bin"}, {"data.documents", "JOINED"}}, was),
              IsOkAndHolds(was));
  ASSERT_OK_AND_ASSIGN(const RunConfig other,
                       LoadResumedRunConfig(file, {{"data.path", "ids.bin"}, {"data.documents", "PADDED"}}, was));
  EXPECT_THAT(DifferencesThatMatter(was, other), ::testing::Contains("data.documents: was JOINED, now PADDED"));
}

TEST_F(RunConfigTest, WhatAnEarlierVersionTookForTextStaysText) {
  const RunConfig before = MustLoad(kSmall, {{"data.path", "a.json"}, {"data.format", "TEXT"}});
  ASSERT_OK_AND_ASSIGN(const RunConfig was, ParseRunConfig(WithoutNewFields(before)));
  EXPECT_EQ(was, before);
  EXPECT_TRUE(MustLoad(kSmall, {{"data.path", "a.json"}}).data.is_jsonl);
  EXPECT_THAT(LoadResumedRunConfig(dir_.File("run.textproto"), {{"data.path", "a.json"}}, was), IsOkAndHolds(was));
}

TEST_F(RunConfigTest, UncountedPartsAreLeftOutButOfRunsThatBeganWithThem) {
  const RunConfig now = MustLoad(kSmall, {{"data.path", "a.jsonl"}});
  EXPECT_FALSE(now.data.keeps_uncounted);
  EXPECT_THAT(ParseRunConfig(SerializeRunConfig(now)), IsOkAndHolds(now));
  ASSERT_OK_AND_ASSIGN(const RunConfig was, ParseRunConfig(WithoutNewFields(now)));
  EXPECT_TRUE(was.data.keeps_uncounted);
  EXPECT_THAT(DifferencesThatMatter(was, now), ElementsAre("data.uncounted: was KEPT, now LEFT_OUT"));
  EXPECT_THAT(LoadResumedRunConfig(dir_.File("run.textproto"), {{"data.path", "a.jsonl"}}, was), IsOkAndHolds(was));
  EXPECT_TRUE(MustLoad(kSmall, {{"data.path", "a.jsonl"}, {"data.uncounted", "KEPT"}}).data.keeps_uncounted);
  EXPECT_THAT(Load(kSmall, {{"data.path", "a.txt"}, {"data.uncounted", "KEPT"}}),
              StatusIs(kInvalid, "data.uncounted: given, but of data.path no documents are packed or padded"));
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

TEST_F(RunConfigTest, ATableMayHaveNoHeaderAndBadRows) {
  const RunConfig config = MustLoad(kClassifier, {{"data.table_header", "false"}, {"data.bad_lines", "SKIP"}});
  EXPECT_FALSE(config.data.has_table_header);
  EXPECT_TRUE(config.data.skips_bad_lines);
  EXPECT_THAT(ParseRunConfig(SerializeRunConfig(config)), IsOkAndHolds(config));
  EXPECT_THAT(DifferencesThatMatter(MustLoad(kClassifier, {{"data.bad_lines", "SKIP"}}), config),
              ElementsAre("data.table_header: was absent, now false"));
  EXPECT_THAT(Load(kClassifier, {{"data.table_header", "false"}, {"data.text_column", ""}, {"data.label_column", ""}}),
              StatusIs(kInvalid, "data.text_column: missing beside data."));
  EXPECT_THAT(Load(kSmall, {{"data.table_header", "false"}}),
              StatusIs(kInvalid, "data.table_header: given, but data.path is no table"));
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
  refused({path}, "evaluation.every_steps: missing, must be at least 1");
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
