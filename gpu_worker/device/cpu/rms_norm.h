#ifndef EPS_GPU_WORKER_DEVICE_CPU_RMS_NORM_H_
#define EPS_GPU_WORKER_DEVICE_CPU_RMS_NORM_H_

#include <cstdint>

#include "gpu_worker/device/kernels.h"

namespace eps::worker::cpu {

// Rows [begin, end) of each kernel, where row (m, h) is the (m * heads + h)-th. Sums over a row are layer_norm.h's.
void RmsNormRows(const RmsNormArgs& args, int64_t begin, int64_t end);
void RmsNormApplyRows(const RmsNormApplyArgs& args, int64_t begin, int64_t end);
// partial: (C), set to these rows' sums for dgamma.
void RmsNormBackwardRows(const RmsNormBackwardArgs& args, int64_t begin, int64_t end, float* partial);

}  // namespace eps::worker::cpu

#endif  // EPS_GPU_WORKER_DEVICE_CPU_RMS_NORM_H_
