#include "common/corpus/document_marks.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/corpus/testing.h"
#include "common/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

constexpr char kLlama2[] =
    "{{ bos_token + '[INST] ' + '<<SYS>>\\n' + message['content'] + '\\n<</SYS>>\\n\\n' + ' [/INST]' + eos_token }}";
constexpr char kChatMlTurns[] =
    "{{ bos_token }}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}";

FakeTokenizer WithSpecials(std::vector<std::string> specials) {
  return FakeTokenizer({.specials = std::move(specials)});
}

TokenizerSettings Settings(const std::string& chat_template, std::optional<std::string> bos = std::nullopt) {
  return {.chat_template = chat_template, .chat_template_place = "m/x.jinja", .bos_token = std::move(bos)};
}

// Spellings of what documents begin and end with, "-": nothing.
std::string Around(const DocumentMarkOptions& options, CorpusContent content, const FakeTokenizer& tokenizer) {
  const absl::StatusOr<DocumentMarks> marks = ChooseDocumentMarks(options, content, tokenizer);
  EXPECT_OK(marks.status());
  if (!marks.ok()) return "";
  const auto spelling = [&](std::optional<int32_t> id) { return id ? tokenizer.Decode({*id}, false) : "-"; };
  return spelling(marks->first) + " " + spelling(marks->last);
}

absl::Status Refused(const DocumentMarkOptions& options, CorpusContent content, const FakeTokenizer& tokenizer) {
  return ChooseDocumentMarks(options, content, tokenizer).status();
}

TEST(DocumentMarksTest, ALlama2ConversationBeginsWithTheTokenOfItsFirstExchangeAlone) {
  const FakeTokenizer tokenizer = WithSpecials({"<s>", "</s>"});
  for (const char* name : {"auto", "llama2"}) {
    const DocumentMarkOptions options = {.chat_template = name, .settings = Settings(kLlama2, "<s>")};
    EXPECT_EQ(Around(options, CorpusContent::kConversations, tokenizer), "- -") << name;
  }
}

TEST(DocumentMarksTest, AConversationBeginsWithBosWhereTheModelsOwnTemplateDoes) {
  const FakeTokenizer tokenizer = WithSpecials({"<s>", "<begin>", "<|im_start|>", "<|im_end|>"});
  const CorpusContent chats = CorpusContent::kConversations;
  EXPECT_EQ(Around({.settings = Settings(kChatMlTurns)}, chats, tokenizer), "{<s>} -");
  EXPECT_EQ(Around({.settings = Settings(kChatMlTurns, "<begin>")}, chats, tokenizer), "{<begin>} -");
  EXPECT_EQ(Around({.settings = Settings(kChatMlTurns, "<begin>"), .bos = ""}, chats, tokenizer), "- -");
  EXPECT_EQ(Around({.settings = Settings(&kChatMlTurns[sizeof("{{ bos_token }}") - 1], "<begin>")}, chats, tokenizer),
            "- -");
  TokenizerSettings not_of_text = Settings(kChatMlTurns, "<begin>");
  not_of_text.adds_bos = false;
  EXPECT_EQ(Around({.settings = not_of_text}, chats, tokenizer), "{<begin>} -");
  EXPECT_EQ(Around({.settings = not_of_text}, CorpusContent::kText, tokenizer), "- -");
}

TEST(DocumentMarksTest, ConversationsOfPlainBeginAsTextAndTheirAnswersEndSo) {
  const FakeTokenizer tokenizer = WithSpecials({"<s>", "</s>"});
  ASSERT_OK_AND_ASSIGN(const DocumentMarks marks, ChooseDocumentMarks({}, CorpusContent::kConversations, tokenizer));
  EXPECT_EQ(marks.first, 256);
  EXPECT_EQ(marks.last, std::nullopt);
  EXPECT_EQ(marks.chat->end_of_turn(), 257);
}

TEST(DocumentMarksTest, AFamiliesMarkThatIsPlainTextHereIsNone) {
  const FakeTokenizer tokenizer({.specials = {"<|end_of_text|>"}, .words = {"<s>", "<|endoftext|>"}});
  EXPECT_EQ(Around({}, CorpusContent::kText, tokenizer), "- {<|end_of_text|>}");
  EXPECT_EQ(Around({.settings = {.bos_token = "<s>"}}, CorpusContent::kText, tokenizer), "<s> {<|end_of_text|>}");
}

TEST(DocumentMarksTest, WithoutSettingsATextBeginsAsTheTokenizerPutsIt) {
  const FakeTokenizer tokenizer({.specials = {"<s>", "</s>"}, .puts_in_front = false});
  EXPECT_EQ(Around({}, CorpusContent::kText, tokenizer), "- {</s>}");
  EXPECT_EQ(Around({.settings = {.adds_bos = true}}, CorpusContent::kText, tokenizer), "{<s>} {</s>}");
}

TEST(DocumentMarksTest, TextsOfABertLieBetweenClsAndSep) {
  const FakeTokenizer tokenizer = WithSpecials({"[CLS]", "[SEP]", "<x>"});
  EXPECT_EQ(Around({}, CorpusContent::kText, tokenizer), "{[CLS]} {[SEP]}");
  EXPECT_EQ(Around({.bos = "", .eos = "<x>"}, CorpusContent::kText, tokenizer), "- {<x>}");
  EXPECT_EQ(Around({.settings = {.bos_token = ""}}, CorpusContent::kText, tokenizer), "- {[SEP]}");
  ASSERT_OK_AND_ASSIGN(const DocumentMarks classified, ChooseDocumentMarks({}, CorpusContent::kClassified, tokenizer));
  EXPECT_EQ(classified.cls, 256);
  EXPECT_EQ(classified.sep, 257);
  EXPECT_EQ(classified.first, std::nullopt);
  EXPECT_EQ(classified.last, std::nullopt);
}

TEST(DocumentMarksTest, ATokenOfTheSettingsThatIsNotThereIsRefusedOnlyWhereItIsUsed) {
  const FakeTokenizer tokenizer = WithSpecials({"<s>", "</s>", "<|im_start|>", "<|im_end|>"});
  const TokenizerSettings strange = {.bos_token = "<no>", .eos_token = "<nor>"};
  EXPECT_THAT(Refused({.settings = strange, .eos = "</s>"}, CorpusContent::kText, tokenizer),
              StatusIs(kInvalid,
                       "bos, as tokenizer_config.json or special_tokens_map.json has it: the tokenizer has no "
                       "token \"<no>\""));
  EXPECT_THAT(Refused({.settings = strange, .bos = ""}, CorpusContent::kText, tokenizer),
              StatusIs(kInvalid, "eos, as tokenizer_config.json or special_tokens_map.json has it"));
  EXPECT_EQ(Around({.settings = strange, .bos = "<s>", .eos = "</s>"}, CorpusContent::kText, tokenizer),
            "{<s>} {</s>}");
  EXPECT_EQ(Around({.settings = strange}, CorpusContent::kConversations, tokenizer), "- -") << "chatml uses neither";
  EXPECT_THAT(Refused({.bos = "<no>"}, CorpusContent::kConversations, tokenizer), StatusIs(kInvalid, "bos: the token"));
}

}  // namespace
}  // namespace eps
