#ifndef EPS_COMMON_CHECKPOINT_MODEL_SOURCE_H_
#define EPS_COMMON_CHECKPOINT_MODEL_SOURCE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/formats/model_folder_files.h"
#include "common/spec/run_config.h"

// What a run began with beside the weights: the config.json of its model, its tokenizer, and by which template its
// conversations were written. The run keeps it in its own folder, so that an export has it when that folder is gone.
// docs/formats.md, The run's folder.
namespace eps {

inline constexpr char kModelSourceFolder[] = "source";              // in a run's folder
inline constexpr char kConversationsFile[] = "conversations.json";  // in that folder; of a run on conversations

struct ModelSource {
  std::string place;           // what it was read from; "": there is nothing
  ModelFiles files;            // ReadModelFiles's
  std::string tokenizer_path;  // for LoadTokenizer; "": there is no tokenizer
  // Of a run on conversations that became tokens at its start: data.chat_template. "": another run.
  std::string chat_template;
};

// Keeps it in run_folder, which is there. One that is there already stays as it is: it is of the run's start. A run
// that has neither model.from nor a tokenizer keeps nothing.
// Errors: the system's, naming model.from, data.tokenizer_path or the folder; then nothing is kept
absl::Status KeepModelSource(const RunConfig& run, const std::string& run_folder);

// Of a checkpoint's folder what its run has kept; of a run that kept none, what is left where the run found it. Of
// another folder, which is a model's, its own.
// Errors: ReadModelFiles's, ReadManifest's · INVALID_ARGUMENT kConversationsFile is not as it was written
absl::StatusOr<ModelSource> FindModelSource(const std::string& folder);

// What the run of the checkpoint in `folder` has, for the run in to_run_folder, which is there and has none yet.
// Errors: FindModelSource's · the system's
absl::Status CopyModelSource(const std::string& folder, const std::string& to_run_folder);

}  // namespace eps

#endif  // EPS_COMMON_CHECKPOINT_MODEL_SOURCE_H_
