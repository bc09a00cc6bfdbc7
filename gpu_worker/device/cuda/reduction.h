#ifndef EPS_GPU_WORKER_DEVICE_CUDA_REDUCTION_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_REDUCTION_H_

#include <cstdint>

#include "common/tensor/dtype.h"
#include "gpu_worker/device/cuda/launch.h"
#include "gpu_worker/device/kernels.h"

namespace eps::worker::cuda {

// How a sum over M rows is cut: a block sums each tile of rows, and the partial sums are added in tile order. A
// function of M alone, so the order of the sum is too.
struct RowTiling {
  int64_t rows_per_tile = 0;
  int64_t num_tiles = 0;
};
RowTiling ReductionTiling(int64_t M);

// out (N) += the sum of `partials` (num_tiles, stride), whose columns [0, N) it takes, in order.
void AddPartials(KernelQueue& queue, const float* partials, int64_t num_tiles, int64_t stride, int64_t N, float* out);

int64_t ColumnSumBytes(int64_t M, int64_t N);
void ColumnSum(KernelQueue& queue, Dtype act, const ColumnSumArgs& args);

}  // namespace eps::worker::cuda

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_REDUCTION_H_
