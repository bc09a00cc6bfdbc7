#ifndef EPS_COMMON_BASE_JSON_TEXT_H_
#define EPS_COMMON_BASE_JSON_TEXT_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace eps {

// A JSON document of somebody else's. Its arrays and objects lie at most `max_depth` within each other: the JSON
// library writes and compares values by recursion, and a text of brackets alone would take the whole stack.
//
// Cost:   two passes over the text
// Errors: INVALID_ARGUMENT not valid JSON, or nested more deeply
absl::StatusOr<nlohmann::json> ParseJson(absl::string_view text, int max_depth);

}  // namespace eps

#endif  // EPS_COMMON_BASE_JSON_TEXT_H_
