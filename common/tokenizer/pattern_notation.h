#ifndef EPS_COMMON_TOKENIZER_PATTERN_NOTATION_H_
#define EPS_COMMON_TOKENIZER_PATTERN_NOTATION_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace eps {

// `regex` in PCRE2's notation, with the meaning that it has for Oniguruma and fancy-regex (pattern.h says where they
// part). What is left for PCRE2 to refuse: whatever is malformed.
// Errors: INVALID_ARGUMENT naming the byte
absl::StatusOr<std::string> ToPcre2Notation(absl::string_view regex);

}  // namespace eps

#endif  // EPS_COMMON_TOKENIZER_PATTERN_NOTATION_H_
