#include "gpu_worker/device/experts_cases.h"

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace eps::worker::conformance {
namespace {

// Rows of `columns` with junk, which nothing reads or writes, behind each.
Array Spread(const Array& x, int64_t columns, int64_t extra) {
  Array y;
  for (size_t at = 0; at < x.size(); at += static_cast<size_t>(columns)) {
    y.insert(y.end(), x.begin() + at, x.begin() + at + columns);
    y.insert(y.end(), static_cast<size_t>(extra), 7.0);
  }
  return y;
}
Array Gather(const Array& x, int64_t columns, int64_t extra) {
  Array y;
  for (size_t at = 0; at < x.size(); at += static_cast<size_t>(columns + extra)) {
    y.insert(y.end(), x.begin() + at, x.begin() + at + columns);
    for (int64_t i = 0; i < extra; ++i) EXPECT_EQ(x[at + columns + i], 7.0) << "wrote behind a row";
  }
  return y;
}

}  // namespace

Array MakeLogits(const RouteCase& t) {
  std::mt19937 random(static_cast<uint32_t>(t.M * 31 + t.E * 7 + t.K));
  return t.range > 0 ? RandomArray(random, t.M * t.E, t.range) : Array(t.M * t.E, 0.5);
}

Array MakeWeightGradients(const RouteCase& t) {
  std::mt19937 random(static_cast<uint32_t>(t.M * 13 + t.E * 5 + t.K));
  return RandomArray(random, t.M * t.K);
}

Routing AllocRouting(ConformanceMemory& memory, int64_t M, int64_t E, int64_t K) {
  const auto integers = [&](int64_t n) { return static_cast<int32_t*>(memory.Alloc(n * int64_t{sizeof(int32_t)})); };
  Routing routing;
  routing.first_row = integers(E + 1);
  routing.token = integers(M * K);
  routing.expert = integers(M * K);
  routing.row = integers(M * K);
  routing.weight = static_cast<float*>(memory.Alloc(M * K * int64_t{sizeof(float)}));
  return routing;
}

reference::Routed GetRouting(ConformanceMemory& memory, const Routing& routing, int64_t M, int64_t E, int64_t K) {
  return {.first_row = memory.Get<int32_t>(routing.first_row, E + 1),
          .token = memory.Get<int32_t>(routing.token, M * K),
          .expert = memory.Get<int32_t>(routing.expert, M * K),
          .row = memory.Get<int32_t>(routing.row, M * K),
          .weight = memory.GetF32(routing.weight, M * K)};
}

RouteOutputs RunRoute(ConformanceMemory& memory, const RouteCase& t, const Array& logits, const KernelSizes& sizes) {
  const Routing routing = AllocRouting(memory, t.M, t.E, t.K);
  void *at = memory.PutAct(logits), *dlogits = memory.AllocAct(t.M * t.E);
  Kernels& kernels = memory.device().kernels();
  kernels.Route({.M = t.M,
                 .E = t.E,
                 .K = t.K,
                 .logits = at,
                 .normalizes = t.normalizes,
                 .routing = routing,
                 .scratch = memory.Alloc(sizes.route(t.M, t.E, t.K))});
  kernels.RouteBackward({.M = t.M,
                         .E = t.E,
                         .K = t.K,
                         .logits = at,
                         .normalizes = t.normalizes,
                         .routing = routing,
                         .dweight = memory.PutF32(MakeWeightGradients(t)),
                         .balance = t.balance,
                         .dlogits = dlogits});
  return {GetRouting(memory, routing, t.M, t.E, t.K), memory.GetAct(dlogits, t.M * t.E)};
}

std::vector<int32_t> ExpertProductCase::first_row() const {
  std::vector<int32_t> first = {0};
  for (const int64_t n : rows) first.push_back(first.back() + static_cast<int32_t>(n));
  return first;
}

ExpertProductInputs MakeExpertMatMulInputs(const ExpertProductCase& t) {
  std::mt19937 random(static_cast<uint32_t>(t.R() * 31 + t.N * 7 + t.K));
  return {RandomArray(random, t.R() * t.K), RandomArray(random, t.E() * t.K * t.N), RandomArray(random, t.R() * t.N)};
}

Array RunExpertMatMul(ConformanceMemory& memory, const ExpertProductCase& t) {
  const ExpertProductInputs in = MakeExpertMatMulInputs(t);
  const int64_t x = t.ld_extra, b_columns = t.trans_b ? t.K : t.N, b_rows = t.trans_b ? t.N : t.K;
  const int64_t padded = b_rows * (b_columns + x);
  ExpertMatMulArgs args = {.E = t.E(), .R = t.R(), .N = t.N, .K = t.K};
  args.first_row = memory.Put(t.first_row());
  args.a = memory.PutAct(Spread(in.a, t.K, x));
  args.lda = t.K + x;
  args.b = memory.PutAct(Spread(Spread(in.b, b_columns, x), padded, t.stride_extra));
  args.ldb = b_columns + x;
  args.b_stride = padded + t.stride_extra;
  args.trans_b = t.trans_b;
  args.c = memory.PutAct(Spread(in.c, t.N, x));
  args.ldc = t.N + x;
  args.accumulate = t.accumulate;
  memory.device().kernels().ExpertMatMul(args);
  return Gather(memory.GetAct(args.c, t.R() * (t.N + x)), t.N, x);
}

ExpertProductInputs MakeExpertGradientInputs(const ExpertProductCase& t) {
  std::mt19937 random(static_cast<uint32_t>(t.R() * 17 + t.N * 3 + t.K));
  return {RandomArray(random, t.R() * t.K), RandomArray(random, t.R() * t.N), RandomArray(random, t.E() * t.K * t.N)};
}

Array RunExpertGradient(ConformanceMemory& memory, const ExpertProductCase& t) {
  const ExpertProductInputs in = MakeExpertGradientInputs(t);
  const int64_t x = t.ld_extra, matrix = t.K * t.N;
  ExpertGradientArgs args = {.E = t.E(), .R = t.R(), .M = t.K, .N = t.N};
  args.first_row = memory.Put(t.first_row());
  args.a = memory.PutAct(Spread(in.a, t.K, x));
  args.lda = t.K + x;
  args.b = memory.PutAct(Spread(in.b, t.N, x));
  args.ldb = t.N + x;
  args.c = memory.PutF32(Spread(in.c, matrix, t.stride_extra));
  args.c_stride = matrix + t.stride_extra;
  args.accumulate = t.accumulate;
  memory.device().kernels().ExpertGradient(args);
  return Gather(memory.GetF32(args.c, t.E() * args.c_stride), matrix, t.stride_extra);
}

Array MakeRows(const RowsCase& t) {
  std::mt19937 random(static_cast<uint32_t>(t.M * 11 + t.C));
  return RandomArray(random, t.M * t.C);
}

RowsOutputs RunRows(ConformanceMemory& memory, const RowsCase& t, const KernelSizes& sizes) {
  const Routing routing = AllocRouting(memory, t.M, t.E, t.K);
  const int64_t R = t.M * t.K;
  Kernels& kernels = memory.device().kernels();
  kernels.Route({.M = t.M,
                 .E = t.E,
                 .K = t.K,
                 .logits = memory.PutAct(MakeLogits({t.M, t.E, t.K})),
                 .routing = routing,
                 .scratch = memory.Alloc(sizes.route(t.M, t.E, t.K))});
  void *x = memory.PutAct(MakeRows(t)), *gathered = memory.AllocAct(R * t.C);
  void* residual = t.residual ? memory.PutAct(MakeRows(t)) : nullptr;
  void* summed = t.in_place ? residual : memory.AllocAct(t.M * t.C);
  kernels.GatherRows({.R = R, .C = t.C, .token = routing.token, .x = x, .y = gathered});
  kernels.SumRows({.M = t.M, .K = t.K, .C = t.C, .row = routing.row, .x = gathered, .residual = residual, .y = summed});
  return {GetRouting(memory, routing, t.M, t.E, t.K), memory.GetAct(gathered, R * t.C),
          memory.GetAct(summed, t.M * t.C)};
}

}  // namespace eps::worker::conformance
