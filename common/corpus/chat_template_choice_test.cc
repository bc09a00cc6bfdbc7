#include "common/corpus/chat_template_choice.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/corpus/chat_template_jinja.h"
#include "common/corpus/chat_template_markup.h"
#include "common/corpus/chat_template_names.h"
#include "common/corpus/testing.h"
#include "common/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

// The beginnings of models' own, or what is characteristic of them; whole ones are in tests/tokenizers/testdata.
constexpr char kChatMl[] =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + "
    "'\\n'}}{% endfor %}";
constexpr char kLlama3[] =
    "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + "
    "'<|eot_id|>' %}{{ bos_token + content }}";
constexpr char kZephyr[] = "{{ '<|user|>\\n' + message['content'] + eos_token }}";
constexpr char kR1[] = "{{bos_token}}{{'<｜User｜>' + message['content']}}{{'<｜Assistant｜><think>\\n'}}";

// Forms that have the tokens of ChatML and are not it.
constexpr char kPhi4[] =
    "{{ '<|im_start|>' + message['role'] + '<|im_sep|>' + message['content'] + '<|im_end|>' }}"
    "{{ '<|im_start|>assistant<|im_sep|>' }}";
constexpr char kYi[] =
    "{% if messages[0]['role'] == 'system' %}{% set system_message = messages[0]['content'] %}{{ system_message }}"
    "{% endif %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}";
constexpr char kYiOfLiteralRoles[] =
    "{% if message['role'] == 'user' %}{{ '<|im_start|>user\n' + content + '<|im_end|>\n<|im_start|>assistant\n' }}";
constexpr char kQwenMath[] =
    "{{- '<|im_start|>system\nReason in steps and box the result.<|im_end|>\n' }}"
    "{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}";
constexpr char kEndWithoutALine[] = "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' }}";

FakeTokenizer With(std::vector<std::string> specials) { return FakeTokenizer({.specials = std::move(specials)}); }

TokenizerSettings Folder(const std::string& chat_template) {
  return {.chat_template = chat_template, .chat_template_place = "m/chat_template.jinja"};
}

const std::vector<std::string> kLlama3Tokens = {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
                                                "<|eot_id|>"};

bool HasAll(absl::Span<const absl::string_view> tokens, const Tokenizer& tokenizer) {
  return std::all_of(tokens.begin(), tokens.end(),
                     [&](absl::string_view token) { return token.empty() || tokenizer.TokenId(token).has_value(); });
}

std::string Chosen(const TokenizerSettings& settings, const Tokenizer& tokenizer) {
  const absl::StatusOr<ChatTemplateChoice> choice = ChooseChatTemplate("auto", settings, tokenizer);
  EXPECT_OK(choice);
  return choice.ok() ? choice->name : "";
}

TEST(ChatTemplateChoiceTest, WithoutATemplateTheTokensTell) {
  EXPECT_EQ(Chosen({}, With(kLlama3Tokens)), "llama3");
  EXPECT_EQ(Chosen({}, With({"<|endoftext|>", "<|im_start|>", "<|im_end|>"})), "chatml");
  EXPECT_EQ(Chosen({}, With({"<s>", "</s>", "[INST]", "[/INST]"})), "mistral");
  EXPECT_EQ(Chosen({}, With({"<s>", "</s>"})), "plain");
  EXPECT_EQ(Chosen({}, With({})), "plain");
}

TEST(ChatTemplateChoiceTest, TheModelsOwnTemplateGoesBeforeItsTokens) {
  std::vector<std::string> both = kLlama3Tokens;
  both.insert(both.end(), {"<|im_start|>", "<|im_end|>"});
  EXPECT_EQ(Chosen(Folder(kChatMl), With(both)), "chatml");
  EXPECT_EQ(Chosen(Folder(kLlama3), With(both)), "llama3");
  EXPECT_EQ(Chosen(Folder("{{ '[INST] ' + message['content'] + ' [/INST]' }}"), With({"<s>", "</s>"})), "mistral");
  EXPECT_EQ(Chosen(Folder("{{ '<<SYS>>\\n' + system_message + '\\n<</SYS>>' }}{{ '[INST] ' + ' [/INST]' }}"),
                   With({"<s>", "</s>"})),
            "llama2");
}

