#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/device/cuda/fused_attention.h"

namespace eps::worker::cuda {

absl::StatusOr<std::unique_ptr<FusedAttention>> LoadFusedAttention(int /*sm_major*/) {
  return absl::UnimplementedError("this was built with a CUDA toolkit that had no cudnn_graph.h");
}

}  // namespace eps::worker::cuda
