#include "common/corpus/chat_template_choice.h"

#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "common/base/status_macros.h"
#include "common/corpus/chat_template_markup.h"

namespace eps {
namespace {

// A template is told by texts that it has and others that it has not.
struct Signs {
  absl::string_view name;
  std::vector<absl::string_view> has;
  std::vector<absl::string_view> has_not;
};

// "You are" begins the system message that many fine-tunes add where the data has none.
const std::vector<Signs>& AllSigns() {
  static const std::vector<Signs>& signs = *new std::vector<Signs>{
      {"llama31",
       {"<|start_header_id|>", "<|eot_id|>", "Cutting Knowledge Date: December 2023", "ipython"},
       {"<|im_start|>", "<think>", "You are", "<|image|>"}},
      {"llama3",
       {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
       {"<|im_start|>", "Cutting Knowledge", "Today Date", "<think>", "You are", "<|image|>"}},
      {"qwen25",
       {"<|im_start|>", "<|im_end|>", "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."},
       {"<|start_header_id|>", "<think>", "<|vision_start|>"}},
      {"qwen3",
       {"<|im_start|>", "<|im_end|>", "last_query_index", "enable_thinking", "</think>"},
       {"<|start_header_id|>", "You are", "<|vision_start|>"}},
      {"chatml",
       {"<|im_start|>", "<|im_end|>"},
       {"<|start_header_id|>", "<think>", "</think>", "You are", "<|vision_start|>", "trim", "strip"}},
      {"llama2", {"[INST]", "[/INST]", "<<SYS>>", "<</SYS>>"}, {"You are", "<|im_start|>"}},
      {"mistral", {"[INST]", "[/INST]"}, {"<<SYS>>", "[SYSTEM_PROMPT]", "You are", "<|im_start|>", "<think>"}},
  };
  return signs;
}

bool Shows(absl::string_view jinja, const Signs& signs) {
  for (const absl::string_view sign : signs.has) {
    if (!absl::StrContains(jinja, sign)) return false;
  }
  for (const absl::string_view sign : signs.has_not) {
    if (absl::StrContains(jinja, sign)) return false;
  }
  return true;
}

absl::string_view BySpecialTokens(const Tokenizer& tokenizer) {
  const auto has = [&tokenizer](absl::string_view token) { return tokenizer.TokenId(token).has_value(); };
  if (has("<|start_header_id|>")) return "llama3";
  if (has("<|im_start|>")) return "chatml";
  if (has("[INST]")) return "mistral";
  return "plain";
}

// "": none.
std::string MissingToken(absl::string_view name, const Tokenizer& tokenizer) {
  const absl::StatusOr<const ChatMarkup*> markup = FindChatMarkup(name, tokenizer);
  if (!markup.ok()) return "";
  for (const absl::string_view token : (*markup)->tokens) {
    if (!token.empty() && !tokenizer.TokenId(token)) return std::string(token);
  }
  return "";
}

absl::Status CannotTell(const TokenizerSettings& settings, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(
      "template: auto, but the model's own template (", settings.chat_template_place, ") ", what,
      "; say which it is to be, ", absl::StrJoin(ChatTemplateNames(), ", "), ", by --template or data.chat_template"));
}

}  // namespace

std::optional<absl::string_view> RecognizeChatTemplate(absl::string_view jinja) {
  // What Qwen's say of tools is no system message for who has none.
  const std::string text = absl::StrReplaceAll(jinja, {{"You are provided with function signatures", ""}});
  for (const Signs& signs : AllSigns()) {
    if (Shows(text, signs)) return signs.name;
  }
  return std::nullopt;
}

absl::StatusOr<ChatTemplateChoice> ChooseChatTemplate(absl::string_view name, const TokenizerSettings& settings,
                                                      const Tokenizer& tokenizer) {
  const std::optional<absl::string_view> own = RecognizeChatTemplate(settings.chat_template);
  const bool own_begins_with_bos = absl::StrContains(settings.chat_template, "bos_token");
  if (name != "auto") {
    return ChatTemplateChoice{std::string(name), "as told", own == name && own_begins_with_bos};
  }
  if (settings.chat_template.empty()) {
    return ChatTemplateChoice{std::string(BySpecialTokens(tokenizer)), "by the tokenizer's special tokens", false};
  }
  if (!own) return CannotTell(settings, "is none that is known here");
  if (const std::string missing = MissingToken(*own, tokenizer); !missing.empty()) {
    return CannotTell(settings,
                      absl::StrCat("is ", *own, ", and the tokenizer has no token \"", missing, "\" of that"));
  }
  return ChatTemplateChoice{std::string(*own), absl::StrCat("by ", settings.chat_template_place), own_begins_with_bos};
}

}  // namespace eps
