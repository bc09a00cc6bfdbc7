#include "gpu_worker/device/conformance_cases.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include "common/numeric/bf16.h"
#include "common/tensor/dtype.h"
#include "gpu_worker/device/conformance_memory.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/device/kernels.h"
#include "gtest/gtest.h"

namespace eps::worker::conformance {
namespace {

// (rows, columns) with `extra` columns of junk behind each row.
Array Spread(const Array& x, int64_t columns, int64_t extra) {
  Array y;
  for (size_t i = 0; i < x.size(); i += columns) {
    y.insert(y.end(), x.begin() + i, x.begin() + i + columns);
    y.insert(y.end(), extra, 77.0);
  }
  return y;
}
Array Gather(const Array& y, int64_t columns, int64_t extra) {
  Array x;
  for (size_t i = 0; i < y.size(); i += columns + extra) x.insert(x.end(), y.begin() + i, y.begin() + i + columns);
  return x;
}

// Rows of `columns` elements with `extra` of junk behind each, the first of them `first` elements behind the start of
// an array.
struct PaddedRows {
  int64_t columns = 0, extra = 0, first = 0;
  int64_t ld() const { return columns + extra; }

  void* Put(ConformanceMemory& memory, const Array& x) const {
    Array all(first, 77.0);
    const Array spread = Spread(x, columns, extra);
    all.insert(all.end(), spread.begin(), spread.end());
    return static_cast<char*>(memory.PutAct(all)) + first * SizeOf(memory.act());
  }
  Array Get(ConformanceMemory& memory, const void* at, int64_t rows) const {
    const Array all = memory.GetAct(at, rows * ld());
    for (int64_t i = 0; i < rows * extra; ++i) {
      EXPECT_EQ(all[i / extra * ld() + columns + i % extra], 77.0) << "written behind row " << i / extra;
    }
    return Gather(all, columns, extra);
  }
};

void* PutWire(ConformanceMemory& memory, const Array& values, Dtype dtype) {
  if (dtype == Dtype::kF32) return memory.PutF32(values);
  return memory.Put(ToBits(values, dtype));
}

Array Columns(const Array& x, int64_t V, int64_t first, int64_t n) {
  Array y;
  for (size_t row = 0; row < x.size(); row += V)
    y.insert(y.end(), x.begin() + row + first, x.begin() + row + first + n);
  return y;
}

Documents PutDocuments(ConformanceMemory& memory, const DocumentArrays& documents) {
  if (documents.first.empty()) return {};
  return {.first = memory.Put(documents.first), .end = memory.Put(documents.end)};
}

}  // namespace

double ActEps(const ConformanceMemory& memory) {
  return memory.act() == Dtype::kF32 ? kEps : 1.0 / (memory.act() == Dtype::kBf16 ? 1 << 8 : 1 << 11);
}

double ActTiny(const ConformanceMemory& memory) { return memory.act() == Dtype::kF16 ? 1.0 / (1 << 25) : 0; }

Dropout SomeDropout(double rate, int64_t first_element) {
  return {
      .rate = rate, .key = {.seed = 3, .step = 5, .vnode = 2, .layer = 7, .use = 1}, .first_element = first_element};
}

MatMulInputs MakeMatMulInputs(const MatMulCase& t) {
  std::mt19937 random(static_cast<uint32_t>(t.M * 31 + t.N * 7 + t.K));
  return {RandomArray(random, t.M * t.K), RandomArray(random, t.K * t.N), RandomArray(random, t.M * t.N),
          RandomArray(random, t.N), RandomArray(random, t.M * t.N)};
}

Outputs RunMatMul(ConformanceMemory& memory, const MatMulCase& t) {
  const MatMulInputs in = MakeMatMulInputs(t);
  const int64_t x = t.ld_extra;
  const int64_t a_columns = t.trans_a ? t.M : t.K, b_columns = t.trans_b ? t.K : t.N;
  MatMulArgs args = {.M = t.M, .N = t.N, .K = t.K, .trans_a = t.trans_a, .trans_b = t.trans_b};
  args.a = memory.PutAct(Spread(in.a, a_columns, x));
  args.lda = a_columns + x;
  args.b = memory.PutAct(Spread(in.b, b_columns, x));
  args.ldb = b_columns + x;
  args.c = memory.PutAct(Spread(t.in_place ? in.residual : in.c, t.N, x));
  args.ldc = t.N + x;
  args.scale = t.scale;
  args.accumulate = t.accumulate;
  if (t.bias) args.bias = memory.PutAct(in.bias);
  args.epilogue = t.epilogue;
  args.activation = t.activation;
  const int64_t padded = t.M * (t.N + x);
  if (t.epilogue == MatMulArgs::Epilogue::kActivation) args.activated = memory.AllocAct(padded);
  if (t.epilogue == MatMulArgs::Epilogue::kResidual) {
    args.residual = t.in_place ? args.c : memory.PutAct(Spread(in.residual, t.N, x));
    if (t.dropout > 0) args.dropout = SomeDropout(t.dropout, 1024);
  }
  memory.device().kernels().MatMul(args);
  Outputs out = {PaddedRows{t.N, x}.Get(memory, args.c, t.M)};
  if (args.activated != nullptr) out.push_back(Gather(memory.GetAct(args.activated, padded), t.N, x));
  return out;
}

DocumentArrays MakeDocuments(int64_t B, int64_t T, int64_t tokens) {
  DocumentArrays arrays;
  if (tokens == 0) return arrays;
  int64_t left = tokens;
  for (int64_t number = 0; static_cast<int64_t>(arrays.first.size()) < B * T;) {
    const int64_t at = static_cast<int64_t>(arrays.first.size()) % T, count = std::min(left, T - at);
    arrays.first.insert(arrays.first.end(), static_cast<size_t>(count), static_cast<int32_t>(at));
    arrays.end.insert(arrays.end.end(), static_cast<size_t>(count), static_cast<int32_t>(at + count));
    left -= count;
    if (left == 0) left = ++number % 2 == 1 ? 1 : tokens + 3 * (number / 2);
  }
  return arrays;
}

EmbeddingInputs MakeEmbeddingInputs(const EmbeddingCase& t) {
  std::mt19937 random(17);
  EmbeddingInputs in;
  if (t.token_counts.empty()) {
    for (int64_t i = 0; i < t.B * t.T; ++i) in.tokens.push_back(static_cast<int32_t>(random() % t.V));
    in.tokens[0] = 0;
    in.tokens.back() = static_cast<int32_t>(t.V - 1);
  } else {
    for (size_t token = 0; token < t.token_counts.size(); ++token) {
      in.tokens.insert(in.tokens.end(), static_cast<size_t>(t.token_counts[token]), static_cast<int32_t>(token));
    }
    std::shuffle(in.tokens.begin(), in.tokens.end(), random);
  }
  in.documents = MakeDocuments(t.B, t.T, t.document_tokens);
  in.wte = RandomArray(random, t.V * t.C);
  in.wpe = RandomArray(random, (t.T + 2) * t.C);
  in.dy = RandomArray(random, t.B * t.T * t.C);
  in.dwte = RandomArray(random, t.V * t.C);
  in.dwpe = RandomArray(random, (t.T + 2) * t.C);
  if (t.num_types == 0) return in;
  for (int64_t i = 0; i < t.B * t.T; ++i) in.types.push_back(static_cast<int32_t>(random() % t.num_types));
  in.wtt = RandomArray(random, t.num_types * t.C);
  in.dwtt = RandomArray(random, t.num_types * t.C);
  return in;
}

Outputs RunEmbedding(ConformanceMemory& memory, const EmbeddingCase& t, const KernelSizes& sizes) {
  const EmbeddingInputs in = MakeEmbeddingInputs(t);
  const int64_t n = t.B * t.T * t.C;
  const Dropout dropout = t.dropout > 0 ? SomeDropout(t.dropout, 4096) : Dropout();
  const int32_t* tokens = memory.Put(in.tokens);
  const int32_t* types = t.num_types > 0 ? memory.Put(in.types) : nullptr;
  const Documents documents = PutDocuments(memory, in.documents);
  void* y = memory.AllocAct(n);
  void* dy = memory.PutAct(in.dy);
  float* dwte = memory.PutF32(in.dwte);
  float* dwpe = memory.PutF32(in.dwpe);
  float* dwtt = t.num_types > 0 ? memory.PutF32(in.dwtt) : nullptr;
  memory.device().kernels().Embedding({.B = t.B,
                                       .T = t.T,
                                       .C = t.C,
                                       .V = t.V,
                                       .tokens = tokens,
                                       .wte = PutWire(memory, in.wte, t.wire),
                                       .wpe = t.positions ? PutWire(memory, in.wpe, t.wire) : nullptr,
                                       .types = types,
                                       .wtt = t.num_types > 0 ? PutWire(memory, in.wtt, t.wire) : nullptr,
                                       .documents = documents,
                                       .wire_dtype = t.wire,
                                       .y = y,
                                       .dropout = dropout});
  memory.device().kernels().EmbeddingBackward({.B = t.B,
                                               .T = t.T,
                                               .C = t.C,
                                               .V = t.V,
                                               .tokens = tokens,
                                               .types = types,
                                               .documents = documents,
                                               .dy = dy,
                                               .dwte = dwte,
                                               .dwpe = t.positions ? dwpe : nullptr,
                                               .dwtt = dwtt,
                                               .num_types = t.num_types,
                                               .dropout = dropout,
                                               .scratch = memory.Alloc(sizes.embedding_backward(t.B * t.T, t.V, t.C))});
  return {memory.GetAct(y, n), memory.GetAct(dy, n), memory.GetF32(dwte, t.V * t.C),
          memory.GetF32(dwpe, (t.T + 2) * t.C), t.num_types > 0 ? memory.GetF32(dwtt, t.num_types * t.C) : Array()};
}

LayerNormInputs MakeLayerNormInputs(const LayerNormCase& t) {
  std::mt19937 random(static_cast<uint32_t>(t.M + t.C));
  LayerNormInputs in{RandomArray(random, t.M * t.C), RandomArray(random, t.C),       RandomArray(random, t.C),
                     RandomArray(random, t.M * t.C), RandomArray(random, t.M * t.C), RandomArray(random, t.C),
                     RandomArray(random, t.C)};
  for (double& v : in.x) v = static_cast<double>(ToFloat(ToBf16(static_cast<float>(v + t.offset))));
  return in;
}

Outputs RunLayerNorm(ConformanceMemory& memory, const LayerNormCase& t, const KernelSizes& sizes) {
  const LayerNormInputs in = MakeLayerNormInputs(t);
  const int64_t n = t.M * t.C;
  const void* x = memory.PutAct(in.x);
  const void* gamma = memory.PutAct(in.gamma);
  const void* beta = memory.PutAct(in.beta);
  void* y = memory.AllocAct(n);
  void* again = memory.AllocAct(n);
  float* mean = static_cast<float*>(memory.Alloc(t.M * 4));
  float* rstd = static_cast<float*>(memory.Alloc(t.M * 4));
  float* dgamma = memory.PutF32(in.dgamma);
  float* dbeta = memory.PutF32(in.dbeta);
  void* dy = memory.PutAct(in.dy);
  void* residual = t.residual ? memory.PutAct(in.residual) : nullptr;
  void* dx = !t.in_place ? memory.AllocAct(n) : t.residual ? residual : dy;
  Kernels& kernels = memory.device().kernels();
  kernels.LayerNorm({.M = t.M, .C = t.C, .x = x, .gamma = gamma, .beta = beta, .y = y, .mean = mean, .rstd = rstd});
  kernels.LayerNormApply(
      {.M = t.M, .C = t.C, .x = x, .gamma = gamma, .beta = beta, .mean = mean, .rstd = rstd, .y = again});
  kernels.LayerNormBackward({.M = t.M,
                             .C = t.C,
                             .dy = dy,
                             .x = x,
                             .gamma = gamma,
                             .mean = mean,
                             .rstd = rstd,
                             .dresidual = residual,
                             .dx = dx,
                             .dgamma = dgamma,
                             .dbeta = dbeta,
                             .scratch = memory.Alloc(sizes.layer_norm_backward(t.M, t.C))});
  return {memory.GetAct(y, n),  memory.GetF32(mean, t.M),   memory.GetF32(rstd, t.M), memory.GetAct(again, n),
          memory.GetAct(dx, n), memory.GetF32(dgamma, t.C), memory.GetF32(dbeta, t.C)};
}

RmsNormInputs MakeRmsNormInputs(const RmsNormCase& t) {
  std::mt19937 random(static_cast<uint32_t>(t.rows() + t.C));
  const int64_t n = t.rows() * t.C;
  return {RandomArray(random, n), RandomArray(random, t.C), RandomArray(random, n), RandomArray(random, n),
          RandomArray(random, t.C)};
}

Outputs RunRmsNorm(ConformanceMemory& memory, const RmsNormCase& t, const KernelSizes& sizes) {
  const RmsNormInputs in = MakeRmsNormInputs(t);
  const int64_t n = t.heads * t.C;
  const PaddedRows x_rows{n, t.ldx_extra, t.first}, y_rows{n, t.ldy_extra, t.first};
  const Array blank(t.M * n, 55.0);
  const void* x = x_rows.Put(memory, in.x);
  const void* gamma = memory.PutAct(in.gamma);
  float* rstd = static_cast<float*>(memory.Alloc(t.rows() * 4));
  float* dgamma = memory.PutF32(in.dgamma);
  Kernels& kernels = memory.device().kernels();

  void* y = t.in_place ? x_rows.Put(memory, in.x) : y_rows.Put(memory, blank);
  kernels.RmsNorm({.M = t.M,
                   .heads = t.heads,
                   .C = t.C,
                   .ldx = x_rows.ld(),
                   .ldy = y_rows.ld(),
                   .x = t.in_place ? y : x,
                   .gamma = gamma,
                   .y = y,
                   .rstd = rstd});
  void* again = t.in_place ? x_rows.Put(memory, in.x) : y_rows.Put(memory, blank);
  kernels.RmsNormApply({.M = t.M,
                        .heads = t.heads,
                        .C = t.C,
                        .ldx = x_rows.ld(),
                        .ldy = y_rows.ld(),
                        .x = t.in_place ? again : x,
                        .gamma = gamma,
                        .rstd = rstd,
                        .y = again});
  void* dy = y_rows.Put(memory, in.dy);
  void* residual = t.residual ? x_rows.Put(memory, in.residual) : nullptr;
  void* dx = !t.in_place ? x_rows.Put(memory, blank) : t.residual ? residual : dy;
  kernels.RmsNormBackward({.M = t.M,
                           .heads = t.heads,
                           .C = t.C,
                           .lddy = y_rows.ld(),
                           .ldx = x_rows.ld(),
                           .lddx = x_rows.ld(),
                           .dy = dy,
                           .x = x,
                           .gamma = gamma,
                           .rstd = rstd,
                           .dresidual = residual,
                           .dx = dx,
                           .dgamma = dgamma,
                           .scratch = memory.Alloc(sizes.rms_norm_backward(t.rows(), t.C))});
  return {y_rows.Get(memory, y, t.M), memory.GetF32(rstd, t.rows()), y_rows.Get(memory, again, t.M),
          x_rows.Get(memory, dx, t.M), memory.GetF32(dgamma, t.C)};
}

SwigluInputs MakeSwigluInputs(const SwigluCase& t) {
  std::mt19937 random(static_cast<uint32_t>(t.M * 1000 + t.F));
  SwigluInputs in = {RandomArray(random, 2 * t.M * t.F, t.range), RandomArray(random, t.M * t.F)};
  in.weight = t.weighted ? RandomArray(random, t.M) : Array(t.M, 1.0);
  return in;
}

Outputs RunSwiglu(ConformanceMemory& memory, const SwigluCase& t, const SwigluInputs& in) {
  void* gate_up = memory.PutAct(in.gate_up);
  void* y = memory.AllocAct(t.M * t.F);
  void* again = t.keeps_y ? memory.AllocAct(t.M * t.F) : nullptr;
  void* dgate_up = t.in_place ? gate_up : memory.AllocAct(2 * t.M * t.F);
  Kernels& kernels = memory.device().kernels();
  float* weight = t.weighted ? memory.PutF32(in.weight) : nullptr;
  float* dweight = t.weighted ? static_cast<float*>(memory.Alloc(t.M * int64_t{sizeof(float)})) : nullptr;
  kernels.Swiglu({.M = t.M, .F = t.F, .gate_up = gate_up, .weight = weight, .y = y});
  kernels.SwigluBackward({.M = t.M,
                          .F = t.F,
                          .gate_up = gate_up,
                          .weight = weight,
                          .dy = memory.PutAct(in.dy),
                          .dgate_up = dgate_up,
                          .y = again,
                          .dweight = dweight});
  Outputs out = {memory.GetAct(y, t.M * t.F), memory.GetAct(dgate_up, 2 * t.M * t.F)};
  if (t.weighted) out.push_back(memory.GetF32(dweight, t.M));
  if (again != nullptr) out.push_back(memory.GetAct(again, t.M * t.F));
  return out;
}

Outputs RunRotary(ConformanceMemory& memory, const RotaryCase& t, const Array& x, const Array& table) {
  const PaddedRows rows{t.heads * t.D, t.ld_extra, t.first};
  RotaryArgs args = {.M = t.M, .T = t.T, .heads = t.heads, .D = t.D, .ld = rows.ld()};
  args.x = rows.Put(memory, x);
  args.table = memory.PutF32(table);
  args.documents = PutDocuments(memory, MakeDocuments(t.M / t.T, t.T, t.document_tokens));
  Outputs out;
  for (const bool inverse : {false, true}) {
    args.inverse = inverse;
    memory.device().kernels().Rotary(args);
    out.push_back(rows.Get(memory, args.x, t.M));
  }
  return out;
}

Array RunInverseRotary(ConformanceMemory& memory, const RotaryCase& t, const Array& x, const Array& table) {
  const PaddedRows rows{t.heads * t.D, t.ld_extra, t.first};
  void* at = rows.Put(memory, x);
  memory.device().kernels().Rotary(
      {.M = t.M,
       .T = t.T,
       .heads = t.heads,
       .D = t.D,
       .ld = rows.ld(),
       .x = at,
       .table = memory.PutF32(table),
       .inverse = true,
       .documents = PutDocuments(memory, MakeDocuments(t.M / t.T, t.T, t.document_tokens))});
  return rows.Get(memory, at, t.M);
}

AttentionInputs MakeAttentionInputs(const AttentionCase& t) {
  std::mt19937 random(static_cast<uint32_t>(t.T * 100 + t.D));
  return {RandomArray(random, t.qkv_elems(), t.range), RandomArray(random, t.o_elems())};
}

Outputs RunAttention(ConformanceMemory& memory, const AttentionCase& t, const AttentionInputs& in,
                     const KernelSizes& sizes) {
  const Documents documents = PutDocuments(memory, MakeDocuments(t.B, t.T, t.document_tokens));
  const void* qkv = memory.PutAct(in.qkv);
  void* o = memory.AllocAct(t.o_elems());
  void* dqkv = memory.AllocAct(t.qkv_elems());
  float* lse = static_cast<float*>(memory.Alloc(t.B * t.H * t.T * 4));
  Kernels& kernels = memory.device().kernels();
  kernels.Attention({.B = t.B,
                     .T = t.T,
                     .H = t.H,
                     .kv_heads = t.kv_heads(),
                     .D = t.D,
                     .qkv = qkv,
                     .o = o,
                     .lse = lse,
                     .scale = t.scale(),
                     .causal = t.causal,
                     .window = t.window,
                     .documents = documents,
                     .dropout = t.MakeDropout(),
                     .scratch = memory.Alloc(sizes.attention(t.B, t.T, t.H, t.D))});
  kernels.AttentionBackward({.B = t.B,
                             .T = t.T,
                             .H = t.H,
                             .kv_heads = t.kv_heads(),
                             .D = t.D,
                             .qkv = qkv,
                             .o = o,
                             .lse = lse,
                             .d_o = memory.PutAct(in.d_o),
                             .dqkv = dqkv,
                             .scale = t.scale(),
                             .causal = t.causal,
                             .window = t.window,
                             .documents = documents,
                             .dropout = t.MakeDropout(),
                             .scratch = memory.Alloc(sizes.attention_backward(t.B, t.T, t.H, t.D))});
  return {memory.GetAct(o, t.o_elems()), memory.GetF32(lse, t.B * t.H * t.T), memory.GetAct(dqkv, t.qkv_elems())};
}

Outputs RunActivationBackward(ConformanceMemory& memory, Activation activation, int64_t N, const Array& x,
                              const Array& dy, const KernelSizes& sizes, bool has_bias) {
  const int64_t n = static_cast<int64_t>(x.size());
  void* d = memory.PutAct(dy);
  void* activated = memory.AllocAct(n);
  float* dbias = has_bias ? memory.PutF32(Array(N, 0.25)) : nullptr;
  memory.device().kernels().ActivationBackward(
      {.M = n / N,
       .N = N,
       .activation = activation,
       .x = memory.PutAct(x),
       .dy = d,
       .activated = activated,
       .dbias = dbias,
       .scratch = has_bias ? memory.Alloc(sizes.column_sum(n / N, N)) : nullptr});
  Outputs out = {memory.GetAct(d, n), memory.GetAct(activated, n)};
  if (has_bias) out.push_back(memory.GetF32(dbias, N));
  return out;
}

Array RunDropout(ConformanceMemory& memory, const Array& x, const Dropout& dropout, bool in_place) {
  const int64_t n = static_cast<int64_t>(x.size());
  void* from = memory.PutAct(x);
  void* to = in_place ? from : memory.AllocAct(n);
  memory.device().kernels().ApplyDropout({.n = n, .x = from, .y = to, .dropout = dropout});
  return memory.GetAct(to, n);
}

Array RunColumnSum(ConformanceMemory& memory, int64_t M, int64_t N, int64_t before, const KernelSizes& sizes) {
  std::mt19937 random(6);
  const Array x = RandomArray(random, M * N);
  Array wide;
  for (auto row = x.begin(); row != x.end(); row += N) {
    wide.insert(wide.end(), static_cast<size_t>(before), 77.0);
    wide.insert(wide.end(), row, row + N);
  }
  float* out = memory.PutF32(Array(N, 0.25));
  memory.device().kernels().ColumnSum(
      {.M = M,
       .N = N,
       .ld = before + N,
       .x = static_cast<std::byte*>(memory.PutAct(wide)) + before * SizeOf(memory.act()),
       .out = out,
       .scratch = memory.Alloc(sizes.column_sum(M, N))});
  return memory.GetF32(out, N);
}

LossInputs MakeLossInputs(const LossCase& t) {
  std::mt19937 random(static_cast<uint32_t>(t.V));
  LossInputs in{RandomArray(random, t.M * t.V, t.range), {}};
  for (int64_t i = 0; i < t.M; ++i) {
    in.labels.push_back(i % 5 == 3 ? (i % 2 == 0 ? -100 : static_cast<int32_t>(t.V))
                                   : static_cast<int32_t>(random() % t.V));
  }
  return in;
}

LossOutputs RunLoss(ConformanceMemory& memory, const LossCase& t, const LossInputs& in, double scale) {
  Kernels& kernels = memory.device().kernels();
  const int32_t* labels = memory.Put(in.labels);
  float* row_max = static_cast<float*>(memory.Alloc(t.M * 4));
  float* row_sum = static_cast<float*>(memory.Alloc(t.M * 4));
  float* target = static_cast<float*>(memory.Alloc(t.M * 4));
  LossRecord* record = memory.Put(std::vector<LossRecord>{{.loss_sum = 0.5, .counted = 2, .finite = 1, .correct = 1}});
  for (int64_t first = 0; first < t.V; first += t.chunk) {
    const int64_t n = std::min(t.chunk, t.V - first);
    const PaddedRows rows = {.columns = n, .extra = t.extra};
    kernels.SoftmaxChunk({.M = t.M,
                          .chunk = n,
                          .first = first,
                          .ld = rows.ld(),
                          .logits = rows.Put(memory, Columns(in.logits, t.V, first, n)),
                          .labels = labels,
                          .row_max = row_max,
                          .row_sum = row_sum,
                          .target = target});
  }
  kernels.Loss({.M = t.M,
                .V = t.V,
                .labels = labels,
                .row_max = row_max,
                .row_sum = row_sum,
                .target = target,
                .record = record});
  LossOutputs out{Array(t.M * t.V), memory.Get<LossRecord>(record, 1)[0]};
  for (int64_t first = 0; first < t.V; first += t.chunk) {
    const int64_t n = std::min(t.chunk, t.V - first);
    const PaddedRows rows = {.columns = n, .extra = t.extra};
    void* logits = rows.Put(memory, Columns(in.logits, t.V, first, n));
    kernels.SoftmaxChunkBackward({.M = t.M,
                                  .chunk = n,
                                  .first = first,
                                  .V = t.V,
                                  .ld = rows.ld(),
                                  .logits = logits,
                                  .labels = labels,
                                  .row_max = row_max,
                                  .row_sum = row_sum,
                                  .scale = scale});
    const Array d = rows.Get(memory, logits, t.M);
    for (int64_t i = 0; i < t.M * n; ++i) out.dlogits[i / n * t.V + first + i % n] = d[i];
  }
  return out;
}

double Slope(const std::function<double(const Array&)>& f, const Array& x, const Array& u) {
  constexpr double kStep = 1e-5;
  Array plus = x, minus = x;
  for (size_t i = 0; i < x.size(); ++i) plus[i] += kStep * u[i], minus[i] -= kStep * u[i];
  return (f(plus) - f(minus)) / (2 * kStep);
}

}  // namespace eps::worker::conformance
