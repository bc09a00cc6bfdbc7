#ifndef EPS_COMMON_MODEL_MODEL_SPEC_H_
#define EPS_COMMON_MODEL_MODEL_SPEC_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/model/model_config.h"
#include "common/numeric/quantized.h"
#include "common/schedule/chunk_range.h"
#include "common/tensor/dtype.h"

namespace eps {

// A slice of a blob that is streamed and updated at once, in elements (1 MiB of fp32).
inline constexpr int64_t kChunkElems = 262144;
// Every tensor of a blob starts at a multiple of this many elements, so that it is 64-byte aligned in
// any wire dtype. The gap is padding: zero, and kept zero.
inline constexpr int64_t kTensorAlignElems = 64;

enum class InitRule { kZeros, kOnes, kNormal };

// What a tensor is to the layer that has it, whatever its name. No two of a layer's own tensors (LoraPart::kNone) are
// the same, but of experts, which TensorSpec::expert tells apart; an adapter's are what the weight beside them is.
enum class TensorRole {
  kTokenTable,     // (vocab, d_model); of the embedding, and of a tied head
  kPositionTable,  // (context, d_model), or more rows: max_positions
  kTypeTable,      // (num_types, d_model)
  kAttentionNormScale,
  kAttentionNormShift,
  kQkvWeight,  // queries, keys and values in one product
  kQkvBias,
  kQueryWeight,
  kQueryBias,
  kKeyWeight,
  kKeyBias,
  kValueWeight,
  kValueBias,
  kQueryNormScale,  // (head_dim)
  kKeyNormScale,
  kAttentionOutWeight,
  kAttentionOutBias,
  kMlpNormScale,
  kMlpNormShift,
  kRouterWeight,  // (experts, d_model)
  kGateWeight,
  kUpWeight,
  kUpBias,
  kDownWeight,
  kDownBias,
  kFinalNormScale,
  kFinalNormShift,
  kHeadTable,        // (vocab, d_model), of a head that is not tied; a classifier's (classes, d_model)
  kHeadBias,         // (vocab) or (classes)
  kHeadDenseWeight,  // (d_model, d_model): between the final norm and the table
  kHeadDenseBias,
  kHeadDenseNormScale,
  kHeadDenseNormShift,
};

// Whether a tensor is a layer's own or of an adapter beside it (LoraConfig).
enum class LoraPart {
  kNone,
  kA,  // (rank, in)
  kB,  // (out, rank)
};

struct TensorSpec {
  std::string name;            // Hugging Face name, e.g. "transformer.h.3.attn.c_attn.weight"
  std::vector<int64_t> shape;  // row-major; linear weights are (in, out) in GPT-2, (out, in) in the Llama family
  int64_t offset_elems = 0;    // within the blob, a multiple of kTensorAlignElems
  InitRule init = InitRule::kZeros;
  double init_stddev = 0;                     // kNormal only
  TensorRole role = TensorRole::kTokenTable;  // an adapter's: that of the weight that it is beside
  LoraPart lora = LoraPart::kNone;
  int64_t expert = -1;  // which one's it is; -1: of none

  int64_t num_elems() const;
  bool is_of_expert() const { return expert >= 0; }
  bool decays() const { return shape.size() >= 2; }  // the default decay rule
};

// All parameters of one layer, or a tensor that two layers share.
struct BlobSpec {
  BlobId id;
  std::string name;                 // for people: "wte", "wpe", "h.3", "ln_f", "layers.3"
  std::vector<TensorSpec> tensors;  // by rising offset
  int64_t num_elems = 0;            // padding included
  std::vector<LayerId> uses;        // the layers that pull it, in relay order; the index is the `use`
  // Pulled and never pushed: it has no gradient, no moments and no master but its wire form, which is that of the first
  // version for good. Its versions advance with the others'. A tensor is frozen as a whole, and no blob has both kinds.
  bool frozen = false;
  // Of frozen ones: values are in that format, an array of num_elems, whatever the wire dtype. Its chunks are the
  // array's runs.
  std::optional<QuantizedFormat> quantized;

  bool is_quantized() const { return quantized.has_value(); }
  int64_t num_parameters() const;  // padding not included
  int64_t num_chunks() const { return (num_elems + kChunkElems - 1) / kChunkElems; }
  // Elements of chunk `chunk`: kChunkElems, less for the last one.
  int64_t chunk_elems(int64_t chunk) const;

  ChunkRange all_chunks() const { return {.first = 0, .count = num_chunks()}; }
  // A part of the blob in elements: where it begins, and how many it has. An empty one has none; any other lies within
  // the blob.
  int64_t part_first_elem(ChunkRange chunks) const { return chunks.first * kChunkElems; }
  int64_t part_elems(ChunkRange chunks) const;

