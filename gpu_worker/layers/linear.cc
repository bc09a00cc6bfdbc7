#include "gpu_worker/layers/linear.h"

#include <algorithm>
#include <cstddef>

#include "gpu_worker/layers/layer_shape.h"

namespace eps::worker {

Linears Joined(absl::Span<const Linear> parts, int64_t trainable_elems) {
  const auto same_side = [&](int64_t a, int64_t b) { return (a < trainable_elems) == (b < trainable_elems); };
  Linears joined;
  for (const Linear& part : parts) {
    if (!joined.empty()) {
      Linear& last = joined.back();
      const bool weights_follow = last.is_out_in && part.is_out_in && last.in == part.in &&
                                  part.weight == last.weight + last.in * last.out &&
                                  part.first_column == last.first_column + last.out;
      const bool biases_follow = last.bias < 0 ? part.bias < 0 : part.bias == last.bias + last.out;
      if (weights_follow && biases_follow && same_side(last.weight, part.weight) && same_side(last.bias, part.bias)) {
        last.out += part.out;
        continue;
      }
    }
    joined.push_back(part);
  }
  return joined;
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
          .bias = l.bias < 0 ? nullptr : At(weights, l.bias * act_bytes)};
}

void LinearContext::BackwardInput(absl::Span<const Linear> linears, const void* dy, int64_t ld, void* dx,
                                  const void* residual) const {
  for (const Linear& l : linears) {
    MatMulArgs product = {.M = M,
                          .N = l.in,
                          .K = l.out,
                          .a = At(dy, l.first_column * act_bytes),
                          .lda = ld,
                          .b = At(weights, l.weight * act_bytes),
                          .ldb = l.is_out_in ? l.in : l.out,
                          .trans_b = !l.is_out_in,
                          .c = dx,
                          .ldc = l.in,
                          .accumulate = &l != &linears.front()};
    if (residual != nullptr && !product.accumulate) {
      product.epilogue = MatMulArgs::Epilogue::kResidual;
      product.residual = residual;
    }
    kernels.MatMul(product);
  }
}

void LinearContext::BackwardWeights(absl::Span<const Linear> linears, const void* x, const void* dy, int64_t ld,
                                    float* gradient) const {
  for (const Linear& l : linears) {
    if (l.weight >= trainable_elems) continue;
    const void* columns = At(dy, l.first_column * act_bytes);
    MatMulArgs product = {
        .K = M, .trans_a = true, .c = gradient + l.weight, .c_is_gradient = true, .accumulate = !starts_gradient};
    product.M = l.is_out_in ? l.out : l.in;
    product.N = l.is_out_in ? l.in : l.out;
    product.a = l.is_out_in ? columns : x;
    product.lda = l.is_out_in ? ld : l.in;
    product.b = l.is_out_in ? x : columns;
    product.ldb = l.is_out_in ? l.in : ld;
    product.ldc = product.N;
    kernels.MatMul(product);
  }
}

void LinearContext::BackwardBiases(absl::Span<const Linear> linears, const void* dy, int64_t ld, float* gradient,
                                   void* scratch) const {
  for (const Linear& l : linears) {
    float* out = BiasGradient(l, gradient);
    if (out == nullptr) continue;
    kernels.ColumnSum(
        {.M = M, .N = l.out, .ld = ld, .x = At(dy, l.first_column * act_bytes), .out = out, .scratch = scratch});
  }
}

float* LinearContext::BiasGradient(const Linear& linear, float* gradient) const {
  return linear.bias < 0 || linear.bias >= trainable_elems ? nullptr : gradient + linear.bias;
}

int64_t LinearScratchBytes(absl::Span<const Linear> linears, int64_t M, const KernelSizes& kernels) {
  int64_t num_bytes = 0;
  for (const Linear& l : linears) {
    if (l.bias >= 0) num_bytes = std::max(num_bytes, kernels.column_sum(M, l.out));
  }
  return num_bytes;
}

}  // namespace eps::worker
