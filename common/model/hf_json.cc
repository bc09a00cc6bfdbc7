#include "common/model/hf_json.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

using nlohmann::json;

// A value from outside may be long and need not be UTF-8.
std::string Show(const json& value) {
  constexpr size_t kMaxShown = 80;
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
  if (text.size() > kMaxShown) text = text.substr(0, kMaxShown) + "...";
  return text;
}

}  // namespace

const json* FindMember(const json& object, const char* key) {
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

absl::Status BadMember(absl::string_view key, const json& found, absl::string_view wanted) {
  return absl::InvalidArgumentError(absl::StrCat(key, ": ", Show(found), ", must be ", wanted));
}

absl::StatusOr<int64_t> ReadInteger(const json& object, const char* key) {
  const json* value = FindMember(object, key);
  if (value == nullptr) return absl::InvalidArgumentError(absl::StrCat(key, ": missing"));
  if (!value->is_number_integer() ||
      (value->is_number_unsigned() && value->get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()})) {
    return BadMember(key, *value, "a whole number");
  }
  return value->get<int64_t>();
}

absl::StatusOr<int64_t> ReadIntegerOr(const json& object, const char* key, int64_t absent) {
  if (FindMember(object, key) == nullptr) return absent;
  return ReadInteger(object, key);
}

absl::Status ReadNumber(const json& object, const char* key, double& number) {
  const json* value = FindMember(object, key);
  if (value == nullptr) return absl::OkStatus();
  if (!value->is_number()) return BadMember(key, *value, "a number");
  number = value->get<double>();
  return absl::OkStatus();
}

absl::Status ReadFlag(const json& object, const char* key, bool& flag) {
  const json* value = FindMember(object, key);
  if (value == nullptr) return absl::OkStatus();
  if (!value->is_boolean()) return BadMember(key, *value, "true or false");
  flag = value->get<bool>();
  return absl::OkStatus();
}

absl::Status RequireFlag(const json& object, const char* key, bool wanted) {
  const json* value = FindMember(object, key);
  if (value == nullptr || *value == json(wanted)) return absl::OkStatus();
  return BadMember(key, *value, wanted ? "true" : "false");
}

}  // namespace eps
