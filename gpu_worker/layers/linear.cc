#include "gpu_worker/layers/linear.h"

#include <algorithm>
#include <cstddef>

#include "absl/types/span.h"
#include "common/base/byte_size.h"
#include "common/base/status_macros.h"
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

int64_t Linears::t_width() const {
  return adapters.empty() ? 0 : adapters.back().t_column + RoundUp(adapters.back().b.in, kTAlignElems);
}

LinearContext LinearContext::Of(RowRange other) const {
  LinearContext context = *this;
  context.rows = other;
  context.starts_gradient = starts_gradient && other.first == 0;
  return context;
}

MatMulArgs LinearContext::Product(const Linear& l, const void* x, int64_t ldx, const LinearOutput& output) const {
  return {.M = M(),
          .N = l.out,
          .K = l.in,
          .a = x,
          .lda = ldx,
          .b = At(weights, l.weight * act_bytes),
          .ldb = l.is_out_in ? l.in : l.out,
          .trans_b = l.is_out_in,
          .c = At(output.y, l.first_column * act_bytes),
          .ldc = output.ld,
          .bias = l.bias < 0 ? nullptr : At(weights, l.bias * act_bytes)};
}

Dropout LinearContext::DropoutOf(const Linears& linears) const {
  EPS_CHECK(linears.dropout_use >= 0);
  return key.MakeDropout(lora.dropout, linears.dropout_use, micro_batch_rows * linears.in(), rows.first * linears.in());
}

const void* LinearContext::AdaptersInput(const Linears& linears, const void* x) const {
  const Dropout dropout = DropoutOf(linears);
  if (dropout.rate == 0) return x;
  kernels.ApplyDropout({.n = M() * linears.in(), .x = x, .y = scratch.dropped, .dropout = dropout});
  return scratch.dropped;
}

void LinearContext::MakeT(const Linears& linears, const void* adapters_input) const {
  for (const Linear& a : linears.as) {
    MatMulArgs product = Product(a, adapters_input, a.in, {scratch.t, scratch.t_width});
    product.scale = lora.scale;
    kernels.MatMul(product);
  }
}

const void* LinearContext::ColumnsOfT(const Adapter& adapter) const {
  return At(scratch.t, adapter.t_column * act_bytes);
}

void LinearContext::Forward(const Linears& linears, const void* x, const LinearOutput& output,
                            const MatMulArgs& last) const {
  Forward(
      linears, x, [&output](const Linear&) { return output; }, last);
}

void LinearContext::Forward(const Linears& linears, const void* x,
                            absl::FunctionRef<LinearOutput(const Linear&)> output_of, const MatMulArgs& last) const {
  EPS_CHECK(last.epilogue == MatMulArgs::Epilogue::kNone || linears.products.size() == 1);
  // The adapters first, and alone: what they add is small. Rounded by itself it keeps its digits, and the large product's
  // sum is added to it before that is rounded. On top of a residual of 16 bits most of it would be lost, always in the
  // same direction, as such a residual is a number of 16 bits already.
  const absl::Span<const Adapter> adapters =
      has_adapters ? absl::MakeConstSpan(linears.adapters) : absl::Span<const Adapter>();
  if (!adapters.empty()) MakeT(linears, AdaptersInput(linears, x));
  for (const Adapter& adapter : adapters) {
    kernels.MatMul(Product(adapter.b, ColumnsOfT(adapter), scratch.t_width, output_of(adapter.b)));
  }
  for (const Linear& l : linears.products) {
    MatMulArgs product = Product(l, x, l.in, output_of(l));
    product.accumulate = l.has_adapter && has_adapters;
    product.epilogue = last.epilogue;
    product.activation = last.activation;
    product.activated = last.activated;
    product.residual = last.residual;
    product.dropout = last.dropout;
    kernels.MatMul(product);
  }
}

LinearGradient LinearContext::GradientOf(const Linears& linears, const void* dy, int64_t ld) const {
  for (const Adapter& adapter : linears.adapters) {
    const Linear& b = adapter.b;
    kernels.MatMul({.M = M(),
                    .N = b.in,
                    .K = b.out,
                    .a = At(dy, b.first_column * act_bytes),
                    .lda = ld,
                    .b = At(weights, b.weight * act_bytes),
                    .ldb = b.in,
                    .c = At(scratch.dt, adapter.t_column * act_bytes),
                    .ldc = scratch.t_width,
                    .scale = lora.scale});
  }
  return {.dy = dy, .ld = ld};
}

