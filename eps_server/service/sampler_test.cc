#include "eps_server/service/sampler.h"

#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "common/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace eps::server {
namespace {

TEST(SamplerTest, TemperatureZeroTakesTheMostLikelyAndOfEqualOnesTheFirst) {
  const std::vector<float> logits = {1, 5, -2, 5};
  EXPECT_THAT(SampleToken(logits, {.temperature = 0}, 0), IsOkAndHolds(1));
  EXPECT_THAT(SampleToken(logits, {.temperature = 3, .top_k = 1}, 7), IsOkAndHolds(1));
}

TEST(SamplerTest, TheSameSeedAndPositionGiveTheSameToken) {
  const std::vector<float> logits(1000, 0.f);
  std::set<int32_t> drawn;
  for (int64_t index = 0; index < 50; ++index) {
    ASSERT_OK_AND_ASSIGN(const int32_t token, SampleToken(logits, {.seed = 3}, index));
    EXPECT_THAT(SampleToken(logits, {.seed = 3}, index), IsOkAndHolds(token));
    drawn.insert(token);
  }
  EXPECT_GT(drawn.size(), 40u);
}

TEST(SamplerTest, TopKDrawsFromTheMostLikelyOnly) {
  const std::vector<float> logits = {3, 1, 2.9f, 0, 2.8f};
  std::set<int32_t> drawn;
  for (int64_t index = 0; index < 200; ++index) {
    ASSERT_OK_AND_ASSIGN(const int32_t token, SampleToken(logits, {.top_k = 3}, index));
    drawn.insert(token);
  }
  EXPECT_EQ(drawn, (std::set<int32_t>{0, 2, 4}));
}

TEST(SamplerTest, FrequenciesFollowTheSoftmax) {
  const std::vector<float> logits = {0, std::log(3.f)};  // 1/4 and 3/4
  int ones = 0;
  for (int64_t index = 0; index < 4000; ++index) {
    ASSERT_OK_AND_ASSIGN(const int32_t token, SampleToken(logits, {.seed = 1}, index));
    ones += token;
  }
  EXPECT_NEAR(ones / 4000.0, 0.75, 0.03);  // four standard deviations
}

TEST(SamplerTest, AnImpossibleTokenIsNeverDrawnAndNaNIsRefused) {
  std::vector<float> logits = {0, -std::numeric_limits<float>::infinity(), 0};
  for (int64_t index = 0; index < 100; ++index) {
    ASSERT_OK_AND_ASSIGN(const int32_t token, SampleToken(logits, {}, index));
    EXPECT_NE(token, 1);
  }
  std::vector<float> infinite = {0, std::numeric_limits<float>::infinity()};
  EXPECT_THAT(SampleToken(infinite, {}, 0), StatusIs(absl::StatusCode::kDataLoss, "highest"));
  EXPECT_THAT(SampleToken({logits.data() + 1, 1}, {}, 0), StatusIs(absl::StatusCode::kDataLoss, "highest"));
  logits[2] = std::nanf("");
  EXPECT_THAT(SampleToken(logits, {}, 0), StatusIs(absl::StatusCode::kDataLoss, "token 2"));
}

}  // namespace
}  // namespace eps::server
