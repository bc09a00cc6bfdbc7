// Every kernel against plain fp64 loops, and its bits against other numbers of threads.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/numeric/bf16.h"
#include "common/numeric/philox.h"
#include "common/tensor/dtype.h"
#include "common/testing/status_matchers.h"
#include "gpu_worker/device/conformance_memory.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/device/device_conformance.h"
#include "gpu_worker/device/kernels.h"
#include "gpu_worker/device/reference_kernels.h"
#include "gtest/gtest.h"

namespace eps::worker {
namespace {

using reference::Array;
using Outputs = std::vector<Array>;

constexpr double kEps = 1.0 / (1 << 24);  // half a unit in the last place of fp32, relative

// What the rounding of inputs and outputs adds where the compute dtype is coarser than fp32.
double ActEps(const ConformanceMemory& memory) { return memory.act() == Dtype::kF32 ? kEps : 1.0 / (1 << 8); }

Dropout SomeDropout(double rate, int64_t first_element = 0) {
  return {.rate = rate, .key = {.seed = 3, .step = 5, .vnode = 2, .layer = 7, .use = 1}, .first_element = first_element};
}

Array Abs(Array x) {
  for (double& v : x) v = std::abs(v);
  return x;
}

// ---- MatMul ----------------------------------------------------------------------------------------------------------

struct MatMulCase {
  int64_t M, N, K;
  bool trans_a = false, trans_b = false, accumulate = false, bias = false;
  MatMulArgs::Epilogue epilogue = MatMulArgs::Epilogue::kNone;
  double dropout = 0;
  int64_t ld_extra = 0;   // leading dimensions beyond the least
  bool in_place = false;  // residual is c

