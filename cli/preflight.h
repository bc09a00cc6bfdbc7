#ifndef EPS_CLI_PREFLIGHT_H_
#define EPS_CLI_PREFLIGHT_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/common_flags.h"
#include "cli/run_report.h"
#include "common/checkpoint/evaluated_run.h"
#include "common/spec/run_config.h"

namespace eps::cli {

// How many samples the run's data has; 0: not known before it has been tokenized.
// Errors: NOT_FOUND · INVALID_ARGUMENT naming the file: it has none
absl::StatusOr<int64_t> CountSamples(const RunConfig& run);

struct Preflight {
  RunFlags run;
  std::string out;
  WorkerFlags worker;
  bool resume = false;
};

// The run, of a sitting that resumes one as it is gone on with. Errors: LoadRunConfig's
absl::StatusOr<RunConfig> LoadRunToTrain(const Preflight& preflight);

// What can be refused before anything is started or made: the RunSpec, the data, the model's folder, a run that is
// already there, a device that does not start, and a cap that is too small. The daemon and the workers check again what
// is theirs.
//
// Errors: as StartExitCode takes them; RESOURCE_EXHAUSTED names the smallest cap that would do
absl::StatusOr<RunOutline> CheckBeforeTraining(const Preflight& preflight);

// The same of what is evaluated.
absl::Status CheckBeforeEvaluating(const EvaluatedRun& evaluated, const WorkerFlags& worker);

}  // namespace eps::cli

#endif  // EPS_CLI_PREFLIGHT_H_
