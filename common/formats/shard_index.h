#ifndef EPS_COMMON_FORMATS_SHARD_INDEX_H_
#define EPS_COMMON_FORMATS_SHARD_INDEX_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace eps {

// Which file of a model's folder holds which tensor: names of files that lie beside the index, by the tensors' names.
using ShardIndex = std::map<std::string, std::string>;

// Reads the text of model.safetensors.index.json: {"weight_map": {TENSOR: FILE, ...}, ...}. Only weight_map is looked at.
//
// Errors: INVALID_ARGUMENT naming the member, but not the file: no JSON, no weight_map, one without a tensor, or a file
//         that is not a name (an index must not lead out of its folder)
absl::StatusOr<ShardIndex> ParseShardIndex(absl::string_view text);

// The text of such a file, as transformers writes it. total_bytes: of all tensors, without the files' headers.
std::string ShardIndexToJson(const ShardIndex& files, int64_t total_bytes);

}  // namespace eps

#endif  // EPS_COMMON_FORMATS_SHARD_INDEX_H_