  std::string Name() const {
    return "matmul " + std::to_string(M) + "x" + std::to_string(N) + "x" + std::to_string(K) + (trans_a ? " Ta" : "") +
           (trans_b ? " Tb" : "") + (accumulate ? " acc" : "") + (bias ? " bias" : "") + " epilogue " +
           std::to_string(static_cast<int>(epilogue)) + " dropout " + std::to_string(dropout) + " ld+" +
           std::to_string(ld_extra);
  }
};

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

struct MatMulInputs {
  Array a, b, c, bias, residual;
};
MatMulInputs MakeMatMulInputs(const MatMulCase& t) {
  std::mt19937 random(static_cast<uint32_t>(t.M * 31 + t.N * 7 + t.K));
  return {RandomArray(random, t.M * t.K), RandomArray(random, t.K * t.N), RandomArray(random, t.M * t.N),
          RandomArray(random, t.N), RandomArray(random, t.M * t.N)};
}

// {c, gelu_out or nothing}
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
  args.accumulate = t.accumulate;
  if (t.bias) args.bias = memory.PutAct(in.bias);
  args.epilogue = t.epilogue;
  const int64_t padded = t.M * (t.N + x);
  if (t.epilogue == MatMulArgs::Epilogue::kGelu) args.gelu_out = memory.AllocAct(padded);
  if (t.epilogue == MatMulArgs::Epilogue::kResidual) {
    args.residual = t.in_place ? args.c : memory.PutAct(Spread(in.residual, t.N, x));
    if (t.dropout > 0) args.dropout = SomeDropout(t.dropout, 1024);
  }
  memory.device().kernels().MatMul(args);
  Outputs out = {memory.GetAct(args.c, padded)};
  for (int64_t row = 0; row < t.M; ++row) {
    for (int64_t e = 0; e < x; ++e) {
      EXPECT_EQ(out[0][row * (t.N + x) + t.N + e], 77.0) << "written behind a row of c: " << t.Name();
    }
  }
  out[0] = Gather(out[0], t.N, x);
  if (args.gelu_out != nullptr) out.push_back(Gather(memory.GetAct(args.gelu_out, padded), t.N, x));
  return out;
}

void CheckMatMul(ConformanceMemory& memory, const MatMulCase& t) {
  SCOPED_TRACE(t.Name());
  const Outputs out = RunMatMul(memory, t);
  const MatMulInputs in = MakeMatMulInputs(t);
  Array want = reference::MatMul(in.a, t.trans_a, in.b, t.trans_b, t.M, t.N, t.K);
  // A sum of K products errs by about sqrt(K) roundings of the sum of their sizes; 16 of them hold for every K here.
  Array size = reference::MatMul(Abs(in.a), t.trans_a, Abs(in.b), t.trans_b, t.M, t.N, t.K);
  const Array factors =
      t.dropout > 0 ? reference::DropoutFactors(SomeDropout(t.dropout, 1024), t.M * t.N) : Array(t.M * t.N, 1.0);
  Array tolerance(want.size()), gelu(want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    if (t.bias) want[i] += in.bias[i % t.N];
    if (t.accumulate) want[i] += in.c[i];
    gelu[i] = reference::Gelu(want[i]);
    if (t.epilogue == MatMulArgs::Epilogue::kResidual) want[i] = in.residual[i] + factors[i] * want[i];
    tolerance[i] = factors[i] * (16 * kEps * size[i] + 4 * kEps) + 4 * ActEps(memory) * std::abs(want[i]);
  }
  ExpectNear(out[0], want, tolerance, "c");
  // The slope of GELU is below 1.13.
  for (double& v : tolerance) v = 1.2 * v + 8 * kEps;
  if (t.epilogue == MatMulArgs::Epilogue::kGelu) ExpectNear(out[1], gelu, tolerance, "gelu_out");
}

std::vector<MatMulCase> MatMulCases() {
  using E = MatMulArgs::Epilogue;
  std::vector<MatMulCase> cases;
  for (const bool trans_a : {false, true}) {
    for (const bool trans_b : {false, true}) {
      for (const bool accumulate : {false, true}) {
        cases.push_back({.M = 65, .N = 37, .K = 19, .trans_a = trans_a, .trans_b = trans_b, .accumulate = accumulate});
        cases.push_back({.M = 300, .N = 401, .K = 96, .trans_a = trans_a, .trans_b = trans_b,
                         .accumulate = accumulate, .ld_extra = 3});
      }
    }
  }
  for (const E epilogue : {E::kNone, E::kGelu, E::kResidual}) {
    for (const bool bias : {false, true}) {
      cases.push_back({.M = 33, .N = 70, .K = 50, .bias = bias, .epilogue = epilogue, .ld_extra = 5});
      cases.push_back({.M = 257, .N = 770, .K = 64, .bias = bias, .epilogue = epilogue});
    }
  }
  for (const int64_t N : {64, 71, 395}) {  // 71 and 395: rows that do not start at a multiple of 4 elements
    cases.push_back({.M = 130, .N = N, .K = 40, .bias = true, .epilogue = E::kResidual, .dropout = 0.3});
  }
  cases.push_back({.M = 130, .N = 77, .K = 40, .bias = true, .epilogue = E::kResidual, .in_place = true});
  cases.push_back({.M = 1, .N = 1, .K = 1});
  cases.push_back({.M = 1, .N = 513, .K = 700, .bias = true});
  cases.push_back({.M = 513, .N = 1, .K = 70, .trans_b = true});
  cases.push_back({.M = 128, .N = 96, .K = 1500, .trans_a = true, .accumulate = true});
  return cases;
}

TEST_P(DeviceConformanceTest, MatMulAgreesWithFp64) {
  for (const MatMulCase& t : MatMulCases()) {
    ConformanceMemory memory(device());
    CheckMatMul(memory, t);
  }
}

TEST_P(DeviceConformanceTest, MatMulDoesNotDependOnWhereItsOperandsLie) {
  const int64_t M = 100, N = 75, K = 83;
  std::mt19937 random(1);
  const Array a = RandomArray(random, M * K), b = RandomArray(random, K * N);
  Outputs results;
  for (const int64_t offset : {0, 1, 2, 3, 5, 8}) {  // elements: MatMul promises no more than 4-byte alignment
    ConformanceMemory memory(device());
    Array shifted_a(offset, 0.0), shifted_b(2 * offset, 0.0);
    shifted_a.insert(shifted_a.end(), a.begin(), a.end());
    shifted_b.insert(shifted_b.end(), b.begin(), b.end());
    const int64_t elem_bytes = SizeOf(memory.act());
    const char* at_a = static_cast<const char*>(memory.PutAct(shifted_a)) + offset * elem_bytes;
    const char* at_b = static_cast<const char*>(memory.PutAct(shifted_b)) + 2 * offset * elem_bytes;
    char* at_c = static_cast<char*>(memory.AllocAct(M * N + offset)) + offset * elem_bytes;
    device().kernels().MatMul(
        {.M = M, .N = N, .K = K, .a = at_a, .lda = K, .b = at_b, .ldb = N, .c = at_c, .ldc = N});
    results.push_back(memory.GetAct(at_c, M * N));
    EXPECT_TRUE(results.back() == results.front()) << "offset " << offset;
  }
}

TEST_P(DeviceConformanceTest, MatMulLetsNaNThrough) {
  ConformanceMemory memory(device());
  Array a(64 * 64, 1.0);
  a[64 * 20 + 3] = std::numeric_limits<double>::quiet_NaN();
  void* c = memory.AllocAct(64 * 64);
  void* gelu = memory.AllocAct(64 * 64);
  device().kernels().MatMul({.M = 64, .N = 64, .K = 64, .a = memory.PutAct(a), .lda = 64,
                             .b = memory.PutAct(Array(64 * 64, 1.0)), .ldb = 64, .c = c, .ldc = 64,
                             .epilogue = MatMulArgs::Epilogue::kGelu, .gelu_out = gelu});
  for (const void* result : {c, gelu}) {
    const Array got = memory.GetAct(result, 64 * 64);
    for (int64_t i = 0; i < 64 * 64; ++i) EXPECT_EQ(std::isnan(got[i]), i / 64 == 20) << i;
  }
}

// ---- Embedding -------------------------------------------------------------------------------------------------------

struct EmbeddingCase {
  int64_t B, T, C, V;
  Dtype wire = Dtype::kF32;
  double dropout = 0;
};

struct EmbeddingInputs {
  std::vector<int32_t> tokens;
  Array wte, wpe, dy, dwte, dwpe;
};
EmbeddingInputs MakeEmbeddingInputs(const EmbeddingCase& t) {
  std::mt19937 random(17);
  EmbeddingInputs in;
  for (int64_t i = 0; i < t.B * t.T; ++i) in.tokens.push_back(static_cast<int32_t>(random() % t.V));
  in.tokens[0] = 0;
  in.tokens.back() = static_cast<int32_t>(t.V - 1);
  in.wte = RandomArray(random, t.V * t.C);
  in.wpe = RandomArray(random, (t.T + 2) * t.C);
  in.dy = RandomArray(random, t.B * t.T * t.C);
  in.dwte = RandomArray(random, t.V * t.C);
  in.dwpe = RandomArray(random, (t.T + 2) * t.C);
  return in;
}

void* PutWire(ConformanceMemory& memory, const Array& values, Dtype dtype) {
  if (dtype == Dtype::kF32) return memory.PutF32(values);
  std::vector<uint16_t> bits;
  for (const double v : values) bits.push_back(ToBf16(static_cast<float>(v)).bits);
  return memory.Put(bits);
}

// {y, dy after dropout, dwte, dwpe}
Outputs RunEmbedding(ConformanceMemory& memory, const EmbeddingCase& t) {
  const EmbeddingInputs in = MakeEmbeddingInputs(t);
  const int64_t n = t.B * t.T * t.C;
  const Dropout dropout = t.dropout > 0 ? SomeDropout(t.dropout, 4096) : Dropout();
  const int32_t* tokens = memory.Put(in.tokens);
  void* y = memory.AllocAct(n);
  void* dy = memory.PutAct(in.dy);
  float* dwte = memory.PutF32(in.dwte);
  float* dwpe = memory.PutF32(in.dwpe);
  memory.device().kernels().Embedding({.B = t.B, .T = t.T, .C = t.C, .V = t.V, .tokens = tokens,
                                       .wte = PutWire(memory, in.wte, t.wire), .wpe = PutWire(memory, in.wpe, t.wire),
                                       .wire_dtype = t.wire, .y = y, .dropout = dropout});
  memory.device().kernels().EmbeddingBackward({.B = t.B, .T = t.T, .C = t.C, .V = t.V, .tokens = tokens, .dy = dy,
                                               .dwte = dwte, .dwpe = dwpe, .dropout = dropout});
  return {memory.GetAct(y, n), memory.GetAct(dy, n), memory.GetF32(dwte, t.V * t.C),
          memory.GetF32(dwpe, (t.T + 2) * t.C)};
}

TEST_P(DeviceConformanceTest, EmbeddingAndItsBackwardAgreeWithFp64) {
  for (const EmbeddingCase& t : {EmbeddingCase{3, 7, 33, 11}, EmbeddingCase{2, 16, 64, 5, Dtype::kBf16},
                                 EmbeddingCase{2, 9, 50, 13, Dtype::kBf16, 0.25}, EmbeddingCase{1, 1, 1, 1},
                                 EmbeddingCase{4, 33, 200, 7, Dtype::kF32, 0.5}}) {
    ConformanceMemory memory(device());
    const Outputs out = RunEmbedding(memory, t);
    const EmbeddingInputs in = MakeEmbeddingInputs(t);
    const int64_t n = t.B * t.T * t.C;
    const Array factors =
        t.dropout > 0 ? reference::DropoutFactors(SomeDropout(t.dropout, 4096), n) : Array(n, 1.0);
    Array y(n), dy(n), dwte = in.dwte, dwpe = in.dwpe;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t c = i % t.C, row = i / t.C, position = row % t.T;
      y[i] = factors[i] * (in.wte[in.tokens[row] * t.C + c] + in.wpe[position * t.C + c]);
      dy[i] = factors[i] * in.dy[i];
      dwte[in.tokens[row] * t.C + c] += dy[i];
      dwpe[position * t.C + c] += dy[i];
    }
    // One or two roundings; sums of up to B * T terms of size 2.
    const double sum_tolerance = 4 * kEps * static_cast<double>(t.B * t.T) + 4 * ActEps(memory);
    ExpectNear(out[0], y, 0, 4 * ActEps(memory), "y");
    ExpectNear(out[1], dy, 0, 4 * ActEps(memory), "dy");
    ExpectNear(out[2], dwte, sum_tolerance, 4 * kEps, "dwte");
    ExpectNear(out[3], dwpe, sum_tolerance, 4 * kEps, "dwpe");
  }
}

