#include "common/base/json_text.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace eps {
namespace {

// True for a valid document no deeper than `max_depth`. Up to its first error any other text is read as the parser
// reads it, which goes no further. The library's own callback could count too, but takes quadratic time for a list of
// objects.
bool IsShallow(absl::string_view text, int max_depth) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;  // what follows ends no string
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > max_depth) return false;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return true;
}

}  // namespace

absl::StatusOr<nlohmann::json> ParseJson(absl::string_view text, int max_depth) {
  if (!IsShallow(text, max_depth)) {
    return absl::InvalidArgumentError(absl::StrCat("JSON nested too deeply: more than ", max_depth, " levels"));
  }
  nlohmann::json document = nlohmann::json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (document.is_discarded()) return absl::InvalidArgumentError("not valid JSON");
  return document;
}

}  // namespace eps
