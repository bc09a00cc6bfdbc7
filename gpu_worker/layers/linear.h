#ifndef EPS_GPU_WORKER_LAYERS_LINEAR_H_
#define EPS_GPU_WORKER_LAYERS_LINEAR_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/model/model_spec.h"
#include "gpu_worker/device/kernels.h"

namespace eps::worker {

// One product of a layer with its bias, if it has one, and where its parameters lie, in elements of the layer's slot.
struct Linear {
  int64_t in = 0, out = 0;
  int64_t weight = 0;
  int64_t bias = -1;         // -1: none
  bool is_out_in = false;    // the weight is (out, in), as torch.nn.Linear has it; else (in, out)
  int64_t first_column = 0;  // of the output, which several products may fill together
};

// Products of one input whose outputs lie beside each other: queries, keys and values; gate and up.
using Linears = std::vector<Linear>;

// `parts` by rising column; those whose parameters follow each other without a gap become one, except across
// `trainable_elems`, where the layer's frozen ones begin (LayerSpec).
Linears Joined(absl::Span<const Linear> parts, int64_t trainable_elems);

// All of one micro-batch of M rows; x (M, in) is dense, y and dy have `ld` elements a row and begin at column 0 of all.
// Weights are in the compute dtype, whose elements have act_bytes.
struct LinearContext {
  Kernels& kernels;
  int64_t M = 0;
  int64_t act_bytes = 4;
  const void* weights = nullptr;  // of the layer
  int64_t trainable_elems = 0;    // what lies from there on is frozen
  bool starts_gradient = false;   // BlockArgs

  // y = x w + b; the caller may set an epilogue before it runs it.
  MatMulArgs Forward(const Linear& linear, const void* x, void* y, int64_t ld) const;
  // dx (M, in) = the sum over `linears` of dy w^T, and `residual` (M, in) if it is not null
  void BackwardInput(absl::Span<const Linear> linears, const void* dy, int64_t ld, void* dx,
                     const void* residual = nullptr) const;
  // Gradients of weights, added to unless this starts them, and of biases, added to; of frozen ones none is made.
  void BackwardWeights(absl::Span<const Linear> linears, const void* x, const void* dy, int64_t ld,
                       float* gradient) const;
  // scratch: LinearScratchBytes
  void BackwardBiases(absl::Span<const Linear> linears, const void* dy, int64_t ld, float* gradient,
                      void* scratch) const;
  // Where that of the product's bias is added to, or null: it has none, or a frozen one.
  float* BiasGradient(const Linear& linear, float* gradient) const;
};
int64_t LinearScratchBytes(absl::Span<const Linear> linears, int64_t M, const KernelSizes& kernels);

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_LAYERS_LINEAR_H_