// ---- Layer norm ------------------------------------------------------------------------------------------------------

struct LayerNormCase {
  int64_t M, C;
  bool residual = false, in_place = false;
  double offset = 0;  // added to x: sums of squares must not cancel
};
struct LayerNormInputs {
  Array x, gamma, beta, dy, residual, dgamma, dbeta;
};
LayerNormInputs MakeLayerNormInputs(const LayerNormCase& t) {
  std::mt19937 random(static_cast<uint32_t>(t.M + t.C));
  LayerNormInputs in{RandomArray(random, t.M * t.C), RandomArray(random, t.C), RandomArray(random, t.C),
                     RandomArray(random, t.M * t.C), RandomArray(random, t.M * t.C), RandomArray(random, t.C),
                     RandomArray(random, t.C)};
  for (double& v : in.x) v += t.offset;
  return in;
}

// {y, mean, rstd, y again, dx, dgamma, dbeta}
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
  void* residual = t.residual ? memory.PutAct(in.residual) : nullptr;
  void* dx = t.in_place ? residual : memory.AllocAct(n);
  Kernels& kernels = memory.device().kernels();
  kernels.LayerNorm({.M = t.M, .C = t.C, .x = x, .gamma = gamma, .beta = beta, .y = y, .mean = mean, .rstd = rstd});
  kernels.LayerNormApply(
      {.M = t.M, .C = t.C, .x = x, .gamma = gamma, .beta = beta, .mean = mean, .rstd = rstd, .y = again});
  kernels.LayerNormBackward({.M = t.M, .C = t.C, .dy = memory.PutAct(in.dy), .x = x, .gamma = gamma, .mean = mean,
                             .rstd = rstd, .dresidual = residual, .dx = dx, .dgamma = dgamma, .dbeta = dbeta,
                             .scratch = memory.Alloc(sizes.layer_norm_backward(t.M, t.C))});
  return {memory.GetAct(y, n),  memory.GetF32(mean, t.M),   memory.GetF32(rstd, t.M), memory.GetAct(again, n),
          memory.GetAct(dx, n), memory.GetF32(dgamma, t.C), memory.GetF32(dbeta, t.C)};
}

std::vector<LayerNormCase> LayerNormCases() {
  return {{1, 1},           {3, 5, true},       {37, 48, true, true}, {100, 33},
          {130, 384, true}, {64, 100, false, false, 100.0}, {2100, 20, true}};
}

TEST_P(DeviceConformanceTest, LayerNormAndItsBackwardAgreeWithFp64) {
  for (const LayerNormCase& t : LayerNormCases()) {
    SCOPED_TRACE(std::to_string(t.M) + " x " + std::to_string(t.C));
    ConformanceMemory memory(device());
    const Outputs out = RunLayerNorm(memory, t, GetParam().sizes);
    const LayerNormInputs in = MakeLayerNormInputs(t);
    const auto f = reference::LayerNorm(in.x, in.gamma, in.beta, 1e-5, t.M, t.C);
    auto b = reference::LayerNormBackward(in.dy, in.x, in.gamma, 1e-5, t.M, t.C);
    for (size_t i = 0; i < b.dx.size(); ++i) b.dx[i] += t.residual ? in.residual[i] : 0.0;
    for (int64_t c = 0; c < t.C; ++c) b.dgamma[c] += in.dgamma[c], b.dbeta[c] += in.dbeta[c];
    // Errors of the mean are relative to the size of x, and rstd (here about 1.7, or 316 where C is 1) magnifies them.
    const double size = 1 + std::abs(t.offset);
    const double rstd = t.C == 1 ? 317 : 4;
    const double act = 8 * ActEps(memory);
    ExpectNear(out[0], f.y, 16 * kEps * size * rstd + act, act, "y");
    ExpectNear(out[1], f.mean, 8 * kEps * size, 8 * kEps, "mean");
    ExpectNear(out[2], f.rstd, 0, 32 * kEps * size, "rstd");
    EXPECT_TRUE(out[3] == out[0]) << "LayerNormApply gave other bits";
    ExpectNear(out[4], b.dx, 64 * kEps * size * rstd + act * rstd, act, "dx");
    const double sum = 32 * kEps * static_cast<double>(t.M) * size + act * static_cast<double>(t.M);
    ExpectNear(out[5], b.dgamma, sum, 8 * kEps, "dgamma");
    ExpectNear(out[6], b.dbeta, sum, 8 * kEps, "dbeta");
  }
}

