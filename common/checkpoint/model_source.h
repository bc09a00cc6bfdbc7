#ifndef EPS_COMMON_CHECKPOINT_MODEL_SOURCE_H_
#define EPS_COMMON_CHECKPOINT_MODEL_SOURCE_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/formats/model_folder_files.h"
#include "common/spec/run_config.h"

// What a run began with beside the weights: the config.json of its model, its tokenizer, and by which template its
// conversations were written. The run keeps it in its own folder, so that a resume and an export have it when that
// folder is gone.
// docs/formats.md, The run's folder.
namespace eps {

inline constexpr char kModelSourceFolder[] = "source";              // in a run's folder
inline constexpr char kConversationsFile[] = "conversations.json";  // in that folder; of a run on conversations

struct ModelSource {
  std::string place;           // what it was read from; "": there is nothing
  ModelFiles files;            // ReadModelFiles's
  std::string tokenizer_path;  // for LoadTokenizer; "": there is no tokenizer
  // Of a run on conversations that became tokens at its start: the template by which they were written, or "auto" where
  // only data.chat_template is known. "": another run.
  std::string chat_template;
};

// What the run's model.from and data.tokenizer_path have now. Of another run's checkpoint it is what that run has kept,
// its config.json laid over with what the checkpoint's model is (LayOverSource). Of a tokenizer that is one file by its
// name, that file and no other vocabulary; with a tokenizer that is gone, nothing takes the place of the model's own.
// Where it is another than the model's own, ids of marks that it spells otherwise are left out (mark_ids.h); a run on
// bytes has no tokenizer.
// chat_template is data.chat_template, where the data can be read and holds conversations.
// A file other than config.json that cannot be read is left out, with a warning in the log: the run does not need it.
// Errors: the system's, naming model.from or data.tokenizer_path, of a config.json
absl::StatusOr<ModelSource> ReadModelSource(const RunConfig& run);

// Puts a tokenizer, `files` that were read from `path`, with all that goes with it in the place of the one among
// `model_files`, those of a model, which was read from own_path ("": there is none). Ids of marks that it spells
// otherwise are left out (mark_ids.h).
void PutTokenizer(const ModelFiles& files, const std::string& path, const std::string& own_path,
                  ModelFiles& model_files);

// RUN of RUN/checkpoints/step-N, absolute; nullopt: the checkpoint lies elsewhere.
std::optional<std::string> RunFolderOf(const std::string& checkpoint);

// Where the run in run_folder keeps it, or would.
std::string ModelSourceFolder(const std::string& run_folder);

// What the tokenizer that makes the run's tokens is read from, of several the first source's, which is the one that is
// kept; "": none does.
std::string TokenizerPathOf(const RunConfig& run);

// Whether there is one in the run's folder.
bool HoldsModelSource(const std::string& run_folder);

// Keeps it in run_folder, which is there, in place of one that is there. An empty one is none.
// Errors: the system's, naming the file or folder
absl::Status KeepModelSource(const ModelSource& source, const std::string& run_folder);

// Of a checkpoint's folder what its run has kept; of a run that kept none, what is left where the run found it. Of
// another folder, which is a model's, its own.
// Errors: ReadModelFiles's, ReadManifest's · INVALID_ARGUMENT kConversationsFile is not as it was written
absl::StatusOr<ModelSource> FindModelSource(const std::string& folder);

// What the run of the checkpoint in `folder` has, for the run in to_run_folder, which is there.
// Errors: FindModelSource's · the system's
absl::Status CopyModelSource(const std::string& folder, const std::string& to_run_folder);

}  // namespace eps

#endif  // EPS_COMMON_CHECKPOINT_MODEL_SOURCE_H_
