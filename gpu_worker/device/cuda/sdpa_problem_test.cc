#include "gpu_worker/device/cuda/sdpa_problem.h"

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/tensor/dtype.h"
#include "common/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace eps::worker::cuda {
namespace {

constexpr int kAmpere = 8, kHopper = 9, kBlackwell = 10;

SdpaProblem Gpt2Attention() { return {.B = 8, .T = 1024, .H = 12, .kv_heads = 12, .D = 64, .scale = 0.125}; }

TEST(SdpaProblemTest, FusedAttentionTakesAModelInBf16OnEveryGpu) {
  for (const int sm_major : {kAmpere, kHopper, kBlackwell, 12})
    EXPECT_OK(CheckFusedAttention(Gpt2Attention(), sm_major));
  SdpaProblem problem = Gpt2Attention();
  problem.causal = false;
  problem.kv_heads = 4;
  EXPECT_OK(CheckFusedAttention(problem, kHopper));
}

TEST(SdpaProblemTest, FusedAttentionTakesWindowsDocumentsAndDropout) {
  for (const int sm_major : {kAmpere, kHopper, kBlackwell, 12}) {
    SdpaProblem problem = Gpt2Attention();
    problem.window = 512;
    problem.documents = true;
    EXPECT_OK(CheckFusedAttention(problem, sm_major));
    if (sm_major == kBlackwell) continue;
    problem.dropout = 0.1;
    EXPECT_OK(CheckFusedAttention(problem, sm_major));
  }
}

TEST(SdpaProblemTest, FusedAttentionLeavesTheRestToThePlainKernel) {
  const auto refused = [](auto change, int sm_major, const std::string& why) {
    SdpaProblem problem = Gpt2Attention();
    change(problem);
    EXPECT_THAT(CheckFusedAttention(problem, sm_major), StatusIs(absl::StatusCode::kUnimplemented, why));
  };
  refused([](SdpaProblem& p) { p.act = Dtype::kF32; }, kHopper, "act F32");
  refused([](SdpaProblem& p) { p.dropout = 0.1; }, kBlackwell, "dropout");
  refused([](SdpaProblem& p) { p.T = 1; }, kHopper, "T 1");
  refused([](SdpaProblem& p) { p.D = 60; }, kHopper, "D 60 is not a multiple of 8 up to 256, as sm_9x");
  refused([](SdpaProblem& p) { p.D = 264; }, kHopper, "D 264");
  refused([](SdpaProblem& p) { p.D = 136; }, kAmpere, "D 136 is not a multiple of 8 up to 128, as sm_8x");
  refused([](SdpaProblem& p) { p.D = 256; }, kBlackwell, "D 256");
  SdpaProblem problem = Gpt2Attention();
  problem.D = 256;
  EXPECT_OK(CheckFusedAttention(problem, kHopper));
  problem.D = 128;
  EXPECT_OK(CheckFusedAttention(problem, kAmpere));
}

TEST(SdpaProblemTest, WhatIsNoProblemIsRefusedByField) {
  const auto refused = [](auto change, const std::string& why) {
    SdpaProblem problem = Gpt2Attention();
    change(problem);
    EXPECT_THAT(CheckSdpaProblem(problem), StatusIs(absl::StatusCode::kInvalidArgument, why));
    EXPECT_THAT(CheckFusedAttention(problem, kHopper), StatusIs(absl::StatusCode::kInvalidArgument, why));
  };
  EXPECT_OK(CheckSdpaProblem(Gpt2Attention()));
  refused([](SdpaProblem& p) { p.B = 0; }, "B 0");
  refused([](SdpaProblem& p) { p.T = -1; }, "T -1");
  refused([](SdpaProblem& p) { p.H = 0; }, "H 0");
  refused([](SdpaProblem& p) { p.D = 0; }, "D 0");
  refused([](SdpaProblem& p) { p.kv_heads = 0; }, "kv_heads 0");
  refused([](SdpaProblem& p) { p.kv_heads = 5; }, "H 12 is not a multiple of kv_heads 5");
  refused([](SdpaProblem& p) { p.array_H = p.array_kv_heads = 24; }, "H 12 are some of array_H 24, of B 8 sequences");
  refused([](SdpaProblem& p) { p.window = -1; }, "window -1");
  refused([](SdpaProblem& p) { p.window = 4, p.causal = false; }, "window 4");
  refused([](SdpaProblem& p) { p.scale = std::numeric_limits<double>::quiet_NaN(); }, "scale");
  refused([](SdpaProblem& p) { p.dropout = 1; }, "dropout 1");
  refused([](SdpaProblem& p) { p.dropout = std::numeric_limits<double>::quiet_NaN(); }, "dropout");
}

TEST(SdpaProblemTest, AsManySequencesAtOnceAsTheirWorkspaceFits) {
  const auto at_once = [](int64_t B, int64_t workspace_bytes, int64_t most_bytes) {
    return CutSmaller({.B = B, .T = 4, .H = 3, .kv_heads = 1, .D = 8}, workspace_bytes, most_bytes, 1).B;
  };
  EXPECT_EQ(at_once(8, 800, 799), 4);
  EXPECT_EQ(at_once(8, 801, 800), 4);
  EXPECT_EQ(at_once(6, 600, 399), 3);
  EXPECT_EQ(at_once(6, 600, 299), 2);
  EXPECT_EQ(at_once(7, 700, 699), 1);
  EXPECT_EQ(at_once(7, 700, 99), 1) << "one is the least";
  EXPECT_EQ(at_once(1, 100, 99), 1);
}

TEST(SdpaProblemTest, PartsOfABatchBeginWhereFp32IsAlignedTo16Bytes) {
  const auto at_once = [](int64_t B, int64_t T) {
    return CutSmaller({.B = B, .T = T, .H = 5, .kv_heads = 1, .D = 8}, 100 * B, 100, 100).B;
  };
  EXPECT_EQ(at_once(8, 1024), 1);
  EXPECT_EQ(at_once(8, 1022), 2);
  EXPECT_EQ(at_once(8, 1023), 4);
  EXPECT_EQ(at_once(6, 1023), 6) << "no part of it is";
}

TEST(SdpaProblemTest, ASingleSequenceIsCutIntoHeadsWithThoseThatShareThem) {
  const SdpaProblem whole = {.B = 1, .T = 8192, .H = 32, .kv_heads = 8, .D = 128};
  const SdpaProblem part = CutSmaller(whole, 4400, 100, 1100);
  EXPECT_EQ(part.kv_heads, 2);
  EXPECT_EQ(part.H, 8);
  EXPECT_EQ(part.array_H, 32);
  EXPECT_EQ(part.array_kv_heads, 8);
  EXPECT_OK(CheckSdpaProblem(part));
  const SdpaProblem smaller = CutSmaller(part, 1200, 100, 1100);  // something is not in proportion
  EXPECT_EQ(smaller.kv_heads, 1);
  EXPECT_EQ(smaller.array_H, 32);
  EXPECT_EQ(CutSmaller(smaller, 1200, 100, 1100), smaller) << "one head is the least";

  SdpaProblem shared = whole;
  shared.kv_heads = 1;
  EXPECT_EQ(CutSmaller(shared, 4400, 100, 1100), shared) << "they are added";
  SdpaProblem odd = {.B = 1, .T = 1023, .H = 6, .kv_heads = 6, .D = 8};
  EXPECT_EQ(CutSmaller(odd, 600, 100, 300), odd) << "fp32 of no part is aligned to 16 bytes";
  odd.T = 1022;
  EXPECT_EQ(CutSmaller(odd, 600, 100, 300).kv_heads, 2) << "three are not aligned";
}

TEST(SdpaProblemTest, WhatFitsIsLeft) {
  const SdpaProblem several = {.B = 7, .T = 4, .H = 3, .kv_heads = 3, .D = 8};
  EXPECT_EQ(CutSmaller(several, 100, 100, 200), several) << "though 7 times a seventh, rounded up, are more";
  SdpaProblem one = several;
  one.B = 1;
  EXPECT_EQ(CutSmaller(one, 200, 100, 200), one);
  EXPECT_EQ(CutSmaller(one, 201, 100, 200).kv_heads, 1);
}

// Before 9.26 cuDNN's backward takes rows' sums ("stats") that are packed, and no others: those of some heads of several
// sequences have the other heads' between them.
TEST(SdpaProblemTest, ABatchThatCannotBeCutIsNotCutIntoHeads) {
  SdpaProblem problem = {.B = 25, .T = 511, .H = 22, .kv_heads = 22, .D = 64, .documents = true};
  EXPECT_EQ(CutSmaller(problem, 5000, 100, 100), problem) << "no fifth of it is aligned";
  problem.dropout = 0.1;
  EXPECT_EQ(CutSmaller(problem, 5000, 100, 100), problem);
  problem.B = 1;
  problem.T = 1022;
  EXPECT_EQ(CutSmaller(problem, 5000, 100, 100).kv_heads, 2);
}

TEST(SdpaProblemTest, PartsBeginWhereTheyLie) {
  const SdpaProblem problem = {.B = 3, .T = 5, .H = 4, .kv_heads = 2, .D = 8};
  std::vector<uint16_t> qkv(3 * 5 * 8 * 8), dqkv(qkv.size()), o(3 * 5 * 4 * 8), d_o(o.size());
  std::vector<float> lse(3 * 4 * 5), delta(lse.size());
  std::vector<int32_t> firsts(3 * 5), ends(3 * 5);
  SdpaArrays arrays = {.qkv = qkv.data(), .o = o.data(), .lse = lse.data()};
  SdpaProblem one = problem;
  one.B = 1;
  std::vector<SdpaPart> parts = PartsOf(problem, one, arrays);
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_EQ(parts[2].arrays.qkv, &qkv[2 * 5 * 8 * 8]);
  EXPECT_EQ(parts[2].arrays.o, &o[2 * 5 * 4 * 8]);
  EXPECT_EQ(parts[2].arrays.lse, &lse[2 * 4 * 5]);
  EXPECT_EQ(parts[2].arrays.d_o, nullptr);
  EXPECT_EQ(parts[2].arrays.dqkv, nullptr);
  EXPECT_EQ(parts[2].arrays.delta, nullptr);
  EXPECT_EQ(parts[2].arrays.documents, Documents());
  EXPECT_FALSE(parts[2].arrays.dropout.on);

  arrays.d_o = d_o.data();
  arrays.dqkv = dqkv.data();
  arrays.delta = delta.data();
  arrays.documents = {.first = firsts.data(), .end = ends.data()};
  arrays.dropout = {.on = true, .first_element = 1000};
  one.H = 2;
  one.kv_heads = 1;
  one.array_H = 4;
  one.array_kv_heads = 2;
  parts = PartsOf(problem, one, arrays);
  ASSERT_EQ(parts.size(), 6u);
  for (size_t i = 0; i < parts.size(); ++i) {
    const int64_t sequence = static_cast<int64_t>(i) / 2, head = static_cast<int64_t>(i) % 2;
    const SdpaArrays& from = parts[i].arrays;
    EXPECT_EQ(parts[i].first_kv_head, head);
    EXPECT_EQ(from.d_o, &d_o[sequence * 5 * 4 * 8]);
    EXPECT_EQ(from.dqkv, &dqkv[sequence * 5 * 8 * 8]);
    EXPECT_EQ(from.delta, &delta[sequence * 4 * 5]);
    EXPECT_EQ(from.documents.first, &firsts[sequence * 5]);
    EXPECT_EQ(from.documents.end, &ends[sequence * 5]);
    EXPECT_EQ(from.dropout.first_element, 1000 + (sequence * 4 + head * 2) * 5 * 5);
  }
}

}  // namespace
}  // namespace eps::worker::cuda
