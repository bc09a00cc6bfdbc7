#include "cli/sample_prompt.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/file_util.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "common/tokenizer/example_tokenizers.h"
#include "common/tokenizer/tokenizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps::cli {
namespace {

using ::testing::ElementsAre;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

class SamplePromptTest : public ::testing::Test {
 protected:
  ModelTokenizer Open(const std::string& json, int64_t vocab = 100000) {
    EXPECT_OK(WriteFileAtomically(dir_.File("tokenizer.json"), json));
    absl::StatusOr<ModelTokenizer> model = OpenModelTokenizer("", dir_.path(), vocab);
    EXPECT_OK(model.status());
    return *std::move(model);
  }

  TempDir dir_;
};

TEST_F(SamplePromptTest, TheTokenizerIsTheOneThatIsToldOrThatLiesBesideTheModel) {
  EXPECT_EQ(OpenModelTokenizer("", dir_.path(), 256)->tokenizer->vocab(), 256);
  EXPECT_THAT(OpenModelTokenizer("", dir_.path(), 257).status(), StatusIs(kInvalid, "give --tokenizer"));
  EXPECT_EQ(OpenModelTokenizer("bytes", dir_.path(), 257)->tokenizer->vocab(), 256);
  EXPECT_THAT(OpenModelTokenizer("bytes", dir_.path(), 255).status(),
              StatusIs(kInvalid, "ids up to 255, the model a vocabulary of 255"));
  EXPECT_GT(Open(ByteLevelJson()).tokenizer->vocab(), 256);
}

TEST_F(SamplePromptTest, ATextHasSpecialTokensAndEndsAsTheModelsSettingsSay) {
  ASSERT_OK(WriteFileAtomically(dir_.File("tokenizer_config.json"), R"({"eos_token": "<|end|>"})"));
  const ModelTokenizer model = Open(ByteLevelJson());
  const int32_t end = model.tokenizer->TokenId("<|end|>").value();
  const SamplePrompt prompt = PromptOfText(model, "x<|end|>");
  EXPECT_THAT(prompt.ids, ElementsAre('x', end));
  EXPECT_THAT(prompt.ends, ElementsAre(end));
}

TEST_F(SamplePromptTest, AChatIsInTheTemplatesForm) {
  ASSERT_OK_AND_ASSIGN(ModelTokenizer model, OpenModelTokenizer("bytes", dir_.path(), 256));
  model.chat_template = "plain";
  ASSERT_OK_AND_ASSIGN(const SamplePrompt prompt, PromptOfChat(model, {{{.content = "q"}}}));
  EXPECT_EQ(model.tokenizer->Decode(prompt.ids, false), "### User:\nq\n\n### Assistant:\n");
  EXPECT_TRUE(prompt.ends.empty());
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
  for (const std::string& text : {list, "{\"messages\": " + list + "}"}) {
    ASSERT_OK(WriteFileAtomically(path, text));
    EXPECT_THAT(ReadMessages(path), IsOkAndHolds(ElementsAre(ChatMessage{.role = Role::kSystem, .content = "s"},
                                                             ChatMessage{.role = Role::kUser, .content = "q"})));
  }
  ASSERT_OK(WriteFileAtomically(path, "[?]"));
  EXPECT_THAT(ReadMessages(path), StatusIs(kInvalid, "chat.json: line 1, byte offset 1"));
  EXPECT_THAT(ReadMessages(dir_.File("none")), StatusIs(absl::StatusCode::kNotFound, "none"));
}

}  // namespace
}  // namespace eps::cli
