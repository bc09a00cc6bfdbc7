#include "common/corpus/chat_template_markup.h"

#include <cstddef>
#include <iterator>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/shown_text.h"
#include "common/corpus/chat_template_names.h"

namespace eps {
namespace {

// Where each comes from. Those with a chat_template of their own give what it renders (tests/tokenizers/chat_test.py):
//   llama3   chat_template of meta-llama/Meta-Llama-3-*-Instruct, which has no place for tools: these as in llama31
//   llama31  of meta-llama/Llama-3.1-*-Instruct, Llama-3.2 and Llama-3.3; the date is the one that it has by itself
//   chatml   of fine-tunes in this form; what tools say as in Qwen's
//   qwen25   of Qwen/Qwen2.5-*-Instruct
//   qwen3    of Qwen/Qwen3-*
//   mistral  docs.mistral.ai/cookbook/concept-deep-dive-tokenization-templates and mistral-common: tokenizers V2 and V3
//            have tokens [INST] and [/INST] and the system's words in the last turn of the user, V1 has them as text and
//            the system's words in the first
//   llama2   of meta-llama/Llama-2-*-chat-hf
//   plain    ours
constexpr ChatMarkup kLlama3 = {
    .name = "llama3",
    .tokens = {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
    .first_token = "<|begin_of_text|>",
    .system = {"<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>"},
    .user = {"<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"},
    .tool = {"<|start_header_id|>ipython<|end_header_id|>\n\n", "<|eot_id|>"},
    .answer_before = "<|start_header_id|>assistant<|end_header_id|>\n\n",
    .end_of_turn = "<|eot_id|>",
    .trims = true,
};

constexpr ChatMarkup Llama31() {
  ChatMarkup markup = kLlama3;
  markup.name = "llama31";
  markup.system_lead = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n";
  markup.always_has_system = true;
  markup.tool_is_json = true;
  return markup;
}

constexpr ChatMarkup kChatMl = {
    .name = "chatml",
    .tokens = {"<|im_start|>", "<|im_end|>"},
    .system = {"<|im_start|>system\n", "<|im_end|>\n"},
    .user = {"<|im_start|>user\n", "<|im_end|>\n"},
    .tools = {"<|im_start|>user", "<|im_end|>\n"},
    .tool = {"\n<tool_response>\n", "\n</tool_response>"},
    .answer_before = "<|im_start|>assistant\n",
    .end_of_turn = "<|im_end|>",
    .answer_after = "\n",
};

constexpr ChatMarkup Qwen25() {
  ChatMarkup markup = kChatMl;
  markup.name = "qwen25";
  markup.always_has_system = true;
  markup.default_system = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.";
  return markup;
}

constexpr ChatMarkup Qwen3() {
  ChatMarkup markup = kChatMl;
  markup.name = "qwen3";
  markup.has_thoughts = true;
  return markup;
}

constexpr ChatMarkup kMistral = {
    .name = "mistral",
    .tokens = {"<s>", "</s>", "[INST]", "[/INST]"},
    .first_token = "<s>",
    .system_place = SystemPlace::kLastUser,
    .system = {"", "\n\n"},
    .user = {"[INST]", "[/INST]"},
    .end_of_turn = "</s>",
    .alternates = true,
};

constexpr ChatMarkup kMistralV1 = {
    .name = "mistral",
    .tokens = {"<s>", "</s>"},
    .first_token = "<s>",
    .system_place = SystemPlace::kFirstUser,
    .system = {"", "\n\n"},
    .user = {"[INST] ", " [/INST]"},
    .answer_lead = " ",
    .end_of_turn = "</s>",
    .alternates = true,
};

constexpr ChatMarkup kLlama2 = {
    .name = "llama2",
    .tokens = {"<s>", "</s>"},
    .exchange_token = "<s>",
    .system_place = SystemPlace::kFirstUser,
    .system = {"<<SYS>>\n", "\n<</SYS>>\n\n"},
    .user = {"[INST] ", " [/INST]"},
    .answer_lead = " ",
    .answer_tail = " ",
    .end_of_turn = "</s>",
    .trims = true,
    .alternates = true,
};

constexpr ChatMarkup kPlain = {
    .name = "plain",
    .system = {"### System:\n", ""},
    .user = {"### User:\n", ""},
    .tool = {"### Tool:\n", ""},
    .answer_before = "### Assistant:\n",
    .between = "\n\n",
};

constexpr ChatMarkup kLlama31 = Llama31(), kQwen25 = Qwen25(), kQwen3 = Qwen3();

constexpr const ChatMarkup* kAll[] = {&kLlama3, &kLlama31, &kChatMl, &kQwen25, &kQwen3, &kMistral, &kLlama2, &kPlain};

constexpr bool AllHaveTheirNames() {
  if (std::size(kAll) != std::size(kChatTemplateNames)) return false;
  for (size_t i = 0; i < std::size(kAll); ++i) {
    if (kAll[i]->name != kChatTemplateNames[i]) return false;
  }
  return true;
}
static_assert(AllHaveTheirNames(), "kChatTemplateNames and kAll have the same order");

}  // namespace

absl::StatusOr<const ChatMarkup*> FindChatMarkup(absl::string_view name, const Tokenizer& tokenizer) {
  if (name == "mistral" && !tokenizer.TokenId("[INST]")) return &kMistralV1;
  for (const ChatMarkup* markup : kAll) {
    if (markup->name == name) return markup;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("template: ", QuoteText(name), ", must be auto, ", absl::StrJoin(kChatTemplateNames, ", ")));
}

}  // namespace eps
