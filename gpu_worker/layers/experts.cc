#include "gpu_worker/layers/experts.h"

#include <cstdint>

namespace eps::worker {

RoutingPlaces::RoutingPlaces(const LayerShape& shape, Layout& layout) {
  const int64_t rows = shape.experts.are_on() ? shape.mlp_rows() : 0;
  first_row = layout.Take((shape.experts.are_on() ? shape.experts.num + 1 : 0) * int64_t{sizeof(int32_t)});
  for (int64_t* of_rows : {&token, &expert, &row}) *of_rows = layout.Take(rows * int64_t{sizeof(int32_t)});
  weight = layout.Take(rows * int64_t{sizeof(float)});
}

Routing RoutingPlaces::At(void* scratch) const {
  const auto integers = [&](int64_t offset) { return reinterpret_cast<int32_t*>(worker::At(scratch, offset)); };
  return {.first_row = integers(first_row),
          .token = integers(token),
          .expert = integers(expert),
          .row = integers(row),
          .weight = FloatsAt(scratch, weight)};
}

void ExpertsContext::Route() const {
  kernels.Route({.M = shape.M(),
                 .E = shape.experts.num,
                 .K = shape.experts.per_token,
                 .logits = logits,
                 .normalizes = shape.experts.normalizes,
                 .routing = routing,
                 .scratch = kernel});
}

void ExpertsContext::Gather(const void* x) const {
  kernels.GatherRows({.R = num_rows(), .C = shape.C, .token = routing.token, .x = x, .y = rows});
}

void ExpertsContext::Multiply(const ExpertLinear& l, const void* a, void* c, int64_t ldc) const {
  kernels.ExpertMatMul({.E = shape.experts.num,
                        .R = num_rows(),
                        .N = l.first.out,
                        .K = l.first.in,
                        .first_row = routing.first_row,
                        .a = a,
                        .lda = l.first.in,
                        .b = Weight(l),
                        .ldb = l.first.is_out_in ? l.first.in : l.first.out,
                        .b_stride = l.stride,
                        .trans_b = l.first.is_out_in,
                        .c = Columns(c, l),
                        .ldc = ldc});
}

void ExpertsContext::MultiplyBack(const ExpertLinear& l, const void* dc, int64_t lddc, void* da,
                                  bool accumulate) const {
  kernels.ExpertMatMul({.E = shape.experts.num,
                        .R = num_rows(),
                        .N = l.first.in,
                        .K = l.first.out,
                        .first_row = routing.first_row,
                        .a = Columns(dc, l),
                        .lda = lddc,
                        .b = Weight(l),
                        .ldb = l.first.is_out_in ? l.first.in : l.first.out,
                        .b_stride = l.stride,
                        .trans_b = !l.first.is_out_in,
                        .c = da,
                        .ldc = l.first.in,
                        .accumulate = accumulate});
}

void ExpertsContext::BackwardWeights(const ExpertLinear& l, const void* a, const void* dc, int64_t lddc,
                                     float* gradient) const {
  if (l.first.weight >= linear.trainable_elems) return;
  ExpertGradientArgs args = {.E = shape.experts.num,
                             .R = num_rows(),
                             .M = l.first.is_out_in ? l.first.out : l.first.in,
                             .N = l.first.is_out_in ? l.first.in : l.first.out,
                             .first_row = routing.first_row,
                             .c = gradient + l.first.weight,
                             .c_stride = l.stride,
                             .accumulate = !linear.starts_gradient};
  args.a = l.first.is_out_in ? Columns(dc, l) : a;
  args.lda = l.first.is_out_in ? lddc : l.first.in;
  args.b = l.first.is_out_in ? a : Columns(dc, l);
  args.ldb = l.first.is_out_in ? l.first.in : lddc;
  kernels.ExpertGradient(args);
}

void ExpertsContext::Forward(const void* x, const void* residual, void* y) const {
  linear.Forward(offsets.router, x, {logits, shape.experts.num});
  Route();
  Gather(x);
  for (const ExpertLinear& l : offsets.expert_up) Multiply(l, rows, up, shape.up_width());
  if (y == nullptr) return;
  kernels.Swiglu({.M = num_rows(), .F = shape.F, .gate_up = up, .weight = routing.weight, .y = hidden});
  // Onto what was gathered, which is done with.
  for (const ExpertLinear& l : offsets.expert_down) Multiply(l, hidden, rows, shape.C);
  kernels.SumRows({.M = shape.M(),
                   .K = shape.experts.per_token,
                   .C = shape.C,
                   .row = routing.row,
                   .x = rows,
                   .residual = residual,
                   .y = y});
}

void ExpertsContext::BackwardDown(const BackwardArrays& arrays, const void* dy, float* gradient) const {
  Route();  // again: from the same logits the same
  Gather(dy);
  for (const ExpertLinear& l : offsets.expert_down) MultiplyBack(l, rows, shape.C, arrays.d_hidden, false);
  kernels.SwigluBackward({.M = num_rows(),
                          .F = shape.F,
                          .gate_up = up,
                          .weight = routing.weight,
                          .dy = arrays.d_hidden,
                          .dgate_up = arrays.d_up,
                          .y = hidden,
                          .dweight = arrays.d_weight});
  for (const ExpertLinear& l : offsets.expert_down) BackwardWeights(l, hidden, rows, shape.C, gradient);
}

void ExpertsContext::BackwardUp(const BackwardArrays& arrays, const void* x, void* dx, float* gradient) const {
  Gather(x);
  for (const ExpertLinear& l : offsets.expert_up) BackwardWeights(l, rows, arrays.d_up, shape.up_width(), gradient);
  bool is_first = true;
  for (const ExpertLinear& l : offsets.expert_up) {  // as above
    MultiplyBack(l, arrays.d_up, shape.up_width(), rows, !is_first);
    is_first = false;
  }
  kernels.RouteBackward({.M = shape.M(),
                         .E = shape.experts.num,
                         .K = shape.experts.per_token,
                         .logits = logits,
                         .normalizes = shape.experts.normalizes,
                         .routing = routing,
                         .dweight = arrays.d_weight,
                         .balance = balance,
                         .dlogits = arrays.d_logits});
  const LinearGradient of_router = linear.GradientOf(offsets.router, arrays.d_logits, shape.experts.num);
  linear.BackwardWeights(offsets.router, x, of_router, gradient);
  linear.BackwardInput(offsets.router, of_router, dx);
  kernels.SumRows({.M = shape.M(),
                   .K = shape.experts.per_token,
                   .C = shape.C,
                   .row = routing.row,
                   .x = rows,
                   .residual = dx,
                   .y = dx});
}

}  // namespace eps::worker
