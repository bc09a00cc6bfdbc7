#ifndef EPS_COMMON_RUN_FOLDER_RUN_FOLDER_H_
#define EPS_COMMON_RUN_FOLDER_RUN_FOLDER_H_

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "common/checkpoint/checkpoint_directory.h"

namespace eps {

// A run's folder, OUT: what lies where in it (docs/formats.md, "The run's folder"), and whether it holds a run.
class RunFolder {
 public:
  explicit RunFolder(std::string path) : path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  CheckpointDirectory checkpoints() const { return CheckpointDirectory(In(kCheckpointsFolder)); }
  std::string summary() const { return In("summary.json"); }
  // Why the run failed; only until it goes on.
  std::string failure() const { return In("failure.json"); }
  std::string loss_curve() const { return In("loss.svg"); }
  std::string metrics() const { return In("metrics.jsonl"); }
  std::string evaluations() const { return In("evaluations.jsonl"); }
  // A folder of event files.
  std::string tensorboard() const { return In("tensorboard"); }
  // Tokens that were made of the data, and of what is evaluated: folders.
  std::string tokens() const { return In("data"); }
  std::string evaluation_tokens() const { return In("evaluation"); }
  // Of `eps train`: what opens its daemon's doors, and what its processes say.
  std::string token() const { return In("token"); }
  std::string logs() const { return In("logs"); }
  std::string trace() const { return In("trace"); }

  // Changes nothing, as a Checkpointer would, which cleans up.
  bool HoldsCheckpoints() const;
  // For a run that begins. Checkpoints that were begun, and none of which was finished, are no run.
  // Errors: FAILED_PRECONDITION it holds a run · CheckCanGoOn's
  absl::Status CheckHoldsNoRun() const;
  // For one that goes on.
  // Errors: FAILED_PRECONDITION a run has ended in it that left no checkpoint, or one whose checkpoints are gone ·
  //         INVALID_ARGUMENT its files' names would be too long · the system's, of a folder that cannot be read
  absl::Status CheckCanGoOn() const;

  // Removes what a daemon that was killed was writing beside its files here. For who has the folder.
  void RemoveHalfWritten() const;

 private:
  std::string In(const char* name) const { return path_ + "/" + name; }

  std::string path_;
};

}  // namespace eps

#endif  // EPS_COMMON_RUN_FOLDER_RUN_FOLDER_H_
