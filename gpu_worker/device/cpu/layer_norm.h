#ifndef EPS_GPU_WORKER_DEVICE_CPU_LAYER_NORM_H_
#define EPS_GPU_WORKER_DEVICE_CPU_LAYER_NORM_H_

#include <cstdint>

#include "gpu_worker/device/kernels.h"

namespace eps::worker::cpu {

// Rows [begin, end) of each kernel. Sums over a row: 16 logical lanes, then the lanes in a fixed
// order.
void LayerNormRows(const LayerNormArgs& args, int64_t begin, int64_t end);
void LayerNormApplyRows(const LayerNormApplyArgs& args, int64_t begin, int64_t end);
// partial: (2, C), set to these rows' sums for dgamma and dbeta.
void LayerNormBackwardRows(const LayerNormBackwardArgs& args, int64_t begin, int64_t end, float* partial);

// partial: (N), set to the column sums of rows [begin, end) of x (M, N).
void ColumnSumRows(const ColumnSumArgs& args, int64_t begin, int64_t end, float* partial);

// out[c] += the sum over tiles, in order, of partial[tile * stride + c], for c in [begin, end).
void AddPartials(const float* partial, int64_t num_tiles, int64_t stride, int64_t begin, int64_t end, float* out);

}  // namespace eps::worker::cpu

#endif  // EPS_GPU_WORKER_DEVICE_CPU_LAYER_NORM_H_