  // The same in bytes of what is pulled. wire: precision.wire
  int64_t wire_bytes(Dtype wire) const { return BytesOf(num_elems, wire); }
  int64_t chunk_bytes(int64_t chunk, Dtype wire) const { return BytesOf(chunk_elems(chunk), wire); }
  int64_t part_first_byte(ChunkRange chunks, Dtype wire) const { return BytesOf(part_first_elem(chunks), wire); }
  int64_t part_bytes(ChunkRange chunks, Dtype wire) const { return BytesOf(part_elems(chunks), wire); }
  // In which each of its values is one: of a quantized blob bf16, which holds all that any format has.
  Dtype value_dtype(Dtype wire) const { return is_quantized() ? Dtype::kBf16 : wire; }

 private:
  int64_t BytesOf(int64_t elems, Dtype wire) const;
};

// That `chunks` are some, and `blob` has them all; for numbers that anybody sent.
// Errors: INVALID_ARGUMENT naming first_chunk or num_chunks, its value and the bound
absl::Status CheckChunks(const BlobSpec& blob, ChunkRange chunks);

enum class LayerKind { kEmbedding, kBlock, kHead };

struct BlobUse {
  BlobId blob;
  int use = 0;               // index into BlobSpec::uses
  int64_t offset_elems = 0;  // where the blob lies in the layer's weight slot and gradient slot
};

struct LayerSpec {
  LayerId id;
  LayerKind kind = LayerKind::kBlock;
  std::string name;            // "embedding", "h.3", "head"
  std::vector<BlobUse> blobs;  // in slot order: frozen ones last, and of these the quantized one, if there is any
  int64_t num_elems = 0;       // of a slot that holds all of them
  // Those of the blobs that are not frozen, from the slot's start on: what is pushed. 0: the layer trains nothing.
  int64_t trainable_elems = 0;

  bool trains() const { return trainable_elems > 0; }
};

// The model as both programs see it: which layers, which blobs, where each tensor lies.
//
// Relay order: embedding, blocks, head. Pull order of the blobs: that of the layers. A tied token table is used by the
// embedding (use 0) and by the head (use 1).
struct ModelSpec {
  ModelConfig config;
  std::vector<LayerSpec> layers;
  std::vector<BlobSpec> blobs;

  int64_t num_parameters() const;
  int64_t num_elems() const;            // over all blobs, padding included
  int64_t num_trainable_elems() const;  // the same without frozen ones: what is updated; at least one tensor's
  int64_t num_trainable_parameters() const;
  // Below it no layer trains, and a backward pass ends with it.
  LayerId lowest_trainable_layer() const;
  bool has_quantized() const;  // any blob
  // A layer's weights as they are pulled, one blob behind the other; and where in them a blob begins: what lies before
  // any is in the wire dtype, as a quantized one is the last.
  int64_t wire_bytes(const LayerSpec& layer, Dtype wire) const;
  static int64_t first_wire_byte(const BlobUse& use, Dtype wire) { return use.offset_elems * SizeOf(wire); }
  // The most of any layer, and of any block; 0: there is none.
  int64_t max_layer_bytes(Dtype wire) const;
  int64_t max_block_bytes(Dtype wire) const;
  // Of the block that trains most; 0: there is none.
  int64_t max_trainable_block_elems() const;
  const BlobSpec& blob(BlobId id) const { return blobs[id.value()]; }
  const LayerSpec& layer(LayerId id) const { return layers[id.value()]; }
};

// Of a block's experts the matrices of one role lie at even distances (ExpertStride).
// Errors: INVALID_ARGUMENT naming the field (as it is written in a RunSpec), the value and the bound; AddAdapters',
//         Freeze's; model.freeze: some experts of a block without the others
absl::StatusOr<ModelSpec> BuildModel(const ModelConfig& config);

// How far from an expert's matrix of that role the next one's lies in the layer's slot, in elements; 0: there is one.
int64_t ExpertStride(const ModelSpec& model, const LayerSpec& layer, TensorRole role);

// Fills `values` (num_elems() of the tensor) with its initial fp32 values; a pure function of
// (seed, tensor name, element), whatever the order or the threads.
void InitTensor(const TensorSpec& tensor, uint64_t seed, float* values);
// The same of a part: the elements from `first_elem`, an even number, on.
void InitTensorPart(const TensorSpec& tensor, uint64_t seed, int64_t first_elem, absl::Span<float> values);

}  // namespace eps

#endif  // EPS_COMMON_MODEL_MODEL_SPEC_H_
