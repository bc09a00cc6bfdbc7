#ifndef EPS_GPU_WORKER_DEVICE_CUDA_REDUCTION_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_REDUCTION_H_

#include <cstdint>

#include "common/tensor/dtype.h"
#include "gpu_worker/device/cuda/launch.h"
#include "gpu_worker/device/kernels.h"

namespace eps::worker::cuda {

// out (N) += the sum of `partials` (num_tiles, stride), whose columns [0, N) it takes, in order.
void AddPartials(KernelQueue& queue, const float* partials, int64_t num_tiles, int64_t stride, int64_t N, float* out);

void ColumnSum(KernelQueue& queue, Dtype act, const ColumnSumArgs& args);

}  // namespace eps::worker::cuda

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_REDUCTION_H_
