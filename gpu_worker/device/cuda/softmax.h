#ifndef EPS_GPU_WORKER_DEVICE_CUDA_SOFTMAX_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_SOFTMAX_H_

#include "common/tensor/dtype.h"
#include "gpu_worker/device/cuda/launch.h"
#include "gpu_worker/device/kernels.h"

// The fused cross-entropy: a block takes a row of the chunk of logits.
namespace eps::worker::cuda {

void SoftmaxChunk(KernelQueue& queue, Dtype act, const SoftmaxChunkArgs& args);
void SoftmaxChunkBackward(KernelQueue& queue, Dtype act, const SoftmaxChunkBackwardArgs& args);
void Loss(KernelQueue& queue, const LossArgs& args);

}  // namespace eps::worker::cuda

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_SOFTMAX_H_
