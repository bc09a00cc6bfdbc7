// Every kernel against plain fp64 loops, but products, attention, the loss and gradients, which have files of their own; and
// the bits of all against other numbers of threads.

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
#include "common/tensor/dtype.h"
#include "common/testing/status_matchers.h"
#include "gpu_worker/device/conformance_cases.h"
#include "gpu_worker/device/conformance_memory.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/device/device_conformance.h"
#include "gpu_worker/device/experts_cases.h"
#include "gpu_worker/device/kernels.h"
#include "gpu_worker/device/reference_kernels.h"
#include "gtest/gtest.h"

namespace eps::worker {
namespace {

using conformance::ActEps;
using conformance::ActTiny;
using conformance::Array;
using conformance::AttentionCase;
using conformance::EmbeddingCase;
using conformance::EmbeddingInputs;
using conformance::ExpertProductCase;
using conformance::kActivations;
using conformance::kEps;
using conformance::LayerNormCase;
using conformance::LayerNormInputs;
using conformance::LossCase;
using conformance::LossOutputs;
using conformance::MakeDocuments;
using conformance::MakeEmbeddingInputs;
using conformance::MakeLayerNormInputs;
using conformance::MakeLogits;
using conformance::MakeLossInputs;
using conformance::MakeRmsNormInputs;
using conformance::MakeSwigluInputs;
using conformance::MatMulCase;
using conformance::Outputs;
using conformance::RmsNormCase;
using conformance::RmsNormInputs;
using conformance::RotaryCase;
using conformance::RouteCase;
using conformance::RouteOutputs;
using conformance::RowsOutputs;
using conformance::RunActivationBackward;
using conformance::RunAttention;
using conformance::RunColumnSum;
using conformance::RunDropout;
using conformance::RunEmbedding;
using conformance::RunExpertGradient;
using conformance::RunExpertMatMul;
using conformance::RunInverseRotary;
using conformance::RunLayerNorm;
using conformance::RunLoss;
using conformance::RunMatMul;
using conformance::RunRmsNorm;
using conformance::RunRotary;
using conformance::RunRoute;
using conformance::RunRows;
using conformance::RunSwiglu;
using conformance::Slope;
using conformance::SomeDropout;
using conformance::SwigluCase;
using conformance::SwigluInputs;

TEST_P(DeviceConformanceTest, EmbeddingAndItsBackwardAgreeWithFp64) {
  for (const EmbeddingCase& t :
       {EmbeddingCase{3, 7, 33, 11}, EmbeddingCase{2, 16, 64, 5, Dtype::kBf16},
        EmbeddingCase{2, 9, 50, 13, Dtype::kBf16, 0.25}, EmbeddingCase{1, 1, 1, 1},
        EmbeddingCase{4, 33, 200, 7, Dtype::kF32, 0.5}, EmbeddingCase{3, 5, 40, 6, Dtype::kF16, 0.25},
        EmbeddingCase{3, 5, 41, 6, Dtype::kBf16, 0, false},
        EmbeddingCase{.B = 2, .T = 9, .C = 40, .V = 6, .num_types = 2},
        EmbeddingCase{.B = 3, .T = 40, .C = 33, .V = 6, .wire = Dtype::kBf16, .dropout = 0.25, .document_tokens = 5},
        EmbeddingCase{.B = 2, .T = 30, .C = 24, .V = 900, .document_tokens = 7, .num_types = 3}}) {
    ConformanceMemory memory(device());
    const Outputs out = RunEmbedding(memory, t, GetParam().sizes);
    const EmbeddingInputs in = MakeEmbeddingInputs(t);
    const int64_t n = t.B * t.T * t.C;
    const Array factors = t.dropout > 0 ? reference::DropoutFactors(SomeDropout(t.dropout, 4096), n) : Array(n, 1.0);
    Array y(n), dy(n), dwte = in.dwte, dwpe = in.dwpe, dwtt = in.dwtt;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t c = i % t.C, row = i / t.C;
      const int64_t position = row % t.T - (in.documents.first.empty() ? 0 : in.documents.first[row]);
      y[i] = factors[i] * (in.wte[in.tokens[row] * t.C + c] + (t.positions ? in.wpe[position * t.C + c] : 0) +
                           (t.num_types > 0 ? in.wtt[in.types[row] * t.C + c] : 0));
      dy[i] = factors[i] * in.dy[i];
      dwte[in.tokens[row] * t.C + c] += dy[i];
      if (t.positions) dwpe[position * t.C + c] += dy[i];
      if (t.num_types > 0) dwtt[in.types[row] * t.C + c] += dy[i];
    }
    // One or two roundings; sums of up to B * T terms of size 2.
    const double sum_tolerance = 4 * kEps * static_cast<double>(t.B * t.T) + 4 * ActEps(memory);
    ExpectNear(out[0], y, ActTiny(memory), 4 * ActEps(memory), "y");
    ExpectNear(out[1], dy, ActTiny(memory), 4 * ActEps(memory), "dy");
    ExpectNear(out[2], dwte, sum_tolerance, 4 * kEps, "dwte");
    ExpectNear(out[3], dwpe, sum_tolerance, 4 * kEps, "dwpe");
    ExpectNear(out[4], dwtt, sum_tolerance, 4 * kEps, "dwtt");
  }
}

// Each row of the table in the order of its positions, and of tiles of them: a promise of kernels.h, and so one of bits. Few
// tokens and many, of one byte and of three; whole tiles of a sort, and one position more; whole tiles of a row's positions,
// and one more or less.
TEST_P(DeviceConformanceTest, EmbeddingBackwardAddsToEachRowInTheOrderOfItsPositions) {
  for (const EmbeddingCase& t :
       {EmbeddingCase{2, 512, 9, 3}, EmbeddingCase{1, 1025, 8, 300}, EmbeddingCase{3, 700, 16, 70000},
        EmbeddingCase{2, 40, 8, 256}, EmbeddingCase{1, 2049, 1, 257}, EmbeddingCase{.B = 1, .T = 1100, .C = 24, .V = 1},
        EmbeddingCase{.B = 2, .T = 325, .C = 16, .V = 7, .token_counts = {64, 65, 1, 128, 129, 63, 200}}}) {
    SCOPED_TRACE(std::to_string(t.B * t.T) + " positions of " + std::to_string(t.V) + " tokens");
    ConformanceMemory memory(device());
    const Outputs out = RunEmbedding(memory, t, GetParam().sizes);
    const EmbeddingInputs in = MakeEmbeddingInputs(t);
    std::vector<float> want(in.dwte.begin(), in.dwte.end());
    const int64_t tile = GetParam().sizes.embedding_tile;  // 0: a row's is as long as it takes
    for (int64_t c = 0; c < t.C; ++c) {
      std::vector<int64_t> seen(t.V);  // positions of each token, so far
      std::vector<float> sums(t.V);    // of the tile under way, but a row's first
      for (int64_t i = 0; i < t.B * t.T; ++i) {
        const int32_t token = in.tokens[i];
        const bool in_order = tile == 0 || seen[token] < tile;
        if (!in_order && seen[token] % tile == 0) want[token * t.C + c] += std::exchange(sums[token], 0.0f);
        ++seen[token];
        (in_order ? want[token * t.C + c] : sums[token]) += static_cast<float>(in.dy[i * t.C + c]);
      }
      for (int64_t token = 0; token < t.V; ++token) want[token * t.C + c] += sums[token];
    }
    int64_t differing = 0;
    for (size_t i = 0; i < want.size(); ++i) differing += static_cast<float>(out[2][i]) == want[i] ? 0 : 1;
    EXPECT_EQ(differing, 0);
  }
}

std::vector<LayerNormCase> LayerNormCases() {
  return {{1, 1},
          {3, 5, true},
          {37, 48, true, true},
          {100, 33},
          {130, 384, true},
          {64, 100, false, false, 100.0},
          {2100, 20, true},
          {41, 264, false, true},  // rows of several packs a lane
          {17, 768, true, true},
          {20, 1024, false, true},
          {11, 1032, true, true},  // and of a block: one, two, three, four packs a thread, and no whole ones
          {3, 4104, false, true},
          {3, 8200, true, true},
          {2, 12296, true},
          {5, 1030, true, true},
          {2, 16392, true, true},  // wider than registers hold
          {2, 16390, true}};
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
    // Errors of the mean are relative to the size of x, and rstd (here about 1.7, or 316 where C is
    // 1) magnifies them.
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

std::vector<RmsNormCase> RmsNormCases() {
  return {{.M = 1, .heads = 1, .C = 1},
          {.M = 3, .heads = 1, .C = 5, .residual = true, .in_place = true},
          {.M = 37, .heads = 1, .C = 48, .ldx_extra = 8, .ldy_extra = 16, .residual = true},
          {.M = 40, .heads = 1, .C = 33, .ldx_extra = 5},
          {.M = 70, .heads = 1, .C = 384, .residual = true, .in_place = true},
          {.M = 5, .heads = 1, .C = 263, .in_place = true},  // a block's, no whole packs
          {.M = 19, .heads = 1, .C = 700, .ldx_extra = 4, .residual = true},
          {.M = 17, .heads = 1, .C = 1024, .in_place = true},
          {.M = 5, .heads = 1, .C = 1040, .ldx_extra = 3, .residual = true},
          {.M = 2, .heads = 1, .C = 4104, .ldx_extra = 1, .ldy_extra = 1, .in_place = true},
          {.M = 2, .heads = 1, .C = 8200, .residual = true},  // several packs a thread
          {.M = 2, .heads = 1, .C = 12296, .residual = true, .in_place = true},
          {.M = 2, .heads = 1, .C = 16392, .residual = true, .in_place = true},  // wider than registers hold
          {.M = 2, .heads = 1, .C = 16390, .residual = true},
          {.M = 30, .heads = 3, .C = 64, .ldx_extra = 128, .ldy_extra = 0},  // heads within a projection
          {.M = 30, .heads = 3, .C = 64, .ldx_extra = 24, .ldy_extra = 24, .in_place = true, .first = 192},
          {.M = 11, .heads = 2, .C = 20, .ldx_extra = 3, .ldy_extra = 7, .residual = true, .first = 1},
          {.M = 9, .heads = 5, .C = 7, .ldx_extra = 1, .ldy_extra = 1, .in_place = true, .first = 3},
          {.M = 300, .heads = 7, .C = 20, .ldx_extra = 4, .residual = true}};
}

TEST_P(DeviceConformanceTest, RmsNormAndItsBackwardAgreeWithFp64) {
  for (const RmsNormCase& t : RmsNormCases()) {
    SCOPED_TRACE(t.Name());
    ConformanceMemory memory(device());
    const Outputs out = RunRmsNorm(memory, t, GetParam().sizes);
    const RmsNormInputs in = MakeRmsNormInputs(t);
    const auto f = reference::RmsNorm(in.x, in.gamma, 1e-5, t.rows(), t.C);
    auto b = reference::RmsNormBackward(in.dy, in.x, in.gamma, 1e-5, t.rows(), t.C);
    for (size_t i = 0; i < b.dx.size(); ++i) b.dx[i] += t.residual ? in.residual[i] : 0.0;
    for (int64_t c = 0; c < t.C; ++c) b.dgamma[c] += in.dgamma[c];
    // A sum of squares does not cancel, but all of it is rounded as it grows, which tells in the widest rows; y has one
    // rounding to the compute dtype.
    const double rstd = *std::max_element(f.rstd.begin(), f.rstd.end());
    const double of_sum = (t.C > 16384 ? 32 : 16) * kEps;
    ExpectNear(out[0], f.y, ActTiny(memory), of_sum + 2 * ActEps(memory), "y");
    ExpectNear(out[1], f.rstd, 0, of_sum, "rstd");
    EXPECT_TRUE(out[2] == out[0]) << "RmsNormApply gave other bits";
    ExpectNear(out[3], b.dx, 64 * kEps * rstd + ActTiny(memory), 2 * ActEps(memory), "dx");
    ExpectNear(out[4], b.dgamma, 32 * kEps * static_cast<double>(t.rows()), 8 * kEps, "dgamma");
  }
}

TEST_P(DeviceConformanceTest, RmsNormDoesNotDependOnHowItsRowsLie) {
  for (const RmsNormCase& t : RmsNormCases()) {
    SCOPED_TRACE(t.Name());
    ConformanceMemory memory(device());
    const RmsNormCase dense = {.M = t.rows(), .heads = 1, .C = t.C, .residual = t.residual};
    EXPECT_EQ(RunRmsNorm(memory, t, GetParam().sizes), RunRmsNorm(memory, dense, GetParam().sizes));
  }
}

TEST_P(DeviceConformanceTest, RmsNormBackwardAgreesWithFiniteDifferences) {
  const RmsNormCase t = {.M = 10, .heads = 2, .C = 37};
  ConformanceMemory memory(device());
  const Outputs out = RunRmsNorm(memory, t, GetParam().sizes);
  const RmsNormInputs in = MakeRmsNormInputs(t);
  std::mt19937 random(5);
  const Array u = RandomArray(random, t.rows() * t.C), v = RandomArray(random, t.C);
  const double by_x = Slope(
      [&](const Array& x) { return Dot(reference::RmsNorm(x, in.gamma, 1e-5, t.rows(), t.C).y, in.dy); }, in.x, u);
  const double by_gamma = Slope(
      [&](const Array& g) { return Dot(reference::RmsNorm(in.x, g, 1e-5, t.rows(), t.C).y, in.dy); }, in.gamma, v);
  // The errors of dx's elements, rounded once each, add up over about 27 = sqrt(rows C) of them.
  EXPECT_NEAR(Dot(out[3], u), by_x, 2e-5 + 27 * ActEps(memory)) << "dx";
  EXPECT_NEAR(Dot(out[4], v) - Dot(in.dgamma, v), by_gamma, 2e-5) << "dgamma";
}

TEST_P(DeviceConformanceTest, SwigluAndItsBackwardAgreeWithFp64AndFiniteDifferences) {
  for (const SwigluCase& t :
       {SwigluCase{.M = 1, .F = 5}, SwigluCase{.M = 9, .F = 37, .in_place = true}, SwigluCase{.M = 33, .F = 520},
        SwigluCase{.M = 7, .F = 2056, .in_place = true, .keeps_y = false}, SwigluCase{.M = 40, .F = 1, .range = 1},
        SwigluCase{.M = 9, .F = 37, .weighted = true},
        SwigluCase{.M = 33, .F = 520, .in_place = true, .weighted = true},
        SwigluCase{.M = 3, .F = 4104, .keeps_y = false, .weighted = true}}) {
    SCOPED_TRACE(std::to_string(t.M) + " x " + std::to_string(t.F));
    ConformanceMemory memory(device());
    SwigluInputs in = MakeSwigluInputs(t);
    if (t.F > 4)
      in.gate_up[0] = 0, in.gate_up[1] = -40, in.gate_up[2] = 40, in.gate_up[3] = -8192, in.gate_up[4] = 8192;
    const Outputs out = RunSwiglu(memory, t, in);
    const int64_t n = t.M * t.F;
    Array y = reference::Swiglu(in.gate_up, t.M, t.F), dy = in.dy;
    Array dweight(t.M, 0.0), dweight_size(t.M, 0.0);
    for (int64_t i = 0; i < n; ++i) {
      dweight[i / t.F] += in.dy[i] * y[i];
      dweight_size[i / t.F] += std::abs(in.dy[i] * y[i]);
      y[i] *= in.weight[i / t.F];
      dy[i] *= in.weight[i / t.F];
    }
    const Array d = reference::SwigluBackward(dy, in.gate_up, t.M, t.F);
    Array slope(d.size());  // an element of y depends on two of gate_up
    for (const int64_t part : {0, 1}) {
      Array plus = in.gate_up, minus = in.gate_up;
      for (int64_t i = 0; i < n; ++i) {
        const int64_t at = (i / t.F * 2 + part) * t.F + i % t.F;
        plus[at] += 1e-5, minus[at] -= 1e-5;
      }
      const Array above = reference::Swiglu(plus, t.M, t.F), below = reference::Swiglu(minus, t.M, t.F);
      for (int64_t i = 0; i < n; ++i) {
        slope[(i / t.F * 2 + part) * t.F + i % t.F] = dy[i] * (above[i] - below[i]) / 2e-5;
      }
    }
    // The exponential errs by 2 ulp, and its argument by none; silu's derivative is at most 1.1.
    const double absolute = 16 * kEps * t.range + ActTiny(memory), relative = 16 * kEps + 2 * ActEps(memory);
    ExpectNear(out[0], y, absolute, relative, "y");
    ExpectNear(out[1], d, absolute, relative, "dgate_up");
    ExpectNear(out[1], slope, 1e-5 + absolute, 1e-5 + relative, "finite differences");
    if (t.weighted) {
      for (double& size : dweight_size) size = 16 * kEps * (size + 1);
      ExpectNear(out[2], dweight, dweight_size, "dweight");
    }
    if (t.keeps_y) {
      EXPECT_TRUE(out.back() == out[0]) << "SwigluBackward gave other bits";
    }
  }
}

TEST_P(DeviceConformanceTest, SwigluLetsNaNThrough) {
  ConformanceMemory memory(device());
  const SwigluCase t = {.M = 2, .F = 40};
  SwigluInputs in = MakeSwigluInputs(t);
  in.gate_up[3] = std::numeric_limits<double>::quiet_NaN();
  in.gate_up[40 + 7] = std::numeric_limits<double>::quiet_NaN();
  const Outputs out = RunSwiglu(memory, t, in);
  for (int64_t i = 0; i < t.M * t.F; ++i) EXPECT_EQ(std::isnan(out[0][i]), i == 3 || i == 7) << i;
}

std::vector<RotaryCase> RotaryCases() {
  return {{.M = 1, .T = 1, .heads = 1, .D = 2},
          {.M = 21, .T = 7, .heads = 3, .D = 64, .ld_extra = 128},
          {.M = 10, .T = 5, .heads = 2, .D = 26, .ld_extra = 3, .first = 1},
          {.M = 6, .T = 4, .heads = 40, .D = 128, .first = 64},
          {.M = 70, .T = 35, .heads = 1, .D = 48, .first = 5},
          {.M = 90, .T = 30, .heads = 2, .D = 32, .document_tokens = 4}};
}

TEST_P(DeviceConformanceTest, RotaryAgreesWithFp64AndItsInverseUndoesIt) {
  std::mt19937 random(9);
  for (const RotaryCase& t : RotaryCases()) {
    SCOPED_TRACE(std::to_string(t.M) + " x " + std::to_string(t.heads) + " x " + std::to_string(t.D));
    ConformanceMemory memory(device());
    const Array x = RandomArray(random, t.M * t.heads * t.D);
    const Array table = reference::RotaryTable(t.T + 2, t.D, 1e4);
    const Outputs out = RunRotary(memory, t, x, table);
    const std::vector<int32_t> first = MakeDocuments(t.M / t.T, t.T, t.document_tokens).first;
    const double eps = 4 * kEps + ActEps(memory), tiny = ActTiny(memory);
    ExpectNear(out[0], reference::Rotary(x, table, false, t.T, t.heads, t.D, first), 4 * kEps + tiny, 2 * eps,
               "rotated");
    ExpectNear(out[1], x, 4 * eps, 2 * eps, "rotated back");  // both elements of a pair, at most 1, were rounded
    ExpectNear(RunInverseRotary(memory, t, x, table), reference::Rotary(x, table, true, t.T, t.heads, t.D, first),
               4 * kEps + tiny, 2 * eps, "inverse");
  }
}

TEST_P(DeviceConformanceTest, ActivationBackwardAgreesWithFp64AndFiniteDifferences) {
  std::mt19937 random(2);
  for (const Activation activation : kActivations) {
    for (const auto& [M, N] : {std::pair<int64_t, int64_t>{1, 1}, {17, 1}, {1, 16384 + 5}, {300, 65}, {70, 520}}) {
      SCOPED_TRACE(std::to_string(static_cast<int>(activation)) + " of " + std::to_string(M) + " x " +
                   std::to_string(N));
      const int64_t n = M * N;
      ConformanceMemory memory(device());
      Array x = RandomArray(random, n, 12.0);
      if (n > 4) x[0] = 0, x[1] = -40, x[2] = 40, x[3] = -1e4, x[4] = 1e4;
      const Array dy = RandomArray(random, n);
      const Outputs out = RunActivationBackward(memory, activation, N, x, dy, GetParam().sizes);
      EXPECT_EQ(RunActivationBackward(memory, activation, N, x, dy, GetParam().sizes, /*has_bias=*/false),
                Outputs({out[0], out[1]}));
      Array dx(n), y(n), slope(n);
      const auto f = [&](double at) { return reference::Activate(activation, at); };
      for (int64_t i = 0; i < n; ++i) {
        y[i] = f(x[i]);
        dx[i] = dy[i] * reference::ActivationSlope(activation, x[i]);
        slope[i] = dy[i] * (f(x[i] + 1e-5) - f(x[i] - 1e-5)) / 2e-5;
      }
      // The exponential errs by 2 ulp, and its argument, at most about 88 before it saturates, by 2
      // of its own.
      ExpectNear(out[0], dx, 16 * kEps, 16 * kEps + 4 * ActEps(memory), "dx");
      ExpectNear(out[1], y, 16 * kEps, 16 * kEps + 4 * ActEps(memory), "activated");
      ExpectNear(out[0], slope, 1e-5 + 8 * ActEps(memory), 1e-5, "finite differences");
    }
  }
}

// A promise of kernels.h.
TEST_P(DeviceConformanceTest, ActivationBackwardsBiasGradientIsTheColumnSumOfWhatItWrites) {
  std::mt19937 random(9);
  for (const auto& [M, N] : {std::pair<int64_t, int64_t>{1, 3}, {33, 8}, {9000, 20}, {300, 776}}) {
    SCOPED_TRACE(std::to_string(M) + " x " + std::to_string(N));
    ConformanceMemory memory(device());
    const Outputs out = RunActivationBackward(memory, Activation::kGeluTanh, N, RandomArray(random, M * N, 3.0),
                                              RandomArray(random, M * N), GetParam().sizes);
    float* sum = memory.PutF32(Array(N, 0.25));
    device().kernels().ColumnSum({.M = M,
                                  .N = N,
                                  .ld = N,
                                  .x = memory.PutAct(out[0]),
                                  .out = sum,
                                  .scratch = memory.Alloc(GetParam().sizes.column_sum(M, N))});
    EXPECT_EQ(out[2], memory.GetF32(sum, N));
    Array want(N, 0.25);
    for (int64_t i = 0; i < M * N; ++i) want[i % N] += out[0][i];
    ExpectNear(out[2], want, 4 * kEps * static_cast<double>(M), 4 * kEps, "sum");
  }
}

TEST_P(DeviceConformanceTest, ActivationBackwardGivesTheBitsOfTheForward) {
  for (const Activation activation : kActivations) {
    const MatMulCase t = {.M = 67,
                          .N = 129,
                          .K = 40,
                          .bias = true,
                          .epilogue = MatMulArgs::Epilogue::kActivation,
                          .activation = activation};
    ConformanceMemory memory(device());
    const Outputs forward = RunMatMul(memory, t);
    const Outputs backward =
        RunActivationBackward(memory, activation, t.N, forward[0], Array(forward[0].size(), 1.0), GetParam().sizes);
    EXPECT_TRUE(backward[1] == forward[1]) << t.Name();
  }
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
      ExpectNear(y, want, ActTiny(memory), 4 * ActEps(memory), "dropout");
    }
  }
}

