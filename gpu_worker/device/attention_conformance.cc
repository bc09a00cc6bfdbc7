// Attention against plain fp64 loops and finite differences.

#include <algorithm>
#include <array>
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

// Of a - b: of the parts of queries, keys and values.
std::array<double, 3> Norms(const Array& a, const Array& b, const AttentionCase& t) {
  const int64_t q = t.H * t.D, k = q + t.kv_heads() * t.D, row = k + t.kv_heads() * t.D;
  std::array<double, 3> squares = {};
  for (int64_t i = 0; i < static_cast<int64_t>(a.size()); ++i) {
    const int64_t column = i % row;
    squares[column < q ? 0 : column < k ? 1 : 2] += (a[i] - b[i]) * (a[i] - b[i]);
  }
  return {std::sqrt(squares[0]), std::sqrt(squares[1]), std::sqrt(squares[2])};
}

void CheckAttention(ConformanceMemory& memory, const AttentionCase& t, const KernelSizes& sizes) {
  SCOPED_TRACE(t.Name());
  const Outputs out = RunAttention(memory, t, sizes);
  const AttentionInputs in = MakeAttentionInputs(t);
  const Array factors = t.Factors();
  const reference::AttentionResult want = reference::Attention(in.qkv, t.shape(), factors);
  // A score errs by about sqrt(D) roundings of its size (range^2 * sqrt(D) after scaling), a
  // probability by as much relatively; the gradients are sums of up to T such terms of size range,
  // or of T for each head that shares keys and values.
  // Measured errors are 5 to 20 times below.
  const double keep = t.dropout > 0 ? 1 / (1 - t.dropout) : 1;
  const double score = kEps * 8 * (1 + t.range * t.range * std::sqrt(static_cast<double>(t.D))) + 2 * ActEps(memory);
  ExpectNear(out[0], want.o, 4 * keep * t.range * score, 4 * ActEps(memory), "o");
  ExpectNear(out[1], want.lse, score, 4 * kEps, "lse");
  const double terms = std::sqrt(static_cast<double>(t.T * t.shared_by)) * (1 + t.range * t.range);
  const Array gradient = reference::AttentionBackward(in.qkv, in.d_o, t.shape(), factors);
  ExpectNear(out[2], gradient, 8 * keep * keep * terms * score, 32 * kEps + 4 * ActEps(memory), "dqkv");
  // Each element may err by as much as a mask that is not applied, or a wrong sum of a row, makes of it; all of queries',
  // of keys', or of values' gradients together may not. A twentieth of all stands for what should be 0.
  const std::array<double, 3> apart = Norms(out[2], gradient, t),
                              size = Norms(gradient, Array(gradient.size(), 0.0), t);
  for (size_t part = 0; part < 3; ++part) {
    EXPECT_LE(apart[part], 3 * score * (size[part] + (size[0] + size[1] + size[2]) / 20)) << "dqkv, part " << part;
  }
}

TEST_P(DeviceConformanceTest, AttentionAndItsBackwardAgreeWithFp64) {
  for (const AttentionCase& t :
       {AttentionCase{1, 1, 1, 1}, AttentionCase{2, 7, 3, 5}, AttentionCase{1, 64, 2, 64}, AttentionCase{2, 65, 1, 16},
        AttentionCase{1, 100, 2, 33}, AttentionCase{1, 191, 1, 24}, AttentionCase{1, 130, 1, 80},
        AttentionCase{1, 70, 1, 256}, AttentionCase{1, 96, 2, 64, 0, 8.0},
        // Of the plain kernel on GPUs: all but a little of the shared memory that needs no asking for.
        AttentionCase{1, 40, 1, 127}, AttentionCase{1, 40, 1, 95}}) {
    ConformanceMemory memory(device());
    CheckAttention(memory, t, GetParam().sizes);
  }
}

