#ifndef EPS_COMMON_BASE_JSON_KEYS_H_
#define EPS_COMMON_BASE_JSON_KEYS_H_

#include <cstddef>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace eps {

// A key that its object has had before: programs differ in which of the two they take, and who wrote both meant one.
struct KeyTwice {
  std::string name;         // with what it lies in: "messages[1].role"
  size_t offset_bytes = 0;  // of the second one's opening quote
};

// The first of `text`, a JSON document (json_text.h); nullopt: there is none.
//
// Cost: one pass over the text, and the names in the objects that are open
std::optional<KeyTwice> FindKeyTwice(absl::string_view text);

// Errors: INVALID_ARGUMENT there is one, "rope_scaling.factor: given twice"
absl::Status CheckKeysOnce(absl::string_view text);

}  // namespace eps

#endif  // EPS_COMMON_BASE_JSON_KEYS_H_
