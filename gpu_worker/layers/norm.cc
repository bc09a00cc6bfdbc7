#include "gpu_worker/layers/norm.h"

namespace eps::worker {

void NormContext::Forward(const NormParameters& norm, const void* x, const NormStatistics& statistics, void* y) const {
  if (norm.shift != nullptr) {
    return kernels.LayerNorm({.M = M,
                              .C = C,
                              .eps = eps,
                              .x = x,
                              .gamma = norm.scale,
                              .beta = norm.shift,
                              .y = y,
                              .mean = statistics.mean,
                              .rstd = statistics.rstd});
  }
  kernels.RmsNorm(
      {.M = M, .C = C, .ldx = C, .ldy = C, .eps = eps, .x = x, .gamma = norm.scale, .y = y, .rstd = statistics.rstd});
}

void NormContext::Again(const NormParameters& norm, const void* x, const NormStatistics& statistics, void* y) const {
  if (norm.shift != nullptr) {
    return kernels.LayerNormApply({.M = M,
                                   .C = C,
                                   .x = x,
                                   .gamma = norm.scale,
                                   .beta = norm.shift,
                                   .mean = statistics.mean,
                                   .rstd = statistics.rstd,
                                   .y = y});
  }
  kernels.RmsNormApply(
      {.M = M, .C = C, .ldx = C, .ldy = C, .x = x, .gamma = norm.scale, .rstd = statistics.rstd, .y = y});
}

void NormContext::Backward(const NormParameters& norm, const void* dy, const void* x, const NormStatistics& statistics,
                           const void* dresidual, void* dx, float* dscale, float* dshift, void* scratch) const {
  if (norm.shift != nullptr) {
    return kernels.LayerNormBackward({.M = M,
                                      .C = C,
                                      .dy = dy,
                                      .x = x,
                                      .gamma = norm.scale,
                                      .mean = statistics.mean,
                                      .rstd = statistics.rstd,
                                      .dresidual = dresidual,
                                      .dx = dx,
                                      .dgamma = dscale,
                                      .dbeta = dshift,
                                      .scratch = scratch});
  }
  kernels.RmsNormBackward({.M = M,
                           .C = C,
                           .lddy = C,
                           .ldx = C,
                           .lddx = C,
                           .dy = dy,
                           .x = x,
                           .gamma = norm.scale,
                           .rstd = statistics.rstd,
                           .dresidual = dresidual,
                           .dx = dx,
                           .dgamma = dscale,
                           .scratch = scratch});
}

int64_t NormScratchBytes(bool has_shift, int64_t M, int64_t C, const KernelSizes& kernels) {
  return has_shift ? kernels.layer_norm_backward(M, C) : kernels.rms_norm_backward(M, C);
}

}  // namespace eps::worker
