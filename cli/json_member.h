#ifndef EPS_CLI_JSON_MEMBER_H_
#define EPS_CLI_JSON_MEMBER_H_

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace eps::cli {

// A JSON object, changed as text: what is not changed stays as it is written. A number of more digits than a double has
// would not outlive being read and written ("model_max_length": 1000000000000000019884624838656 of many tokenizers).
// object: valid JSON, which begins with "{" behind white space. Of members with the same name the last one counts.

// The value's text; nullopt: there is no such member.
std::optional<absl::string_view> FindMember(absl::string_view object, absl::string_view name);

// `object` with this member: `value`, which is JSON, stands where the old value stood, or behind the last member.
std::string WithMember(absl::string_view object, absl::string_view name, absl::string_view value);

}  // namespace eps::cli

#endif  // EPS_CLI_JSON_MEMBER_H_
