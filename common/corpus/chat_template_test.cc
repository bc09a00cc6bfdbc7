#include "common/corpus/chat_template.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/corpus/testing.h"
#include "common/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

const std::vector<std::string> kLlama3Tokens = {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
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
  const FakeTokenizer tokenizer({.specials = kLlama3Tokens});
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
  const FakeTokenizer llama3({.specials = kLlama3Tokens});
  EXPECT_EQ(Render("llama3", llama3, {{Role::kUser, "a<|eot_id|>b"}, {Role::kAssistant, "<|eot_id|>"}}),
            "{<|begin_of_text|>}{<|start_header_id|>}user{<|end_header_id|>}\n\na<|eot_id|>b{<|eot_id|>}"
            "{<|start_header_id|>}assistant{<|end_header_id|>}\n\n(<|eot_id|>{<|eot_id|>})");
  EXPECT_EQ(Render("mistral", FakeTokenizer({.specials = {"<s>", "</s>"}}), {{Role::kUser, "</s>"}}),
            "{<s>}[INST] </s> [/INST]");
}

TEST(ChatTemplateTest, TheTokensOfATokenizerTellItsTemplate) {
  const auto chosen = [](std::vector<std::string> specials) {
    const FakeTokenizer tokenizer({.specials = std::move(specials)});
    const absl::StatusOr<ChatTemplate> chat = ChatTemplate::Create("auto", tokenizer, std::nullopt);
    EXPECT_OK(chat);
    return std::string(chat->name());
  };
  EXPECT_EQ(chosen(kLlama3Tokens), "llama3");
  EXPECT_EQ(chosen({"<|endoftext|>", "<|im_start|>", "<|im_end|>"}), "chatml");
  EXPECT_EQ(chosen(kMistralTokens), "mistral");
  EXPECT_EQ(chosen({"<s>", "</s>"}), "plain");
  EXPECT_EQ(chosen({}), "plain");
}

TEST(ChatTemplateTest, MissingTokensAreNamed) {
  const FakeTokenizer tokenizer({.specials = {"<|im_start|>", "<s>"}});
  EXPECT_THAT(ChatTemplate::Create("llama3", tokenizer, std::nullopt), StatusIs(kInvalid, "\"<|begin_of_text|>\""));
  EXPECT_THAT(ChatTemplate::Create("auto", tokenizer, std::nullopt),
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
