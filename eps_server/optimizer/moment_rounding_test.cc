#include "eps_server/optimizer/moment_rounding.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <set>

#include "common/base/ids.h"
#include "common/numeric/bf16.h"
#include "gtest/gtest.h"

namespace eps::server {
namespace {

TEST(RoundMomentTest, IsRightOnAverageOverAllNoise) {
  for (const float value : {1.0f, 1.00001f, -1.2345678f, 3.3e-21f, -0.0f, 0.1f, 2.9999998f, 1e30f}) {
    double sum = 0;
    std::set<float> kept;
    for (uint32_t noise = 0; noise < 0x10000; ++noise) {
      const float rounded = ToFloat(RoundMoment(value, static_cast<uint16_t>(noise)));
      sum += rounded;
      kept.insert(rounded);
    }
    EXPECT_EQ(sum / 0x10000, static_cast<double>(value));  // exact: each sum has few bits
    EXPECT_LE(kept.size(), 2u);
  }
}

TEST(RoundMomentTest, WhatBf16HoldsStays) {
  for (const float value : {0.0f, -0.0f, 0.5f, -384.0f, 0x1p-126f}) {
    const Bf16 rounded = RoundMoment(value, 0xFFFF);
    EXPECT_EQ(ToFloat(rounded), value);
    EXPECT_EQ(std::signbit(ToFloat(rounded)), std::signbit(value));
  }
}

TEST(RoundMomentTest, WhatIsTooLargeIsInfiniteAndInfinityStays) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity(), kMax = std::numeric_limits<float>::max();
  for (const uint32_t noise : {0u, 0xFFFFu}) {
    EXPECT_EQ(ToFloat(RoundMoment(kInfinity, static_cast<uint16_t>(noise))), kInfinity);
    EXPECT_EQ(ToFloat(RoundMoment(-kInfinity, static_cast<uint16_t>(noise))), -kInfinity);
  }
  EXPECT_EQ(ToFloat(RoundMoment(kMax, 0)), 0x1.FEp127f);
  EXPECT_EQ(ToFloat(RoundMoment(kMax, 1)), kInfinity);
}

// The moment of a gradient that is always the same is its square: rounded to nearest it would stop half way.
TEST(RoundMomentTest, ASecondMomentGetsWhereItsGradientsAre) {
  constexpr float kBeta2 = 0.999f, kSquare = 1e-4f;
  constexpr int kElems = 500, kSteps = 6000;
  Bf16 nearest{};
  double mean = 0;
  for (int elem = 0; elem < kElems; ++elem) {
    Bf16 moment{};
    for (int step = 0; step < kSteps; ++step) {
      const uint16_t noise = MomentNoise(MomentKey(1, StepId(step), BlobId(0)), elem);
      moment = RoundMoment(kBeta2 * ToFloat(moment) + (1 - kBeta2) * kSquare, noise);
      if (elem == 0) nearest = ToBf16(kBeta2 * ToFloat(nearest) + (1 - kBeta2) * kSquare);
    }
    mean += ToFloat(moment) / kElems;
  }
  EXPECT_NEAR(mean, kSquare, 0.01 * kSquare);
  EXPECT_LT(ToFloat(nearest), 0.5 * kSquare);
}

TEST(MomentNoiseTest, IsUniformAndElementsKnowNothingOfEachOther) {
  constexpr int kElems = 1 << 20;
  const uint32_t key = MomentKey(3, StepId(17), BlobId(5));
  const auto centred = [&](int64_t elem) { return (MomentNoise(key, elem) + 0.5) / 0x10000 - 0.5; };
  int64_t counts[64] = {};
  for (int64_t elem = 0; elem < kElems; ++elem) ++counts[MomentNoise(key, elem) >> 10];
  for (const int64_t count : counts)
    EXPECT_NEAR(static_cast<double>(count), kElems / 64.0, 6 * std::sqrt(kElems / 64.0));
  for (const int64_t distance : {1, 16, 32, 1000}) {
    double product = 0;
    for (int64_t elem = 0; elem < kElems; ++elem) product += centred(elem) * centred(elem + distance);
    // Six deviations of a mean of products of two uniform numbers, each of variance 1 / 12.
    EXPECT_NEAR(product / kElems, 0, 6 / 12.0 / std::sqrt(kElems)) << distance;
  }
}

TEST(MomentNoiseTest, StepsBlobsAndSeedsHaveTheirOwn) {
  std::set<uint32_t> keys;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    for (int64_t step = 0; step < 50; ++step) {
      for (int32_t blob = 0; blob < 10; ++blob) keys.insert(MomentKey(seed, StepId(step), BlobId(blob)));
    }
  }
  EXPECT_EQ(keys.size(), 2000u);
}

}  // namespace
}  // namespace eps::server