// (f(x + h u) - f(x - h u)) / 2h, for a direction u.
double Slope(const std::function<double(const Array&)>& f, const Array& x, const Array& u) {
  constexpr double kStep = 1e-5;
  Array plus = x, minus = x;
  for (size_t i = 0; i < x.size(); ++i) plus[i] += kStep * u[i], minus[i] -= kStep * u[i];
  return (f(plus) - f(minus)) / (2 * kStep);
}

TEST_P(DeviceConformanceTest, LayerNormBackwardAgreesWithFiniteDifferences) {
  const LayerNormCase t = {20, 37};
  ConformanceMemory memory(device());
  const Outputs out = RunLayerNorm(memory, t, GetParam().sizes);
  const LayerNormInputs in = MakeLayerNormInputs(t);
  std::mt19937 random(5);
  const auto check = [&](const Array& at, const Array& gradient, const Array& start, const char* what,
                         const std::function<Array(const Array&)>& y) {
    const Array u = RandomArray(random, static_cast<int64_t>(at.size()));
    const double slope = Slope([&](const Array& x) { return Dot(y(x), in.dy); }, at, u);
    const double got = Dot(gradient, u) - (start.empty() ? 0 : Dot(start, u));
    EXPECT_NEAR(got, slope, 2e-5 + 400 * ActEps(memory) * (1 + std::abs(slope))) << what;
  };
  check(in.x, out[4], {}, "dx",
        [&](const Array& x) { return reference::LayerNorm(x, in.gamma, in.beta, 1e-5, t.M, t.C).y; });
  check(in.gamma, out[5], in.dgamma, "dgamma",
        [&](const Array& g) { return reference::LayerNorm(in.x, g, in.beta, 1e-5, t.M, t.C).y; });
  check(in.beta, out[6], in.dbeta, "dbeta",
        [&](const Array& b) { return reference::LayerNorm(in.x, in.gamma, b, 1e-5, t.M, t.C).y; });
}

// ---- Attention -------------------------------------------------------------------------------------------------------

struct AttentionCase {
  int64_t B, T, H, D;
  double dropout = 0;
  double range = 1;  // of q, k, v

  std::string Name() const {
    return "attention B" + std::to_string(B) + " T" + std::to_string(T) + " H" + std::to_string(H) + " D" +
           std::to_string(D) + " dropout " + std::to_string(dropout);
  }
  int64_t o_elems() const { return B * T * H * D; }
  double scale() const { return 1 / std::sqrt(static_cast<double>(D)); }
  reference::AttentionShape shape() const { return {B, T, H, D, scale()}; }
  Dropout MakeDropout() const { return dropout > 0 ? SomeDropout(dropout, 4 * 4097) : Dropout(); }
  Array Factors() const { return dropout > 0 ? reference::DropoutFactors(MakeDropout(), B * H * T * T) : Array(); }
};
struct AttentionInputs {
  Array qkv, d_o;
};
AttentionInputs MakeAttentionInputs(const AttentionCase& t) {
  std::mt19937 random(static_cast<uint32_t>(t.T * 100 + t.D));
  return {RandomArray(random, 3 * t.o_elems(), t.range), RandomArray(random, t.o_elems())};
}

// {o, lse, dqkv}
Outputs RunAttention(ConformanceMemory& memory, const AttentionCase& t, const KernelSizes& sizes) {
  const AttentionInputs in = MakeAttentionInputs(t);
  const void* qkv = memory.PutAct(in.qkv);
  void* o = memory.AllocAct(t.o_elems());
  void* dqkv = memory.AllocAct(3 * t.o_elems());
  float* lse = static_cast<float*>(memory.Alloc(t.B * t.H * t.T * 4));
  Kernels& kernels = memory.device().kernels();
  kernels.Attention({.B = t.B, .T = t.T, .H = t.H, .D = t.D, .qkv = qkv, .o = o, .lse = lse, .scale = t.scale(),
                     .dropout = t.MakeDropout(), .scratch = memory.Alloc(sizes.attention(t.B, t.T, t.H, t.D))});
  kernels.AttentionBackward({.B = t.B, .T = t.T, .H = t.H, .D = t.D, .qkv = qkv, .o = o, .lse = lse,
                             .d_o = memory.PutAct(in.d_o), .dqkv = dqkv, .scale = t.scale(),
                             .dropout = t.MakeDropout(),
                             .scratch = memory.Alloc(sizes.attention_backward(t.B, t.T, t.H, t.D))});
  return {memory.GetAct(o, t.o_elems()), memory.GetF32(lse, t.B * t.H * t.T), memory.GetAct(dqkv, 3 * t.o_elems())};
}

void CheckAttention(ConformanceMemory& memory, const AttentionCase& t, const KernelSizes& sizes) {
  SCOPED_TRACE(t.Name());
  const Outputs out = RunAttention(memory, t, sizes);
  const AttentionInputs in = MakeAttentionInputs(t);
  const Array factors = t.Factors();
  const reference::AttentionResult want = reference::Attention(in.qkv, t.shape(), factors);
  // A score errs by about sqrt(D) roundings of its size (range^2 * sqrt(D) after scaling), a probability by as much
  // relatively; the gradients are sums of up to T such terms of size range. Measured errors are 5 to 20 times below.
  const double keep = t.dropout > 0 ? 1 / (1 - t.dropout) : 1;
  const double score = kEps * 8 * (1 + t.range * t.range * std::sqrt(static_cast<double>(t.D))) + 2 * ActEps(memory);
  ExpectNear(out[0], want.o, 4 * keep * t.range * score, 4 * ActEps(memory), "o");
  ExpectNear(out[1], want.lse, score, 4 * kEps, "lse");
  const double terms = std::sqrt(static_cast<double>(t.T)) * (1 + t.range * t.range);
  ExpectNear(out[2], reference::AttentionBackward(in.qkv, in.d_o, t.shape(), factors), 8 * keep * keep * terms * score,
             32 * kEps + 4 * ActEps(memory), "dqkv");
}

