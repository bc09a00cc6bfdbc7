#include "common/corpus/chat_template.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_replace.h"
#include "absl/types/span.h"
#include "common/corpus/testing.h"
#include "common/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

const std::vector<std::string> kLlama3Specials = {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
                                                  "<|eot_id|>"};
const std::vector<std::string> kMistralTokens = {"<s>", "</s>", "[INST]", "[/INST]"};
const std::vector<ChatMessage> kTwoExchanges = {{Role::kSystem, "be"},
                                                {Role::kUser, "hi"},
                                                {Role::kAssistant, "yo"},
                                                {Role::kUser, "and"},
                                                {Role::kAssistant, "ok"}};

// The conversation decoded, special tokens in braces, what is counted in parentheses.
std::string Render(absl::string_view name, const FakeTokenizer& tokenizer, const std::vector<ChatMessage>& messages,
                   std::optional<int32_t> end_of_text = std::nullopt) {
  const absl::StatusOr<ChatTemplate> chat = ChatTemplate::Create(name, tokenizer, end_of_text);
  EXPECT_OK(chat);
  if (!chat.ok()) return "";
  const absl::StatusOr<EncodedConversation> encoded = chat->Encode(messages);
  EXPECT_OK(encoded);
  if (!encoded.ok()) return "";
  std::string text = chat->first_token() ? tokenizer.Decode({*chat->first_token()}, false) : "";
  const absl::Span<const int32_t> ids = encoded->ids;
  size_t done = 0;
  for (const TokenRange& range : encoded->answers) {
    const auto begin = static_cast<size_t>(range.begin), end = static_cast<size_t>(range.end);
    text += tokenizer.Decode(ids.subspan(done, begin - done), false);
    text += "(" + tokenizer.Decode(ids.subspan(begin, end - begin), false) + ")";
    done = end;
  }
  return text + tokenizer.Decode(ids.subspan(done), false);
}

absl::Status Refused(absl::string_view name, const FakeTokenizer& tokenizer, const std::vector<ChatMessage>& messages) {
  const absl::StatusOr<ChatTemplate> chat = ChatTemplate::Create(name, tokenizer, std::nullopt);
  EXPECT_OK(chat);
  return chat->Encode(messages).status();
}

TEST(ChatTemplateTest, Llama3HasHeaders) {
  const FakeTokenizer tokenizer({.specials = kLlama3Specials});
  EXPECT_EQ(Render("llama3", tokenizer, {{Role::kSystem, "be"}, {Role::kUser, " hi\n"}, {Role::kAssistant, "yo"}}),
            "{<|begin_of_text|>}{<|start_header_id|>}system{<|end_header_id|>}\n\nbe{<|eot_id|>}"
            "{<|start_header_id|>}user{<|end_header_id|>}\n\nhi{<|eot_id|>}"
            "{<|start_header_id|>}assistant{<|end_header_id|>}\n\n(yo{<|eot_id|>})");
  EXPECT_EQ(Render("llama3", tokenizer, {{Role::kTool, "42"}}),
            "{<|begin_of_text|>}{<|start_header_id|>}ipython{<|end_header_id|>}\n\n42{<|eot_id|>}");
}

TEST(ChatTemplateTest, ChatMlHasRoles) {
  const FakeTokenizer tokenizer({.specials = {"<|im_start|>", "<|im_end|>"}});
  EXPECT_EQ(Render("chatml", tokenizer, kTwoExchanges),
            "{<|im_start|>}system\nbe{<|im_end|>}\n{<|im_start|>}user\nhi{<|im_end|>}\n"
            "{<|im_start|>}assistant\n(yo{<|im_end|>})\n{<|im_start|>}user\nand{<|im_end|>}\n"
            "{<|im_start|>}assistant\n(ok{<|im_end|>})\n");
}

