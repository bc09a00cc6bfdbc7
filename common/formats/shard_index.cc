#include "common/formats/shard_index.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/json_keys.h"
#include "common/base/json_text.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

constexpr int kMaxDepth = 32;  // an index's own are two

// A name that open(2) looks up in the folder itself.
bool IsFileName(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

}  // namespace

absl::StatusOr<ShardIndex> ParseShardIndex(absl::string_view text) {
  EPS_ASSIGN_OR_RETURN(const nlohmann::json index, ParseJson(text, kMaxDepth));
  EPS_RETURN_IF_ERROR(CheckKeysOnce(text));
  const auto map = index.find("weight_map");
  if (map == index.end() || !map->is_object()) return absl::InvalidArgumentError("no object weight_map");
  if (map->empty()) return absl::InvalidArgumentError("weight_map names no tensor");
  ShardIndex files;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string() || !IsFileName(file.get_ref<const std::string&>())) {
      return absl::InvalidArgumentError(
          absl::StrCat("weight_map.", tensor, " is not the name of a file beside the index"));
    }
    files.emplace(tensor, file.get<std::string>());
  }
  return files;
}

std::string ShardIndexToJson(const ShardIndex& files, int64_t total_bytes) {
  const nlohmann::ordered_json index = {{"metadata", {{"total_size", total_bytes}}}, {"weight_map", files}};
  return index.dump(2) + "\n";
}

}  // namespace eps
