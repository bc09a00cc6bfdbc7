#ifndef EPS_COMMON_SPEC_CHECK_CONTEXT_H_
#define EPS_COMMON_SPEC_CHECK_CONTEXT_H_

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "common/model/model_spec.h"

namespace eps {

// What a check needs to know of the world, passed in so that checking reads no file.
struct CheckContext {
  // "data/kjv.txt" as it is written -> the path that a process in any folder opens.
  std::function<std::string(const std::string&)> absolute_path;
  // The model in the folder `model.from` (already absolute). Null: the RunSpec itself gives the
  // model's shape beside `from`, as SerializeRunConfig writes it.
  std::function<absl::StatusOr<ModelConfig>(const std::string& folder)> read_model;
  // Whether a folder has a tokenizer. Null: the RunSpec itself says what its tokenizer is.
  std::function<bool(const std::string& folder)> has_tokenizer = nullptr;
};

}  // namespace eps

#endif  // EPS_COMMON_SPEC_CHECK_CONTEXT_H_