TEST_P(DeviceConformanceTest, AttentionDropsTheProbabilitiesThatPhiloxNames) {
  for (const AttentionCase& t :
       {AttentionCase{2, 70, 2, 16, 0.2}, AttentionCase{1, 33, 3, 8, 0.5}, AttentionCase{1, 130, 1, 32, 0.9},
        AttentionCase{2, 131, 2, 64, 0.1}, AttentionCase{2, 67, 1, 128, 0.1},  // rows not at multiples of 4
        AttentionCase{1, 64, 2, 64, 0.5}, AttentionCase{2, 136, 2, 64, 0.5}, AttentionCase{2, 256, 2, 64, 0.5},
        AttentionCase{.B = 2, .T = 256, .H = 4, .D = 64, .dropout = 0.3, .shared_by = 2, .causal = false}}) {
    ConformanceMemory memory(device());
    CheckAttention(memory, t, GetParam().sizes);
  }
}

TEST_P(DeviceConformanceTest, HeadsOfQueriesShareKeysAndValues) {
  for (const AttentionCase& t : {AttentionCase{.B = 2, .T = 7, .H = 6, .D = 5, .shared_by = 6},
                                 AttentionCase{.B = 1, .T = 131, .H = 6, .D = 33, .shared_by = 2},
                                 AttentionCase{.B = 2, .T = 70, .H = 6, .D = 16, .shared_by = 3},
                                 AttentionCase{.B = 2, .T = 65, .H = 4, .D = 64, .shared_by = 4},
                                 AttentionCase{.B = 1, .T = 40, .H = 2, .D = 200, .shared_by = 2},
                                 AttentionCase{.B = 2, .T = 69, .H = 6, .D = 8, .dropout = 0.2, .shared_by = 3}}) {
    ConformanceMemory memory(device());
    CheckAttention(memory, t, GetParam().sizes);
  }
}

TEST_P(DeviceConformanceTest, AttentionThatIsNotCausalSeesAllColumns) {
  for (const AttentionCase& t :
       {AttentionCase{.B = 1, .T = 1, .H = 1, .D = 1, .causal = false},
        AttentionCase{.B = 2, .T = 7, .H = 3, .D = 5, .causal = false},
        AttentionCase{.B = 1, .T = 64, .H = 2, .D = 64, .causal = false},
        AttentionCase{.B = 2, .T = 131, .H = 2, .D = 33, .causal = false},
        AttentionCase{.B = 1, .T = 130, .H = 6, .D = 16, .shared_by = 2, .causal = false},
        AttentionCase{.B = 1, .T = 41, .H = 2, .D = 160, .shared_by = 2, .causal = false},
        AttentionCase{.B = 1, .T = 96, .H = 2, .D = 64, .range = 8, .causal = false},
        AttentionCase{.B = 2, .T = 70, .H = 4, .D = 24, .dropout = 0.3, .shared_by = 4, .causal = false}}) {
    ConformanceMemory memory(device());
    CheckAttention(memory, t, GetParam().sizes);
  }
}

// Windows that end within a tile, at its edge and beside it, for tiles of 16, 32 and 64 positions.
TEST_P(DeviceConformanceTest, AWindowBoundsHowFarBackARowSees) {
  for (const int64_t window : {1, 2, 5, 16, 17, 31, 33, 63, 64, 65, 66, 127, 128, 129, 149, 150, 151, 1 << 30}) {
    const AttentionCase t = {.B = 1, .T = 150, .H = 2, .D = 8, .window = window};
    ConformanceMemory memory(device());
    CheckAttention(memory, t, GetParam().sizes);
  }
  for (const AttentionCase& t :
       {AttentionCase{.B = 1, .T = 1, .H = 1, .D = 1, .window = 1},
        AttentionCase{.B = 2, .T = 131, .H = 6, .D = 7, .shared_by = 3, .window = 40},
        AttentionCase{.B = 2, .T = 131, .H = 6, .D = 24, .dropout = 0.2, .shared_by = 2, .window = 70},
        AttentionCase{.B = 1, .T = 70, .H = 2, .D = 160, .dropout = 0.1, .window = 20},
        AttentionCase{.B = 1, .T = 150, .H = 1, .D = 64, .range = 8, .window = 5}}) {
    ConformanceMemory memory(device());
    CheckAttention(memory, t, GetParam().sizes);
  }
}

