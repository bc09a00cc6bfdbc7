#ifndef EPS_GPU_WORKER_LAYERS_HEAD_H_
#define EPS_GPU_WORKER_LAYERS_HEAD_H_

#include <cstdint>
#include <functional>
#include <optional>

#include "common/model/model_spec.h"
#include "gpu_worker/device/kernels.h"
#include "gpu_worker/layers/layer_shape.h"

namespace eps::worker {

// The last layer: the final norm, what follows it, and the mean cross-entropy of the step. It is visited once: forward
// and backward together, so its weights are pulled once and its logits never leave scratch. What follows the norm:
//   a language model:       logits = x W_table^T, W_table that of the tokens or one of the head's own
//   one of masked tokens:   logits = norm(gelu(x W_dense^T + b_dense)) W_table^T + b       (BERT)
//   a classifier:           logits = dropout(tanh(x_0 W_dense^T + b_dense)) W_table^T + b, x_0 a sample's first row
//
// The vocabulary goes by in chunks of columns: a first pass makes the running softmax, a second one, last chunk
// first, makes each chunk's logits again and turns them into their gradient. The last chunk's logits are still
// there from the first pass; a vocabulary of one chunk computes its logits once. With room for the logits of all
// chunks, the second pass finds them as well (HeadArgs::keeps_logits).
// Cost: products of 4 M C V multiply-adds for several chunks, 3 for one or where logits are kept.
struct HeadOffsets {  // in elements from where the layer begins; negative ones, too, where blobs lie in place
  struct Norm {
    int64_t scale = 0;             // (C)
    std::optional<int64_t> shift;  // (C); none of an RMS norm
  };
  struct Dense {
    int64_t weight = 0, bias = 0;  // (C, C) by output, (C)
  };
  Norm norm;
  std::optional<Dense> dense;      // of masked tokens and classes
  std::optional<Norm> dense_norm;  // of masked tokens
  int64_t table = 0;               // (V, C), or (classes, C)
  std::optional<int64_t> bias;     // (V), or (classes)

  // fn of each offset.
  HeadOffsets Mapped(const std::function<int64_t(int64_t)>& fn) const;
};
HeadOffsets HeadOffsetsOf(const ModelSpec& model, LayerId layer);

// Width of a chunk, a function of the shape alone, because bits depend on it. At most 4096 columns: then the
// logits of a row are no larger than the row's share of a block's scratch from d_model 512 on (8 C numbers), while
// products stay far wider than any tile. Chunks are evened out, so that none is a thin rest.
int64_t VocabChunk(const LayerShape& shape);

// Elements from row to row of the logits of so many columns: a multiple of 64, so that rows begin aligned whatever the
// columns are. It is a multiple of 256 only if they are one: such rows fall on few sets of a cache, and with AVX-512
// oneDNN computes products with them otherwise, with other bits than those of rows that lie one behind the other.
int64_t LogitsRow(int64_t columns);

int64_t HeadScratchBytes(const LayerShape& shape, const KernelSizes& kernels);
// What keeping logits takes beside: those of all chunks but the last. 0 of one chunk.
int64_t KeptLogitsBytes(const LayerShape& shape);

struct HeadArgs {
  LayerShape shape;
  MicroBatchKey key;
  HeadOffsets offsets;            // in the gradient's slot
  HeadOffsets weight_offsets;     // from `weights`; the same where that is a slot
  const void* weights = nullptr;  // in the wire dtype: the table is expanded chunk by chunk
  int64_t trainable_elems = 0;    // of the layer (LayerSpec)
  bool starts_gradient = false;   // as BlockArgs'
  // Whether each chunk's logits stay from the first pass to the second, which changes no bit; `scratch` has
  // KeptLogitsBytes more then.
  bool keeps_logits = false;
  // With LayerShape::preferences: (B) of the micro-batch, of the model without adapters; null where there is no reference.
  SequenceScore* reference = nullptr;
  void* scratch = nullptr;
};

// x: act (M, C). labels: (M), or (B) of a classifier. record: added to. dx: act (M, C) out. gradient: the layer's slot,
// fp32, GradientElems of it: added to, or with starts_gradient written. scale: of a counted label's loss: the loss
// scale / counted labels of the step. dx == null: the forward pass alone, for the record; gradient is not looked at.
//
// With LayerShape::preferences the loss is that of pairs of sequences, and `scale` of a pair's.
void HeadForwardBackward(Kernels& kernels, const HeadArgs& args, const void* x, const int32_t* labels, double scale,
                         LossRecord* record, void* dx, float* gradient);

// With LayerShape::preferences, of the model without adapters: what `args.reference` is.
void HeadReference(Kernels& kernels, const HeadArgs& args, const void* x, const int32_t* labels);

// The logits of `row`, of M; of a classifier those of sample `row`. x: act (M, C). Calls `take` after each chunk of
// columns [first, first + chunk): `logits`, act (chunk), lies in scratch until the next chunk is computed on the
// compute stream.
void HeadLogits(Kernels& kernels, const HeadArgs& args, const void* x, int64_t row,
                const std::function<void(int64_t first, int64_t chunk, const void* logits)>& take);

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_LAYERS_HEAD_H_