TEST(ChatTemplateTest, WhatToolsSayIsOneTurnOfChatMl) {
  const FakeTokenizer tokenizer({.specials = {"<|im_start|>", "<|im_end|>"}});
  EXPECT_EQ(Render("chatml", tokenizer, {{Role::kAssistant, "c"}, {Role::kTool, "1"}, {Role::kTool, "2"}}),
            "{<|im_start|>}assistant\n(c{<|im_end|>})\n{<|im_start|>}user\n<tool_response>\n1\n</tool_response>\n"
            "<tool_response>\n2\n</tool_response>{<|im_end|>}\n");
}

TEST(ChatTemplateTest, MistralPutsTheSystemsWordsIntoTheLastTurnOfTheUser) {
  EXPECT_EQ(Render("mistral", FakeTokenizer({.specials = kMistralTokens}), kTwoExchanges),
            "{<s>}{[INST]}hi{[/INST]}(yo{</s>}){[INST]}be\n\nand{[/INST]}(ok{</s>})");
}

TEST(ChatTemplateTest, MistralWithASpaceBeforeEachText) {
  EXPECT_EQ(Render("mistral", FakeTokenizer({.specials = kMistralTokens, .puts_space_before = true}), kTwoExchanges),
            "{<s>}{[INST]} hi{[/INST]}( yo{</s>}){[INST]} be\n\nand{[/INST]}( ok{</s>})");
}

TEST(ChatTemplateTest, MistralWithoutTokensOfItsOwnIsText) {
  EXPECT_EQ(Render("mistral", FakeTokenizer({.specials = {"<s>", "</s>"}, .puts_space_before = true}), kTwoExchanges),
            "{<s>} [INST] be\n\nhi [/INST]( yo{</s>}) [INST] and [/INST]( ok{</s>})");
  EXPECT_EQ(Render("mistral", FakeTokenizer({.specials = {"<s>", "</s>"}}), kTwoExchanges),
            "{<s>}[INST] be\n\nhi [/INST]( yo{</s>})[INST] and [/INST]( ok{</s>})");
}

TEST(ChatTemplateTest, Llama2BeginsEachExchangeAnew) {
  EXPECT_EQ(Render("llama2", FakeTokenizer({.specials = {"<s>", "</s>"}, .puts_space_before = true}), kTwoExchanges),
            "{<s>} [INST] <<SYS>>\nbe\n<</SYS>>\n\nhi [/INST]( yo {</s>}){<s>} [INST] and [/INST]( ok {</s>})");
}

TEST(ChatTemplateTest, PlainHasHeadings) {
  EXPECT_EQ(Render("plain", FakeTokenizer(), kTwoExchanges),
            "### System:\nbe\n\n### User:\nhi\n\n### Assistant:\n(yo\n\n)### User:\nand\n\n### Assistant:\n(ok\n\n)");
  EXPECT_EQ(Render("plain", FakeTokenizer({.specials = {"<|endoftext|>"}}), kTwoExchanges, 256),
            "### System:\nbe\n\n### User:\nhi\n\n### Assistant:\n(yo{<|endoftext|>})\n\n### User:\nand\n\n"
            "### Assistant:\n(ok{<|endoftext|>})");
}

TEST(ChatTemplateTest, TextCannotEndItsTurn) {
  const FakeTokenizer llama3({.specials = kLlama3Specials});
  EXPECT_EQ(Render("llama3", llama3, {{Role::kUser, "a<|eot_id|>b"}, {Role::kAssistant, "<|eot_id|>"}}),
            "{<|begin_of_text|>}{<|start_header_id|>}user{<|end_header_id|>}\n\na<|eot_id|>b{<|eot_id|>}"
            "{<|start_header_id|>}assistant{<|end_header_id|>}\n\n(<|eot_id|>{<|eot_id|>})");
  EXPECT_EQ(Render("mistral", FakeTokenizer({.specials = {"<s>", "</s>"}}), {{Role::kUser, "</s>"}}),
            "{<s>}[INST] </s> [/INST]");
}

