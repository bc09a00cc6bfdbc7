#ifndef EPS_CLI_CHECKPOINT_SIZE_H_
#define EPS_CLI_CHECKPOINT_SIZE_H_

#include <cstdint>
#include <string>

#include "common/model/model_spec.h"
#include "common/spec/run_config.h"

namespace eps::cli {

// What the tensors of a run's checkpoints take on disk.
struct CheckpointSize {
  int64_t trained_bytes = 0;  // of each: masters in fp32 and moments
  int64_t frozen_bytes = 0;   // of frozen tensors, in a file that all of them share

  int64_t bytes_of(int64_t checkpoints) const { return frozen_bytes + checkpoints * trained_bytes; }
};
CheckpointSize SizeOfCheckpoints(const ModelSpec& model, const RunConfig& run);

// At most, at a run's end: the newest ones, and those before them that are kept for good.
int64_t CheckpointsThatStay(const RunConfig& run);

// What is to be said where `folder` has no room for a single one; "": it has.
std::string CheckpointRoomWarning(int64_t checkpoint_bytes, int64_t room_bytes, const std::string& folder);

}  // namespace eps::cli

#endif  // EPS_CLI_CHECKPOINT_SIZE_H_
