#ifndef EPS_COMMON_MODEL_JSON_MEMBERS_H_
#define EPS_COMMON_MODEL_JSON_MEMBERS_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace eps {

// That no object of `text`, a JSON document (common/base/json_text.h), has a member twice: programs differ in which of the
// two they take, and who wrote both meant one.
//
// Cost:   one pass over the text, and the names of the objects that are open
// Errors: INVALID_ARGUMENT naming the member with the objects it stands in, "rope_scaling.factor: given twice"
absl::Status CheckMembersOnce(absl::string_view text);

}  // namespace eps

#endif  // EPS_COMMON_MODEL_JSON_MEMBERS_H_
