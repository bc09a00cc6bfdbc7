#ifndef EPS_COMMON_CHECKPOINT_EVALUATED_RUN_H_
#define EPS_COMMON_CHECKPOINT_EVALUATED_RUN_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/spec/run_config.h"

namespace eps {

// A run that makes no step: it evaluates the model of a checkpoint, or of a Hugging Face folder, and ends (`eps
// evaluate`, `eps_server --evaluate`).
struct EvaluatedRun {
  std::string folder;  // what FindCheckpointFolder has found
  // `evaluation` is on, and due for the version that the folder has: the manifest's step; 0 of a Hugging Face folder,
  // which is model_from, as in a run that begins with it. Of a checkpoint model_from is "". What training alone needs
  // takes no memory: a single small tensor trains, as a run must have one.
  RunConfig config;
};

// The run of a checkpoint as it was trained, with the data that it evaluates, or with evaluation.path where `overrides`
// give one, which is then read as the run's data is, of several files that one whose form it has; made by
// WithoutTraining. Of a Hugging Face folder the run that has that file as its data, with everything else by default;
// evaluation.path is required. A context of more than kPlannedContext tokens is cut to that there unless told.
//
// Errors: FindCheckpointFolder's, WithPathsFromHere's, ReadManifest's, WithOverrides', RunConfigOfModel's,
//         WithKeptTokenizer's · INVALID_ARGUMENT naming the field: nothing says what to evaluate on; the file is of
//         another form than the run's data; another share than the run has held out; what an evaluation does not go by
absl::StatusOr<EvaluatedRun> FindEvaluatedRun(const std::string& path, const std::vector<FieldOverride>& overrides);

}  // namespace eps

#endif  // EPS_COMMON_CHECKPOINT_EVALUATED_RUN_H_
