#ifndef EPS_GPU_WORKER_LAYERS_LINEAR_H_
#define EPS_GPU_WORKER_LAYERS_LINEAR_H_

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
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

// What stands beside a product (LoraConfig): t B^T is added to its output, with t = scale x A^T.
struct Adapter {
  Linear b;              // its first_column is the product's
  int64_t t_column = 0;  // where its columns of t begin, a multiple of kTAlignElems
};
inline constexpr int64_t kTAlignElems = 8;  // 16 bytes in 16-bit types

// Products of one input whose outputs lie beside each other: queries, keys and values; gate and up.
struct Linears {
  std::vector<Linear> products;
  std::vector<Adapter> adapters;
  std::vector<Linear> as;  // of the adapters: their outputs are the columns of t
  int dropout_use = -1;    // of what enters the adapters (MicroBatchKey)

  int64_t in() const { return products.front().in; }
  int64_t t_width() const;
};

// `parts` by rising column; those whose parameters follow each other without a gap become one, except across
// `trainable_elems`, where the layer's frozen ones begin (LayerSpec), and between those with an adapter and others.
std::vector<Linear> Joined(absl::Span<const Linear> parts, int64_t trainable_elems);

// Rows of `ld` elements, of which the first is column 0 of all products.
struct LinearOutput {
  void* y = nullptr;
  int64_t ld = 0;
};

// The gradient of what Linears gave: of y (M, ...) with `ld` elements a row, and of x A^T, in LoraScratch::dt.
struct LinearGradient {
  const void* dy = nullptr;
  int64_t ld = 0;
};

// Of adapters alone, act each.
struct LoraScratch {
  void* t = nullptr;        // (M, t_width)
  void* dt = nullptr;       // (M, t_width): of backward
  void* dropped = nullptr;  // (M, in): what dropout leaves of x; not read without it
  int64_t t_width = 0;      // elements between rows of t and of dt
};

// Rows of one micro-batch, all or some, which are the M below; x (M, in) is dense. Weights are in the compute dtype, whose
// elements have act_bytes.
struct LinearContext {
  Kernels& kernels;
  int64_t micro_batch_rows = 0;  // that dropout counts over
  RowRange rows;
  int64_t act_bytes = 4;
  const void* weights = nullptr;  // of the layer
  int64_t trainable_elems = 0;    // what lies from there on is frozen
  bool starts_gradient = false;   // BlockArgs
  MicroBatchKey key;
  LoraShape lora;
  bool has_adapters = true;  // false: forward alone, as if there were none
  LoraScratch scratch;

  // The same for others of the rows: by rising rows, as those that begin the micro-batch start its gradient.
  LinearContext Of(RowRange other) const;

  // y = x w + b + t B^T, for each product. `last` has the epilogue with which y is done; of several products there is none.
  void Forward(const Linears& linears, const void* x, const LinearOutput& output, const MatMulArgs& last = {}) const;
  // The same where not all outputs lie in one place.
  void Forward(const Linears& linears, const void* x, absl::FunctionRef<LinearOutput(const Linear&)> output_of,
               const MatMulArgs& last = {}) const;

  // Begins the backward: what it gives is good until the next call.
  LinearGradient GradientOf(const Linears& linears, const void* dy, int64_t ld) const;
  // dx (M, in) = the sum over `linears`, adapters included, of dy w^T, and `residual` (M, in) if it is not null
  void BackwardInput(const Linears& linears, const LinearGradient& gradient, void* dx,
                     const void* residual = nullptr) const;
  // Gradients of weights, adapters' included, added to unless this starts them; of frozen ones none is made. to: the
  // layer's slot
  void BackwardWeights(const Linears& linears, const void* x, const LinearGradient& gradient, float* to) const;
  // Gradients of biases, added to. kernel_scratch: LinearScratchBytes
  void BackwardBiases(const Linears& linears, const LinearGradient& gradient, float* to, void* kernel_scratch) const;
  // Where that of the product's bias is added to, or null: it has none, or a frozen one.
  float* BiasGradient(const Linear& linear, float* to) const;

 private:
  int64_t M() const { return rows.num_rows(); }
  // y = x w + b, of any Linear: a product's, an A's or a B's.
  MatMulArgs Product(const Linear& linear, const void* x, int64_t ldx, const LinearOutput& output) const;
  Dropout DropoutOf(const Linears& linears) const;
  // What enters the adapters: x, or, with dropout, what is left of it.
  const void* AdaptersInput(const Linears& linears, const void* x) const;
  void MakeT(const Linears& linears, const void* adapters_input) const;
  const void* ColumnsOfT(const Adapter& adapter) const;
  bool trains(const Linear& linear) const { return linear.weight < trainable_elems; }
  void BackwardWeight(const Linear& linear, const void* x, int64_t ldx, const void* dy, int64_t ld, float* to) const;
};
int64_t LinearScratchBytes(const Linears& linears, int64_t M, const KernelSizes& kernels);

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_LAYERS_LINEAR_H_
