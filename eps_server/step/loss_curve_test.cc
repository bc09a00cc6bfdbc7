#include "eps_server/step/loss_curve.h"

#include <cmath>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps::server {
namespace {

using ::testing::ElementsAre;

TEST(LossCurveTest, AShortRunIsKeptAsItIs) {
  LossCurve curve;
  for (const double loss : {5.0, 4.0, 3.0}) curve.Add(loss);
  EXPECT_EQ(curve.steps_per_point(), 1);
  EXPECT_THAT(curve.Points(), ElementsAre(5, 4, 3));
}

TEST(LossCurveTest, ALongRunStaysBoundedAndEveryStepCounts) {
  LossCurve curve;
  const int steps = 100000;
  for (int i = 0; i < steps; ++i) curve.Add(i);
  const auto points = curve.Points();
  EXPECT_LE(points.size(), LossCurve::kMaxPoints);
  EXPECT_GT(points.size(), LossCurve::kMaxPoints / 2 - 1);
  const double k = static_cast<double>(curve.steps_per_point());
  for (size_t i = 0; i + 1 < points.size(); ++i) {
    EXPECT_EQ(points[i], k * static_cast<double>(i) + (k - 1) / 2) << i;
  }
}

TEST(LossCurveTest, ASkippedStepDoesNotSpoilItsMean) {
  LossCurve curve;
  curve.Add(std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(curve.Points().back()));
  for (size_t i = 0; i < LossCurve::kMaxPoints; ++i) curve.Add(2);
  EXPECT_EQ(curve.Points().front(), 2);
}

}  // namespace
}  // namespace eps::server
