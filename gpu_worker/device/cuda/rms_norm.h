#ifndef EPS_GPU_WORKER_DEVICE_CUDA_RMS_NORM_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_RMS_NORM_H_

#include <cstdint>

#include "common/tensor/dtype.h"
#include "gpu_worker/device/cuda/launch.h"
#include "gpu_worker/device/kernels.h"

// As layer_norm.h; a row of a head, which is narrow, is a warp's.
namespace eps::worker::cuda {

inline constexpr int64_t kMaxRmsNormColumns = 65536;  // what a block can hold

void RmsNorm(KernelQueue& queue, Dtype act, const RmsNormArgs& args);
void RmsNormApply(KernelQueue& queue, Dtype act, const RmsNormApplyArgs& args);
void RmsNormBackward(KernelQueue& queue, Dtype act, const RmsNormBackwardArgs& args);

}  // namespace eps::worker::cuda

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_RMS_NORM_H_
