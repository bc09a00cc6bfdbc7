#ifndef EPS_GPU_WORKER_DEVICE_CUDA_SWIGLU_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_SWIGLU_H_

#include "common/tensor/dtype.h"
#include "gpu_worker/device/cuda/launch.h"
#include "gpu_worker/device/kernels.h"

// One pass over memory each, which is their limit.
namespace eps::worker::cuda {

void Swiglu(KernelQueue& queue, Dtype act, const SwigluArgs& args);
void SwigluBackward(KernelQueue& queue, Dtype act, const SwigluBackwardArgs& args);

}  // namespace eps::worker::cuda

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_SWIGLU_H_
