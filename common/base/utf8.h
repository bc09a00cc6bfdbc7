#ifndef EPS_COMMON_BASE_UTF8_H_
#define EPS_COMMON_BASE_UTF8_H_

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace eps {

// Bytes of the ill-formed part or of the code point at the start of `text`, which is not empty. Well-formed is what
// Unicode, table 3-7, says: no overlong forms, no surrogates, nothing above U+10FFFF.
struct Utf8Step {
  size_t num_bytes;
  char32_t code_point;  // U+FFFD of an ill-formed part
  bool is_well_formed;
};
// An ill-formed part is a maximal subpart: as long as it still could have become a code point.
Utf8Step FirstOf(absl::string_view text);

// The code point of well-formed `text` at `at`, which moves behind it.
char32_t NextCodePoint(absl::string_view text, size_t& at);

bool IsWellFormed(absl::string_view text);

void AppendUtf8(char32_t code_point, std::string& out);

// `text` itself where it is well-formed; else `copy`, where each ill-formed part has become U+FFFD. So do Python
// (errors="replace"), Rust and browsers, and so does whatever hands text to the tokenizers that ours has to equal.
absl::string_view WellFormed(absl::string_view text, std::string& copy);

}  // namespace eps

#endif  // EPS_COMMON_BASE_UTF8_H_
