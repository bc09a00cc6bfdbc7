#ifndef EPS_GPU_WORKER_DEVICE_CUDA_REDUCTION_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_REDUCTION_H_

#include <cstdint>

#include "common/tensor/dtype.h"
#include "gpu_worker/device/cuda/cuda_kernel_sizes.h"
#include "gpu_worker/device/cuda/launch.h"
#include "gpu_worker/device/kernels.h"

namespace eps::worker::cuda {

// out (N) += the sum of `partials` (num_tiles, N), in an order that depends on num_tiles alone. With `second_out` (N)
// partials are (num_tiles, 2, N), for one and the other.
void AddPartials(KernelQueue& queue, const float* partials, int64_t num_tiles, int64_t N, float* out,
                 float* second_out = nullptr);

// Of a kernel that sums N columns by SumColumns (tile_sums.h).
LaunchShape ColumnSumShape(int64_t N, const RowTiling& tiling);

void ColumnSum(KernelQueue& queue, Dtype act, const ColumnSumArgs& args);

}  // namespace eps::worker::cuda

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_REDUCTION_H_
