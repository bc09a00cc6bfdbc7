#ifndef EPS_GPU_WORKER_LAYERS_LINEAR_H_
#define EPS_GPU_WORKER_LAYERS_LINEAR_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/model/model_spec.h"
#include "gpu_worker/device/kernels.h"
#include "gpu_worker/layers/layer_shape.h"

namespace eps::worker {

// One product of a layer with its bias, if it has one, and where its parameters lie, in elements of the layer's slot.
struct Linear {
  int64_t in = 0, out = 0;
  int64_t weight = 0;
  int64_t bias = -1;         // -1: none
  bool is_out_in = false;    // the weight is (out, in), as torch.nn.Linear has it; else (in, out)
  int64_t first_column = 0;  // of the output, which several products may fill together
  bool has_adapter = false;  // of every column
};

// What an adapter (LoraConfig) adds to a product beside it: t B^T, of its columns of t = scale x A^T.
struct Adapter {
  Linear b;              // its first_column is the product's
  int64_t t_column = 0;  // where its columns of t begin, a multiple of kLoraColumnAlign
};

// Products of one input whose outputs lie beside each other: queries, keys and values; gate and up.
struct Linears {
  std::vector<Linear> own;
  std::vector<Linear> a;  // of the adapters; the output is t
  std::vector<Adapter> adapters;
  int dropout_use = 0;  // of what enters the adapters (MicroBatchKey)
};

// `parts` by rising column; those whose parameters follow each other without a gap become one, except across
// `trainable_elems`, where the layer's frozen ones begin (LayerSpec), and between those with an adapter and others.
std::vector<Linear> Joined(absl::Span<const Linear> parts, int64_t trainable_elems);

// All of one micro-batch of M rows; x (M, in) is dense, y and dy have `ld` elements a row and begin at column 0 of all.
// Weights are in the compute dtype, whose elements have act_bytes.
struct LinearContext {
  Kernels& kernels;
  int64_t M = 0;
  int64_t act_bytes = 4;
  const void* weights = nullptr;  // of the layer
  int64_t trainable_elems = 0;    // what lies from there on is frozen
  bool starts_gradient = false;   // BlockArgs
  // Of adapters. Scratch: t and the gradient of x A^T, act (M, lora_width) each, the latter of backward alone; and, with
  // dropout, what is left of x, act (M, in).
  int64_t lora_width = 0;
  double lora_scale = 1;
  double lora_dropout = 0;
  MicroBatchKey key;
  void* lora = nullptr;
  void* d_lora = nullptr;
  void* dropped = nullptr;

  // t, in `lora`, of what dropout leaves of x. The adapters' products that follow read it.
  void MakeLora(const Linears& linears, const void* x) const;
  // y = t B^T
  MatMulArgs ForwardAdapter(const Adapter& adapter, void* y, int64_t ld) const;
  // Both, of all of them.
  void ForwardAdapters(const Linears& linears, const void* x, void* y, int64_t ld) const;
  // y = x w + b, and what its adapter has given to y; the caller may set an epilogue before it runs it.
  MatMulArgs Forward(const Linear& linear, const void* x, void* y, int64_t ld) const;

  // The gradient of x A^T, in d_lora. The two that follow read it.
  void BackwardAdapters(const Linears& linears, const void* dy, int64_t ld) const;
  // dx (M, in) = the sum over `linears`, adapters included, of dy w^T, and `residual` (M, in) if it is not null
  void BackwardInput(const Linears& linears, const void* dy, int64_t ld, void* dx,
                     const void* residual = nullptr) const;
  // Gradients of weights, adapters' included, added to unless this starts them; of frozen ones none is made.
  void BackwardWeights(const Linears& linears, const void* x, const void* dy, int64_t ld, float* gradient) const;
  // Gradients of biases, added to. scratch: LinearScratchBytes
  void BackwardBiases(const Linears& linears, const void* dy, int64_t ld, float* gradient, void* scratch) const;
  // Where that of the product's bias is added to, or null: it has none, or a frozen one.
  float* BiasGradient(const Linear& linear, float* gradient) const;

 private:
  Dropout LoraDropout(const Linears& linears) const;
  // What enters the adapters: x, or, with dropout, what is left of it.
  const void* AdaptersInput(const Linears& linears, const void* x) const;
  void MakeLoraOf(const Linears& linears, const void* adapters_input) const;
  bool trains(const Linear& linear) const { return linear.weight < trainable_elems; }
  void BackwardWeight(const Linear& linear, const void* x, int64_t ldx, const void* dy, int64_t ld,
                      float* gradient) const;
};
int64_t LinearScratchBytes(const Linears& linears, int64_t M, const KernelSizes& kernels);

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_LAYERS_LINEAR_H_
