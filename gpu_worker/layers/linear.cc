#include "gpu_worker/layers/linear.h"

#include <algorithm>
#include <cstddef>

#include "gpu_worker/layers/layer_shape.h"

namespace eps::worker {

std::vector<Linear> Joined(absl::Span<const Linear> parts, int64_t trainable_elems) {
  const auto same_side = [&](int64_t a, int64_t b) { return (a < trainable_elems) == (b < trainable_elems); };
  std::vector<Linear> joined;
  for (const Linear& part : parts) {
    if (!joined.empty()) {
      Linear& last = joined.back();
      const bool weights_follow = last.is_out_in && part.is_out_in && last.in == part.in &&
                                  part.weight == last.weight + last.in * last.out &&
                                  part.first_column == last.first_column + last.out;
      const bool biases_follow = last.bias < 0 ? part.bias < 0 : part.bias == last.bias + last.out;
      if (weights_follow && biases_follow && last.has_adapter == part.has_adapter &&
          same_side(last.weight, part.weight) && same_side(last.bias, part.bias)) {
        last.out += part.out;
        continue;
      }
    }
    joined.push_back(part);
  }
  return joined;
}

Dropout LinearContext::LoraDropout(const Linears& linears) const {
  return key.MakeDropout(lora_dropout, linears.dropout_use, M * linears.own.front().in);
}

const void* LinearContext::AdaptersInput(const Linears& linears, const void* x) const {
  const Dropout dropout = LoraDropout(linears);
  if (linears.a.empty() || dropout.rate == 0) return x;
  kernels.ApplyDropout({.n = M * linears.own.front().in, .x = x, .y = dropped, .dropout = dropout});
  return dropped;
}

void LinearContext::MakeLora(const Linears& linears, const void* x) const {
  MakeLoraOf(linears, AdaptersInput(linears, x));
}

void LinearContext::MakeLoraOf(const Linears& linears, const void* adapters_input) const {
  for (const Linear& a : linears.a) {
    MatMulArgs product = Forward(a, adapters_input, lora, lora_width);
    product.scale = lora_scale;
    kernels.MatMul(product);
  }
}

MatMulArgs LinearContext::ForwardAdapter(const Adapter& adapter, void* y, int64_t ld) const {
  MatMulArgs product = Forward(adapter.b, At(lora, adapter.t_column * act_bytes), y, ld);
  product.lda = lora_width;
  return product;
}

void LinearContext::ForwardAdapters(const Linears& linears, const void* x, void* y, int64_t ld) const {
  MakeLora(linears, x);
  for (const Adapter& adapter : linears.adapters) kernels.MatMul(ForwardAdapter(adapter, y, ld));
}

MatMulArgs LinearContext::Forward(const Linear& l, const void* x, void* y, int64_t ld) const {
  return {.M = M,
          .N = l.out,
          .K = l.in,
          .a = x,
          .lda = l.in,
          .b = At(weights, l.weight * act_bytes),
          .ldb = l.is_out_in ? l.in : l.out,
          .trans_b = l.is_out_in,
          .c = At(y, l.first_column * act_bytes),
          .ldc = ld,
          .accumulate = l.has_adapter,
          .bias = l.bias < 0 ? nullptr : At(weights, l.bias * act_bytes)};
}

void LinearContext::BackwardAdapters(const Linears& linears, const void* dy, int64_t ld) const {
  for (const Adapter& adapter : linears.adapters) {
    kernels.MatMul({.M = M,
                    .N = adapter.b.in,
                    .K = adapter.b.out,
                    .a = At(dy, adapter.b.first_column * act_bytes),
                    .lda = ld,
                    .b = At(weights, adapter.b.weight * act_bytes),
                    .ldb = adapter.b.in,
                    .c = At(d_lora, adapter.t_column * act_bytes),
                    .ldc = lora_width,
                    .scale = lora_scale});
  }
}

void LinearContext::BackwardInput(const Linears& linears, const void* dy, int64_t ld, void* dx,
                                  const void* residual) const {
  bool is_first = true;
  const auto add = [&](const Linear& l, const void* d_out, int64_t d_out_ld, const void* onto = nullptr) {
    MatMulArgs product = {.M = M,
                          .N = l.in,
                          .K = l.out,
                          .a = At(d_out, l.first_column * act_bytes),
                          .lda = d_out_ld,
                          .b = At(weights, l.weight * act_bytes),
                          .ldb = l.is_out_in ? l.in : l.out,
                          .trans_b = !l.is_out_in,
                          .c = dx,
                          .ldc = l.in,
                          .accumulate = !is_first};
    if (onto != nullptr) {
      product.epilogue = MatMulArgs::Epilogue::kResidual;
      product.residual = onto;
    }
    is_first = false;
    kernels.MatMul(product);
  };
  // The adapters' part first: it alone goes back through their dropout.
  for (const Linear& a : linears.a) add(a, d_lora, lora_width);
  if (const Dropout dropout = LoraDropout(linears); !linears.a.empty() && dropout.rate > 0) {
    kernels.ApplyDropout({.n = M * linears.own.front().in, .x = dx, .y = dx, .dropout = dropout});
  }
  for (const Linear& l : linears.own) {
    add(l, dy, ld, &l == &linears.own.front() ? residual : nullptr);
  }
}

void LinearContext::BackwardWeights(const Linears& linears, const void* x, const void* dy, int64_t ld,
                                    float* gradient) const {
  for (const Linear& l : linears.own) BackwardWeight(l, x, l.in, dy, ld, gradient);
  if (linears.a.empty()) return;
  const void* adapters_input = AdaptersInput(linears, x);
  const bool any_b_trains = std::any_of(linears.adapters.begin(), linears.adapters.end(),
                                        [&](const Adapter& adapter) { return trains(adapter.b); });
  // t again: a thin product, where keeping it would take memory for all layers.
  if (any_b_trains) MakeLoraOf(linears, adapters_input);
  for (const Adapter& adapter : linears.adapters) {
    BackwardWeight(adapter.b, At(lora, adapter.t_column * act_bytes), lora_width, dy, ld, gradient);
  }
  for (const Linear& a : linears.a) BackwardWeight(a, adapters_input, a.in, d_lora, lora_width, gradient);
}

void LinearContext::BackwardWeight(const Linear& l, const void* x, int64_t ldx, const void* dy, int64_t ld,
                                   float* gradient) const {
  if (!trains(l)) return;
  const void* columns = At(dy, l.first_column * act_bytes);
  MatMulArgs product = {
      .K = M, .trans_a = true, .c = gradient + l.weight, .c_is_gradient = true, .accumulate = !starts_gradient};
  product.M = l.is_out_in ? l.out : l.in;
  product.N = l.is_out_in ? l.in : l.out;
  product.a = l.is_out_in ? columns : x;
  product.lda = l.is_out_in ? ld : ldx;
  product.b = l.is_out_in ? x : columns;
  product.ldb = l.is_out_in ? ldx : ld;
  product.ldc = product.N;
  kernels.MatMul(product);
}

void LinearContext::BackwardBiases(const Linears& linears, const void* dy, int64_t ld, float* gradient,
                                   void* scratch) const {
  for (const Linear& l : linears.own) {
    float* out = BiasGradient(l, gradient);
    if (out == nullptr) continue;
    kernels.ColumnSum(
        {.M = M, .N = l.out, .ld = ld, .x = At(dy, l.first_column * act_bytes), .out = out, .scratch = scratch});
  }
}

float* LinearContext::BiasGradient(const Linear& linear, float* gradient) const {
  return linear.bias < 0 || linear.bias >= trainable_elems ? nullptr : gradient + linear.bias;
}

int64_t LinearScratchBytes(const Linears& linears, int64_t M, const KernelSizes& kernels) {
  int64_t num_bytes = 0;
  for (const Linear& l : linears.own) {
    if (l.bias >= 0) num_bytes = std::max(num_bytes, kernels.column_sum(M, l.out));
  }
  return num_bytes;
}

}  // namespace eps::worker
