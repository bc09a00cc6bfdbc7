#ifndef EPS_COMMON_CHECKPOINT_UPDATE_COUNTS_H_
#define EPS_COMMON_CHECKPOINT_UPDATE_COUNTS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/checkpoint/run_state.h"
#include "common/model/model_spec.h"

namespace eps {

// The steps that were not skipped: those that changed weights. While it stays, so do weights and moments.
int64_t UpdatingSteps(const RunState& state);

// How many updates each blob of `model` has had, by blob; frozen ones 0 or what the others had, which nobody asks for.
// Errors: DATA_LOSS state.updates lacks a blob that trains, or has a name that is none, naming it
absl::StatusOr<std::vector<int64_t>> UpdatesOfBlobs(const RunState& state, const ModelSpec& model);

// RunState::updates of `updates` (by blob): empty where every blob that trains had one in every step that was not skipped.
std::map<std::string, int64_t> UpdatesByName(const std::vector<int64_t>& updates, const RunState& state,
                                             const ModelSpec& model);

}  // namespace eps

#endif  // EPS_COMMON_CHECKPOINT_UPDATE_COUNTS_H_
