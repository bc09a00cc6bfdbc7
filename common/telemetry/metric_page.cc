#include "common/telemetry/metric_page.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "common/base/status_macros.h"

namespace eps {
namespace {

size_t NumSeries(const MetricSpec& metric) { return metric.label.empty() ? 1 : metric.label_values.size(); }

// Digits that give the same double again; whole numbers without an exponent.
std::string FormatValue(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  if (value == std::floor(value) && std::abs(value) < 9e15) return absl::StrFormat("%.0f", value);
  return absl::StrFormat("%.17g", value);
}

}  // namespace

bool IsLabelValue(const MetricSpec& metric, absl::string_view value) {
  return std::find(metric.label_values.begin(), metric.label_values.end(), value) != metric.label_values.end();
}

MetricPage::MetricPage(MetricTable table) : table_(table) {
  for (const MetricSpec* metric : table_) values_.emplace_back(NumSeries(*metric));
}

std::vector<std::optional<double>>& MetricPage::ValuesOf(const MetricSpec& metric) {
  const auto found = std::find(table_.begin(), table_.end(), &metric);
  EPS_CHECK(found != table_.end());
  return values_[static_cast<size_t>(found - table_.begin())];
}

void MetricPage::Set(const MetricSpec& metric, double value) {
  EPS_CHECK(metric.label.empty());
  ValuesOf(metric).front() = value;
}

void MetricPage::Set(const MetricSpec& metric, absl::string_view label_value, double value) {
  EPS_CHECK(IsLabelValue(metric, label_value));
  const auto at = std::find(metric.label_values.begin(), metric.label_values.end(), label_value);
  ValuesOf(metric)[static_cast<size_t>(at - metric.label_values.begin())] = value;
}

void MetricPage::SetOneOf(const MetricSpec& metric, absl::string_view label_value) {
  for (const absl::string_view each : metric.label_values) Set(metric, each, each == label_value ? 1 : 0);
}

std::string MetricPage::Text() const {
  std::string text;
  for (size_t m = 0; m < table_.size(); ++m) {
    const MetricSpec& metric = *table_[m];
    const std::string help = absl::StrReplaceAll(metric.help, {{"\\", "\\\\"}, {"\n", "\\n"}});
    absl::StrAppend(&text, "# HELP ", metric.name, " ", help, "\n# TYPE ", metric.name, " ",
                    metric.type == MetricType::kCounter ? "counter" : "gauge", "\n");
    for (size_t i = 0; i < values_[m].size(); ++i) {
      if (!values_[m][i].has_value()) continue;
      absl::StrAppend(&text, metric.name);
      // Closed sets of a-z, 0-9 and _: nothing to escape.
      if (!metric.label.empty()) absl::StrAppend(&text, "{", metric.label, "=\"", metric.label_values[i], "\"}");
      absl::StrAppend(&text, " ", FormatValue(*values_[m][i]), "\n");
    }
  }
  return text;
}

}  // namespace eps
