#include "common/corpus/chat_prompt.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/corpus/testing.h"
#include "common/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

const std::vector<ChatMessage> kQuestion = {{.role = Role::kSystem, .content = "s"}, {.content = "q"}};

// As text, with "|" and what ends the answer behind it.
std::string Prompt(const FakeTokenizer& tokenizer, const std::string& name,
                   const std::vector<ChatMessage>& messages = kQuestion) {
  const absl::StatusOr<DocumentMarks> marks =
      ChooseDocumentMarks({.chat_template = name}, CorpusContent::kConversations, tokenizer);
  EXPECT_OK(marks.status());
  if (!marks.ok()) return "";
  const absl::StatusOr<ChatPrompt> prompt = MakeChatPrompt(*marks, tokenizer, messages);
  if (!prompt.ok()) return std::string(prompt.status().message());
  const std::string text = tokenizer.Decode(prompt->ids, false) + "|";
  return prompt->end_of_turn ? text + tokenizer.Decode({*prompt->end_of_turn}, false) : text;
}

TEST(ChatPromptTest, EndsWhereTheAssistantBeginsAndKnowsWhatEndsItsTurn) {
  EXPECT_EQ(
      Prompt(FakeTokenizer({.specials = {"<|im_start|>", "<|im_end|>"}}), "chatml"),
      "{<|im_start|>}system\ns{<|im_end|>}\n{<|im_start|>}user\nq{<|im_end|>}\n{<|im_start|>}assistant\n|{<|im_end|>}");
  EXPECT_EQ(Prompt(FakeTokenizer({.specials = {"<s>", "</s>"}}), "plain"),
            "{<s>}### System:\ns\n\n### User:\nq\n\n### Assistant:\n|{</s>}");
}

TEST(ChatPromptTest, ATokenThatTheAnswersFirstLetterSharesIsLeftToTheAnswer) {
  const FakeTokenizer tokenizer({.specials = {"<|im_start|>", "<|im_end|>"}, .words = {"\nA", "\n7"}});
  EXPECT_EQ(Prompt(tokenizer, "chatml", {{.content = "q"}}),
            "{<|im_start|>}user\nq{<|im_end|>}\n{<|im_start|>}assistant|{<|im_end|>}");
}

TEST(ChatPromptTest, AnAnswerThatTextEndsHasNoToken) {
  EXPECT_EQ(Prompt(FakeTokenizer(), "plain", {{.content = "q"}}), "### User:\nq\n\n### Assistant:\n|");
}

TEST(ChatPromptTest, ThereMustBeSomethingToAnswer) {
  const std::vector<ChatMessage> answered = {{.content = "q"}, {.role = Role::kAssistant, .content = "a"}};
  EXPECT_EQ(Prompt(FakeTokenizer(), "plain", answered).rfind("the last message is the assistant's", 0), 0u);
}

}  // namespace
}  // namespace eps
