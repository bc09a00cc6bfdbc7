#include "cli/checkpoint_size.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/byte_size.h"
#include "common/spec/moment_format.h"
#include "common/tensor/dtype.h"

namespace eps::cli {

CheckpointSize SizeOfCheckpoints(const ModelSpec& model, const RunConfig& run) {
  const int64_t moment_bytes = run.optimizer.num_moments() * SizeOf(MomentFileDtype(run.precision.moments));
  const int64_t trainable = model.num_trainable_parameters();
  CheckpointSize size{.trained_bytes = trainable * (SizeOf(Dtype::kF32) + moment_bytes)};
  for (const BlobSpec& blob : model.blobs) {
    if (blob.frozen) size.frozen_bytes += blob.num_parameters() * SizeOf(blob.value_dtype(run.precision.wire));
  }
  return size;
}

int64_t CheckpointsThatStay(const RunConfig& run) {
  const CheckpointConfig& checkpoint = run.checkpoint;
  if (checkpoint.keep_every_steps == 0) return checkpoint.keep;
  const bool last_is_between = checkpoint.last && run.steps % checkpoint.every_steps != 0;
  const int64_t newest = checkpoint.keep - (last_is_between ? 1 : 0);  // of those that every_steps has made
  const int64_t older = std::max<int64_t>(0, run.steps / checkpoint.every_steps - newest);
  return checkpoint.keep + older * checkpoint.every_steps / checkpoint.keep_every_steps;
}

std::string CheckpointRoomWarning(int64_t checkpoint_bytes, int64_t room_bytes, const std::string& folder) {
  if (checkpoint_bytes <= room_bytes) return "";
  return absl::StrCat("the next checkpoint of this run takes ", FormatByteSize(checkpoint_bytes), ", and there are ",
                      FormatByteSize(room_bytes), " free for ", folder,
                      ": make room before one is due, or what is trained is lost");
}

}  // namespace eps::cli
