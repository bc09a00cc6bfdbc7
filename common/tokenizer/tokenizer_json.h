#ifndef EPS_COMMON_TOKENIZER_TOKENIZER_JSON_H_
#define EPS_COMMON_TOKENIZER_TOKENIZER_JSON_H_

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/tokenizer/tokenizer.h"

namespace eps {

// A tokenizer from the text of a tokenizer.json, as Hugging Face's tokenizers write it; docs/tokenizers.md lists what
// is supported. `post_processor` is checked and not applied, `truncation` and `padding` are not looked at: Encode gives
// the ids of the text alone. `config`: the tokenizer_config.json beside it, "" of none, for CheckClassOverrides.
//
// Errors: INVALID_ARGUMENT naming the key, what was found, and what is supported
absl::StatusOr<std::unique_ptr<Tokenizer>> TokenizerFromJson(absl::string_view text, absl::string_view config = "");

}  // namespace eps

#endif  // EPS_COMMON_TOKENIZER_TOKENIZER_JSON_H_
