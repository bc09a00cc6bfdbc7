#ifndef EPS_COMMON_BASE_SHOWN_TEXT_H_
#define EPS_COMMON_BASE_SHOWN_TEXT_H_

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace eps {

// Somebody else's text for a message: UTF-8 is left as it is, so that a name is shown as its owner wrote it. Control
// characters, double quotes, backslashes, and bytes that are no UTF-8 are escaped: \n, \", \x1b.
std::string EscapeText(absl::string_view text);

// The first `max_bytes` of `text`, or up to three fewer, so as not to end within a character.
absl::string_view CutText(absl::string_view text, size_t max_bytes);

// Escaped, in double quotes; of a longer text as much as CutText leaves, and "..." in the quotes behind it.
std::string QuoteText(absl::string_view text, size_t max_bytes = 60);

// "a, b and 63 more": the first eight.
std::string SomeOf(absl::Span<const std::string> names);

}  // namespace eps

#endif  // EPS_COMMON_BASE_SHOWN_TEXT_H_
