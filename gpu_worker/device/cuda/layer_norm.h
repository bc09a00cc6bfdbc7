#ifndef EPS_GPU_WORKER_DEVICE_CUDA_LAYER_NORM_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_LAYER_NORM_H_

#include <cstdint>

#include "common/tensor/dtype.h"
#include "gpu_worker/device/cuda/launch.h"
#include "gpu_worker/device/kernels.h"

// A block normalises a row, which its threads hold in registers: rows are read once. Sums are fp32. The backward
// makes its sums over rows in the same pass (row_walk.h).
namespace eps::worker::cuda {

inline constexpr int64_t kMaxLayerNormColumns = 65536;  // of any model: common/model/model_spec.cc

void LayerNorm(KernelQueue& queue, Dtype act, const LayerNormArgs& args);
void LayerNormApply(KernelQueue& queue, Dtype act, const LayerNormApplyArgs& args);
void LayerNormBackward(KernelQueue& queue, Dtype act, const LayerNormBackwardArgs& args);

}  // namespace eps::worker::cuda

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_LAYER_NORM_H_
