#ifndef EPS_SERVER_DATA_TOKEN_SUMS_H_
#define EPS_SERVER_DATA_TOKEN_SUMS_H_

#include <string>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace eps {
class LongWork;
}  // namespace eps

namespace eps::server {

// Sizes and SHA-256 of a token file and its index, by which damage is told from other data:
//   {"tokens": {"bytes": 4096, "sha256": "..."}, "index": {"bytes": 144, "sha256": "..."}}
// Reads both whole; `work` is told how far it is, null: nobody is. Errors: CANCELLED by `work` · the system's
absl::StatusOr<nlohmann::json> SumTokenFiles(const std::string& token_path, LongWork* work);

// What of the two files is not as `sums` says, with its path; "": nothing. Null sums are of an earlier version, which kept
// none: then the index has to be readable, and of as many tokens as the file has. Errors: CANCELLED by `work`
absl::StatusOr<std::string> FindDamage(const std::string& token_path, const nlohmann::json& sums, LongWork* work);

}  // namespace eps::server

#endif  // EPS_SERVER_DATA_TOKEN_SUMS_H_