// Documents that end within a tile, at its edge and beside it; that are longer than one; of one token.
TEST_P(DeviceConformanceTest, ARowSeesItsOwnDocumentAlone) {
  for (const int64_t tokens : {1, 2, 15, 16, 31, 32, 33, 62, 63, 64, 65, 100, 130, 300}) {
    for (const bool causal : {true, false}) {
      const AttentionCase t = {.B = 2, .T = 150, .H = 2, .D = 8, .causal = causal, .document_tokens = tokens};
      ConformanceMemory memory(device());
      CheckAttention(memory, t, GetParam().sizes);
    }
  }
  for (const AttentionCase& t :
       {AttentionCase{.B = 1, .T = 1, .H = 1, .D = 1, .document_tokens = 1},
        AttentionCase{.B = 2, .T = 131, .H = 6, .D = 7, .shared_by = 3, .window = 40, .document_tokens = 50},
        AttentionCase{.B = 2, .T = 131, .H = 6, .D = 24, .dropout = 0.2, .shared_by = 2, .document_tokens = 17},
        AttentionCase{.B = 2, .T = 131, .H = 4, .D = 24, .dropout = 0.2, .causal = false, .document_tokens = 17},
        AttentionCase{.B = 2, .T = 331, .H = 2, .D = 64, .document_tokens = 140},
        AttentionCase{.B = 2, .T = 64, .H = 2, .D = 64, .document_tokens = 20},
        AttentionCase{.B = 2, .T = 136, .H = 2, .D = 64, .causal = false, .document_tokens = 50},
        AttentionCase{.B = 2, .T = 256, .H = 4, .D = 64, .shared_by = 2, .document_tokens = 100},
        AttentionCase{.B = 2, .T = 256, .H = 2, .D = 64, .causal = false, .document_tokens = 100},
        AttentionCase{
            .B = 2, .T = 150, .H = 6, .D = 32, .dropout = 0.2, .shared_by = 3, .window = 40, .document_tokens = 60},
        AttentionCase{.B = 1, .T = 70, .H = 2, .D = 160, .causal = false, .document_tokens = 20},
        AttentionCase{.B = 1, .T = 150, .H = 1, .D = 64, .range = 8, .document_tokens = 66}}) {
    ConformanceMemory memory(device());
    CheckAttention(memory, t, GetParam().sizes);
  }
}

// One small problem that makes all masks of a library's attention, for tools that slow a kernel down some hundred times.
TEST_P(DeviceConformanceTest, DocumentsAndDropoutOfASmallProblem) {
  ConformanceMemory memory(device());
  CheckAttention(memory, {.B = 1, .T = 64, .H = 1, .D = 64, .dropout = 0.2, .document_tokens = 20}, GetParam().sizes);
}

// Of the plain kernel: no library takes such a D. A library is asked for another mask, and has another kernel for it.
TEST_P(DeviceConformanceTest, OneDocumentOfAllOfTGivesTheBitsOfNone) {
  for (const bool causal : {true, false}) {
    AttentionCase t = {.B = 2, .T = 130, .H = 4, .D = 20, .shared_by = 2, .causal = causal};
    const auto run = [&] {
      ConformanceMemory memory(device());
      return RunAttention(memory, t, GetParam().sizes);
    };
    const Outputs want = run();
    t.document_tokens = 1000;
    EXPECT_TRUE(run() == want) << causal;
  }
}

