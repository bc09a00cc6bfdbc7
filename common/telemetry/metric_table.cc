#include "common/telemetry/metric_table.h"

#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace eps {
namespace {

// [a-z][a-z0-9_]*
bool IsName(absl::string_view text) {
  if (text.empty() || !absl::ascii_islower(text.front())) return false;
  for (const char c : text) {
    if (!absl::ascii_islower(c) && !absl::ascii_isdigit(c) && c != '_') return false;
  }
  return true;
}

absl::Status CheckLabel(const MetricSpec& metric) {
  if (metric.label.empty()) {
    return metric.label_values.empty() ? absl::OkStatus() : absl::InvalidArgumentError("values without a label");
  }
  if (!IsName(metric.label)) return absl::InvalidArgumentError(absl::StrCat("label ", metric.label));
  if (metric.label_values.empty()) return absl::InvalidArgumentError("a label without values");
  std::set<absl::string_view> seen;
  for (const absl::string_view value : metric.label_values) {
    if (!IsName(value) || !seen.insert(value).second) {
      return absl::InvalidArgumentError(absl::StrCat("label value ", value));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckMetric(const MetricSpec& metric, absl::string_view prefix) {
  if (!IsName(metric.name) || !absl::StartsWith(metric.name, prefix)) {
    return absl::InvalidArgumentError(absl::StrCat("the name, want ", prefix, "... of a-z, 0-9 and _"));
  }
  if (absl::EndsWith(metric.name, "_total") != (metric.type == MetricType::kCounter)) {
    return absl::InvalidArgumentError("a counter's name ends with _total, and only a counter's");
  }
  if (metric.help.empty() || absl::StrContains(metric.help, '\n') || absl::StrContains(metric.help, '|')) {
    return absl::InvalidArgumentError("the help, want one line without a |");
  }
  return CheckLabel(metric);
}

}  // namespace

int64_t MaxSeries(MetricTable table) {
  int64_t series = 0;
  for (const MetricSpec* metric : table) {
    series += metric->label.empty() ? 1 : static_cast<int64_t>(metric->label_values.size());
  }
  return series;
}

absl::Status CheckMetricTable(MetricTable table, absl::string_view prefix) {
  std::set<absl::string_view> names;
  for (const MetricSpec* metric : table) {
    absl::Status status = CheckMetric(*metric, prefix);
    if (status.ok() && !names.insert(metric->name).second) status = absl::InvalidArgumentError("twice in the table");
    if (!status.ok()) return absl::InvalidArgumentError(absl::StrCat(metric->name, ": ", status.message()));
  }
  return absl::OkStatus();
}

std::string MetricTableMarkdown(MetricTable table) {
  std::string text = "| metric | type | labels | is |\n| --- | --- | --- | --- |\n";
  for (const MetricSpec* metric : table) {
    std::string label;
    if (!metric->label.empty()) {
      label = absl::StrCat("`", metric->label, "`: ", absl::StrJoin(metric->label_values, ", "));
    }
    absl::StrAppend(&text, "| `", metric->name, "` | ", metric->type == MetricType::kCounter ? "counter" : "gauge",
                    " | ", label, label.empty() ? "" : " ", "| ", metric->help, " |\n");
  }
  return text;
}

}  // namespace eps