TEST(ChatTemplateTest, AnEndThatATokenizerWouldFindInTextIsRefused) {
  // As where tokens were added to a tokenizer without "special": true.
  const FakeTokenizer tokenizer({.specials = {"<s>"}, .words = {"<|im_start|>", "<|im_end|>", "<think>"}});
  EXPECT_THAT(Refused("chatml", tokenizer, {{Role::kUser, "a"}, {Role::kAssistant, "b<|im_end|>c"}}),
              StatusIs(kInvalid,
                       "messages: \"<|im_end|>\" in what is said would be that token of template chatml, as it is "
                       "not a special one: set its \"special\" to true in tokenizer.json"));
  EXPECT_EQ(Render("chatml", tokenizer, {{Role::kUser, "<s>"}, {Role::kAssistant, "<think>b"}}),
            "<|im_start|>user\n<s><|im_end|>\n<|im_start|>assistant\n(<think>b<|im_end|>)\n");
  const absl::StatusOr<ChatTemplate> chat = ChatTemplate::Create("chatml", tokenizer, std::nullopt);
  ASSERT_OK(chat);
  EXPECT_OK(chat->Encode(std::vector<ChatMessage>{{Role::kUser, "<|im_end|>"}}, Tokenizer::Specials::kAsTokens));
  EXPECT_THAT(chat->EncodePrompt(std::vector<ChatMessage>{{Role::kUser, "<|im_end|>"}}, Thoughts::kLeftToModel),
              StatusIs(kInvalid, "in what is said"));
}

TEST(ChatTemplateTest, WhatIsTrimmedIsWhatPythonStrips) {
  const FakeTokenizer tokenizer({.specials = kLlama3Specials});
  const std::string spaces =
      " \t\n\v\f\r\x1C\x1D\x1E\x1F\u0085\u00A0\u1680\u2000\u2001\u2009\u200A\u2028\u2029\u202F\u205F\u3000";
  EXPECT_EQ(Render("llama3", tokenizer, {{Role::kAssistant, spaces + "\uFEFFa" + spaces + "b\u200B" + spaces}}),
            "{<|begin_of_text|>}{<|start_header_id|>}assistant{<|end_header_id|>}\n\n(\uFEFFa" + spaces +
                "b\u200B{<|eot_id|>})");
  EXPECT_EQ(Render("llama3", tokenizer, {{Role::kUser, spaces}}),
            "{<|begin_of_text|>}{<|start_header_id|>}user{<|end_header_id|>}\n\n{<|eot_id|>}");
}

TEST(ChatTemplateTest, AnswersOfALongConversationThatIsOneTextStandWhereTheyAre) {
  for (const bool puts_space_before : {false, true}) {
    const FakeTokenizer tokenizer({.words = {"\n\n#", ":\n"}, .puts_space_before = puts_space_before});
    const size_t exchanges = 500;
    std::vector<ChatMessage> messages;
    std::string wanted = puts_space_before ? " " : "";
    for (size_t i = 0; i < exchanges; ++i) {
      const std::string number = std::to_string(i);
      messages.push_back({Role::kUser, "\u00E9" + number});
      messages.push_back({Role::kAssistant, "\u4E2D" + number, i % 3 != 0});
      const std::string answer = "\u4E2D" + number + "\n\n";
      wanted += "### User:\n\u00E9" + number + "\n\n### Assistant:\n";
      // The token that ends the answer has the next turn's first character in it.
      const bool has_next = i + 1 < exchanges;
      wanted += i % 3 == 0 ? answer : "(" + answer + (has_next ? "#" : "") + ")" + (has_next ? "\b" : "");
    }
    EXPECT_EQ(Render("plain", tokenizer, messages), absl::StrReplaceAll(wanted, {{"\b#", ""}}));
  }
}

TEST(ChatTemplateTest, Llama31AlwaysBeginsWithADate) {
  const FakeTokenizer tokenizer({.specials = kLlama3Specials});
  const std::string system =
      "{<|begin_of_text|>}{<|start_header_id|>}system{<|end_header_id|>}\n\nCutting Knowledge Date: December 2023\n"
      "Today Date: 26 Jul 2024\n\n";
  EXPECT_EQ(Render("llama31", tokenizer, {{Role::kUser, "hi"}}),
            system + "{<|eot_id|>}{<|start_header_id|>}user{<|end_header_id|>}\n\nhi{<|eot_id|>}");
  EXPECT_EQ(Render("llama31", tokenizer, {{Role::kSystem, " be\n"}, {Role::kTool, "4\"2\""}}),
            system + "be{<|eot_id|>}{<|start_header_id|>}ipython{<|end_header_id|>}\n\n\"4\\\"2\\\"\"{<|eot_id|>}");
}

