#ifndef EPS_GPU_WORKER_LAYERS_LAYER_SHAPE_H_
#define EPS_GPU_WORKER_LAYERS_LAYER_SHAPE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "common/base/byte_size.h"
#include "common/base/ids.h"
#include "common/model/model_spec.h"
#include "common/numeric/philox.h"
#include "common/numeric/quantized.h"
#include "common/spec/preference_config.h"
#include "common/spec/run_config.h"
#include "common/tensor/dtype.h"
#include "gpu_worker/device/arena_span.h"
#include "gpu_worker/device/kernels.h"

namespace eps::worker {

// The adapters of a model's blocks (LoraConfig), of which one may have more than another: each figure is the most of any, so
// that sizes hold for all, and times are no less than a block's.
struct LoraShape {
  int64_t rank = 0;  // 0: there are none
  double scale = 1;
  double dropout = 0;
  int64_t t_width = 0;       // columns of t (linear.h) of one input
  int64_t widest_input = 0;  // of those that enter adapters of the attention part
  int64_t widest_feed_forward_input = 0;
  // Over all adapters of a block, what comes in and what comes out; of that behind the activation alone, both.
  int64_t in_columns = 0, out_columns = 0, down_columns = 0;
  int64_t frozen_elems = 0;  // of a block's products
};

// A mixture of experts in a model's blocks (ExpertsConfig).
struct ExpertsShape {
  int64_t num = 0, per_token = 0;  // 0: there are none
  bool normalizes = true;

  bool are_on() const { return num > 0; }
};

// The shape of one micro-batch in any layer of a model. All that sizes depend on.
struct LayerShape {
  int64_t B = 0, T = 0, C = 0, H = 0, V = 0;
  int64_t kv_heads = 0, D = 0;  // heads of keys and values; elements of any head
  int64_t F = 0;                // width of the feed-forward part, or of an expert's
  bool has_mean = true;         // layer norms; else RMS norms
  // Each block adds to its norms' outputs, not to their inputs: layer norms behind the sums, as in BERT, of which each is
  // computed by the layer behind it.
  bool adds_to_normed = false;
  bool is_causal = true;  // attention
  bool is_gated = false;  // SwiGLU; else `activation`
  Activation activation = Activation::kGeluTanh;
  bool is_rotary = false;  // positions turn queries and keys; else the embedding adds them
  bool has_qk_norm = false;
  bool has_types = false;       // of tokens; the embedding adds theirs
  bool has_dense_head = false;  // between the final norm and the logits' product
  int64_t num_classes = 0;      // a classifier's; 0: a language model
  bool has_documents = false;   // samples of several documents
  int64_t window = 0;           // of attention; 0: none
  // Rows that the feed-forward part computes at a time (BatchConfig), fewer than a micro-batch of the run has; 0: all. A
  // shorter text that is sampled has one tile of all its rows, as memory is laid out for tiles.
  int64_t feed_forward_tile = 0;
  ExpertsShape experts;
  PreferenceConfig preferences;  // of a run
  LoraShape lora;
  int64_t quantized_elems = 0;                      // of the block that has most: BlobSpec::is_quantized
  std::optional<QuantizedFormat> quantized_format;  // which they are in; empty: there are none
  double layer_norm_eps = 1e-5;
  // input_dropout: of what the first block reads, behind its norm.
  double embedding_dropout = 0, input_dropout = 0, attention_dropout = 0, residual_dropout = 0, classifier_dropout = 0;
  Dtype wire = Dtype::kBf16;    // what weights are pulled in
  Dtype compute = Dtype::kF32;  // of activations, and of weights in kernels

  int64_t M() const { return B * T; }
  bool is_classifier() const { return num_classes > 0; }
  int64_t num_outputs() const { return is_classifier() ? num_classes : V; }  // logits of a row
  int64_t num_labels() const { return is_classifier() ? B : M(); }
  int64_t q_width() const { return H * D; }
  int64_t qkv_width() const { return (H + 2 * kv_heads) * D; }
  int64_t up_width() const { return is_gated ? 2 * F : F; }  // gate and up, or up alone
  bool is_tiled() const { return feed_forward_tile > 0; }
  int64_t tile_rows() const { return is_tiled() ? std::min(feed_forward_tile, M()) : M(); }
  // One that has all rows, or more, is none; nor has one with experts any.
  void SetFeedForwardTile(int64_t rows) { feed_forward_tile = rows < M() && !experts.are_on() ? rows : 0; }
  // Of the feed-forward part, at a time.
  int64_t mlp_rows() const { return experts.are_on() ? M() * experts.per_token : tile_rows(); }
  bool expands() const { return wire != compute; }
  // Whether a block's weights are brought to the compute dtype as a whole, before its kernels run.
  bool expands_blocks() const { return expands() || quantized_elems > 0; }
  int64_t act_bytes() const { return SizeOf(compute); }
  int64_t rows_bytes(int64_t width) const { return M() * width * act_bytes(); }  // act (M, width)
  int64_t tile_bytes(int64_t width) const { return tile_rows() * width * act_bytes(); }
  int64_t mlp_bytes(int64_t width) const { return mlp_rows() * width * act_bytes(); }
  int64_t boundary_bytes() const { return rows_bytes(C); }
  // What a micro-batch consists of: token ids, labels, types of tokens (has_types), what its sequences are by the model
  // without adapters (preferences.has_reference()), and where each token's document begins and ends (has_documents). Each
  // is int32 (M), labels num_labels(), the reference SequenceScore (B), aligned.
  int64_t token_array_bytes() const { return RoundUp(M() * int64_t{sizeof(int32_t)}, kArenaAlignBytes); }
  int64_t labels_offset_bytes() const { return token_array_bytes(); }
  int64_t types_offset_bytes() const { return 2 * token_array_bytes(); }
  int64_t reference_offset_bytes() const { return (has_types ? 3 : 2) * token_array_bytes(); }
  int64_t reference_bytes() const {
    return preferences.has_reference() ? RoundUp(B * int64_t{sizeof(SequenceScore)}, kArenaAlignBytes) : 0;
  }
  int64_t document_first_offset_bytes() const { return reference_offset_bytes() + reference_bytes(); }
  int64_t document_end_offset_bytes() const { return document_first_offset_bytes() + token_array_bytes(); }
  int64_t documents_bytes() const { return 2 * token_array_bytes(); }
  int64_t token_bytes() const { return document_first_offset_bytes() + (has_documents ? documents_bytes() : 0); }
};

// What a layer's shape depends on beside the model.
struct BatchShape {
  int64_t micro_batch = 1;
  bool has_documents = false;
  int64_t feed_forward_tile = 0;
};
LayerShape MakeLayerShape(const ModelSpec& model, const BatchShape& batch, Dtype wire, Dtype compute);
// A run's.
LayerShape MakeLayerShape(const ModelSpec& model, const RunConfig& run, Dtype compute);

// A micro-batch's arrays in one place, as LayerShape lays them out; those that the shape has not are null.
struct TokenArrays {
  TokenArrays(const LayerShape& shape, const void* base);

