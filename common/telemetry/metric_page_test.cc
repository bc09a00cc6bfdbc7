#include "common/telemetry/metric_page.h"

#include <limits>

#include "absl/strings/string_view.h"
#include "common/telemetry/metric_table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::string_view kPageColours[] = {"red", "green"};
constexpr MetricSpec kPageDoors = {.name = "eps_doors", .help = "Doors \\ open."};
constexpr MetricSpec kPageKnocks = {.name = "eps_knocks_total",
                                    .type = MetricType::kCounter,
                                    .help = "Knocks by colour.",
                                    .label = "colour",
                                    .label_values = kPageColours};
constexpr const MetricSpec* kPageTable[] = {&kPageDoors, &kPageKnocks};

TEST(MetricPageTest, IsInPrometheusTextFormat) {
  MetricPage page(kPageTable);
  page.Set(kPageDoors, 3);
  page.Set(kPageKnocks, "green", 0.1);
  EXPECT_EQ(page.Text(),
            "# HELP eps_doors Doors \\\\ open.\n# TYPE eps_doors gauge\neps_doors 3\n"
            "# HELP eps_knocks_total Knocks by colour.\n# TYPE eps_knocks_total counter\n"
            "eps_knocks_total{colour=\"green\"} 0.10000000000000001\n");
}

TEST(MetricPageTest, WhatIsNotSetHasNoSample) {
  EXPECT_THAT(MetricPage(kPageTable).Text(), Not(HasSubstr("\neps_doors ")));
}

TEST(MetricPageTest, AStateIsOneForOneValueAndZeroForTheOthers) {
  MetricPage page(kPageTable);
  page.SetOneOf(kPageKnocks, "red");
  EXPECT_THAT(page.Text(), HasSubstr("{colour=\"red\"} 1\neps_knocks_total{colour=\"green\"} 0\n"));
}

TEST(MetricPageTest, NumbersKeepTheirValue) {
  const auto text = [](double value) {
    MetricPage page(kPageTable);
    page.Set(kPageDoors, value);
    return page.Text();
  };
  EXPECT_THAT(text(68719476736), HasSubstr("eps_doors 68719476736\n"));
  EXPECT_THAT(text(-1), HasSubstr("eps_doors -1\n"));
  EXPECT_THAT(text(1e300), HasSubstr("eps_doors 1.0000000000000001e+300\n"));
  EXPECT_THAT(text(std::numeric_limits<double>::quiet_NaN()), HasSubstr("eps_doors NaN\n"));
  EXPECT_THAT(text(std::numeric_limits<double>::infinity()), HasSubstr("eps_doors +Inf\n"));
}

TEST(MetricPageTest, KnowsItsLabelValues) {
  EXPECT_TRUE(IsLabelValue(kPageKnocks, "red"));
  EXPECT_FALSE(IsLabelValue(kPageKnocks, "blue\"} 1\nevil"));
  EXPECT_FALSE(IsLabelValue(kPageDoors, ""));
}

}  // namespace
}  // namespace eps
