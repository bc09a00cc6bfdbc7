#include "gpu_worker/plan/layer_operations.h"

#include "gpu_worker/layers/head.h"

namespace eps::worker {
namespace {

LayerOperations BlockOperations(const LayerShape& s) {
  const auto rows = static_cast<double>(s.M());
  const auto product = [&](int64_t in, int64_t out) {
    return 2 * rows * static_cast<double>(in) * static_cast<double>(out);
  };
  const double qkv = product(s.C, s.qkv_width()), attention_out = product(s.q_width(), s.C);
  const double routed = s.experts.are_on() ? static_cast<double>(s.experts.per_token) : 1;  // rows of a token
  const double up = routed * product(s.C, s.up_width()), down = routed * product(s.F, s.C);
  const double router = product(s.C, s.experts.num);
  // Queries with keys, and weights with values; half of it where a token sees none behind it.
  const double pairs = rows * static_cast<double>(s.T) * (s.is_causal ? 0.5 : 1);
  const double attention = 2 * 2 * pairs * static_cast<double>(s.q_width());
  const double products = qkv + attention_out + router + up + down;
  // Of adapters: x A^T, and t B^T.
  const auto thin = [&](int64_t columns) { return product(columns, s.lora.rank); };
  const double as = thin(s.lora.in_columns), adapters = as + thin(s.lora.out_columns);
  LayerOperations operations;
  operations.forward = products + adapters + attention;
  operations.recompute = operations.forward - down - thin(s.lora.down_columns);
  if (s.is_tiled()) operations.recompute -= up;  // and its adapters, which are counted on
  // Each product twice, with the gradient, but of what is frozen beside adapters, and x A^T once more; attention's backward
  // makes its weights again: five products for two.
  operations.backward =
      2 * products - 2 * rows * static_cast<double>(s.lora.frozen_elems) + 2 * adapters + as + 2.5 * attention;
  if (s.is_tiled()) operations.backward += up;
  const int64_t columns = 8 * s.C + 2 * s.qkv_width() + 3 * s.up_width();
  // What enters adapters is read by them, too, and what they add to is written twice and read once more.
  const int64_t adapters_columns = s.lora.in_columns * (s.lora.dropout > 0 ? 3 : 1) + 2 * s.lora.out_columns;
  operations.bytes = static_cast<double>(s.act_bytes()) * rows * static_cast<double>(columns + adapters_columns);
  if (s.experts.are_on()) {  // rows that are gathered and summed, and each expert's weights, whatever rows it has
    operations.bytes +=
        static_cast<double>(s.act_bytes()) * (routed - 1) * rows * static_cast<double>(3 * s.up_width());
    operations.bytes += static_cast<double>(s.act_bytes()) * routed * rows * static_cast<double>(6 * s.C);
    operations.bytes += static_cast<double>(s.act_bytes() * s.experts.num) * static_cast<double>(s.C) *
                        static_cast<double>(s.up_width() + s.F);
  }
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
