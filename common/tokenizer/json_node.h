#ifndef EPS_COMMON_TOKENIZER_JSON_NODE_H_
#define EPS_COMMON_TOKENIZER_JSON_NODE_H_

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace eps {

// A value in a tokenizer.json, and where it stands: "pre_tokenizer.pretokenizers[1].behavior".
// A JSON null counts as absent, as it does for Hugging Face.
//
// Lifetime: the document outlives it
// Errors:   INVALID_ARGUMENT naming the key, the value found and what is supported
class JsonNode {
 public:
  explicit JsonNode(const nlohmann::json& document) : value_(&document) {}

  const nlohmann::json& value() const { return *value_; }
  const std::string& where() const { return where_; }

  // This value will not do.
  absl::Status Bad(absl::string_view wanted) const;
  // It is an object, and has no other keys.
  absl::Status OnlyKeys(std::initializer_list<absl::string_view> keys) const;

  std::optional<JsonNode> Find(absl::string_view key) const;
  absl::StatusOr<JsonNode> Get(absl::string_view key) const;
  absl::StatusOr<std::vector<JsonNode>> Elements() const;

  absl::StatusOr<std::string> String() const;
  absl::StatusOr<bool> Flag() const;
  absl::StatusOr<int64_t> Integer(int64_t least, int64_t most) const;

  // Of the member `key`.
  absl::StatusOr<std::string> String(absl::string_view key) const;
  absl::StatusOr<std::string> StringOr(absl::string_view key, absl::string_view absent) const;
  absl::StatusOr<bool> Flag(absl::string_view key) const;
  absl::StatusOr<bool> FlagOr(absl::string_view key, bool absent) const;

 private:
  JsonNode(const nlohmann::json& value, std::string where) : value_(&value), where_(std::move(where)) {}

  std::string Below(absl::string_view key) const;

  const nlohmann::json* value_;
  std::string where_;
};

}  // namespace eps

#endif  // EPS_COMMON_TOKENIZER_JSON_NODE_H_
