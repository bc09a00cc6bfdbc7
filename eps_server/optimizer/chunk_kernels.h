#ifndef EPS_SERVER_OPTIMIZER_CHUNK_KERNELS_H_
#define EPS_SERVER_OPTIMIZER_CHUNK_KERNELS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/spec/run_config.h"
#include "eps_server/optimizer/chunk_gradient.h"
#include "eps_server/store/store.h"

namespace eps::server {

// The kernels over one chunk: sum of its contributions, norm, update, next wire form. Vector code
// is chosen at run time; the same bits at any width. Every element count is a multiple of
// kTensorAlignElems: there are no tails.
//
// Cost: one pass. An update with a 16-bit wire reads 2 (wire) + 2 (rest) + 8 (moments) +
// contributions and writes 2 + 2 + 8 bytes per element; with an FP16 wire 4 (master) + 8 and 4 + 2 + 8. Moments in bf16 are
// 4 each way in place of 8.

// FAILED_PRECONDITION if this processor's vectors have no fused multiply-add: other bits.
absl::Status CheckVectorUnit();

// What one update is made of, rounded to fp32 once. AdamW, in the order of torch/optim/adamw.py:
//
//   p *= keep          m = beta1 m + (1 - beta1) g       v = beta2 v + (1 - beta2) g^2
//   p -= step_size * m / (sqrt(v) * inv_sqrt_bias2 + eps)
//
// SGD: g += decay p;  b = momentum b + g;  p -= step_size * b  (without momentum: g for b)
//
// Lion (arXiv:2302.06675, algorithm 2), with sign(0) = 0:
//
//   p *= keep          p -= step_size * sign(beta1 m + (1 - beta1) g)          m = beta2 m + (1 - beta2) g
//
// p is made of the moments as they are computed; what is kept of them is rounded, if they are bf16 (moment_rounding.h).
struct UpdateScalars {
  OptimizerRule rule = OptimizerRule::kAdamW;
  float gradient_scale = 1;  // of clipping, over the loss scale
  float step_size = 0;       // AdamW: learning rate / (1 - beta1^t); SGD, Lion: learning rate
  float keep = 1;            // AdamW, Lion: 1 - learning rate * weight decay
  float decay = 0;           // SGD: weight decay
  float beta1 = 0, one_minus_beta1 = 1;
  float beta2 = 0, one_minus_beta2 = 1;
  float inv_sqrt_bias2 = 1;  // 1 / sqrt(1 - beta2^t)
  float eps = 0;
  float momentum = 0;
  uint32_t moment_key = 0;  // MomentKey of the step and the blob: bf16 moments only
};
// `update` counts from 1 the updates that were made, without skipped steps.
UpdateScalars ComputeUpdateScalars(const OptimizerConfig& optimizer, double learning_rate, int64_t update,
                                   double gradient_scale);

// Elements [begin, end) of a chunk, multiples of kTensorAlignElems.
struct DecayRange {
  int64_t begin = 0;
  int64_t end = 0;
  bool decays = false;
};

// Updates the chunk by the sum of `gradient`. `ranges` cover it. sum_of_squares, if not null, gets
// that of the unscaled sum: not finite exactly if some element of the sum is not.
void UpdateChunk(const ChunkState& chunk, const ChunkGradient& gradient, absl::Span<const DecayRange> ranges,
                 const UpdateScalars& scalars, double* sum_of_squares);

// The sum of `gradient` into `sum` (num_elems of it) if that is not null, and its sum of squares:
// element i into lane i mod 16, the lanes in order, in fp64.
double SumChunk(const ChunkGradient& gradient, int64_t num_elems, float* sum);

}  // namespace eps::server

#endif  // EPS_SERVER_OPTIMIZER_CHUNK_KERNELS_H_
