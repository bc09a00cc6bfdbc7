// A mixture of experts against plain fp64 loops: which rows go where, products by expert, and the way back.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <set>
#include <vector>

#include "gpu_worker/device/conformance_cases.h"
#include "gpu_worker/device/conformance_memory.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/device/device_conformance.h"
#include "gpu_worker/device/experts_cases.h"
#include "gpu_worker/device/kernels.h"
#include "gpu_worker/device/reference_experts.h"
#include "gpu_worker/device/reference_kernels.h"
#include "gtest/gtest.h"

namespace eps::worker {
namespace {

using conformance::ActEps;
using conformance::ActTiny;
using conformance::Array;
using conformance::ExpertProductCase;
using conformance::ExpertProductInputs;
using conformance::kEps;
using conformance::MakeLogits;
using conformance::MakeRows;
using conformance::MakeWeightGradients;
using conformance::RouteCase;
using conformance::RouteOutputs;
using conformance::RowsCase;
using conformance::RowsOutputs;
using conformance::RunExpertGradient;
using conformance::RunExpertMatMul;
using conformance::RunRoute;
using conformance::RunRows;
using conformance::Slope;
using reference::Routed;

Array Abs(Array x) {
  for (double& v : x) v = std::abs(v);
  return x;
}

const std::vector<RouteCase>& RouteCases() {
  static const auto* const cases = new std::vector<RouteCase>{
      {.M = 1, .E = 1, .K = 1},
      {.M = 5, .E = 3, .K = 3, .normalizes = false},
      {.M = 33, .E = 8, .K = 2},
      {.M = 40, .E = 8, .K = 2, .normalizes = false, .balance = 0.5},
      {.M = 70, .E = 60, .K = 4, .balance = 2, .range = 0.1},
      {.M = 300, .E = 37, .K = 6},
      {.M = 9, .E = 130, .K = 8, .normalizes = false, .range = 40},
      {.M = 6, .E = 1024, .K = 3, .balance = 1},
      {.M = 3, .E = 200, .K = 70},
      {.M = 3, .E = 200, .K = 70, .normalizes = false, .balance = 1},
      {.M = 50, .E = 9, .K = 4, .balance = 1, .range = 0},
  };
  return *cases;
}

TEST_P(DeviceConformanceTest, RouteAndItsBackwardAgreeWithFp64AndFiniteDifferences) {
  for (const RouteCase& t : RouteCases()) {
    SCOPED_TRACE(t.Name());
    ConformanceMemory memory(device());
    const Array logits = MakeLogits(t), g = MakeWeightGradients(t);
    const RouteOutputs out = RunRoute(memory, t, logits, GetParam().sizes);
    const Routed want = reference::Route(logits, t.M, t.E, t.K, t.normalizes);
    EXPECT_EQ(out.routed.expert, want.expert);
    EXPECT_EQ(out.routed.first_row, want.first_row);
    EXPECT_EQ(out.routed.token, want.token);
    EXPECT_EQ(out.routed.row, want.row);
    // Exponentials of differences of up to twice the range, some roundings of their argument each.
    const double relative = (8 + 4 * t.range) * kEps;
    ExpectNear(out.routed.weight, want.weight, 1e-30, relative, "weight");
    const Array dlogits = reference::RouteBackward(logits, want, t.M, t.E, t.K, t.normalizes, g, t.balance);
    const double absolute = 8 * relative * (1 + t.balance) + ActTiny(memory);
    ExpectNear(out.dlogits, dlogits, absolute, 2 * ActEps(memory), "dlogits");
    std::mt19937 random(4);
    const Array u = RandomArray(random, t.M * t.E);
    const auto loss = [&](const Array& x) {
      return reference::RoutedLoss(x, want, t.M, t.E, t.K, t.normalizes, g, t.balance);
    };
    EXPECT_NEAR(Dot(dlogits, u), Slope(loss, logits, u), 1e-6 * static_cast<double>(t.M)) << "finite differences";
  }
}

// What has diverged is told by the loss; until then nothing may be read or written where no row is.
TEST_P(DeviceConformanceTest, LogitsThatAreNotFiniteChooseExpertsAllTheSame) {
  constexpr double kInf = std::numeric_limits<double>::infinity(), kNaN = std::numeric_limits<double>::quiet_NaN();
  for (const bool normalizes : {true, false}) {
    const RouteCase t = {.M = 6, .E = 40, .K = 5, .normalizes = normalizes};
    Array logits = MakeLogits(t);
    std::fill_n(logits.begin(), 40, kNaN);
    std::fill_n(logits.begin() + 40, 40, -kInf);
    std::fill_n(logits.begin() + 80, 40, kInf);
    for (int64_t e = 0; e < 40; ++e) logits[120 + e] = e % 3 == 0 ? kNaN : e % 3 == 1 ? -kInf : 1;
    logits[160 + 33] = kNaN;
    ConformanceMemory memory(device());
    const Routed got = RunRoute(memory, t, logits, GetParam().sizes).routed;
    std::vector<int32_t> counts(40), rows = got.row;
    for (int64_t m = 0; m < t.M; ++m) {
      const std::set<int32_t> chosen(got.expert.begin() + m * t.K, got.expert.begin() + (m + 1) * t.K);
      EXPECT_EQ(chosen.size(), 5) << "token " << m;
      for (const int32_t e : chosen) {
        ASSERT_TRUE(e >= 0 && e < t.E) << "token " << m;
        ++counts[e];
      }
    }
    for (int64_t e = 0; e < t.E; ++e) EXPECT_EQ(got.first_row[e + 1] - got.first_row[e], counts[e]) << e;
    std::sort(rows.begin(), rows.end());
    for (int32_t i = 0; i < 30; ++i) ASSERT_EQ(rows[i], i);
    for (int64_t i = 0; i < 30; ++i) {
      EXPECT_EQ(std::isnan(got.weight[got.row[i]]), i / t.K < 5) << "token " << i / t.K;
    }
  }
}

TEST_P(DeviceConformanceTest, RowsAreGatheredAndSummed) {
  for (const RowsCase& t :
       {RowsCase{.M = 1, .E = 1, .K = 1, .C = 1}, RowsCase{.M = 20, .E = 6, .K = 3, .C = 37, .residual = true},
        RowsCase{.M = 33, .E = 8, .K = 2, .C = 64, .residual = true, .in_place = true},
        RowsCase{.M = 7, .E = 12, .K = 8, .C = 1032}}) {
    ConformanceMemory memory(device());
    const RowsOutputs out = RunRows(memory, t, GetParam().sizes);
    const Array x = MakeRows(t);
    for (int64_t r = 0; r < t.M * t.K; ++r) {
      for (int64_t c = 0; c < t.C; ++c) {
        ASSERT_EQ(out.gathered[r * t.C + c], x[out.routed.token[r] * t.C + c]) << r << ", " << c;
      }
    }
    Array want(x.size());  // each row comes K times
    for (size_t i = 0; i < x.size(); ++i) want[i] = (static_cast<double>(t.K) + (t.residual ? 1 : 0)) * x[i];
    ExpectNear(out.summed, want, ActTiny(memory), 16 * kEps + 2 * ActEps(memory), "sum");
  }
}

TEST_P(DeviceConformanceTest, ExpertMatMulAgreesWithFp64) {
  for (const ExpertProductCase& t :
       {ExpertProductCase{.rows = {1}, .N = 1, .K = 1}, ExpertProductCase{.rows = {0, 5, 0, 17}, .N = 24, .K = 40},
        ExpertProductCase{.rows = {0, 5, 0, 17}, .N = 24, .K = 40, .trans_b = true},
        ExpertProductCase{.rows = {3, 130, 1, 0}, .N = 33, .K = 19, .ld_extra = 3, .stride_extra = 5},
        ExpertProductCase{.rows = {3, 1, 64}, .N = 50, .K = 70, .trans_b = true, .ld_extra = 1, .stride_extra = 2},
        ExpertProductCase{.rows = {0, 0, 20}, .N = 136, .K = 64, .trans_b = true, .accumulate = true},
        ExpertProductCase{.rows = {9, 0, 31, 2}, .N = 40, .K = 136, .accumulate = true, .stride_extra = 64},
        ExpertProductCase{
            .rows = {16, 128, 40}, .N = 128, .K = 48, .trans_b = true, .ld_extra = 8, .stride_extra = 64}}) {
    SCOPED_TRACE(t.Name());
    ConformanceMemory memory(device());
    const ExpertProductInputs in = MakeExpertMatMulInputs(t);
    Array want = reference::ExpertMatMul(in.a, t.first_row(), in.b, t.trans_b, t.N, t.K);
    const Array size = reference::ExpertMatMul(Abs(in.a), t.first_row(), Abs(in.b), t.trans_b, t.N, t.K);
    Array tolerance(want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      const double early = t.accumulate ? std::abs(want[i]) : 0;  // the product may be rounded before it is added
      if (t.accumulate) want[i] += in.c[i];
      tolerance[i] = 16 * kEps * size[i] + 4 * kEps + ActEps(memory) * (early + std::abs(want[i])) + ActTiny(memory);
    }
    ExpectNear(RunExpertMatMul(memory, t), want, tolerance, "c");
  }
}

TEST_P(DeviceConformanceTest, ExpertGradientAgreesWithFp64) {
  for (const ExpertProductCase& t :
       {ExpertProductCase{.rows = {1}, .N = 1, .K = 1}, ExpertProductCase{.rows = {0, 5, 0, 17}, .N = 24, .K = 40},
        ExpertProductCase{.rows = {0, 5, 0, 17}, .N = 24, .K = 40, .accumulate = true},
        ExpertProductCase{.rows = {3, 130, 1, 0}, .N = 33, .K = 19, .ld_extra = 3, .stride_extra = 5},
        ExpertProductCase{.rows = {70, 0, 200}, .N = 136, .K = 40, .ld_extra = 8, .stride_extra = 64},
        ExpertProductCase{.rows = {0, 0}, .N = 12, .K = 8}}) {
    SCOPED_TRACE(t.Name());
    ConformanceMemory memory(device());
    const ExpertProductInputs in = MakeExpertGradientInputs(t);
    Array want = reference::ExpertGradient(in.a, t.first_row(), in.b, t.K, t.N);
    const Array size = reference::ExpertGradient(Abs(in.a), t.first_row(), Abs(in.b), t.K, t.N);
    Array tolerance(want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      if (t.accumulate) want[i] += in.c[i];
      tolerance[i] = 16 * kEps * size[i] + (t.accumulate ? 4 * kEps : 0);  // where there are no rows exactly 0
    }
    ExpectNear(RunExpertGradient(memory, t), want, tolerance, "gradient");
  }
}

}  // namespace
}  // namespace eps::worker
