#ifndef EPS_COMMON_TOKENIZER_CLASS_OVERRIDES_H_
#define EPS_COMMON_TOKENIZER_CLASS_OVERRIDES_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/tokenizer/json_node.h"

namespace eps {

// That `config`, the text of the tokenizer_config.json beside a tokenizer.json, does not say otherwise what the classes of
// transformers 4 put in its place: do_lower_case, strip_accents and tokenize_chinese_chars in a BertNormalizer's,
// add_prefix_space in that of a pre-tokenizer that is ByteLevel. `tokenizer` is known to be well formed. A config that
// cannot be read says nothing here.
// Errors: INVALID_ARGUMENT naming both keys and their values
absl::Status CheckClassOverrides(const JsonNode& tokenizer, absl::string_view config);

}  // namespace eps

#endif  // EPS_COMMON_TOKENIZER_CLASS_OVERRIDES_H_
