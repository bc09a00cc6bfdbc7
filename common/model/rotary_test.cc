#include "common/model/rotary.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"

namespace eps {
namespace {

using Scaling = RotaryConfig::Scaling;

TEST(RotaryTest, FrequenciesFallFromOneByEqualFactors) {
  EXPECT_EQ(RotaryFrequencies({.theta = 10000}, 4), (std::vector<double>{1, 0.01}));
  EXPECT_EQ(RotaryFrequencies({.theta = 10000, .scaling = Scaling::kLinear, .factor = 4}, 4),
            (std::vector<double>{0.25, 0.0025}));
}

// Llama 3.1's own numbers; wavelengths of 2 pi, about 8192 / 2.5, and about 89,000 positions.
TEST(RotaryTest, Llama3KeepsFastTurnsSlowsSlowOnesAndBlendsBetween) {
  const RotaryConfig rotary = {500000, Scaling::kLlama3, 8, 1, 4, 8192};
  const RotaryConfig plain = {.theta = 500000};
  const std::vector<double> got = RotaryFrequencies(rotary, 128), want = RotaryFrequencies(plain, 128);
  EXPECT_EQ(got[0], want[0]);
  EXPECT_EQ(got[63], want[63] / 8);
  int blended = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_LE(got[i], want[i]);
    EXPECT_GE(got[i], want[i] / 8);
    if (i > 0) {
      EXPECT_LT(got[i], got[i - 1]);
    }
    blended += got[i] < want[i] && got[i] > want[i] / 8 ? 1 : 0;
  }
  EXPECT_EQ(blended, 6);  // pairs 29 to 34, as in Hugging Face's implementation
}

// Qwen3's own numbers. A pair turns 32 times within 32,768 positions at 23.6 of 64, once at 39.7.
TEST(RotaryTest, YarnKeepsFastPairsSlowsSlowOnesAndBlendsBetween) {
  const RotaryConfig rotary = {.theta = 1e6, .scaling = Scaling::kYarn, .factor = 4, .original_context = 32768};
  const std::vector<double> got = RotaryFrequencies(rotary, 128), want = RotaryFrequencies({.theta = 1e6}, 128);
  for (size_t i = 0; i < got.size(); ++i) {
    const double slow = i <= 23 ? 0 : i >= 40 ? 1 : static_cast<double>(i - 23) / (40 - 23);
    EXPECT_NEAR(got[i] / want[i], 1 - slow + slow / 4, 1e-12) << i;
  }
  RotaryConfig between = rotary;
  between.truncate = false;
  EXPECT_LT(RotaryFrequencies(between, 128)[24], want[24]);
  EXPECT_GT(RotaryFrequencies(between, 128)[24], got[24]);

  // Lengths do not depend on the position.
  const double length = 0.1 * std::log(4.0) + 1;
  std::vector<float> table = RotaryTable(rotary, 128, 3);
  EXPECT_EQ(table[0], static_cast<float>(length));
  EXPECT_NEAR(std::hypot(table[2 * 128], table[2 * 128 + 64]), length, 1e-6);
  RotaryConfig named = rotary;
  named.attention_factor = 1.5;
  EXPECT_EQ(RotaryTable(named, 128, 1)[0], 1.5f);
}

TEST(RotaryTest, ARampOfOneLengthOrNoneAtAllIsAStep) {
  const RotaryConfig rotary = {.theta = 100, .scaling = Scaling::kYarn, .factor = 4, .original_context = 1};
  const std::vector<double> got = RotaryFrequencies(rotary, 4), want = RotaryFrequencies({.theta = 100}, 4);
  EXPECT_EQ(got, (std::vector<double>{want[0], want[1] / 4}));  // nothing turns even once: all but the first is slow
}

TEST(RotaryTest, DynamicOnesAreAsTheyAre) {
  EXPECT_EQ(RotaryFrequencies({.theta = 100, .scaling = Scaling::kDynamic, .factor = 4}, 8),
            RotaryFrequencies({.theta = 100}, 8));
}

TEST(RotaryTest, TheTableHasCosinesThenSinesOfEachPosition) {
  const std::vector<float> table = RotaryTable({.theta = 100}, 4, 3);
  ASSERT_EQ(table.size(), 12u);
  EXPECT_EQ(table[0], 1);
  EXPECT_EQ(table[2], 0);
  EXPECT_EQ(table[8], static_cast<float>(std::cos(2.0)));
  EXPECT_EQ(table[9], static_cast<float>(std::cos(0.2)));
  EXPECT_EQ(table[10], static_cast<float>(std::sin(2.0)));
  EXPECT_EQ(table[11], static_cast<float>(std::sin(0.2)));
}

}  // namespace
}  // namespace eps
