#ifndef EPS_GPU_WORKER_DEVICE_CUDA_ATTENTION_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_ATTENTION_H_

#include <cstdint>

#include "common/tensor/dtype.h"
#include "gpu_worker/device/cuda/device_dropout.h"
#include "gpu_worker/device/cuda/launch.h"
#include "gpu_worker/device/kernels.h"

// Attention in tiles with a running softmax, without tensor cores: right, and slow. For what fused attention
// does not take: CheckFusedAttention. Products and sums are fp32, whatever the compute dtype; no atomics.
// Source: Dao et al., FlashAttention, arXiv:2205.14135, algorithms 1 and 4; the gradients of queries and of keys and
// values are two passes, each of which owns what it sums.
namespace eps::worker::cuda {

inline constexpr int64_t kMaxPlainAttentionHeadDim = 256;

// `dropout`: args.dropout, as the device has it.
void PlainAttention(KernelQueue& queue, Dtype act, const AttentionArgs& args, const DeviceDropout& dropout);
void PlainAttentionBackward(KernelQueue& queue, Dtype act, const AttentionBackwardArgs& args,
                            const DeviceDropout& dropout);

}  // namespace eps::worker::cuda

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_ATTENTION_H_