TEST_P(DeviceConformanceTest, AttentionAndItsBackwardAgreeWithFp64) {
  for (const AttentionCase& t :
       {AttentionCase{1, 1, 1, 1}, AttentionCase{2, 7, 3, 5}, AttentionCase{1, 64, 2, 64}, AttentionCase{2, 65, 1, 16},
        AttentionCase{1, 100, 2, 33}, AttentionCase{1, 191, 1, 24}, AttentionCase{1, 130, 1, 80},
        AttentionCase{1, 70, 1, 256}, AttentionCase{1, 96, 2, 64, 0, 8.0}}) {
    ConformanceMemory memory(device());
    CheckAttention(memory, t, GetParam().sizes);
  }
}

TEST_P(DeviceConformanceTest, AttentionDropsTheProbabilitiesThatPhiloxNames) {
  for (const AttentionCase& t : {AttentionCase{2, 70, 2, 16, 0.2}, AttentionCase{1, 33, 3, 8, 0.5},
                                 AttentionCase{1, 130, 1, 32, 0.9}}) {  // 70, 33, 130: rows not at multiples of 4
    ConformanceMemory memory(device());
    CheckAttention(memory, t, GetParam().sizes);
  }
}

TEST_P(DeviceConformanceTest, AttentionBackwardAgreesWithFiniteDifferences) {
  for (const AttentionCase& t : {AttentionCase{1, 67, 1, 12}, AttentionCase{2, 20, 2, 8, 0.3}}) {
    ConformanceMemory memory(device());
    const Outputs out = RunAttention(memory, t, GetParam().sizes);
    const AttentionInputs in = MakeAttentionInputs(t);
    std::mt19937 random(9);
    const Array u = RandomArray(random, static_cast<int64_t>(in.qkv.size())), factors = t.Factors();
    const double slope = Slope(
        [&](const Array& qkv) { return Dot(reference::Attention(qkv, t.shape(), factors).o, in.d_o); }, in.qkv, u);
    EXPECT_NEAR(Dot(out[2], u), slope, 2e-5 + 400 * ActEps(memory) * (1 + std::abs(slope)));
  }
}

TEST_P(DeviceConformanceTest, AttentionLetsNaNThrough) {
  const AttentionCase t = {1, 80, 1, 16};
  AttentionInputs in = MakeAttentionInputs(t);
  in.qkv[70 * 3 * 16 + 16 + 2] = std::numeric_limits<double>::quiet_NaN();  // k of row 70
  ConformanceMemory memory(device());
  void* o = memory.AllocAct(t.o_elems());
  device().kernels().Attention(
      {.B = 1, .T = 80, .H = 1, .D = 16, .qkv = memory.PutAct(in.qkv), .o = o,
       .lse = static_cast<float*>(memory.Alloc(80 * 4)), .scale = 0.25,
       .scratch = memory.Alloc(GetParam().sizes.attention(1, 80, 1, 16))});
  const Array got = memory.GetAct(o, t.o_elems());
  for (int64_t i = 0; i < t.o_elems(); ++i) EXPECT_EQ(std::isnan(got[i]), i / 16 >= 70) << i;
}

// ---- GELU, dropout, column sums --------------------------------------------------------------------------------------

// {dx, gelu_out}
Outputs RunGeluBackward(ConformanceMemory& memory, const Array& x, const Array& dy) {
  const int64_t n = static_cast<int64_t>(x.size());
  void* d = memory.PutAct(dy);
  void* gelu = memory.AllocAct(n);
  memory.device().kernels().GeluBackward({.n = n, .x = memory.PutAct(x), .dy = d, .gelu_out = gelu});
  return {memory.GetAct(d, n), memory.GetAct(gelu, n)};
}

TEST_P(DeviceConformanceTest, GeluBackwardAgreesWithFp64AndFiniteDifferences) {
  std::mt19937 random(2);
  for (const int64_t n : {1, 17, 16384 + 5}) {
    ConformanceMemory memory(device());
    Array x = RandomArray(random, n, 12.0);
    if (n > 4) x[0] = 0, x[1] = -40, x[2] = 40, x[3] = -1e4, x[4] = 1e4;
    const Array dy = RandomArray(random, n);
    const Outputs out = RunGeluBackward(memory, x, dy);
    Array dx(n), gelu(n), slope(n);
    for (int64_t i = 0; i < n; ++i) {
      gelu[i] = reference::Gelu(x[i]);
      dx[i] = dy[i] * reference::GeluDerivative(x[i]);
      slope[i] = dy[i] * (reference::Gelu(x[i] + 1e-5) - reference::Gelu(x[i] - 1e-5)) / 2e-5;
    }
    // The exponential errs by 2 ulp, and its argument, at most about 88 before it saturates, by 2 of its own.
    ExpectNear(out[0], dx, 16 * kEps, 16 * kEps + 4 * ActEps(memory), "dx");
    ExpectNear(out[1], gelu, 16 * kEps, 16 * kEps + 4 * ActEps(memory), "gelu_out");
    ExpectNear(out[0], slope, 1e-5 + 8 * ActEps(memory), 1e-5, "finite differences");
  }
}

TEST_P(DeviceConformanceTest, GeluBackwardGivesTheBitsOfTheForward) {
  const MatMulCase t = {.M = 67, .N = 129, .K = 40, .bias = true, .epilogue = MatMulArgs::Epilogue::kGelu};
  ConformanceMemory memory(device());
  const Outputs forward = RunMatMul(memory, t);
  const Outputs backward = RunGeluBackward(memory, forward[0], Array(forward[0].size(), 1.0));
  EXPECT_TRUE(backward[1] == forward[1]);
}