  const int32_t* tokens = nullptr;
  const int32_t* labels = nullptr;
  const int32_t* types = nullptr;
  Documents documents;
};

// What one layer needs of the arena, for one micro-batch.
struct LayerSizes {
  int64_t wire_bytes = 0;              // a weight slot
  int64_t expanded_bytes = 0;          // its weights in the compute dtype; 0 if nothing is expanded as a whole
  int64_t gradient_bytes = 0;          // fp32, GradientElems
  int64_t zeroed_gradient_bytes = 0;   // of these, ZeroedGradientRanges
  int64_t inner_bytes = 0;             // what backward needs beside the boundary
  int64_t forward_scratch_bytes = 0;   // recomputing needs no more than that
  int64_t backward_scratch_bytes = 0;  // the head's one visit is counted here
  int64_t kept_logits_bytes = 0;       // beside, where the head keeps its logits (HeadArgs)
};
// How much of the layer's slot its backward writes gradients to, from the start on: all that is trained, and what kernels
// make in passing of frozen vectors. 0 below the lowest layer that trains, which has no backward.
int64_t GradientElems(const ModelSpec& model, const LayerSpec& layer);
// Elements [first, end) of a layer's slot.
struct ElemRange {
  int64_t first = 0, end = 0;

  int64_t num_elems() const { return end - first; }
};
// What of GradientElems must be zero before a vnode's first micro-batch, rising, from multiples of kTensorAlignElems on. The
// rest are gradients of matrices, a product each, which that micro-batch writes (BlockArgs::starts_gradient). Of the embedding
// all must be, as tokens choose the rows.
std::vector<ElemRange> ZeroedGradientRanges(const ModelSpec& model, const LayerSpec& layer);
LayerSizes SizesOf(const ModelSpec& model, const LayerSpec& layer, const LayerShape& shape, const KernelSizes& kernels);

// Rows [first, end) of a micro-batch.
struct RowRange {
  int64_t first = 0, end = 0;

  int64_t num_rows() const { return end - first; }
};

// Which micro-batch a layer runs: all that its random numbers depend on.
struct MicroBatchKey {
  uint64_t seed = 0;
  StepId step;
  int vnode = 0;
  LayerId layer;
  int64_t micro_batch = 0;  // its place within the vnode
  bool training = true;     // false: no dropout

  // The dropout number `use` of the layer, over an array of `num_elems` elements a micro-batch, of which it begins at
  // `first`, a multiple of 4. A micro-batch's elements start at a multiple of 4 because one counter makes four numbers.
  Dropout MakeDropout(double rate, int use, int64_t num_elems, int64_t first = 0) const {
    Dropout dropout;
    dropout.rate = training ? rate : 0;
    dropout.key = RandomKey{.seed = seed, .step = step.value(), .vnode = vnode, .layer = layer.value(), .use = use};
    dropout.first_element = micro_batch * RoundUp(num_elems, 4) + first;
    return dropout;
  }
};

// Lays arrays one after the other; sizes and addresses come from the same code, so they cannot differ.
class Layout {
 public:
  // The offset of the next array.
  int64_t Take(int64_t num_bytes) {
    const int64_t offset = total_bytes_;
    total_bytes_ = RoundUp(offset + num_bytes, kArenaAlignBytes);
    return offset;
  }
  int64_t total_bytes() const { return total_bytes_; }

 private:
  int64_t total_bytes_ = 0;
};

inline std::byte* At(void* base, int64_t offset_bytes) { return static_cast<std::byte*>(base) + offset_bytes; }
inline const std::byte* At(const void* base, int64_t offset_bytes) {
  return static_cast<const std::byte*>(base) + offset_bytes;
}
inline float* FloatsAt(void* base, int64_t offset_bytes) { return reinterpret_cast<float*>(At(base, offset_bytes)); }
inline const float* FloatsAt(const void* base, int64_t offset_bytes) {
  return reinterpret_cast<const float*>(At(base, offset_bytes));
}

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_LAYERS_LAYER_SHAPE_H_
