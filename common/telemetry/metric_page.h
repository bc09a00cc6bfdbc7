#ifndef EPS_COMMON_TELEMETRY_METRIC_PAGE_H_
#define EPS_COMMON_TELEMETRY_METRIC_PAGE_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/telemetry/metric_table.h"

namespace eps {

// What HTTP says of a page's text.
inline constexpr absl::string_view kMetricPageContentType = "text/plain; version=0.0.4; charset=utf-8";

// The values of a program's metrics at one moment, in Prometheus' text format 0.0.4.
//
// Threads: none of its own; made anew for every scrape.
class MetricPage {
 public:
  explicit MetricPage(MetricTable table);

  // A metric that is never set has no sample. `metric` is in the table; a label's value is one of its closed set: a
  // value from outside that is not is dropped by the caller, with IsLabelValue.
  void Set(const MetricSpec& metric, double value);
  void Set(const MetricSpec& metric, absl::string_view label_value, double value);
  // A state: 1 for `label_value`, 0 for all others.
  void SetOneOf(const MetricSpec& metric, absl::string_view label_value);

  std::string Text() const;

 private:
  std::vector<std::optional<double>>& ValuesOf(const MetricSpec& metric);

  const MetricTable table_;
  std::vector<std::vector<std::optional<double>>> values_;  // by metric, then by label value
};

bool IsLabelValue(const MetricSpec& metric, absl::string_view value);

}  // namespace eps

#endif  // EPS_COMMON_TELEMETRY_METRIC_PAGE_H_
