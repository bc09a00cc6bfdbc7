#ifndef EPS_GPU_WORKER_LAYERS_NORM_H_
#define EPS_GPU_WORKER_LAYERS_NORM_H_

#include <cstdint>

#include "gpu_worker/device/kernels.h"

namespace eps::worker {

// A layer norm, or an RMS norm where there is no shift, over rows of C.
struct NormParameters {
  const void* scale = nullptr;  // act (C)
  const void* shift = nullptr;  // act (C), or null
};
struct NormStatistics {
  float* mean = nullptr;  // (M); a layer norm's only
  float* rstd = nullptr;  // (M)
};
struct NormContext {
  Kernels& kernels;
  int64_t M = 0, C = 0;
  double eps = 1e-5;

  void Forward(const NormParameters& norm, const void* x, const NormStatistics& statistics, void* y) const;
  // y again: the same bits.
  void Again(const NormParameters& norm, const void* x, const NormStatistics& statistics, void* y) const;
  // dx may be dresidual or dy; dresidual may be null. dshift is a layer norm's only.
  void Backward(const NormParameters& norm, const void* dy, const void* x, const NormStatistics& statistics,
                const void* dresidual, void* dx, float* dscale, float* dshift, void* scratch) const;
};
// Of Backward.
int64_t NormScratchBytes(bool has_shift, int64_t M, int64_t C, const KernelSizes& kernels);

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_LAYERS_NORM_H_
