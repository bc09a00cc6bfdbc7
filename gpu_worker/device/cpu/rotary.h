#ifndef EPS_GPU_WORKER_DEVICE_CPU_ROTARY_H_
#define EPS_GPU_WORKER_DEVICE_CPU_ROTARY_H_

#include <cstdint>

#include "gpu_worker/device/kernels.h"

namespace eps::worker::cpu {

// Rows [begin, end), all heads of each.
void RotaryRows(const RotaryArgs& args, int64_t begin, int64_t end);

}  // namespace eps::worker::cpu

#endif  // EPS_GPU_WORKER_DEVICE_CPU_ROTARY_H_
