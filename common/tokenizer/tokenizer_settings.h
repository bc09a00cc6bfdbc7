#ifndef EPS_COMMON_TOKENIZER_TOKENIZER_SETTINGS_H_
#define EPS_COMMON_TOKENIZER_TOKENIZER_SETTINGS_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace eps {

// What a model's folder says of its tokenizer beside the tokenizer itself.
struct TokenizerSettings {
  std::string chat_template;        // Jinja; "": the folder has none
  std::string chat_template_place;  // where it stands: "DIR/tokenizer_config.json: chat_template"
  // Spellings; "": the model has none. nullopt: nothing is said.
  std::optional<std::string> bos_token;
  std::optional<std::string> eos_token;
  // Whether a text begins with bos_token: add_bos_token; else so where tokenizer_class is Llama's or Gemma's, and not
  // where bos_token is eos_token too, which separates documents. nullopt: nothing is said.
  std::optional<bool> adds_bos;
};

// From files beside `tokenizer_path`, which is as for LoadTokenizer; none of them has to be there.
// The template: chat_template.jinja, tokenizer_config.json's chat_template (of several named ones "default"),
// chat_template.json's. Tokens: tokenizer_config.json, special_tokens_map.json. What stands first is taken.
//
// Errors: INVALID_ARGUMENT naming the file and the key · file errors
absl::StatusOr<TokenizerSettings> ReadTokenizerSettings(const std::string& tokenizer_path);

}  // namespace eps

#endif  // EPS_COMMON_TOKENIZER_TOKENIZER_SETTINGS_H_
