#include "common/telemetry/metric_table.h"

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using ::testing::HasSubstr;

constexpr absl::string_view kColours[] = {"red", "green"};
constexpr MetricSpec kDoors = {.name = "eps_doors", .help = "Doors that are open."};
constexpr MetricSpec kKnocks = {.name = "eps_knocks_total",
                                .type = MetricType::kCounter,
                                .help = "Knocks by colour.",
                                .label = "colour",
                                .label_values = kColours};
constexpr const MetricSpec* kTable[] = {&kDoors, &kKnocks};

absl::Status CheckOne(const MetricSpec& metric) {
  const MetricSpec* table[] = {&metric};
  return CheckMetricTable(table, "eps_");
}

TEST(MetricTableTest, CountsTheSeriesThatAPageCanHave) { EXPECT_EQ(MaxSeries(kTable), 3); }

TEST(MetricTableTest, AcceptsAGoodTable) { EXPECT_OK(CheckMetricTable(kTable, "eps_")); }

TEST(MetricTableTest, RefusesWhatPrometheusOrStyleDoesNotAllow) {
  MetricSpec metric = kDoors;
  metric.name = "doors";
  EXPECT_THAT(CheckOne(metric).message(), HasSubstr("want eps_"));
  metric.name = "eps_Doors";
  EXPECT_THAT(CheckOne(metric).message(), HasSubstr("eps_Doors: the name"));
  metric = kDoors;
  metric.type = MetricType::kCounter;
  EXPECT_THAT(CheckOne(metric).message(), HasSubstr("_total"));
  metric = kKnocks;
  metric.type = MetricType::kGauge;
  EXPECT_THAT(CheckOne(metric).message(), HasSubstr("_total"));
  metric = kDoors;
  metric.help = "two\nlines";
  EXPECT_THAT(CheckOne(metric).message(), HasSubstr("one line"));
  metric = kDoors;
  metric.label = "colour";
  EXPECT_THAT(CheckOne(metric).message(), HasSubstr("without values"));
  metric.label_values = {};
  const absl::string_view twice[] = {"red", "red"};
  metric.label_values = twice;
  EXPECT_THAT(CheckOne(metric).message(), HasSubstr("label value red"));
}

TEST(MetricTableTest, RefusesANameThatIsThereTwice) {
  const MetricSpec* table[] = {&kDoors, &kDoors};
  EXPECT_THAT(CheckMetricTable(table, "eps_").message(), HasSubstr("eps_doors: twice"));
}

TEST(MetricTableTest, MarkdownHasALinePerMetric) {
  EXPECT_EQ(MetricTableMarkdown(kTable),
            "| metric | type | labels | is |\n| --- | --- | --- | --- |\n"
            "| `eps_doors` | gauge | | Doors that are open. |\n"
            "| `eps_knocks_total` | counter | `colour`: red, green | Knocks by colour. |\n");
}

}  // namespace
}  // namespace eps
