// Attention against plain fp64 loops and finite differences.

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

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
using conformance::AttentionCase;
using conformance::AttentionInputs;
using conformance::kEps;
using conformance::MakeAttentionInputs;
using conformance::Outputs;
using conformance::RunAttention;
using conformance::Slope;

void CheckAttention(ConformanceMemory& memory, const AttentionCase& t, const KernelSizes& sizes) {
  SCOPED_TRACE(t.Name());
  const Outputs out = RunAttention(memory, t, sizes);
  const AttentionInputs in = MakeAttentionInputs(t);
  const Array factors = t.Factors();
  const reference::AttentionResult want = reference::Attention(in.qkv, t.shape(), factors);
  // A score errs by about sqrt(D) roundings of its size (range^2 * sqrt(D) after scaling), a
  // probability by as much relatively; the gradients are sums of up to T such terms of size range.
  // Measured errors are 5 to 20 times below.
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
  device().kernels().Attention({.B = 1,
                                .T = 80,
                                .H = 1,
                                .D = 16,
                                .qkv = memory.PutAct(in.qkv),
                                .o = o,
                                .lse = static_cast<float*>(memory.Alloc(80 * 4)),
                                .scale = 0.25,
                                .scratch = memory.Alloc(GetParam().sizes.attention(1, 80, 1, 16))});
  const Array got = memory.GetAct(o, t.o_elems());
  for (int64_t i = 0; i < t.o_elems(); ++i) EXPECT_EQ(std::isnan(got[i]), i / 16 >= 70) << i;
}

}  // namespace
}  // namespace eps::worker
