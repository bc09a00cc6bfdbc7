#include "gpu_worker/layers/embedding.h"

#include "gpu_worker/layers/tensor_offsets.h"

namespace eps::worker {

EmbeddingOffsets EmbeddingOffsetsOf(const ModelSpec& model, LayerId layer) {
  return {.wte = TensorOffset(model, layer, TensorRole::kTokenTable),
          .wpe = FindTensorOffset(model, layer, TensorRole::kPositionTable),
          .wtt = FindTensorOffset(model, layer, TensorRole::kTypeTable),
          .num_types = model.config.num_types};
}

void EmbeddingForward(Kernels& kernels, const LayerShape& shape, const MicroBatchKey& key,
                      const EmbeddingOffsets& offsets, const void* weights, const TokenArrays& tokens, void* y) {
  const int64_t elem_bytes = SizeOf(shape.wire);
  kernels.Embedding({.B = shape.B,
                     .T = shape.T,
                     .C = shape.C,
                     .V = shape.V,
                     .tokens = tokens.tokens,
                     .wte = At(weights, offsets.wte * elem_bytes),
                     .wpe = offsets.wpe.has_value() ? At(weights, *offsets.wpe * elem_bytes) : nullptr,
                     .types = tokens.types,
                     .wtt = offsets.wtt.has_value() ? At(weights, *offsets.wtt * elem_bytes) : nullptr,
                     .documents = tokens.documents,
                     .wire_dtype = shape.wire,
                     .y = y,
                     .dropout = key.MakeDropout(shape.embedding_dropout, 0, shape.M() * shape.C)});
}

void EmbeddingBackward(Kernels& kernels, const LayerShape& shape, const MicroBatchKey& key,
                       const EmbeddingOffsets& offsets, const TokenArrays& tokens, void* dy, float* gradient,
                       void* scratch) {
  kernels.EmbeddingBackward({.B = shape.B,
                             .T = shape.T,
                             .C = shape.C,
                             .V = shape.V,
                             .tokens = tokens.tokens,
                             .types = tokens.types,
                             .documents = tokens.documents,
                             .dy = dy,
                             .dwte = gradient + offsets.wte,
                             .dwpe = offsets.wpe.has_value() ? gradient + *offsets.wpe : nullptr,
                             .dwtt = offsets.wtt.has_value() ? gradient + *offsets.wtt : nullptr,
                             .num_types = offsets.num_types,
                             .dropout = key.MakeDropout(shape.embedding_dropout, 0, shape.M() * shape.C),
                             .scratch = scratch});
}

}  // namespace eps::worker