TEST(ChatTemplateTest, Qwen25HasASystemOfItsOwn) {
  const FakeTokenizer tokenizer({.specials = {"<|im_start|>", "<|im_end|>"}});
  EXPECT_EQ(Render("qwen25", tokenizer, {{Role::kUser, "hi"}}),
            "{<|im_start|>}system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.{<|im_end|>}\n"
            "{<|im_start|>}user\nhi{<|im_end|>}\n");
  EXPECT_EQ(Render("qwen25", tokenizer, {{Role::kSystem, "be"}}), "{<|im_start|>}system\nbe{<|im_end|>}\n");
}

TEST(ChatTemplateTest, Qwen3ThinksBehindTheLastTurnOfTheUserOnly) {
  const FakeTokenizer tokenizer({.specials = {"<|im_start|>", "<|im_end|>"}});
  const auto answer = [](const std::string& lead, const std::string& text) {
    return "{<|im_start|>}assistant\n" + lead + "(" + text + "{<|im_end|>})\n";
  };
  EXPECT_EQ(Render("qwen3", tokenizer,
                   {{Role::kUser, "q"},
                    {Role::kAssistant, "<think>\nold\n</think>\n\none"},
                    {Role::kUser, "r"},
                    {Role::kAssistant, "<think>new</think>\ntwo"},
                    {Role::kTool, "t"},
                    {Role::kAssistant, "\nthree"}}),
            "{<|im_start|>}user\nq{<|im_end|>}\n" + answer("", "one") + "{<|im_start|>}user\nr{<|im_end|>}\n" +
                answer("", "<think>\nnew\n</think>\n\ntwo") +
                "{<|im_start|>}user\n<tool_response>\nt\n</tool_response>{<|im_end|>}\n" +
                answer("<think>\n\n</think>\n\n", "three"));
}

TEST(ChatTemplateTest, MarkupAndContentAreOneTextBetweenTokens) {
  const FakeTokenizer tokenizer({.specials = {"<|im_start|>", "<|im_end|>"}, .words = {"\n\n", "t\n"}});
  const absl::StatusOr<ChatTemplate> chat = ChatTemplate::Create("chatml", tokenizer, std::nullopt);
  ASSERT_OK(chat);
  ASSERT_OK_AND_ASSIGN(const EncodedConversation said, chat->Encode(std::vector<ChatMessage>{{Role::kUser, "\nhi"}}));
  const std::vector<int32_t> wanted = {256, 'u', 's', 'e', 'r', 259, 'h', 'i', 257, '\n'};
  EXPECT_EQ(said.ids, wanted) << "the newline of the markup and that of the content are one token";
}

TEST(ChatTemplateTest, ATokenIsOfTheAnswerIfItsFirstCharacterIs) {
  const std::vector<std::string> specials = {"<|im_start|>", "<|im_end|>"};
  EXPECT_EQ(Render("chatml", FakeTokenizer({.specials = specials, .words = {"\n\n"}}), {{Role::kAssistant, "\na"}}),
            "{<|im_start|>}assistant\n\n(a{<|im_end|>})\n");
  EXPECT_EQ(Render("chatml", FakeTokenizer({.specials = specials, .words = {"t\n\n"}}), {{Role::kAssistant, "\na"}}),
            "{<|im_start|>}assistant\n\n(a{<|im_end|>})\n");
  EXPECT_EQ(Render("chatml", FakeTokenizer({.specials = specials, .words = {"ab"}}), {{Role::kAssistant, "ab"}}),
            "{<|im_start|>}assistant\n(ab{<|im_end|>})\n");
}

