#include "gpu_worker/plan/layer_operations.h"

#include "gpu_worker/layers/head.h"

namespace eps::worker {
namespace {

// Of adapters beside every product.
struct LoraOperations {
  explicit LoraOperations(const LayerShape& s) {
    const double per_column = 2 * static_cast<double>(s.M()) * static_cast<double>(s.lora_rank);
    const auto per_columns = [&](int64_t columns) { return per_column * static_cast<double>(columns); };
    as = per_columns(s.loras_per_input * s.C + s.q_width() + (s.is_gated ? 2 : 1) * s.C + s.F);
    down = per_columns(s.F + s.C);
    products = as + per_columns(s.qkv_width() + s.C + s.up_width() + s.C);
  }
  double as = 0;        // x A^T alone
  double down = 0;      // of the product behind the activation
  double products = 0;  // all of them
};

LayerOperations BlockOperations(const LayerShape& s) {
  const auto rows = static_cast<double>(s.M());
  const auto product = [&](int64_t in, int64_t out) {
    return 2 * rows * static_cast<double>(in) * static_cast<double>(out);
  };
  const double qkv = product(s.C, s.qkv_width()), attention_out = product(s.q_width(), s.C);
  const double up = product(s.C, s.up_width()), down = product(s.F, s.C);
  // Queries with keys, and weights with values; half of it where a token sees none behind it.
  const double pairs = rows * static_cast<double>(s.T) * (s.is_causal ? 0.5 : 1);
  const double attention = 2 * 2 * pairs * static_cast<double>(s.q_width());
  const double products = qkv + attention_out + up + down;
  const LoraOperations lora(s);
  LayerOperations operations;
  operations.forward = products + lora.products + attention;
  operations.recompute = operations.forward - down - lora.down;
  // Each product twice, with the gradient, but once where it is frozen beside an adapter, which makes x A^T again;
  // attention's backward makes its weights again: five products for two.
  operations.backward = (s.lora_rank > 0 ? products + 2 * lora.products + lora.as : 2 * products) + 2.5 * attention;
  operations.bytes =
      static_cast<double>(s.act_bytes()) * rows * static_cast<double>(8 * s.C + 2 * s.qkv_width() + 3 * s.up_width());
  return operations;
}

LayerOperations HeadOperations(const LayerShape& s) {
  const auto rows = static_cast<double>(s.is_classifier() ? s.B : s.M());
  double product = 2 * rows * static_cast<double>(s.C) * static_cast<double>(s.num_outputs());
  if (s.has_dense_head) product += 2 * rows * static_cast<double>(s.C) * static_cast<double>(s.C);
  const int64_t twice = (s.num_outputs() - 1) / VocabChunk(s) * VocabChunk(s);  // columns of all chunks but the last
  LayerOperations operations;
  operations.forward = product;
  operations.recompute = 2 * rows * static_cast<double>(s.C) * static_cast<double>(twice);
  operations.backward =
      4 * product;  // logits twice (the softmax's sums, then its gradient), and the two of the gradient
  operations.bytes = static_cast<double>(s.act_bytes()) * rows * static_cast<double>(4 * s.C + 3 * s.num_outputs());
  return operations;
}

}  // namespace

LayerOperations OperationsOf(LayerKind kind, const LayerShape& shape) {
  if (kind == LayerKind::kBlock) return BlockOperations(shape);
  if (kind == LayerKind::kHead) return HeadOperations(shape);
  // A row of a table each token, and back: no products.
  return {.bytes = static_cast<double>(shape.act_bytes()) * static_cast<double>(shape.M() * shape.C) * 3};
}

}  // namespace eps::worker