TEST_P(DeviceConformanceTest, AWindowOfAllOfTGivesTheBitsOfNone) {
  AttentionCase t = {.B = 2, .T = 130, .H = 4, .D = 24, .shared_by = 2};
  const auto run = [&] {
    ConformanceMemory memory(device());
    return RunAttention(memory, t, GetParam().sizes);
  };
  const Outputs want = run();
  for (const int64_t window : {t.T, t.T + 1, int64_t{1} << 40}) {
    t.window = window;
    EXPECT_TRUE(run() == want) << window;
  }
}

// Scores far below zero, all of them: what is computed beside them, as zeros, must not get in.
TEST_P(DeviceConformanceTest, ScoresFarBelowZeroGiveProbabilitiesAllTheSame) {
  for (const int64_t T : {64, 128, 192, 200}) {
    for (const bool causal : {true, false}) {
      const AttentionCase t = {.B = 2, .T = T, .H = 2, .D = 64, .causal = causal};
      SCOPED_TRACE(t.Name());
      AttentionInputs in = MakeAttentionInputs(t);
      const int64_t row = 3 * t.H * t.D;
      for (int64_t i = 0; i < t.qkv_elems(); ++i) {
        const int64_t part = i % row / (t.H * t.D);    // of 0 queries, 1 keys, 2 values
        if (part < 2) in.qkv[i] = part == 0 ? 4 : -4;  // a score of -128
      }
      ConformanceMemory memory(device());
      const Outputs out = RunAttention(memory, t, in, GetParam().sizes);
      const reference::AttentionResult want = reference::Attention(in.qkv, t.shape(), {});
      ExpectNear(out[0], want.o, 8 * kEps, 4 * ActEps(memory), "o");
      ExpectNear(out[1], want.lse, 0, 8 * kEps, "lse");
      ExpectNear(out[2], reference::AttentionBackward(in.qkv, in.d_o, t.shape(), {}),
                 (kEps * 64 + 2 * ActEps(memory)) * std::sqrt(static_cast<double>(T)), 4 * ActEps(memory), "dqkv");
    }
  }
}

// As many blocks as keep a GPU busy, whose order is another each time. Where a sum followed it, small shapes would not show.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(LargeConformanceTest);
TEST_P(LargeConformanceTest, AttentionGivesTheSameBitsEachTime) {
  const AttentionCase plain = {.B = 2, .T = 2048, .H = 16, .D = 64, .shared_by = 4};
  AttentionCase window = plain, documents = plain, drops = plain, both_ways = plain;
  window.window = 300;
  documents.document_tokens = 500;
  drops.dropout = 0.1;
  both_ways.causal = false;
  both_ways.document_tokens = 700;
  for (const AttentionCase& t : {plain, window, documents, drops, both_ways}) {
    SCOPED_TRACE(t.Name());
    const AttentionInputs in = MakeAttentionInputs(t);
    ConformanceMemory memory(device());
    const Outputs want = RunAttention(memory, t, in, GetParam().sizes);
    for (int time = 0; time < 10; ++time) {
      ConformanceMemory again(device());
      EXPECT_TRUE(RunAttention(again, t, in, GetParam().sizes) == want) << time;
    }
  }
}

