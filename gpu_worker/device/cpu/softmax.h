#ifndef EPS_GPU_WORKER_DEVICE_CPU_SOFTMAX_H_
#define EPS_GPU_WORKER_DEVICE_CPU_SOFTMAX_H_

#include <cstdint>

#include "gpu_worker/device/kernels.h"

namespace eps::worker::cpu {

// Rows [begin, end) of each kernel. Sums over a row: 16 logical lanes, then the lanes in a fixed
// order.
void SoftmaxChunkRows(const SoftmaxChunkArgs& args, int64_t begin, int64_t end);
void SoftmaxChunkBackwardRows(const SoftmaxChunkBackwardArgs& args, int64_t begin, int64_t end);

// The whole of LossArgs, by one thread: a logarithm per row.
void AddLoss(const LossArgs& args);

}  // namespace eps::worker::cpu

#endif  // EPS_GPU_WORKER_DEVICE_CPU_SOFTMAX_H_