Array RunDropout(ConformanceMemory& memory, const Array& x, const Dropout& dropout, bool in_place) {
  const int64_t n = static_cast<int64_t>(x.size());
  void* from = memory.PutAct(x);
  void* to = in_place ? from : memory.AllocAct(n);
  memory.device().kernels().ApplyDropout({.n = n, .x = from, .y = to, .dropout = dropout});
  return memory.GetAct(to, n);
}

TEST_P(DeviceConformanceTest, DropoutKeepsWhatPhiloxSays) {
  std::mt19937 random(4);
  for (const double rate : {0.0, 1e-12, 0.1, 0.5, 0.999}) {
    for (const int64_t first : {int64_t{0}, int64_t{4}, int64_t{1} << 36}) {  // 2^36: both words of the counter
      const int64_t n = 40003;
      ConformanceMemory memory(device());
      Array x = RandomArray(random, n);
      for (double& v : x) v = v == 0 ? 0.5 : v;
      const Dropout dropout = SomeDropout(rate, first);
      const Array factors = reference::DropoutFactors(dropout, n);
      const Array y = RunDropout(memory, x, dropout, first == 4);
      Array want(n);
      for (int64_t i = 0; i < n; ++i) {
        want[i] = x[i] * factors[i];
        if (factors[i] == 0) {
          EXPECT_EQ(y[i], 0.0) << i;
        }
      }
      ExpectNear(y, want, 0, 4 * ActEps(memory), "dropout");
    }
  }
}

TEST_P(DeviceConformanceTest, DropoutOfAllKernelsIsTheSameMask) {
  // MatMul's epilogue on zero products with a bias of 1 and ApplyDropout on ones: the same elements survive.
  const int64_t M = 50, N = 30;
  ConformanceMemory memory(device());
  const Dropout dropout = SomeDropout(0.4, 4 * 25);
  void* c = memory.AllocAct(M * N);
  device().kernels().MatMul({.M = M, .N = N, .K = 8, .a = memory.PutAct(Array(M * 8, 0.0)), .lda = 8,
                             .b = memory.PutAct(Array(8 * N, 0.0)), .ldb = N, .c = c, .ldc = N,
                             .bias = memory.PutAct(Array(N, 1.0)), .epilogue = MatMulArgs::Epilogue::kResidual,
                             .residual = memory.PutAct(Array(M * N, 0.0)), .dropout = dropout});
  EXPECT_TRUE(memory.GetAct(c, M * N) == RunDropout(memory, Array(M * N, 1.0), dropout, false));
}

Array RunColumnSum(ConformanceMemory& memory, int64_t M, int64_t N, const KernelSizes& sizes) {
  std::mt19937 random(6);
  const Array x = RandomArray(random, M * N);
  float* out = memory.PutF32(Array(N, 0.25));
  memory.device().kernels().ColumnSum(
      {.M = M, .N = N, .x = memory.PutAct(x), .out = out, .scratch = memory.Alloc(sizes.column_sum(M, N))});
  return memory.GetF32(out, N);
}

TEST_P(DeviceConformanceTest, ColumnSumAgreesWithFp64) {
  for (const auto& [M, N] : {std::pair<int64_t, int64_t>{1, 1}, {31, 7}, {300, 65}, {5000, 33}}) {
    ConformanceMemory memory(device());
    std::mt19937 random(6);
    const Array x = RandomArray(random, M * N);
    Array want(N, 0.25);
    for (int64_t i = 0; i < M * N; ++i) want[i % N] += x[i];
    ExpectNear(RunColumnSum(memory, M, N, GetParam().sizes), want, 4 * kEps * static_cast<double>(M), 4 * kEps, "sum");
  }
}

// ---- Cross-entropy ---------------------------------------------------------------------------------------------------

struct LossCase {
  int64_t M, V, chunk;
  double range = 4;
};
struct LossInputs {
  Array logits;
  std::vector<int32_t> labels;
};
LossInputs MakeLossInputs(const LossCase& t) {
  std::mt19937 random(static_cast<uint32_t>(t.V));
  LossInputs in{RandomArray(random, t.M * t.V, t.range), {}};
  for (int64_t i = 0; i < t.M; ++i) {
    in.labels.push_back(i % 5 == 3 ? (i % 2 == 0 ? -100 : static_cast<int32_t>(t.V)) : static_cast<int32_t>(random() % t.V));
  }
  return in;
}
Array Columns(const Array& x, int64_t V, int64_t first, int64_t n) {
  Array y;
  for (size_t row = 0; row < x.size(); row += V) y.insert(y.end(), x.begin() + row + first, x.begin() + row + first + n);
  return y;
}

struct LossOutputs {
  Array dlogits;  // (M, V)
  LossRecord record;
};
LossOutputs RunLoss(ConformanceMemory& memory, const LossCase& t, const LossInputs& in, double scale) {
  Kernels& kernels = memory.device().kernels();
  const int32_t* labels = memory.Put(in.labels);
  float* row_max = static_cast<float*>(memory.Alloc(t.M * 4));
  float* row_sum = static_cast<float*>(memory.Alloc(t.M * 4));
  float* target = static_cast<float*>(memory.Alloc(t.M * 4));
  LossRecord* record = memory.Put(std::vector<LossRecord>{{.loss_sum = 0.5, .counted = 2, .finite = 1}});
  for (int64_t first = 0; first < t.V; first += t.chunk) {
    const int64_t n = std::min(t.chunk, t.V - first);
    kernels.SoftmaxChunk({.M = t.M, .chunk = n, .first = first,
                          .logits = memory.PutAct(Columns(in.logits, t.V, first, n)), .labels = labels,
                          .row_max = row_max, .row_sum = row_sum, .target = target});
  }
  kernels.Loss({.M = t.M, .V = t.V, .labels = labels, .row_max = row_max, .row_sum = row_sum, .target = target,
                .record = record});
  LossOutputs out{Array(t.M * t.V), memory.Get<LossRecord>(record, 1)[0]};
  for (int64_t first = 0; first < t.V; first += t.chunk) {
    const int64_t n = std::min(t.chunk, t.V - first);
    void* logits = memory.PutAct(Columns(in.logits, t.V, first, n));
    kernels.SoftmaxChunkBackward({.M = t.M, .chunk = n, .first = first, .V = t.V, .logits = logits, .labels = labels,
                                  .row_max = row_max, .row_sum = row_sum, .scale = scale});
    const Array d = memory.GetAct(logits, t.M * n);
    for (int64_t i = 0; i < t.M * n; ++i) out.dlogits[i / n * t.V + first + i % n] = d[i];
  }
  return out;
}

