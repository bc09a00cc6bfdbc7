#include "cli/sample_prompt.h"

#include <filesystem>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/base/file_util.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/testing.h"
#include "common/spec/run_config.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "common/tokenizer/example_tokenizers.h"
#include "common/tokenizer/tokenizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps::cli {
namespace {

using ::testing::ElementsAre;

class SamplePromptTest : public ::testing::Test {
 protected:
  ModelTokenizer Open(const std::string& json, int64_t vocab = 100000) {
    EXPECT_OK(WriteFileAtomically(dir_.File("tokenizer.json"), json));
    absl::StatusOr<ModelTokenizer> model = OpenModelTokenizer("", dir_.path(), vocab);
    EXPECT_OK(model.status());
    return *std::move(model);
  }

  // A step's folder with no more than its manifest.
  std::string CheckpointOf(const RunConfig& run) {
    const std::string folder = dir_.File("step-00000004");
    EXPECT_OK(MakeDirs(folder));
    Manifest manifest{.run = run, .state = StateAt(4), .files = {}};
    for (const absl::string_view name : kSummedFiles) {
      manifest.files[std::string(name)] = {.num_bytes = 1, .sha256 = std::string(64, '0'), .part_crcs = {0}};
    }
    EXPECT_OK(WriteFileAtomically(folder + "/" + kManifestFile, ManifestToJson(manifest)));
    return folder;
  }