// Enqueued in a row, more of them than a device may hold the keys of at once: each twice in a row, and again later.
TEST_P(DeviceConformanceTest, EachDropoutHasItsOwnKey) {
  constexpr int64_t kKeys = 50, kElems = 64;
  ConformanceMemory memory(device());
  const void* ones = memory.PutAct(Array(kElems, 1.0));
  std::vector<std::pair<Dropout, void*>> results;
  for (int64_t i = 0; i < 3 * kKeys; ++i) {
    Dropout dropout = SomeDropout(0.5);
    dropout.key.step = i < 2 * kKeys ? i / 2 : i % kKeys;
    results.emplace_back(dropout, memory.AllocAct(kElems));
    device().kernels().ApplyDropout({.n = kElems, .x = ones, .y = results.back().second, .dropout = dropout});
  }
  for (const auto& [dropout, y] : results) {
    EXPECT_EQ(memory.GetAct(y, kElems), reference::DropoutFactors(dropout, kElems)) << dropout.key.step;
  }
}

TEST_P(DeviceConformanceTest, DropoutOfAllKernelsIsTheSameMask) {
  // MatMul's epilogue on zero products with a bias of 1 and ApplyDropout on ones: the same elements
  // survive.
  const int64_t M = 50, N = 30;
  ConformanceMemory memory(device());
  const Dropout dropout = SomeDropout(0.4, 4 * 25);
  void* c = memory.AllocAct(M * N);
  device().kernels().MatMul({.M = M,
                             .N = N,
                             .K = 8,
                             .a = memory.PutAct(Array(M * 8, 0.0)),
                             .lda = 8,
                             .b = memory.PutAct(Array(8 * N, 0.0)),
                             .ldb = N,
                             .c = c,
                             .ldc = N,
                             .bias = memory.PutAct(Array(N, 1.0)),
                             .epilogue = MatMulArgs::Epilogue::kResidual,
                             .residual = memory.PutAct(Array(M * N, 0.0)),
                             .dropout = dropout});
  EXPECT_TRUE(memory.GetAct(c, M * N) == RunDropout(memory, Array(M * N, 1.0), dropout, false));
}