TEST_P(DeviceConformanceTest, CrossEntropyInChunksAgreesWithFp64) {
  for (const LossCase& t : {LossCase{7, 256, 256}, LossCase{65, 1000, 300}, LossCase{33, 37, 10}, LossCase{1, 1, 1},
                            LossCase{40, 500, 128, 60.0}, LossCase{40, 100, 7, 1000.0}}) {
    SCOPED_TRACE(std::to_string(t.V) + " by " + std::to_string(t.chunk));
    ConformanceMemory memory(device());
    const LossInputs in = MakeLossInputs(t);
    const double scale = 1.0 / static_cast<double>(t.M);
    const LossOutputs out = RunLoss(memory, t, in, scale);
    int64_t counted = 2;
    for (const int32_t label : in.labels) counted += label >= 0 && label < t.V;
    EXPECT_EQ(out.record.counted, counted);
    EXPECT_EQ(out.record.finite, 1);
    // A row's loss: roundings of logits - max (size 2 range) and of the sum, a few ulp each.
    const double row = (16 + 4 * t.range) * kEps + ActEps(memory) * t.range;
    EXPECT_NEAR(out.record.loss_sum, 0.5 + reference::CrossEntropy(in.logits, in.labels, t.M, t.V),
                row * static_cast<double>(t.M));
    ExpectNear(out.dlogits, reference::CrossEntropyGradient(in.logits, in.labels, t.M, t.V, scale), scale * row,
               4 * ActEps(memory), "dlogits");
    for (int64_t i = 0; i < t.M * t.V; ++i) {
      if (in.labels[i / t.V] < 0 || in.labels[i / t.V] >= t.V) {
        ASSERT_EQ(out.dlogits[i], 0.0) << "of a row that does not count";
      }
    }
  }
}

TEST_P(DeviceConformanceTest, CrossEntropyGradientAgreesWithFiniteDifferences) {
  const LossCase t = {20, 50, 16};
  ConformanceMemory memory(device());
  const LossInputs in = MakeLossInputs(t);
  const LossOutputs out = RunLoss(memory, t, in, 1.0);
  std::mt19937 random(3);
  const Array u = RandomArray(random, t.M * t.V);
  const double slope = Slope([&](const Array& x) { return reference::CrossEntropy(x, in.labels, t.M, t.V); }, in.logits, u);
  EXPECT_NEAR(Dot(out.dlogits, u), slope, 1e-5 + 100 * ActEps(memory) * (1 + std::abs(slope)));
}

TEST_P(DeviceConformanceTest, LossSaysWhenItIsNotFinite) {
  const LossCase t = {10, 40, 16};
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    ConformanceMemory memory(device());
    LossInputs in = MakeLossInputs(t);
    in.logits[2 * t.V + 20] = bad;  // of a counted row, not its label
    in.labels[2] = 5;
    EXPECT_EQ(RunLoss(memory, t, in, 1.0).record.finite, 0) << bad;
  }
  ConformanceMemory memory(device());
  LossInputs in = MakeLossInputs(t);
  in.logits[3 * t.V + 20] = std::numeric_limits<double>::quiet_NaN();  // row 3 does not count
  EXPECT_EQ(RunLoss(memory, t, in, 1.0).record.finite, 1);
}

// ---- Gradients and wire forms: exact -----------------------------------------------------------------------------------

constexpr int64_t kWireElems = 65536 + 4099;

std::vector<float> SomeFloats(uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(kWireElems);
  for (float& v : values) v = normal(random);
  values[0] = 0.0f, values[1] = -0.0f, values[2] = 1e30f, values[3] = -3e-30f;
  return values;
}

TEST_P(DeviceConformanceTest, WidenIsExact) {
  ConformanceMemory memory(device());
  const std::vector<float> values = SomeFloats(1);
  std::vector<uint16_t> bits;
  Array want;
  for (const float v : values) {
    bits.push_back(ToBf16(v).bits);
    want.push_back(ToFloat(ToBf16(v)));
  }
  void* dst = memory.AllocAct(kWireElems);
  device().kernels().Widen({.n = kWireElems, .src = memory.Put(bits), .src_dtype = Dtype::kBf16, .dst = dst});
  EXPECT_TRUE(memory.GetAct(dst, kWireElems) == want);
  const float* from = memory.Put(values);
  device().kernels().Widen({.n = kWireElems, .src = from, .src_dtype = Dtype::kF32, .dst = dst});
  if (memory.act() == Dtype::kF32) {
    EXPECT_TRUE(memory.Get<float>(dst, kWireElems) == values);
  }
}

TEST_P(DeviceConformanceTest, FinishLeafRoundsOnceAndEmitKeepsIt) {
  ConformanceMemory memory(device());
  const std::vector<float> values = SomeFloats(2);
  float* src = memory.Put(values);
  int32_t* finite = memory.Put(std::vector<int32_t>{1});
  void* wire = memory.Alloc(kWireElems * 2);
  void* wide = memory.Alloc(kWireElems * 4);
  device().kernels().FinishLeaf({.n = kWireElems, .src = src, .round_bf16 = true, .finite = finite});
  device().kernels().EmitGradient({.n = kWireElems, .src = src, .dst_dtype = Dtype::kBf16, .dst = wire});
  device().kernels().EmitGradient({.n = kWireElems, .src = src, .dst_dtype = Dtype::kF32, .dst = wide});
  const std::vector<float> rounded = memory.Get<float>(src, kWireElems);
  const std::vector<uint16_t> bits = memory.Get<uint16_t>(wire, kWireElems);
  for (int64_t i = 0; i < kWireElems; ++i) {
    ASSERT_EQ(rounded[i], ToFloat(ToBf16(values[i]))) << i;
    ASSERT_EQ(bits[i], ToBf16(values[i]).bits) << i;
  }
  EXPECT_TRUE(memory.Get<float>(wide, kWireElems) == rounded);
  EXPECT_EQ(memory.Get<int32_t>(finite, 1)[0], 1);
}

