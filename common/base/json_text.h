#ifndef EPS_COMMON_BASE_JSON_TEXT_H_
#define EPS_COMMON_BASE_JSON_TEXT_H_

#include <cstddef>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace eps {

// A JSON document of somebody else's. Its arrays and objects lie at most `max_depth` within each other: the JSON
// library writes and compares values by recursion, and a text of brackets alone would take the whole stack.
//
// Cost:   three passes over the text
// Errors: INVALID_ARGUMENT it is empty, not valid JSON, or nested more deeply, naming the byte, and what is wrong with it
absl::StatusOr<nlohmann::json> ParseJson(absl::string_view text, int max_depth);

// Why ParseJson takes a text not.
struct JsonError {
  size_t offset_bytes = 0;  // of what cannot be there; the text's size: something is missing behind it
  std::string problem;      // "not valid JSON"
  std::string reason;       // "a comma before }"; may be ""
};
// For who names the place in his own way; nullopt: ParseJson takes it.
std::optional<JsonError> FindJsonError(absl::string_view text, int max_depth);

}  // namespace eps

#endif  // EPS_COMMON_BASE_JSON_TEXT_H_
