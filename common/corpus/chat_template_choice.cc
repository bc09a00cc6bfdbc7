#include "common/corpus/chat_template_choice.h"

#include <algorithm>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/types/span.h"
#include "common/base/status_macros.h"
#include "common/corpus/chat_template_jinja.h"
#include "common/corpus/chat_template_markup.h"
#include "common/corpus/chat_template_names.h"
#include "common/corpus/text_marks.h"

namespace eps {
namespace {

// A template is told by texts that it has and others that it has not, and by how its turns are written.
struct Signs {
  absl::string_view name;
  std::vector<absl::string_view> has;
  std::vector<absl::string_view> has_not;
  bool is_chatml = false;  // IsChatMl
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
       {"<|start_header_id|>", "<think>", "<|vision_start|>"},
       /*is_chatml=*/true},
      {"qwen3",
       {"<|im_start|>", "<|im_end|>", "last_query_index", "enable_thinking", "</think>"},
       {"<|start_header_id|>", "You are", "<|vision_start|>"},
       /*is_chatml=*/true},
      {"chatml",
       {"<|im_start|>", "<|im_end|>"},
       {"<|start_header_id|>", "<think>", "</think>", "You are", "<|vision_start|>", "trim", "strip"},
       /*is_chatml=*/true},
      {"llama2", {"[INST]", "[/INST]", "<<SYS>>", "<</SYS>>"}, {"You are", "<|im_start|>"}},
      {"mistral", {"[INST]", "[/INST]"}, {"<<SYS>>", "[SYSTEM_PROMPT]", "You are", "<|im_start|>", "<think>"}},
  };
  return signs;
}

// Written in one of the ways that Jinja has for it: without spaces, with ' around strings, + between them and a line's end
// for \n.
std::string InOneWay(absl::string_view jinja) {
  return absl::StrReplaceAll(
      jinja,
      {{"\\n", "\n"}, {"\"", "'"}, {" ", ""}, {"~", "+"}, {"{{-", "{{"}, {"-}}", "}}"}, {"{%-", "{%"}, {"-%}", "%}"}});
}

bool IsEachFollowedBy(absl::string_view text, absl::string_view what, absl::Span<const absl::string_view> by) {
  for (size_t at = text.find(what); at != absl::string_view::npos; at = text.find(what, at)) {
    at += what.size();
    const auto follows = [rest = text.substr(at)](absl::string_view one) { return absl::StartsWith(rest, one); };
    if (std::none_of(by.begin(), by.end(), follows)) return false;
  }
  return true;
}

// The role in a line of its own, <|im_end|> at a line's end, and nothing said by the system that the data does not say but
// what qwen25 says. Others have these tokens too: phi-4 with <|im_sep|> behind the role, Yi with the system's words bare.
bool IsChatMl(absl::string_view jinja) {
  const std::string qwen25 =
      InOneWay("<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n");
  const std::string text = absl::StrReplaceAll(InOneWay(jinja), {{qwen25, ""}});
  const bool has_roles = absl::StrContains(text, "<|im_start|>'+message['role']+'\n") ||
                         absl::StrContains(text, "<|im_start|>'+message.role+'\n");
  return has_roles && !absl::StrContains(text, "<|im_sep|>") && !absl::StrContains(text, "{{system_message}}") &&
         IsEachFollowedBy(text, "<|im_end|>", {"\n", "'+'\n"}) && IsEachFollowedBy(text, "<|im_start|>system\n", {"'"});
}

bool Shows(absl::string_view jinja, const Signs& signs) {
  for (const absl::string_view sign : signs.has) {
    if (!absl::StrContains(jinja, sign)) return false;
  }
  for (const absl::string_view sign : signs.has_not) {
    if (absl::StrContains(jinja, sign)) return false;
  }
  return !signs.is_chatml || IsChatMl(jinja);
}

// The name whose template `eps export` would write into that folder, where it is the one that is there.
std::optional<absl::string_view> OursIn(const TokenizerSettings& settings, const Tokenizer& tokenizer) {
  for (const absl::string_view name : kChatTemplateNames) {
    const absl::StatusOr<const ChatMarkup*> markup = FindChatMarkup(name, tokenizer);
    if (!markup.ok()) continue;
    const std::string first = name == "plain" ? BeginOfText(settings, tokenizer) : std::string((*markup)->first_token);
    if (settings.chat_template == ChatTemplateJinja(**markup, first, EndOfText(settings, tokenizer))) return name;
  }
  return std::nullopt;
}

std::string WhatToSay() {
  return absl::StrCat("; say which it is to be, ", absl::StrJoin(kChatTemplateNames, ", "),
                      ", by --template or data.chat_template");
}

absl::StatusOr<absl::string_view> BySpecialTokens(const Tokenizer& tokenizer) {
  const auto has = [&tokenizer](absl::string_view token) { return tokenizer.TokenId(token).has_value(); };
  if (has("<|start_header_id|>")) return "llama3";
  if (has("<|im_start|>") && has("<|im_sep|>")) {
    return absl::InvalidArgumentError(
        absl::StrCat("template: auto, but the tokenizer has the tokens <|im_start|> and <|im_sep|>, of a template that "
                     "is not known here",
                     WhatToSay()));
  }
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
  return absl::InvalidArgumentError(absl::StrCat("template: auto, but the model's own template (",
                                                 settings.chat_template_place, ") ", what, WhatToSay()));
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
  const std::optional<absl::string_view> ours = OursIn(settings, tokenizer);
  const std::optional<absl::string_view> own = ours ? ours : RecognizeChatTemplate(settings.chat_template);
  const bool own_begins_with_bos = absl::StrContains(settings.chat_template, "bos_token");
  if (name != "auto") {
    return ChatTemplateChoice{std::string(name), "as told", own == name && own_begins_with_bos};
  }
  if (settings.chat_template.empty()) {
    EPS_ASSIGN_OR_RETURN(const absl::string_view by_tokens, BySpecialTokens(tokenizer));
    return ChatTemplateChoice{std::string(by_tokens), "by the tokenizer's special tokens", false};
  }
  if (!own) return CannotTell(settings, "is none that is known here");
  if (const std::string missing = MissingToken(*own, tokenizer); !missing.empty()) {
    return CannotTell(settings,
                      absl::StrCat("is ", *own, ", and the tokenizer has no token \"", missing, "\" of that"));
  }
  return ChatTemplateChoice{std::string(*own), absl::StrCat("by ", settings.chat_template_place), own_begins_with_bos};
}

}  // namespace eps
