#ifndef EPS_GPU_WORKER_DEVICE_CPU_SWIGLU_H_
#define EPS_GPU_WORKER_DEVICE_CPU_SWIGLU_H_

#include <cstdint>

#include "gpu_worker/device/kernels.h"

namespace eps::worker::cpu {

// Elements [begin, end) of y (M, F); of a backward with dweight whole rows. No element depends on where a tile starts.
void SwigluElems(const SwigluArgs& args, int64_t begin, int64_t end);
void SwigluBackwardElems(const SwigluBackwardArgs& args, int64_t begin, int64_t end);

}  // namespace eps::worker::cpu

#endif  // EPS_GPU_WORKER_DEVICE_CPU_SWIGLU_H_
