#ifndef EPS_COMMON_CHECKPOINT_CHECKPOINT_DIRECTORY_H_
#define EPS_COMMON_CHECKPOINT_CHECKPOINT_DIRECTORY_H_

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/ids.h"

namespace eps {

inline constexpr char kCheckpointsFolder[] = "checkpoints";  // in a run's folder
inline constexpr char kLatestFile[] = "latest";

// "step-00000120" of version 120; nullopt for any other name.
std::string StepFolderName(Version version);
std::optional<Version> ParseStepFolderName(absl::string_view name);

// A run's checkpoints as folders: which there are, and how one comes and goes so that a process killed at any
// moment loses none. What is in a folder is not its business.
//
//   step-NNNNNNNN            a checkpoint
//   latest                   the name of the newest, one line
//   .tmp-step-NNNNNNNN       being written
//   .old-step-NNNNNNNN       being replaced by another of the same step
//   .removed-step-NNNNNNNN   being removed
class CheckpointDirectory {
 public:
  explicit CheckpointDirectory(std::string path) : path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  std::string FolderOf(Version version) const;

  // Of every checkpoint, newest first; none if the directory is not there. Errors: the system's
  absl::StatusOr<std::vector<Version>> Steps() const;
  // Whether there is a checkpoint, or was: `latest` may name a folder that is gone, and one may stand aside for its
  // replacement. Errors: the system's
  absl::StatusOr<bool> HoldsAny() const;
  // What `latest` says where it is all that is left: no checkpoint is there, nor does one stand aside. nullopt: it is not so.
  // Errors: the system's
  absl::StatusOr<std::optional<std::string>> LatestOfNone() const;
  // What `latest` names; nullopt if it is not there, says something else, or names a folder that is gone.
  std::optional<Version> Latest() const;

  // Ends what a killed process began: removes what was half written or half removed, and puts back what was
  // to be replaced if its replacement did not come. Errors: the system's
  absl::Status CleanUp() const;

  // An empty folder to write a checkpoint into, made with its parents. Errors: the system's
  absl::StatusOr<std::string> StartWriting(Version version) const;
  // Makes that folder the checkpoint, in place of one of the same step, and then `latest`. Lasts when it
  // returns. Errors: the system's; then either what was there still is, or the new one stands whole and is not `latest` yet,
  // or may be lost in a power failure
  absl::Status FinishWriting(Version version) const;
  // Removes the folder of StartWriting, and what FinishWriting may have left when it failed.
  void AbandonWriting(Version version) const;

  // Errors: the system's
  absl::Status Remove(Version version) const;

 private:
  std::string path_;
};

}  // namespace eps

#endif  // EPS_COMMON_CHECKPOINT_CHECKPOINT_DIRECTORY_H_
