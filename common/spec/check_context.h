#ifndef EPS_COMMON_SPEC_CHECK_CONTEXT_H_
#define EPS_COMMON_SPEC_CHECK_CONTEXT_H_

#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/formats/document_index_header.h"
#include "common/model/model_spec.h"

namespace eps {

struct RunConfig;

// What a check needs to know of the world, passed in so that checking reads no file.
struct CheckContext {
  // "data/kjv.txt" as it is written -> the path that a process in any folder opens.
  std::function<std::string(const std::string&)> absolute_path;
  // The model in the folder `model.from` (already absolute). Null: the RunSpec itself gives the
  // model's shape beside `from`, as SerializeRunConfig writes it.
  std::function<absl::StatusOr<ModelConfig>(const std::string& folder)> read_model;
  // Whether a folder has a tokenizer. Null: the RunSpec itself says what its tokenizer is.
  std::function<bool(const std::string& folder)> has_tokenizer = nullptr;
  // The first bytes of a data file (already absolute); "" where there is none. Null: it is what the RunSpec says.
  std::function<std::string(const std::string& path)> read_beginning = nullptr;
  // The index beside a token file (already absolute); nullopt where there is none. Null: as if there were none.
  std::function<absl::StatusOr<std::optional<DocumentIndexHeader>>(const std::string& path)> read_index = nullptr;
  // The run that is gone on with: what the RunSpec does not say of a data file is as it was there, whatever the file
  // says of itself. Null: a new run.
  const RunConfig* resumed = nullptr;
  // SerializeRunConfig wrote the RunSpec, perhaps in an earlier version: what it does not say is as that version did
  // it.
  bool is_serialized = false;
};

}  // namespace eps

#endif  // EPS_COMMON_SPEC_CHECK_CONTEXT_H_
