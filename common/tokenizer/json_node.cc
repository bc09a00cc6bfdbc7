#include "common/tokenizer/json_node.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"

namespace eps {
namespace {

using nlohmann::json;

// A value from outside may be long, such as a whole vocabulary.
std::string Show(const json& value) {
  constexpr size_t kMaxShown = 80;
  if (value.is_structured() && value.size() > kMaxShown) {
    return absl::StrCat(value.is_array() ? "a list of " : "an object of ", value.size());
  }
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
  if (text.size() > kMaxShown) text = text.substr(0, kMaxShown) + "...";
  return text;
}

}  // namespace

std::string JsonNode::Below(absl::string_view key) const {
  return where_.empty() ? std::string(key) : absl::StrCat(where_, ".", key);
}

absl::Status JsonNode::Bad(absl::string_view wanted) const {
  return absl::InvalidArgumentError(
      absl::StrCat(where_.empty() ? "" : where_ + ": ", Show(*value_), ", must be ", wanted));
}

absl::Status JsonNode::OnlyKeys(std::initializer_list<absl::string_view> keys) const {
  if (!value_->is_object()) return Bad("an object");
  for (const auto& [key, member] : value_->items()) {
    if (std::find(keys.begin(), keys.end(), absl::string_view(key)) != keys.end()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(Below(key.substr(0, 80)), ": this key is not supported; ", absl::StrJoin(keys, ", "), " are"));
  }
  return absl::OkStatus();
}

std::optional<JsonNode> JsonNode::Find(absl::string_view key) const {
  if (!value_->is_object()) return std::nullopt;
  const auto it = value_->find(std::string(key));
  if (it == value_->end() || it->is_null()) return std::nullopt;
  return JsonNode(*it, Below(key));
}

absl::StatusOr<JsonNode> JsonNode::Get(absl::string_view key) const {
  if (!value_->is_object()) return Bad("an object");
  std::optional<JsonNode> found = Find(key);
  if (!found) return absl::InvalidArgumentError(absl::StrCat(Below(key), ": missing"));
  return *std::move(found);
}

absl::StatusOr<std::vector<JsonNode>> JsonNode::Elements() const {
  if (!value_->is_array()) return Bad("a list");
  std::vector<JsonNode> elements;
  elements.reserve(value_->size());
  for (size_t i = 0; i < value_->size(); ++i) {
    elements.push_back(JsonNode((*value_)[i], absl::StrCat(where_, "[", i, "]")));
  }
  return elements;
}

absl::StatusOr<std::string> JsonNode::String() const {
  if (!value_->is_string()) return Bad("a string");
  return value_->get<std::string>();
}

absl::StatusOr<bool> JsonNode::Flag() const {
  if (!value_->is_boolean()) return Bad("true or false");
  return value_->get<bool>();
}

absl::StatusOr<int64_t> JsonNode::Integer(int64_t least, int64_t most) const {
  const bool fits = value_->is_number_integer() &&
                    (!value_->is_number_unsigned() || value_->get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX));
  const int64_t number = fits ? value_->get<int64_t>() : 0;
  if (!fits || number < least || number > most) return Bad(absl::StrCat("a whole number from ", least, " to ", most));
  return number;
}

absl::StatusOr<std::string> JsonNode::String(absl::string_view key) const {
  EPS_ASSIGN_OR_RETURN(const JsonNode node, Get(key));
  return node.String();
}

absl::StatusOr<std::string> JsonNode::StringOr(absl::string_view key, absl::string_view absent) const {
  const std::optional<JsonNode> node = Find(key);
  return node ? node->String() : absl::StatusOr<std::string>(std::string(absent));
}

absl::StatusOr<bool> JsonNode::Flag(absl::string_view key) const {
  EPS_ASSIGN_OR_RETURN(const JsonNode node, Get(key));
  return node.Flag();
}

absl::StatusOr<bool> JsonNode::FlagOr(absl::string_view key, bool absent) const {
  const std::optional<JsonNode> node = Find(key);
  return node ? node->Flag() : absl::StatusOr<bool>(absent);
}

}  // namespace eps
