#ifndef EPS_GPU_WORKER_DEVICE_CUDA_EMULATOR_SDPA_INTERPRETER_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_EMULATOR_SDPA_INTERPRETER_H_

#include "absl/types/span.h"
#include "gpu_worker/device/cuda/sdpa_graph.h"

namespace eps::worker::cuda {

// Does what cuDNN documents for a graph's operations, one after the other, as loops on the calling thread: computed in
// fp32, rounded to each tensor's type. Slow, and (B, H, T, T) numbers large. What is bound may be misaligned.
void RunSdpaGraph(const SdpaGraph& graph, absl::Span<const SdpaBinding> bindings);

}  // namespace eps::worker::cuda

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_EMULATOR_SDPA_INTERPRETER_H_
