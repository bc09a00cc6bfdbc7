#ifndef EPS_GPU_WORKER_LAYERS_EMBEDDING_H_
#define EPS_GPU_WORKER_LAYERS_EMBEDDING_H_

#include <cstdint>
#include <optional>

#include "common/model/model_spec.h"
#include "gpu_worker/device/kernels.h"
#include "gpu_worker/layers/layer_shape.h"

namespace eps::worker {

// y = dropout(wte[token] + wpe[position] + wtt[type]), without positions where rotary ones turn queries and keys, without
// types where the family has none. Gathers from the wire form: no table is ever expanded.
// Random numbers: use 0 is y's dropout.
struct EmbeddingOffsets {  // in elements of the layer's slot
  int64_t wte = 0;         // (V, C)
  // (context, C), where the family has it. As wte it may be negative: one in place lies where the daemon has it.
  std::optional<int64_t> wpe;
  std::optional<int64_t> wtt;  // (num_types, C), where the family has it
  int64_t num_types = 0;
};
EmbeddingOffsets EmbeddingOffsetsOf(const ModelSpec& model, LayerId layer);

// weights: where `offsets` are counted from, in the wire dtype. y: act (M, C).
void EmbeddingForward(Kernels& kernels, const LayerShape& shape, const MicroBatchKey& key,
                      const EmbeddingOffsets& offsets, const void* weights, const TokenArrays& tokens, void* y);

// dy: act (M, C), overwritten. gradient: the layer's slot, fp32, added to. Needs no weights.
// scratch: KernelSizes::embedding_backward bytes
void EmbeddingBackward(Kernels& kernels, const LayerShape& shape, const MicroBatchKey& key,
                       const EmbeddingOffsets& offsets, const TokenArrays& tokens, void* dy, float* gradient,
                       void* scratch);

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_LAYERS_EMBEDDING_H_
