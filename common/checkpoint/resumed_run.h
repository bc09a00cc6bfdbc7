#ifndef EPS_COMMON_CHECKPOINT_RESUMED_RUN_H_
#define EPS_COMMON_CHECKPOINT_RESUMED_RUN_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/spec/run_config.h"

namespace eps {

// LoadRunConfig, of a run that goes on in the folder `out`: what the RunSpec leaves open of a data file is as the newest
// checkpoint there has it, also where a new run would take it otherwise. Without a checkpoint, and with one that cannot be
// read, which is reported when it is loaded, it is a new run.
// Errors: LoadRunConfig's
absl::StatusOr<RunConfig> LoadRunOfFolder(const std::string& out, const std::string& run_file,
                                          const std::vector<FieldOverride>& overrides);

}  // namespace eps

#endif  // EPS_COMMON_CHECKPOINT_RESUMED_RUN_H_