  TempDir dir_;
};

TEST_F(SamplePromptTest, TheTokenizerIsTheOneThatIsToldOrThatLiesBesideTheModel) {
  EXPECT_EQ(OpenModelTokenizer("", dir_.path(), 256)->tokenizer->vocab(), 256);
  EXPECT_THAT(OpenModelTokenizer("", dir_.path(), 257).status(), StatusIs(kInvalid, "give --tokenizer"));
  EXPECT_EQ(OpenModelTokenizer("bytes", dir_.path(), 257)->tokenizer->vocab(), 256);
  EXPECT_GT(Open(ByteLevelJson()).tokenizer->vocab(), 256);
  EXPECT_THAT(
      OpenModelTokenizer("", dir_.path(), 100).status(),
      StatusIs(kInvalid, "--tokenizer: " + dir_.path() + " has ids up to 261, and the model a vocabulary of 100"));
}

TEST_F(SamplePromptTest, ATokenThatTheModelHasNotIsRefusedWhereAPromptHasIt) {
  ASSERT_OK_AND_ASSIGN(ModelTokenizer model, OpenModelTokenizer("bytes", dir_.path(), 128));
  model.chat_template = "plain";
  EXPECT_OK(PromptOfText(model, "a").status());
  const std::string beyond = "the token \"\\xc3\" (195) is beyond the model's vocabulary of 128";
  EXPECT_THAT(PromptOfText(model, "a\u00E9").status(), StatusIs(kInvalid, "--prompt: " + beyond));
  EXPECT_THAT(PromptOfChat(model, {{{.content = "\u00E9"}}}, Thoughts::kLeftToModel, "chat.json").status(),
              StatusIs(kInvalid, "chat.json: " + beyond));
  EXPECT_THAT(PromptOfClassifier(model, "\u00E9", 3).status(), StatusIs(kInvalid, beyond));
}

TEST_F(SamplePromptTest, ATextHasSpecialTokensAndEndsAsTheModelsSettingsSay) {
  ASSERT_OK(WriteFileAtomically(dir_.File("tokenizer_config.json"), R"({"eos_token": "<|end|>"})"));
  const ModelTokenizer model = Open(ByteLevelJson());
  const int32_t end = model.tokenizer->TokenId("<|end|>").value();
  ASSERT_OK_AND_ASSIGN(const SamplePrompt prompt, PromptOfText(model, "x<|end|>"));
  EXPECT_THAT(prompt.ids, ElementsAre('x', end));
  EXPECT_THAT(prompt.ends, ElementsAre(end));
}

TEST_F(SamplePromptTest, PlainTextThatSpellsAnEndIsNone) {
  // As Qwen's vocabulary has "</s>".
  std::string json = ByteLevelJson();
  json.replace(json.find("\"hell\""), 6, "\"</s>\"").replace(json.find("[\"he\",\"ll\"],"), 12, "");
  const ModelTokenizer model = Open(json);
  ASSERT_TRUE(model.tokenizer->TokenId("</s>"));
  EXPECT_TRUE(PromptOfText(model, "x")->ends.empty());
  ASSERT_OK(WriteFileAtomically(dir_.File("tokenizer_config.json"), R"({"eos_token": "</s>"})"));
  EXPECT_THAT(PromptOfText(Open(json), "x")->ends, ElementsAre(*model.tokenizer->TokenId("</s>")));
}

TEST_F(SamplePromptTest, AChatIsInTheTemplatesForm) {
  ASSERT_OK_AND_ASSIGN(ModelTokenizer model, OpenModelTokenizer("bytes", dir_.path(), 256));
  model.chat_template = "plain";
  ASSERT_OK_AND_ASSIGN(const SamplePrompt prompt, PromptOfChat(model, {{{.content = "q"}}}));
  EXPECT_EQ(model.tokenizer->Decode(prompt.ids, false), "### User:\nq\n\n### Assistant:\n");
  EXPECT_TRUE(prompt.ends.empty());
}

TEST_F(SamplePromptTest, AChatThatCannotBeAnsweredNamesItsFile) {
  ASSERT_OK_AND_ASSIGN(ModelTokenizer model, OpenModelTokenizer("bytes", dir_.path(), 256));
  model.chat_template = "plain";
  const std::vector<ChatMessage> none,
      answered = {{.role = Role::kUser, .content = "q"}, {.role = Role::kAssistant, .content = "a"}};
  for (const std::vector<ChatMessage>& messages : {none, answered}) {
    EXPECT_THAT(PromptOfChat(model, messages, Thoughts::kLeftToModel, "chat.json"), StatusIs(kInvalid, "chat.json: "));
  }
}

TEST_F(SamplePromptTest, WhatAModelDoesNotSeeOfAChatIsSaidInTokens) {
  EXPECT_EQ(CutText(32, 32), "");
  EXPECT_THAT(CutText(40, 32), ::testing::HasSubstr("40 tokens, the model's context 32: the first 8 are left out"));
}

TEST_F(SamplePromptTest, AChatEndsBeforeTheAnswerWhereAllLettersAreUnknown) {
  // What an answer may begin with is one token, whatever it is.
  ModelTokenizer model = Open(WordPieceJson());
  model.chat_template = "plain";
  ASSERT_OK_AND_ASSIGN(const SamplePrompt prompt, PromptOfChat(model, {{{.content = "q"}}}));
  EXPECT_EQ(prompt.ids, model.tokenizer->Encode("### User:\nq\n\n### Assistant:\n", Tokenizer::Specials::kAsText));
}

TEST_F(SamplePromptTest, OfAMixtureTheTemplateIsThatOfItsConversations) {
  const std::string tokenizer = dir_.File("tokenizer.json");
  ASSERT_OK(WriteFileAtomically(tokenizer, ByteLevelJson()));
  ASSERT_OK(WriteFileAtomically(dir_.File("chat.jsonl"), R"({"messages": [{"role": "user", "content": "a"}]})"));
  DataConfig text = {.path = dir_.File("text.txt"),
                     .tokenizer = TokenForm::kModel,
                     .tokenizer_path = tokenizer,
                     .documents = DocumentMode::kPacked};
  DataConfig chat = text;
  chat.path = dir_.File("chat.jsonl");
  chat.is_jsonl = true;
  chat.chat_template = "chatml";
  RunConfig run = SmallRun();
  run.sources = {{.data = text}, {.data = chat}};
  const std::string folder = CheckpointOf(run);
  ASSERT_OK_AND_ASSIGN(const ModelTokenizer model, OpenModelTokenizer("", folder, 100000));
  EXPECT_EQ(model.chat_template, "chatml");
  EXPECT_GT(model.tokenizer->vocab(), 256);
  // The data alone tell which of them are conversations; without them, the template that is named is theirs.
  std::filesystem::remove(dir_.File("chat.jsonl"));
  ASSERT_OK_AND_ASSIGN(const ModelTokenizer moved, OpenModelTokenizer("", folder, 100000));
  EXPECT_EQ(moved.chat_template, "chatml");
}

TEST_F(SamplePromptTest, ARunOnBytesIsAskedInBytesWhateverItsModelHasHad) {
  ASSERT_OK(WriteFileAtomically(dir_.File("tokenizer.json"), ByteLevelJson()));
  RunConfig run = SmallRun();
  run.model_from = dir_.path();
  ASSERT_OK_AND_ASSIGN(const ModelTokenizer model, OpenModelTokenizer("", CheckpointOf(run), 100000));
  EXPECT_EQ(model.tokenizer->vocab(), 256);
}

TEST_F(SamplePromptTest, ATextForAClassifierLooksAsInTrainingAndKeepsItsEnd) {
  std::string json = WordPieceJson();
  json.replace(json.find("\"[UNK]\",\"special"), 7, "\"[CLS]\"");
  json.replace(json.find("\"vocab\":{\"[UNK]\":0"), 18, "\"vocab\":{\"[UNK]\":11,\"[CLS]\":0");
  const ModelTokenizer model = Open(json);
  const int32_t cls = model.tokenizer->TokenId("[CLS]").value(), sep = model.tokenizer->TokenId("[SEP]").value();
  ASSERT_OK_AND_ASSIGN(const std::vector<int32_t> whole, PromptOfClassifier(model, "! sep cafe", 5));
  ASSERT_EQ(whole.size(), 5u);
  EXPECT_EQ(whole.front(), cls);
  EXPECT_EQ(whole.back(), sep);
  EXPECT_THAT(PromptOfClassifier(model, "! sep cafe", 3), IsOkAndHolds(ElementsAre(cls, whole[1], sep)));
  EXPECT_THAT(PromptOfClassifier(model, "", 3), IsOkAndHolds(ElementsAre(cls, sep)));
  ASSERT_OK_AND_ASSIGN(const ModelTokenizer bytes, OpenModelTokenizer("bytes", "", 256));
  EXPECT_THAT(PromptOfClassifier(bytes, "abc", 3), IsOkAndHolds(ElementsAre('a', 'b', 'c')));
  EXPECT_THAT(PromptOfClassifier(bytes, "", 3), StatusIs(kInvalid, "no token"));
}

TEST_F(SamplePromptTest, MessagesAreAListOrALineOfData) {
  const std::string path = dir_.File("chat.json");
  const std::string list = R"([
    {"role": "system", "content": "s"},
    {"role": "user", "content": "q"}])";
  const std::string object = "{\"messages\": " + list + "}", mark = "\xEF\xBB\xBF";
  for (const std::string& text : {list, object, mark + list, mark + object}) {
    ASSERT_OK(WriteFileAtomically(path, text));
    EXPECT_THAT(ReadMessages(path), IsOkAndHolds(ElementsAre(ChatMessage{.role = Role::kSystem, .content = "s"},
                                                             ChatMessage{.role = Role::kUser, .content = "q"})));
  }
  ASSERT_OK(WriteFileAtomically(path, "[?]"));
  EXPECT_THAT(ReadMessages(path), StatusIs(kInvalid, "chat.json: line 1, byte offset 1:"));
  ASSERT_OK(WriteFileAtomically(path, R"([{"role": "user"}])"));
  EXPECT_THAT(ReadMessages(path), StatusIs(kInvalid, "chat.json: line 1, byte offset 0: messages[0].content: missing"));
  ASSERT_OK(WriteFileAtomically(path, R"([{"role": user}])"));
  EXPECT_THAT(ReadMessages(path), StatusIs(kInvalid, "chat.json: line 1, byte offset 10:"));
  ASSERT_OK(WriteFileAtomically(path, mark + R"([{"role": user}])"));
  EXPECT_THAT(ReadMessages(path), StatusIs(kInvalid, "chat.json: line 1, byte offset 13:"));
  EXPECT_THAT(ReadMessages(dir_.File("none")), StatusIs(absl::StatusCode::kNotFound, "none"));
}

}  // namespace
}  // namespace eps::cli