TEST(ChatTemplateChoiceTest, TheReasonNamesWhereItStands) {
  ASSERT_OK_AND_ASSIGN(const ChatTemplateChoice by_folder,
                       ChooseChatTemplate("auto", Folder(kLlama3), With(kLlama3Tokens)));
  EXPECT_EQ(by_folder.reason, "by m/chat_template.jinja");
  EXPECT_TRUE(by_folder.begins_with_bos);
  ASSERT_OK_AND_ASSIGN(const ChatTemplateChoice by_tokens, ChooseChatTemplate("auto", {}, With(kLlama3Tokens)));
  EXPECT_EQ(by_tokens.reason, "by the tokenizer's special tokens");
  ASSERT_OK_AND_ASSIGN(const ChatTemplateChoice told, ChooseChatTemplate("chatml", Folder(kLlama3), With({})));
  EXPECT_EQ(told.name, "chatml");
  EXPECT_EQ(told.reason, "as told");
  EXPECT_FALSE(told.begins_with_bos);
}

TEST(ChatTemplateChoiceTest, AnUnknownTemplateHasToBeNamed) {
  for (const char* jinja : {kZephyr, kR1, "{{ '<|im_start|>system\\nYou are Dolphin.<|im_end|>' }}"}) {
    EXPECT_THAT(ChooseChatTemplate("auto", Folder(jinja), With({"<|im_start|>", "<|im_end|>"})),
                StatusIs(kInvalid,
                         "(m/chat_template.jinja) is none that is known here; say which it is to be, llama3, "
                         "llama31, chatml, qwen25, qwen3, mistral, llama2, plain, by --template"));
  }
}

TEST(ChatTemplateChoiceTest, ChatMlIsKnownHoweverItsStringsAreWritten) {
  const FakeTokenizer tokenizer = With({"<|im_start|>", "<|im_end|>"});
  for (const char* jinja : {"{{- \"<|im_start|>\" + message.role + \"\\n\" + message.content + \"<|im_end|>\\n\" -}}",
                            "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}",
                            "{{'<|im_start|>' ~ message['role'] ~ '\\n' ~ message['content'] ~ '<|im_end|>' ~ '\\n'}}",
                            "{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}{{- '<|im_start|>' "
                            "+ message.role + '\\n' }}"}) {
    EXPECT_EQ(Chosen(Folder(jinja), tokenizer), "chatml") << jinja;
  }
  const std::string qwen25 =
      "{{- '<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\\n' }}"
      "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}";
  EXPECT_EQ(Chosen(Folder(qwen25), tokenizer), "qwen25");
}

TEST(ChatTemplateChoiceTest, OtherFormsWithTheTokensOfChatMlHaveToBeNamed) {
  const FakeTokenizer tokenizer = With({"<|im_start|>", "<|im_end|>"});
  for (const char* jinja : {kPhi4, kYi, kYiOfLiteralRoles, kQwenMath, kEndWithoutALine}) {
    EXPECT_THAT(ChooseChatTemplate("auto", Folder(jinja), tokenizer), StatusIs(kInvalid, "is none that is known here"))
        << jinja;
  }
  EXPECT_THAT(ChooseChatTemplate("auto", {}, With({"<|im_start|>", "<|im_end|>", "<|im_sep|>"})),
              StatusIs(kInvalid,
                       "the tokenizer has the tokens <|im_start|> and <|im_sep|>, of a template that is not "
                       "known here; say which it is to be"));
}

TEST(ChatTemplateChoiceTest, WhatIsExportedIsKnownAgain) {
  std::vector<std::string> all = kLlama3Tokens;
  all.insert(all.end(), {"<s>", "</s>", "[INST]", "[/INST]", "<|im_start|>", "<|im_end|>"});
  for (const FakeTokenizer& tokenizer : {With(all), With({"<s>", "</s>"})}) {
    for (const absl::string_view name : kChatTemplateNames) {
      ASSERT_OK_AND_ASSIGN(const ChatMarkup* markup, FindChatMarkup(name, tokenizer));
      if (!HasAll(markup->tokens, tokenizer)) continue;
      TokenizerSettings settings = {
          .chat_template_place = "m/chat_template.jinja", .bos_token = "<s>", .eos_token = "</s>"};
      const std::string first = name == "plain" ? "<s>" : std::string(markup->first_token);
      settings.chat_template = ChatTemplateJinja(*markup, first, "</s>");
      EXPECT_EQ(Chosen(settings, tokenizer), name);
    }
  }
}

TEST(ChatTemplateChoiceTest, ATemplateWhoseTokensAreNotThereHasToBeNamed) {
  EXPECT_THAT(ChooseChatTemplate("auto", Folder(kChatMl), With(kLlama3Tokens)),
              StatusIs(kInvalid, "is chatml, and the tokenizer has no token \"<|im_start|>\""));
}

}  // namespace
}  // namespace eps
