#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/model/model_spec.h"
#include "common/numeric/bf16.h"
#include "common/numeric/fp8_block.h"
#include "common/spec/moment_format.h"
#include "common/spec/run_config.h"
#include "common/tensor/dtype.h"
#include "eps_server/optimizer/chunk_kernels.h"
#include "eps_server/optimizer/chunk_kernels_testing.h"
#include "eps_server/optimizer/moment_rounding.h"
#include "eps_server/optimizer/update_scalars.h"
#include "eps_server/store/store.h"
#include "gtest/gtest.h"
#include "hwy/targets.h"

namespace eps::server {
namespace {

// What is kept of `exact`, by element of the blob.
std::vector<float> Rounded(MomentFormat format, int which, const std::vector<float>& exact, uint32_t key,
                           int64_t first_elem) {
  std::vector<float> kept;
  uint8_t shared_exponent = 0;
  for (int64_t i = 0; i < static_cast<int64_t>(exact.size()); ++i) {
    const uint16_t noise = MomentNoise(key, first_elem + i);
    if (format == MomentFormat::kBf16) {
      kept.push_back(ToFloat(RoundMoment(exact[i], noise)));
      continue;
    }
    const Fp8Kind kind = KindOfMoment(which);
    if (i % kFp8BlockElems == 0) {
      float largest = 0;
      for (int64_t k = i; k < i + kFp8BlockElems; ++k) largest = std::max(largest, std::abs(exact[k]));
      shared_exponent = Fp8SharedExponent(kind, std::bit_cast<uint32_t>(largest));
    }
    kept.push_back(ToFloat(FromFp8(kind, ToFp8(kind, exact[i], shared_exponent, noise), shared_exponent)));
  }
  return kept;
}

// What fp8 does at its ends was seen: zeros of both signs, smallest second moments that stand for less, and blocks
// whose exponent is the lowest.
void ExpectEdges(int which, const NarrowMoments& moments, const std::vector<float>& values) {
  int positive_zeros = 0, negative_zeros = 0, smallest = 0, lowest = 0;
  for (int64_t i = 0; i < kElems; ++i) {
    if (i / kFp8BlockElems == kZeroBlock || i / kFp8BlockElems == kZeroBlock + 1) continue;
    positive_zeros += values[i] == 0 && !std::signbit(values[i]);
    negative_zeros += values[i] == 0 && std::signbit(values[i]);
    smallest += moments.Code(which, i) == std::byte{0};
  }
  for (int64_t block = 0; block < kElems / kFp8BlockElems; ++block)
    lowest += moments.Exponent(which, block) == std::byte{0};
  if (which == 0) {
    EXPECT_GT(positive_zeros, 100);
    EXPECT_GT(negative_zeros, 100);
    EXPECT_EQ(lowest, 1);  // of zeros
  } else {
    EXPECT_EQ(positive_zeros + negative_zeros, 0);
    EXPECT_GT(smallest, 100);
    EXPECT_EQ(lowest, 2);
  }
}

class NarrowMomentsTest : public ::testing::TestWithParam<Dtype> {};  // the wire's
INSTANTIATE_TEST_SUITE_P(Wire, NarrowMomentsTest, ::testing::Values(Dtype::kF32, Dtype::kBf16, Dtype::kF16));

// The arithmetic is that of fp32 moments, and so are the weights; what is kept of the moments is rounded as
// moment_rounding.h says, by the element's number in its blob.
void ExpectTheFp32OnesRounded(Dtype wire) {
  const Gradient gradient = UnevenGradient(2);
  constexpr int64_t kFirstElem = 3 * kChunkElems;
  for (const MomentFormat format : {MomentFormat::kBf16, MomentFormat::kFp8}) {
    for (const OptimizerConfig& config : {AdamWConfig(), AdamConfig(), SgdConfig(0.9), LionConfig(), LambConfig()}) {
      Chunk exact(wire, 4), rounded(wire, 4);
      for (int64_t i = 0; i < kElems; ++i) {
        rounded.m[i] *= Unevenness(i);
        rounded.v[i] *= Unevenness(i) * Unevenness(i);
      }
      NarrowMoments moments(rounded, format);
      std::ranges::copy(moments.Values(0), exact.m.begin());
      std::ranges::copy(moments.Values(1), exact.v.begin());
      rounded.state.first_elem = kFirstElem;
      UpdateScalars scalars = ScalarsOf(config, 1e-3, 5, 0.5);
      scalars.moment_key =
          -static_cast<uint32_t>(kFirstElem / 2) - 0x500u;  // words' numbers wrap around within the chunk
      if (config.rule == OptimizerRule::kLamb) {
        std::vector<StepSquares> of_exact(kRanges.size()), of_rounded(kRanges.size());
        MeasureSteps(exact.state, gradient.gradient, kRanges, scalars, absl::MakeSpan(of_exact));
        MeasureSteps(rounded.state, gradient.gradient, kRanges, scalars, absl::MakeSpan(of_rounded));
        EXPECT_TRUE(of_rounded == of_exact);
      }
      UpdateChunk(exact.state, gradient.gradient, kRanges, scalars, nullptr);
      UpdateChunk(rounded.state, gradient.gradient, kRanges, scalars, nullptr);
      for (int64_t i = 0; i < kElems; ++i) ASSERT_EQ(rounded.Updated(i), exact.Updated(i)) << i;
      for (int which = 0; which < config.num_moments(); ++which) {
        const std::vector<float> want =
            Rounded(format, which, which == 0 ? exact.m : exact.v, scalars.moment_key, kFirstElem);
        const std::vector<float> got = moments.Values(which);
        if (format == MomentFormat::kFp8) ExpectEdges(which, moments, want);
        for (int64_t i = 0; i < kElems; ++i) {
          ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(want[i])) << which << " " << i;
        }
      }
    }
  }
}

TEST_P(NarrowMomentsTest, AreTheFp32OnesRounded) { ExpectTheFp32OnesRounded(GetParam()); }

// The code that every target but AVX2 has, where there is nothing else to run it on.
TEST_P(NarrowMomentsTest, AreTheFp32OnesRoundedInOrderedLanesToo) {
  const ScopedTarget fallback(HWY_SCALAR);
  if (CheckVectorUnit().ok()) GTEST_SKIP() << "Highway's fallback is not among the targets";
  ExpectTheFp32OnesRounded(GetParam());
}

}  // namespace
}  // namespace eps::server
