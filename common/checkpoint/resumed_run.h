#ifndef EPS_COMMON_CHECKPOINT_RESUMED_RUN_H_
#define EPS_COMMON_CHECKPOINT_RESUMED_RUN_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/checkpoint/manifest.h"
#include "common/spec/run_config.h"

namespace eps {

// A run that goes on in the folder `out`. Without a checkpoint there, and with one that cannot be read, which is reported
// when it is loaded, it is a new run.

// LoadRunConfig: what the RunSpec leaves open of a data file is as the newest checkpoint has it, also where a new run would
// take it otherwise, and a config.json that is gone is the one that the run keeps (model_source.h).
// Errors: LoadResumedRunConfig's
absl::StatusOr<RunConfig> LoadRunOfFolder(const std::string& out, const std::string& run_file,
                                          const std::vector<FieldOverride>& overrides);

// As of two runs (run_config.h). What the data is a checkpoint knows by their content (RunState::data), so that they may lie
// elsewhere than they did; who opens them compares what is in them. One that does not know goes by their paths. A model's
// folder and a tokenizer may lie elsewhere if they are no longer where they were.
std::vector<std::string> DifferencesThatMatter(const Manifest& was, const RunConfig& now);

// `run`, to read its data by: a tokenizer that is gone is the one that the run keeps. Its checkpoints go by `run`.
// Errors: NOT_FOUND naming the field and both places: the run does not keep that one
absl::StatusOr<RunConfig> WithKeptTokenizer(const std::string& out, const RunConfig& run);

// Which of model.from and the first tokenizer's path are gone, each once. What the run keeps stands in for them
// (LoadRunOfFolder, WithKeptTokenizer).
std::vector<std::string> FindGoneSources(const RunConfig& run);

}  // namespace eps

#endif  // EPS_COMMON_CHECKPOINT_RESUMED_RUN_H_
