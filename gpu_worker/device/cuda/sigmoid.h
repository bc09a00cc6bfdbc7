#ifndef EPS_GPU_WORKER_DEVICE_CUDA_SIGMOID_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_SIGMOID_H_

#include <cmath>

#include "gpu_worker/device/cuda/device_code.h"
#include "gpu_worker/device/cuda/simt.h"

namespace eps::worker::cuda {

// 1 / y of a y in [1, 2] or NaN. The GPU's approximation errs by 1 ulp and is one instruction, where an IEEE division
// tests for what is tiny, huge or denormal, of which nothing is here, and branches. Device conformance holds what is
// made of it to 8 ulp of itself and 8 of 1. The most that comes of it is e r r below: r's 2.5 twice, the products' 1,
// and e's, which are some of |x| e^-|x|, less than half of 1.
__device__ __forceinline__ float ReciprocalFromOneToTwo(float y) {
#ifdef __CUDACC__
  float r = 0;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(y));
  return r;
#else
  return 1 / y;
#endif
}

// 1 / (1 + e^-x), and its derivative: both from e^-|x|, which cannot overflow.
struct SigmoidParts {
  float sigmoid, slope;
};
__device__ __forceinline__ SigmoidParts PartsOfSigmoid(float x) {
  const float e = ExpOf(-fabsf(x));
  const float r = ReciprocalFromOneToTwo(1 + e);
  return {x >= 0 ? r : e * r, e * r * r};
}

}  // namespace eps::worker::cuda

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_SIGMOID_H_