TEST(ChatTemplateTest, AnAnswerThatIsNotCountedStands) {
  const FakeTokenizer tokenizer({.specials = {"<|im_start|>", "<|im_end|>"}});
  EXPECT_EQ(Render("chatml", tokenizer, {{Role::kAssistant, "a", false}, {Role::kAssistant, "b"}}),
            "{<|im_start|>}assistant\na{<|im_end|>}\n{<|im_start|>}assistant\n(b{<|im_end|>})\n");
}

TEST(ChatTemplateTest, SpecialTokensInWhatIsSaidAreTokensWhereTheyAreWanted) {
  const FakeTokenizer tokenizer({.specials = {"<|im_start|>", "<|im_end|>"}});
  const absl::StatusOr<ChatTemplate> chat = ChatTemplate::Create("chatml", tokenizer, std::nullopt);
  ASSERT_OK(chat);
  ASSERT_OK_AND_ASSIGN(
      const EncodedConversation said,
      chat->Encode(std::vector<ChatMessage>{{Role::kAssistant, "a<|im_end|>b"}}, Tokenizer::Specials::kAsTokens));
  EXPECT_EQ(tokenizer.Decode(said.ids, false), "{<|im_start|>}assistant\na{<|im_end|>}b{<|im_end|>}\n");
  ASSERT_EQ(said.answers.size(), 1u);
  EXPECT_EQ(said.answers[0].end - said.answers[0].begin, 4);
}

TEST(ChatTemplateTest, Llama2TrimsWhatTheUserSaysWithTheSystemsWords) {
  EXPECT_EQ(
      Render("llama2", FakeTokenizer({.specials = {"<s>", "</s>"}}), {{Role::kSystem, " be "}, {Role::kUser, " hi "}}),
      "{<s>}[INST] <<SYS>>\n be \n<</SYS>>\n\n hi [/INST]");
}

TEST(ChatTemplateTest, MissingTokensAreNamed) {
  const FakeTokenizer tokenizer({.specials = {"<|im_start|>", "<s>"}});
  EXPECT_THAT(ChatTemplate::Create("llama3", tokenizer, std::nullopt), StatusIs(kInvalid, "\"<|begin_of_text|>\""));
  EXPECT_THAT(ChatTemplate::Create("chatml", tokenizer, std::nullopt),
              StatusIs(kInvalid, "template chatml: the tokenizer has no token \"<|im_end|>\""));
  EXPECT_THAT(ChatTemplate::Create("llama2", tokenizer, std::nullopt), StatusIs(kInvalid, "\"</s>\""));
  EXPECT_THAT(ChatTemplate::Create("vicuna", tokenizer, std::nullopt), StatusIs(kInvalid, "template: \"vicuna\""));
}

TEST(ChatTemplateTest, WhatATemplateHasNoPlaceForIsNamed) {
  const FakeTokenizer tokenizer({.specials = kMistralTokens});
  EXPECT_THAT(Refused("mistral", tokenizer, {{Role::kUser, "a"}, {Role::kUser, "b"}}),
              StatusIs(kInvalid, "messages[1].role: user, template mistral wants assistant"));
  EXPECT_THAT(Refused("mistral", tokenizer, {{Role::kAssistant, "a"}}), StatusIs(kInvalid, "messages[0].role"));
  EXPECT_THAT(Refused("mistral", tokenizer, {{Role::kUser, "a"}, {Role::kSystem, "b"}}),
              StatusIs(kInvalid, "messages[1].role: system"));
  EXPECT_THAT(Refused("mistral", tokenizer, {{Role::kSystem, "b"}}), StatusIs(kInvalid, "messages[0].role: system"));
  EXPECT_THAT(Refused("llama2", tokenizer, {{Role::kUser, "a"}, {Role::kTool, "b"}}),
              StatusIs(kInvalid, "messages[1].role: tool"));
  EXPECT_THAT(Refused("plain", tokenizer, {}), StatusIs(kInvalid, "there are none"));
}

}  // namespace
}  // namespace eps
