// MatMul against plain fp64 loops: its forms, epilogues, gradients, and where operands lie.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "common/tensor/dtype.h"
#include "gpu_worker/device/conformance_cases.h"
#include "gpu_worker/device/conformance_memory.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/device/device_conformance.h"
#include "gpu_worker/device/kernels.h"
#include "gpu_worker/device/reference_kernels.h"
#include "gtest/gtest.h"

namespace eps::worker {
namespace {

using conformance::ActEps;
using conformance::Array;
using conformance::kEps;
using conformance::MakeMatMulInputs;
using conformance::MatMulCase;
using conformance::MatMulInputs;
using conformance::Outputs;
using conformance::RunMatMul;
using conformance::SomeDropout;

Array Abs(Array x) {
  for (double& v : x) v = std::abs(v);
  return x;
}

void CheckMatMul(ConformanceMemory& memory, const MatMulCase& t) {
  SCOPED_TRACE(t.Name());
  const Outputs out = RunMatMul(memory, t);
  const MatMulInputs in = MakeMatMulInputs(t);
  Array want = reference::MatMul(in.a, t.trans_a, in.b, t.trans_b, t.M, t.N, t.K);
  // A sum of K products errs by about sqrt(K) roundings of the sum of their sizes; 16 of them hold
  // for every K here.
  Array size = reference::MatMul(Abs(in.a), t.trans_a, Abs(in.b), t.trans_b, t.M, t.N, t.K);
  const Array factors =
      t.dropout > 0 ? reference::DropoutFactors(SomeDropout(t.dropout, 1024), t.M * t.N) : Array(t.M * t.N, 1.0);
  Array tolerance(want.size()), activated(want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    want[i] *= t.scale;
    size[i] *= t.scale;
    if (t.bias) want[i] += in.bias[i % t.N];
    // The product may be rounded before it is added, as where its sums are split.
    const double early = t.accumulate ? std::abs(want[i]) : 0;
    if (t.accumulate) want[i] += in.c[i];
    // And its sum with c before the bias is, as with a residual below.
    const double unbiased = t.accumulate && t.bias ? std::abs(want[i] - in.bias[i % t.N]) : 0;
    activated[i] = reference::Activate(t.activation, want[i]);
    tolerance[i] = factors[i] * (16 * kEps * size[i] + 4 * kEps) + ActEps(memory) * (early + unbiased);
    if (t.epilogue == MatMulArgs::Epilogue::kResidual) {
      // The product may be rounded before it is added; and, where nothing is dropped, its sum with the residual before
      // the bias is: cuBLASLt does that where rows are not aligned to 16 bytes (seen on an H200).
      const double sum = t.bias && t.dropout == 0 ? std::abs(want[i] - in.bias[i % t.N] + in.residual[i]) : 0;
      tolerance[i] += ActEps(memory) * std::max(factors[i] * std::abs(want[i]), sum);
      want[i] = in.residual[i] + factors[i] * want[i];
    }
    tolerance[i] += 4 * ActEps(memory) * std::abs(want[i]);
  }
  ExpectNear(out[0], want, tolerance, "c");
  // Slopes are below 1.13.
  for (double& v : tolerance) v = 1.2 * v + 8 * kEps;
  if (t.epilogue == MatMulArgs::Epilogue::kActivation) ExpectNear(out[1], activated, tolerance, "activated");
}

std::vector<MatMulCase> MatMulCases() {
  using E = MatMulArgs::Epilogue;
  std::vector<MatMulCase> cases;
  for (const bool trans_a : {false, true}) {
    for (const bool trans_b : {false, true}) {
      for (const bool accumulate : {false, true}) {
        cases.push_back({.M = 65, .N = 37, .K = 19, .trans_a = trans_a, .trans_b = trans_b, .accumulate = accumulate});
        cases.push_back({.M = 300,
                         .N = 401,
                         .K = 96,
                         .trans_a = trans_a,
                         .trans_b = trans_b,
                         .accumulate = accumulate,
                         .ld_extra = 3});
      }
    }
  }
  for (const E epilogue : {E::kNone, E::kActivation, E::kResidual}) {
    for (const bool bias : {false, true}) {
      cases.push_back({.M = 33, .N = 70, .K = 50, .bias = bias, .epilogue = epilogue, .ld_extra = 5});
      cases.push_back({.M = 257, .N = 770, .K = 64, .bias = bias, .epilogue = epilogue});
    }
  }
  // What is scaled, and what is added to before an epilogue.
  for (const bool accumulate : {false, true}) {
    cases.push_back({.M = 66, .N = 24, .K = 130, .trans_b = true, .accumulate = accumulate, .scale = 0.3125});
    cases.push_back({.M = 66, .N = 24, .K = 600, .trans_a = true, .accumulate = accumulate, .scale = 2.5});
    cases.push_back({.M = 200, .N = 390, .K = 1300, .trans_b = true, .accumulate = accumulate, .scale = 0.5});
  }
  // As an adapter of odd rank has it: thin, and a part of wider rows; and with a residual.
  for (const int64_t rank : {1, 3}) {
    const int64_t more = 8 - rank;
    cases.push_back({.M = 70, .N = rank, .K = 50, .trans_b = true, .ld_extra = more, .scale = 2});
    cases.push_back({.M = 70, .N = 50, .K = rank, .trans_b = true, .epilogue = E::kResidual, .ld_extra = more});
    cases.push_back(
        {.M = 70, .N = 50, .K = rank, .bias = true, .epilogue = E::kResidual, .ld_extra = more, .scale = 2});
  }
  for (const bool bias : {false, true}) {
    for (const int64_t N : {70, 770}) {
      const MatMulCase onto = {.M = 133, .N = N, .K = 50, .accumulate = true, .bias = bias};
      for (const E epilogue : {E::kNone, E::kActivation, E::kResidual}) {
        cases.push_back(onto);
        cases.back().epilogue = epilogue;
      }
      cases.push_back(onto);
      cases.back().epilogue = E::kResidual;
      cases.back().dropout = 0.3;
    }
  }
  for (const Activation activation : {Activation::kGelu, Activation::kTanh}) {
    cases.push_back({.M = 67, .N = 130, .K = 50, .bias = true, .epilogue = E::kActivation, .activation = activation});
  }
  // Outputs of 4 MiB and more, which the cpu device writes past its caches; aligned rows and others.
  for (const int64_t N : {1100, 2048}) {
    cases.push_back({.M = 1024, .N = N, .K = 24, .trans_b = true});
    cases.push_back({.M = 1024, .N = N, .K = 24, .bias = true});
    cases.push_back({.M = 1024, .N = N, .K = 24, .bias = true, .epilogue = E::kActivation});
    cases.push_back({.M = 1024, .N = N, .K = 24, .bias = true, .epilogue = E::kResidual, .dropout = 0.3});
  }
  for (const int64_t N : {64, 71, 395}) {  // 71 and 395: rows that do not start at a multiple of 4 elements
    cases.push_back({.M = 130, .N = N, .K = 40, .bias = true, .epilogue = E::kResidual, .dropout = 0.3});
  }
  cases.push_back({.M = 130, .N = 77, .K = 40, .bias = true, .epilogue = E::kResidual, .in_place = true});
  // Rows of b that clash in a cache, which the cpu device copies.
  cases.push_back({.M = 1024, .N = 512, .K = 40, .bias = true, .epilogue = E::kResidual, .dropout = 0.3});
  // So deep that the cpu device cuts it, so that its library copies b.
  cases.push_back({.M = 300, .N = 130, .K = 1300, .trans_b = true});
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
    device().kernels().MatMul({.M = M, .N = N, .K = K, .a = at_a, .lda = K, .b = at_b, .ldb = N, .c = at_c, .ldc = N});
    results.push_back(memory.GetAct(at_c, M * N));
    EXPECT_TRUE(results.back() == results.front()) << "offset " << offset;
  }
}

// Of a weight: x^T dy, which a vnode's first micro-batch writes, whatever lies there, and later ones add to it.
TEST_P(DeviceConformanceTest, AGradientIsWrittenOrAddedToInFp32) {
  struct Case {
    int64_t in, out, rows;
  };
  for (const Case& t : {Case{96, 130, 300}, Case{37, 65, 19}, Case{384, 500, 1024}, Case{1, 7, 1}}) {
    std::mt19937 random(5);
    const Array x = RandomArray(random, t.rows * t.in), dy = RandomArray(random, t.rows * t.out);
    const Array once = reference::MatMul(x, true, dy, false, t.in, t.out, t.rows);
    const Array size = reference::MatMul(Abs(x), true, Abs(dy), false, t.in, t.out, t.rows);
    ConformanceMemory memory(device());
    float* gradient = memory.PutF32(Array(static_cast<size_t>(t.in * t.out), std::numeric_limits<double>::quiet_NaN()));
    MatMulArgs args = {.M = t.in,
                       .N = t.out,
                       .K = t.rows,
                       .a = memory.PutAct(x),
                       .lda = t.in,
                       .trans_a = true,
                       .b = memory.PutAct(dy),
                       .ldb = t.out,
                       .c = gradient,
                       .ldc = t.out,
                       .c_is_gradient = true};
    for (const double times : {1.0, 2.0}) {
      args.accumulate = times > 1;
      device().kernels().MatMul(args);
      Array want = once, tolerance = size;
      for (double& v : want) v *= times;
      for (double& v : tolerance) v = 32 * kEps * v + 4 * kEps;
      ExpectNear(memory.GetF32(gradient, t.in * t.out), want, tolerance, "gradient");
    }
  }
}

TEST_P(DeviceConformanceTest, MatMulLetsNaNThrough) {
  ConformanceMemory memory(device());
  Array a(64 * 64, 1.0);
  a[64 * 20 + 3] = std::numeric_limits<double>::quiet_NaN();
  void* c = memory.AllocAct(64 * 64);
  void* gelu = memory.AllocAct(64 * 64);
  device().kernels().MatMul({.M = 64,
                             .N = 64,
                             .K = 64,
                             .a = memory.PutAct(a),
                             .lda = 64,
                             .b = memory.PutAct(Array(64 * 64, 1.0)),
                             .ldb = 64,
                             .c = c,
                             .ldc = 64,
                             .epilogue = MatMulArgs::Epilogue::kActivation,
                             .activated = gelu});
  for (const void* result : {c, gelu}) {
    const Array got = memory.GetAct(result, 64 * 64);
    for (int64_t i = 0; i < 64 * 64; ++i) EXPECT_EQ(std::isnan(got[i]), i / 64 == 20) << i;
  }
}

}  // namespace
}  // namespace eps::worker
