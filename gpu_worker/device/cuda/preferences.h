#ifndef EPS_GPU_WORKER_DEVICE_CUDA_PREFERENCES_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_PREFERENCES_H_

#include "gpu_worker/device/cuda/launch.h"
#include "gpu_worker/device/kernels.h"

namespace eps::worker::cuda {

// What kernels.h says of them.
void ScoreSequences(KernelQueue& queue, const ScoreSequencesArgs& args);
void PreferenceLoss(KernelQueue& queue, const PreferenceLossArgs& args);

}  // namespace eps::worker::cuda

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_PREFERENCES_H_
