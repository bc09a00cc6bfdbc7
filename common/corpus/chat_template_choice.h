#ifndef EPS_COMMON_CORPUS_CHAT_TEMPLATE_CHOICE_H_
#define EPS_COMMON_CORPUS_CHAT_TEMPLATE_CHOICE_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/tokenizer/tokenizer.h"
#include "common/tokenizer/tokenizer_settings.h"

namespace eps {

struct ChatTemplateChoice {
  std::string name;    // ChatTemplate::Create's
  std::string reason;  // "as told", "by DIR/tokenizer_config.json: chat_template", "by the tokenizer's special tokens"
  // That the model's own template, which is this one, begins with bos_token, whether ours does or not.
  bool begins_with_bos = false;
};

// The name of ours whose turns a template of Jinja writes, by what is characteristic of it. nullopt: none, or it cannot be
// told. A template that adds a system message of its own is none of those that add none.
std::optional<absl::string_view> RecognizeChatTemplate(absl::string_view jinja);

// `name`, or of "auto" the one that the model's own template is, ChatTemplateJinja's or recognised, or, where it has none,
// the one that the spellings of its special tokens tell: llama3, chatml or mistral, else plain.
// Errors: INVALID_ARGUMENT auto, and the model's own template is none that is known, or one whose special tokens the
//         tokenizer lacks, or there is none and the tokens are of one that is not known; the message names where it
//         stands, or the tokens, and what may be told instead
absl::StatusOr<ChatTemplateChoice> ChooseChatTemplate(absl::string_view name, const TokenizerSettings& settings,
                                                      const Tokenizer& tokenizer);

}  // namespace eps

#endif  // EPS_COMMON_CORPUS_CHAT_TEMPLATE_CHOICE_H_