TEST_P(DeviceConformanceTest, AttentionBackwardAgreesWithFiniteDifferences) {
  for (const AttentionCase& t :
       {AttentionCase{1, 67, 1, 12}, AttentionCase{2, 20, 2, 8, 0.3},
        AttentionCase{.B = 1, .T = 21, .H = 4, .D = 8, .dropout = 0.3, .shared_by = 2, .causal = false},
        AttentionCase{.B = 1, .T = 70, .H = 6, .D = 5, .shared_by = 3, .window = 9},
        AttentionCase{.B = 1, .T = 70, .H = 2, .D = 5, .causal = false, .document_tokens = 11}}) {
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

// o where qkv is that of a case but for one NaN.
Array OutputWithNaN(ConformanceMemory& memory, const AttentionCase& t, int64_t at, const KernelSizes& sizes) {
  AttentionInputs in = MakeAttentionInputs(t);
  in.qkv[at] = std::numeric_limits<double>::quiet_NaN();
  void* o = memory.AllocAct(t.o_elems());
  memory.device().kernels().Attention({.B = t.B,
                                       .T = t.T,
                                       .H = t.H,
                                       .kv_heads = t.kv_heads(),
                                       .D = t.D,
                                       .qkv = memory.PutAct(in.qkv),
                                       .o = o,
                                       .lse = static_cast<float*>(memory.Alloc(t.B * t.H * t.T * 4)),
                                       .scale = t.scale(),
                                       .causal = t.causal,
                                       .window = t.window,
                                       .scratch = memory.Alloc(sizes.attention(t.B, t.T, t.H, t.D))});
  return memory.GetAct(o, t.o_elems());
}

// Whether a NaN in a key at `at` may be in causal rows of this position that do not see it: where the tile of the rows has
// that of the key among those it computes.
bool MayBeLoose(int64_t position, int64_t at, int64_t window, int64_t tile) {
  if (tile <= 1) return false;
  const int64_t first_row = position / tile * tile;
  const int64_t first_column = window == 0 ? 0 : std::max<int64_t>(first_row - window + 1, 0);
  return first_column / tile <= at / tile && at / tile <= position / tile;
}

TEST_P(DeviceConformanceTest, AttentionLetsNaNThrough) {
  const AttentionCase t = {.B = 2, .T = 200, .H = 2, .D = 16};
  constexpr int64_t kAt = 150, kHead = 1;  // of the second sequence
  ConformanceMemory memory(device());
  const int64_t k = ((t.T + kAt) * 3 * t.H + t.H + kHead) * t.D + 2;
  const Array got = OutputWithNaN(memory, t, k, GetParam().sizes);
  for (int64_t i = 0; i < t.o_elems(); ++i) {
    const int64_t row = i / (t.H * t.D), position = row % t.T, head = i / t.D % t.H;
    const bool reads = row >= t.T && head == kHead, seen = reads && position >= kAt;
    if (reads && !seen && MayBeLoose(position, kAt, t.window, GetParam().loose_mask_tile)) continue;
    ASSERT_EQ(std::isnan(got[i]), seen) << row << " " << head;
  }
}

TEST_P(DeviceConformanceTest, NaNDoesNotGetBeyondTheWindowNorToHeadsThatDoNotReadIt) {
  const AttentionCase t = {.B = 1, .T = 300, .H = 4, .D = 16, .shared_by = 2, .window = 5};
  // k of the second head, row 70.
  ConformanceMemory memory(device());
  const Array got = OutputWithNaN(memory, t, (70 * 8 + 5) * t.D, GetParam().sizes);
  for (int64_t i = 0; i < t.o_elems(); ++i) {
    const int64_t position = i / (4 * t.D), head = i / t.D % 4;
    const bool seen = position >= 70 && position < 75;
    if (!seen && head >= 2 && MayBeLoose(position, 70, t.window, GetParam().loose_mask_tile)) continue;
    ASSERT_EQ(std::isnan(got[i]), head >= 2 && seen) << position << " " << head;
  }
}

// Of the plain kernel, as no library takes such a D: tiles that no row sees are not read. Within one, a value's NaN times a
// probability of 0 is one.
TEST_P(DeviceConformanceTest, AValueThatIsNaNDoesNotGetToTilesBeyondTheWindow) {
  const AttentionCase t = {.B = 1, .T = 200, .H = 4, .D = 20, .shared_by = 2, .window = 5};
  ConformanceMemory memory(device());
  const Array got = OutputWithNaN(memory, t, 7 * t.D + 1, GetParam().sizes);  // v of the second head, row 0
  for (int64_t i = 0; i < t.o_elems(); ++i) {
    const int64_t position = i / (4 * t.D), head = i / t.D % 4;
    if (position >= 5 && position < 128) continue;
    EXPECT_EQ(std::isnan(got[i]), head >= 2 && position < 5 && i % t.D == 1) << position << " " << head;
  }
}

}  // namespace
}  // namespace eps::worker
