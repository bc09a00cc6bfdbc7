#ifndef EPS_COMMON_MODEL_HF_JSON_H_
#define EPS_COMMON_MODEL_HF_JSON_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json_fwd.hpp"

// Reading the members of a config.json, or of another file of Hugging Face's.
// Errors: INVALID_ARGUMENT naming the key, the value found and what is allowed
namespace eps {

// Null when the key is absent; a JSON null counts as absent, as it does for Hugging Face.
const nlohmann::json* FindMember(const nlohmann::json& object, const char* key);

absl::Status BadMember(absl::string_view key, const nlohmann::json& found, absl::string_view wanted);

absl::StatusOr<int64_t> ReadInteger(const nlohmann::json& object, const char* key);
absl::StatusOr<int64_t> ReadIntegerOr(const nlohmann::json& object, const char* key, int64_t absent);
// `number` stays as it is where the key is absent.
absl::Status ReadNumber(const nlohmann::json& object, const char* key, double& number);
absl::Status ReadFlag(const nlohmann::json& object, const char* key, bool& flag);
// Absent is as wanted.
absl::Status RequireFlag(const nlohmann::json& object, const char* key, bool wanted);

}  // namespace eps

#endif  // EPS_COMMON_MODEL_HF_JSON_H_