TEST_P(DeviceConformanceTest, FinishLeafSeesEveryElementThatIsNotFinite) {
  for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()}) {
    for (const int64_t at : {int64_t{0}, int64_t{70}, kWireElems - 1}) {
      for (const bool round : {false, true}) {
        ConformanceMemory memory(device());
        std::vector<float> values = SomeFloats(3);
        values[at] = bad;
        int32_t* finite = memory.Put(std::vector<int32_t>{1});
        device().kernels().FinishLeaf(
            {.n = kWireElems, .src = memory.Put(values), .round_bf16 = round, .finite = finite});
        EXPECT_EQ(memory.Get<int32_t>(finite, 1)[0], 0) << bad << " at " << at;
      }
    }
  }
  ConformanceMemory memory(device());
  int32_t* finite = memory.Put(std::vector<int32_t>{0});
  device().kernels().FinishLeaf({.n = 5, .src = memory.Put(SomeFloats(4)), .finite = finite});
  EXPECT_EQ(memory.Get<int32_t>(finite, 1)[0], 0) << "a flag that is down stays down";
}

TEST_P(DeviceConformanceTest, AddGradientAndFillZero) {
  ConformanceMemory memory(device());
  const std::vector<float> left = SomeFloats(5), right = SomeFloats(6);
  float* dst = memory.Put(left);
  device().kernels().AddGradient({.n = kWireElems, .dst = dst, .src = memory.Put(right)});
  const std::vector<float> sum = memory.Get<float>(dst, kWireElems);
  for (int64_t i = 0; i < kWireElems; ++i) ASSERT_EQ(sum[i], left[i] + right[i]) << i;
  device().kernels().FillZero({.num_bytes = kWireElems * 4 - 4, .dst = dst});
  const std::vector<float> zero = memory.Get<float>(dst, kWireElems);
  for (int64_t i = 0; i + 1 < kWireElems; ++i) ASSERT_EQ(zero[i], 0.0f) << i;
  EXPECT_EQ(zero.back(), sum.back()) << "FillZero wrote behind its end";
}

// ---- Bits ------------------------------------------------------------------------------------------------------------

// Every kernel at shapes with many tiles; the outputs one after another.
Outputs RunEverything(Device& device, const KernelSizes& sizes) {
  Outputs all;
  const auto keep = [&](const Outputs& out) { all.insert(all.end(), out.begin(), out.end()); };
  const auto with_memory = [&](const std::function<Outputs(ConformanceMemory&)>& run) {
    ConformanceMemory memory(device);
    keep(run(memory));
  };
  using E = MatMulArgs::Epilogue;
  for (const MatMulCase& t :
       {MatMulCase{.M = 512, .N = 1152, .K = 384, .bias = true},
        MatMulCase{.M = 500, .N = 700, .K = 130, .bias = true, .epilogue = E::kGelu},
        MatMulCase{.M = 512, .N = 384, .K = 384, .bias = true, .epilogue = E::kResidual, .dropout = 0.1},
        MatMulCase{.M = 512, .N = 384, .K = 700, .trans_b = true},
        MatMulCase{.M = 384, .N = 500, .K = 1024, .trans_a = true, .accumulate = true}}) {
    with_memory([&](ConformanceMemory& memory) { return RunMatMul(memory, t); });
  }
  with_memory([&](ConformanceMemory& memory) {
    return RunEmbedding(memory, {4, 100, 330, 20, Dtype::kBf16, 0.1});
  });
  with_memory([&](ConformanceMemory& memory) { return RunLayerNorm(memory, {1000, 384, true}, sizes); });
  with_memory([&](ConformanceMemory& memory) { return RunAttention(memory, {2, 150, 3, 64}, sizes); });
  with_memory([&](ConformanceMemory& memory) { return RunAttention(memory, {2, 150, 3, 40, 0.1}, sizes); });
  with_memory([&](ConformanceMemory& memory) {
    std::mt19937 random(8);
    return RunGeluBackward(memory, RandomArray(random, 100000, 5.0), RandomArray(random, 100000));
  });
  with_memory([&](ConformanceMemory& memory) {
    std::mt19937 random(8);
    return Outputs{RunDropout(memory, RandomArray(random, 100000), SomeDropout(0.3), false)};
  });
  with_memory([&](ConformanceMemory& memory) { return Outputs{RunColumnSum(memory, 3000, 384, sizes)}; });
  with_memory([&](ConformanceMemory& memory) {
    const LossCase t = {500, 300, 128};
    const LossOutputs out = RunLoss(memory, t, MakeLossInputs(t), 1.0 / 500);
    return Outputs{out.dlogits, {out.record.loss_sum}};
  });
  return all;
}

TEST_P(DeviceConformanceTest, BitsDoNotDependOnThreadsNorOnTheRun) {
  const Outputs want = RunEverything(device(), GetParam().sizes);
  EXPECT_TRUE(RunEverything(device(), GetParam().sizes) == want) << "a second run gave other bits";
  for (size_t i = 0; i < GetParam().same_bits.size(); ++i) {
    ASSERT_OK_AND_ASSIGN(std::unique_ptr<Device> other, GetParam().same_bits[i](device().arena_bytes()));
    EXPECT_EQ(other->properties().model, device().properties().model);
    const Outputs got = RunEverything(*other, GetParam().sizes);
    ASSERT_EQ(got.size(), want.size());
    for (size_t k = 0; k < want.size(); ++k) EXPECT_TRUE(got[k] == want[k]) << "device " << i << ", output " << k;
  }
}

}  // namespace
}  // namespace eps::worker
