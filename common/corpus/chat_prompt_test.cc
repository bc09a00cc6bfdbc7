#include "common/corpus/chat_prompt.h"

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/corpus/chat_template_markup.h"
#include "common/corpus/chat_template_names.h"
#include "common/corpus/testing.h"
#include "common/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

const std::vector<ChatMessage> kQuestion = {{.role = Role::kSystem, .content = "s"}, {.content = "q"}};
const FakeTokenizer::Options kChatMlTokens = {.specials = {"<|im_start|>", "<|im_end|>"}};

DocumentMarks Marks(const Tokenizer& tokenizer, const std::string& name) {
  absl::StatusOr<DocumentMarks> marks =
      ChooseDocumentMarks({.chat_template = name}, CorpusContent::kConversations, tokenizer);
  EXPECT_OK(marks.status());
  return *std::move(marks);
}

// As text, with "|" and what ends the answer behind it; or the error.
std::string Prompt(const FakeTokenizer& tokenizer, const std::string& name,
                   const std::vector<ChatMessage>& messages = kQuestion, Thoughts thoughts = Thoughts::kLeftToModel) {
  const absl::StatusOr<ChatPrompt> prompt = MakeChatPrompt(Marks(tokenizer, name), messages, thoughts);
  if (!prompt.ok()) return std::string(prompt.status().message());
  const std::string text = tokenizer.Decode(prompt->ids, false) + "|";
  return prompt->end_of_turn ? text + tokenizer.Decode({*prompt->end_of_turn}, false) : text;
}

TEST(ChatPromptTest, EndsWhereTheAssistantBeginsAndKnowsWhatEndsItsTurn) {
  EXPECT_EQ(
      Prompt(FakeTokenizer(kChatMlTokens), "chatml"),
      "{<|im_start|>}system\ns{<|im_end|>}\n{<|im_start|>}user\nq{<|im_end|>}\n{<|im_start|>}assistant\n|{<|im_end|>}");
  EXPECT_EQ(Prompt(FakeTokenizer({.specials = {"<s>", "</s>"}}), "plain"),
            "{<s>}### System:\ns\n\n### User:\nq\n\n### Assistant:\n|{</s>}");
}

TEST(ChatPromptTest, AConversationThatHasTheAnswerBeginsInTheSameWay) {
  const FakeTokenizer tokenizer({.specials = {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
                                              "<|eot_id|>", "<|im_start|>", "<|im_end|>", "<s>", "</s>"}});
  const std::vector<ChatMessage> question = {{.role = Role::kSystem, .content = "s"},
                                             {.content = "q"},
                                             {.role = Role::kAssistant, .content = "a"},
                                             {.content = "Q"}};
  std::vector<ChatMessage> answered = question;
  answered.push_back({.role = Role::kAssistant, .content = "A"});
  for (const absl::string_view name : kChatTemplateNames) {
    const DocumentMarks marks = Marks(tokenizer, std::string(name));
    ASSERT_OK_AND_ASSIGN(const ChatPrompt prompt, MakeChatPrompt(marks, question, Thoughts::kNone));
    ASSERT_OK_AND_ASSIGN(const EncodedConversation whole, marks.chat->Encode(answered));
    const TokenRange answer = whole.answers.back();
    std::vector<int32_t> before(whole.ids.begin(), whole.ids.begin() + answer.begin);
    if (marks.first) before.insert(before.begin(), *marks.first);
    EXPECT_EQ(tokenizer.Decode(prompt.ids, false), tokenizer.Decode(before, false)) << name;
    EXPECT_EQ(prompt.end_of_turn, whole.ids[static_cast<size_t>(answer.end - 1)]) << name;
  }
}

TEST(ChatPromptTest, ThoughtsAreLeftToTheModelOrAreEmpty) {
  const FakeTokenizer tokenizer(kChatMlTokens);
  const std::string before = "{<|im_start|>}user\nq{<|im_end|>}\n{<|im_start|>}assistant\n";
  EXPECT_EQ(Prompt(tokenizer, "qwen3", {{.content = "q"}}), before + "|{<|im_end|>}");
  EXPECT_EQ(Prompt(tokenizer, "qwen3", {{.content = "q"}}, Thoughts::kNone),
            before + "<think>\n\n</think>\n\n|{<|im_end|>}");
  EXPECT_EQ(Prompt(tokenizer, "chatml", {{.content = "q"}}, Thoughts::kNone), before + "|{<|im_end|>}");
}

TEST(ChatPromptTest, AnAnswerThatTextEndsHasNoToken) {
  EXPECT_EQ(Prompt(FakeTokenizer(), "plain", {{.content = "q"}}), "### User:\nq\n\n### Assistant:\n|");
}

TEST(ChatPromptTest, ThereMustBeSomethingToAnswer) {
  const std::vector<ChatMessage> answered = {{.content = "q"}, {.role = Role::kAssistant, .content = "a"}};
  EXPECT_EQ(Prompt(FakeTokenizer(), "plain", answered).rfind("the last message is the assistant's", 0), 0u);
  EXPECT_EQ(Prompt(FakeTokenizer(), "plain", {}), "messages: there are none");
}

}  // namespace
}  // namespace eps