void LinearContext::BackwardInput(const Linears& linears, const LinearGradient& gradient, void* dx,
                                  const void* residual) const {
  bool is_first = true;
  const auto add = [&](const Linear& l, const void* d_out, int64_t ld) {
    MatMulArgs product = {.M = M(),
                          .N = l.in,
                          .K = l.out,
                          .a = At(d_out, l.first_column * act_bytes),
                          .lda = ld,
                          .b = At(weights, l.weight * act_bytes),
                          .ldb = l.is_out_in ? l.in : l.out,
                          .trans_b = !l.is_out_in,
                          .c = dx,
                          .ldc = l.in,
                          .accumulate = !is_first};
    if (residual != nullptr && &l == &linears.products.front()) {
      product.epilogue = MatMulArgs::Epilogue::kResidual;
      product.residual = residual;
    }
    is_first = false;
    kernels.MatMul(product);
  };
  // The adapters first, as in Forward; and they alone go back through their dropout.
  for (const Linear& a : linears.as) add(a, scratch.dt, scratch.t_width);
  if (!linears.adapters.empty()) {
    const Dropout dropout = DropoutOf(linears);
    if (dropout.rate > 0) kernels.ApplyDropout({.n = M() * linears.in(), .x = dx, .y = dx, .dropout = dropout});
  }
  for (const Linear& l : linears.products) add(l, gradient.dy, gradient.ld);
}

void LinearContext::BackwardWeights(const Linears& linears, const void* x, const LinearGradient& gradient,
                                    float* to) const {
  for (const Linear& l : linears.products) BackwardWeight(l, x, l.in, gradient.dy, gradient.ld, to);
  if (linears.adapters.empty()) return;
  const void* adapters_input = AdaptersInput(linears, x);
  const bool any_b_trains = std::any_of(linears.adapters.begin(), linears.adapters.end(),
                                        [&](const Adapter& adapter) { return trains(adapter.b); });
  // t again: a thin product, where keeping it would take memory for all layers.
  if (any_b_trains) MakeT(linears, adapters_input);
  for (const Adapter& adapter : linears.adapters) {
    BackwardWeight(adapter.b, ColumnsOfT(adapter), scratch.t_width, gradient.dy, gradient.ld, to);
  }
  for (const Linear& a : linears.as) BackwardWeight(a, adapters_input, a.in, scratch.dt, scratch.t_width, to);
}

void LinearContext::BackwardWeight(const Linear& l, const void* x, int64_t ldx, const void* dy, int64_t ld,
                                   float* to) const {
  if (!trains(l)) return;
  const void* columns = At(dy, l.first_column * act_bytes);
  MatMulArgs product = {
      .K = M(), .trans_a = true, .c = to + l.weight, .c_is_gradient = true, .accumulate = !starts_gradient};
  product.M = l.is_out_in ? l.out : l.in;
  product.N = l.is_out_in ? l.in : l.out;
  product.a = l.is_out_in ? columns : x;
  product.lda = l.is_out_in ? ld : ldx;
  product.b = l.is_out_in ? x : columns;
  product.ldb = l.is_out_in ? ldx : ld;
  product.ldc = product.N;
  kernels.MatMul(product);
}

void LinearContext::BackwardBiases(const Linears& linears, const LinearGradient& gradient, float* to,
                                   void* kernel_scratch) const {
  for (const Linear& l : linears.products) {
    float* out = BiasGradient(l, to);
    if (out == nullptr) continue;
    kernels.ColumnSum({.M = M(),
                       .N = l.out,
                       .ld = gradient.ld,
                       .x = At(gradient.dy, l.first_column * act_bytes),
                       .out = out,
                       .scratch = kernel_scratch});
  }
}

float* LinearContext::BiasGradient(const Linear& linear, float* to) const {
  return linear.bias < 0 || linear.bias >= trainable_elems ? nullptr : to + linear.bias;
}

int64_t LinearScratchBytes(const Linears& linears, int64_t M, const KernelSizes& kernels) {
  int64_t num_bytes = 0;
  for (const Linear& l : linears.products) {
    if (l.bias >= 0) num_bytes = std::max(num_bytes, kernels.column_sum(M, l.out));
  }
  return num_bytes;
}

}  // namespace eps::worker
