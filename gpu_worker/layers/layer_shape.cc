#include "gpu_worker/layers/layer_shape.h"

#include <algorithm>

#include "gpu_worker/layers/block.h"
#include "gpu_worker/layers/block_offsets.h"
#include "gpu_worker/layers/head.h"

namespace eps::worker {

LayerShape MakeLayerShape(const ModelSpec& spec, const BatchShape& batch, Dtype wire, Dtype compute) {
  const ModelConfig& model = spec.config;
  LayerShape shape;
  shape.B = batch.micro_batch;
  shape.has_documents = batch.has_documents;
  shape.T = model.context;
  shape.C = model.d_model;
  shape.H = model.num_heads;
  shape.V = model.vocab;
  shape.kv_heads = model.kv_heads();
  shape.D = model.head_dim();
  shape.F = model.ff_width();
  const bool is_llama = model.family == ModelFamily::kLlama, is_bert = model.family == ModelFamily::kBert;
  shape.has_mean = !is_llama;
  shape.is_gated = shape.is_rotary = is_llama;
  shape.adds_to_normed = shape.has_types = shape.has_dense_head = is_bert;
  shape.is_causal = !is_bert;
  shape.activation = is_bert ? Activation::kGelu : Activation::kGeluTanh;
  shape.num_classes = model.num_classes;
  shape.has_qk_norm = model.qk_norm;
  shape.window = model.sliding_window;
  shape.experts = {
      .num = model.experts.num, .per_token = model.experts.per_token, .normalizes = model.experts.normalizes};
  shape.SetFeedForwardTile(batch.feed_forward_tile);
  shape.lora = LoraShapeOf(spec);
  for (const BlobSpec& blob : spec.blobs) {
    if (blob.is_quantized()) shape.quantized_elems = std::max(shape.quantized_elems, blob.num_elems);
  }
  shape.quantized_format = spec.config.frozen_format;
  shape.layer_norm_eps = model.layer_norm_eps;
  (is_bert ? shape.input_dropout : shape.embedding_dropout) = model.embedding_dropout;
  shape.attention_dropout = model.attention_dropout;
  shape.residual_dropout = model.residual_dropout;
  shape.classifier_dropout = model.classifier_dropout;
  shape.wire = wire;
  shape.compute = compute;
  return shape;
}

LayerShape MakeLayerShape(const ModelSpec& model, const RunConfig& run, Dtype compute) {
  LayerShape shape = MakeLayerShape(model,
                                    {.micro_batch = run.batch.micro_batch,
                                     .has_documents = run.data.has_documents(),
                                     .feed_forward_tile = run.batch.feed_forward_tile},
                                    run.precision.wire, compute);
  shape.preferences = run.preferences;
  return shape;
}

TokenArrays::TokenArrays(const LayerShape& shape, const void* base) {
  const auto at = [&](int64_t offset_bytes) { return reinterpret_cast<const int32_t*>(At(base, offset_bytes)); };
  tokens = at(0);
  labels = at(shape.labels_offset_bytes());
  if (shape.has_types) types = at(shape.types_offset_bytes());
  if (shape.has_documents) {
    documents = {.first = at(shape.document_first_offset_bytes()), .end = at(shape.document_end_offset_bytes())};
  }
}

int64_t GradientElems(const ModelSpec& model, const LayerSpec& layer) {
  if (layer.id < model.lowest_trainable_layer()) return 0;
  if (layer.kind == LayerKind::kEmbedding) return layer.num_elems;  // one kernel makes those of all its tables
  int64_t end = layer.trainable_elems;
  for (const BlobUse& use : layer.blobs) {
    for (const TensorSpec& tensor : model.blob(use.blob).tensors) {
      const int64_t tensor_end = use.offset_elems + tensor.offset_elems + tensor.num_elems();
      if (tensor.shape.size() < 2) end = std::max(end, RoundUp(tensor_end, kTensorAlignElems));
    }
  }
  return end;
}

std::vector<ElemRange> ZeroedGradientRanges(const ModelSpec& model, const LayerSpec& layer) {
  std::vector<ElemRange> written;
  for (const BlobUse& use : layer.blobs) {
    for (const TensorSpec& tensor : model.blob(use.blob).tensors) {
      const int64_t first = use.offset_elems + tensor.offset_elems;
      const bool is_products = layer.kind != LayerKind::kEmbedding && tensor.shape.size() >= 2;
      if (is_products && first < layer.trainable_elems) written.push_back({first, first + tensor.num_elems()});
    }
  }
  std::sort(written.begin(), written.end(), [](const ElemRange& a, const ElemRange& b) { return a.first < b.first; });
  const int64_t end = GradientElems(model, layer);
  std::vector<ElemRange> zeroed;
  int64_t at = 0;
  for (const ElemRange& range : written) {
    if (range.first > at) zeroed.push_back({at, range.first});
    at = range.end / kTensorAlignElems * kTensorAlignElems;  // kernels want an aligned start; the product comes later
  }
  if (at < end) zeroed.push_back({at, end});
  return zeroed;
}

LayerSizes SizesOf(const ModelSpec& model, const LayerSpec& layer, const LayerShape& shape,
                   const KernelSizes& kernels) {
  LayerSizes sizes;
  sizes.wire_bytes = model.wire_bytes(layer, shape.wire);
  sizes.gradient_bytes = GradientElems(model, layer) * int64_t{sizeof(float)};
  for (const ElemRange& range : ZeroedGradientRanges(model, layer)) {
    sizes.zeroed_gradient_bytes += range.num_elems() * int64_t{sizeof(float)};
  }
  switch (layer.kind) {
    case LayerKind::kEmbedding:  // gathers from the wire form, and its backward needs the tokens alone
      sizes.backward_scratch_bytes = kernels.embedding_backward(shape.M(), shape.V, shape.C);
      break;
    case LayerKind::kBlock:
      if (shape.expands_blocks()) sizes.expanded_bytes = layer.num_elems * shape.act_bytes();
      sizes.inner_bytes = BlockInner(shape).total_bytes;
      sizes.forward_scratch_bytes = BlockForwardScratchBytes(shape, kernels);
      sizes.backward_scratch_bytes = BlockBackwardScratchBytes(shape, kernels);
      break;
    case LayerKind::kHead:
      sizes.backward_scratch_bytes = HeadScratchBytes(shape, kernels);
      sizes.kept_logits_bytes = KeptLogitsBytes(shape);
      break;
  }
  return sizes;
}

}  // namespace eps::worker