TEST_P(DeviceConformanceTest, ColumnSumAgreesWithFp64) {
  for (const auto& [M, N] : {std::pair<int64_t, int64_t>{1, 1}, {31, 7}, {300, 65}, {5000, 33}}) {
    ConformanceMemory memory(device());
    std::mt19937 random(6);
    const Array x = RandomArray(random, M * N);
    Array want(N, 0.25);
    for (int64_t i = 0; i < M * N; ++i) want[i % N] += x[i];
    for (const int64_t before : {0, 3, 8}) {  // columns of an array
      ExpectNear(RunColumnSum(memory, M, N, before, GetParam().sizes), want, 4 * kEps * static_cast<double>(M),
                 4 * kEps, "sum");
    }
  }
}

// ---- Bits -----------------------------------------------------------------------------------

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
        MatMulCase{.M = 500, .N = 700, .K = 130, .bias = true, .epilogue = E::kActivation},
        MatMulCase{.M = 512, .N = 384, .K = 384, .bias = true, .epilogue = E::kResidual, .dropout = 0.1},
        MatMulCase{.M = 512, .N = 384, .K = 700, .trans_b = true},
        MatMulCase{.M = 1000, .N = 1536, .K = 100, .trans_b = true},
        MatMulCase{.M = 300, .N = 200, .K = 1300, .trans_b = true},
        MatMulCase{.M = 1024, .N = 512, .K = 400, .bias = true, .epilogue = E::kResidual, .dropout = 0.1},
        MatMulCase{.M = 1024, .N = 512, .K = 300, .trans_a = true, .accumulate = true},
        MatMulCase{.M = 1000, .N = 24, .K = 384, .trans_b = true, .ld_extra = 8, .scale = 2.5},
        MatMulCase{.M = 500, .N = 700, .K = 130, .accumulate = true, .bias = true, .epilogue = E::kActivation},
        MatMulCase{.M = 512, .N = 384, .K = 384, .accumulate = true, .epilogue = E::kResidual, .dropout = 0.1},
        MatMulCase{.M = 384, .N = 500, .K = 1024, .trans_a = true, .accumulate = true}}) {
    with_memory([&](ConformanceMemory& memory) { return RunMatMul(memory, t); });
  }
  for (const EmbeddingCase& t :
       {EmbeddingCase{4, 100, 330, 20, Dtype::kBf16, 0.1}, EmbeddingCase{3, 700, 8, 70000},
        EmbeddingCase{.B = 3, .T = 300, .C = 40, .V = 500, .document_tokens = 60, .num_types = 2}}) {
    with_memory([&](ConformanceMemory& memory) { return RunEmbedding(memory, t, sizes); });
  }
  for (const LayerNormCase& t : {LayerNormCase{1000, 384, true}, LayerNormCase{30, 2056, true}}) {
    with_memory([&](ConformanceMemory& memory) { return RunLayerNorm(memory, t, sizes); });
  }
  for (const RmsNormCase& t :
       {RmsNormCase{.M = 1000, .heads = 1, .C = 384, .residual = true},
        RmsNormCase{.M = 300, .heads = 4, .C = 50, .ldx_extra = 9, .ldy_extra = 1, .first = 2}}) {
    with_memory([&](ConformanceMemory& memory) { return RunRmsNorm(memory, t, sizes); });
  }
  for (const bool weighted : {false, true}) {
    with_memory([&](ConformanceMemory& memory) {
      const SwigluCase t = {.M = 100, .F = 700, .weighted = weighted};
      return RunSwiglu(memory, t, MakeSwigluInputs(t));
    });
  }
  with_memory([&](ConformanceMemory& memory) {
    const RouteCase t = {.M = 500, .E = 40, .K = 4, .balance = 1};
    const RouteOutputs out = RunRoute(memory, t, MakeLogits(t), sizes);
    return Outputs{out.routed.weight, out.dlogits};
  });
  with_memory([&](ConformanceMemory& memory) {
    const RowsOutputs out = RunRows(memory, {.M = 300, .E = 20, .K = 3, .C = 200, .residual = true}, sizes);
    return Outputs{out.gathered, out.summed};
  });
  with_memory([&](ConformanceMemory& memory) {
    const ExpertProductCase t = {.rows = {300, 0, 50, 700}, .N = 200, .K = 136, .trans_b = true};
    return Outputs{RunExpertMatMul(memory, t), RunExpertGradient(memory, t)};
  });
  with_memory([&](ConformanceMemory& memory) {
    std::mt19937 random(8);
    const RotaryCase t = {.M = 200, .T = 50, .heads = 5, .D = 60, .ld_extra = 30};
    return RunRotary(memory, t, RandomArray(random, t.M * t.heads * t.D), reference::RotaryTable(t.T, t.D, 1e4));
  });
  with_memory([&](ConformanceMemory& memory) { return RunAttention(memory, {2, 150, 3, 64}, sizes); });
  with_memory([&](ConformanceMemory& memory) { return RunAttention(memory, {2, 150, 3, 40, 0.1}, sizes); });
  for (const AttentionCase& t :
       {AttentionCase{.B = 2, .T = 150, .H = 6, .D = 24, .dropout = 0.1, .shared_by = 3},
        AttentionCase{.B = 2, .T = 150, .H = 4, .D = 40, .shared_by = 4, .causal = false},
        AttentionCase{.B = 2, .T = 150, .H = 4, .D = 24, .dropout = 0.1, .shared_by = 2, .window = 50},
        AttentionCase{.B = 2, .T = 150, .H = 4, .D = 24, .dropout = 0.1, .shared_by = 2, .document_tokens = 20}}) {
    with_memory([&](ConformanceMemory& memory) { return RunAttention(memory, t, sizes); });
  }
  for (const Activation activation : kActivations) {
    with_memory([&](ConformanceMemory& memory) {
      std::mt19937 random(8);
      return RunActivationBackward(memory, activation, 400, RandomArray(random, 100000, 5.0),
                                   RandomArray(random, 100000), sizes);
    });
  }
  with_memory([&](ConformanceMemory& memory) {
    std::mt19937 random(8);
    return Outputs{RunDropout(memory, RandomArray(random, 100000), SomeDropout(0.3), false)};
  });
  with_memory([&](ConformanceMemory& memory) { return Outputs{RunColumnSum(memory, 3000, 384, 0, sizes)}; });
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
