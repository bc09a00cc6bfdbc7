#ifndef EPS_GPU_WORKER_DEVICE_CUDA_ROTARY_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_ROTARY_H_

#include "common/tensor/dtype.h"
#include "gpu_worker/device/cuda/launch.h"
#include "gpu_worker/device/kernels.h"

namespace eps::worker::cuda {

void Rotary(KernelQueue& queue, Dtype act, const RotaryArgs& args);

}  // namespace eps::worker::cuda

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_ROTARY_H_
