#ifndef EPS_GPU_WORKER_DEVICE_CUDA_EMBEDDING_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_EMBEDDING_H_

#include "common/tensor/dtype.h"
#include "gpu_worker/device/cuda/device_dropout.h"
#include "gpu_worker/device/cuda/launch.h"
#include "gpu_worker/device/kernels.h"

namespace eps::worker::cuda {

// `dropout`: args.dropout, as the device has it.
void Embedding(KernelQueue& queue, Dtype act, const EmbeddingArgs& args, const DeviceDropout& dropout);
// Without atomics: positions are sorted by token, and each tile of a token's is one block's.
void EmbeddingBackward(KernelQueue& queue, Dtype act, const EmbeddingBackwardArgs& args, const DeviceDropout& dropout);

}  // namespace eps::worker::cuda

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_EMBEDDING_H_
