#ifndef EPS_COMMON_TELEMETRY_METRIC_TABLE_H_
#define EPS_COMMON_TELEMETRY_METRIC_TABLE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace eps {

enum class MetricType { kGauge, kCounter };

// A metric: what the page declares of it, and docs/metrics.md lists. Made as a constant, so that whoever sets a value
// names one that exists.
struct MetricSpec {
  absl::string_view name;  // eps_<noun>_<unit>[_total], in base units
  MetricType type = MetricType::kGauge;
  absl::string_view help;                                 // one line
  absl::string_view label = "";                           // "": a single series
  absl::Span<const absl::string_view> label_values = {};  // closed: never a tensor, step or address
};

// Every metric of a program, in the order of its page.
using MetricTable = absl::Span<const MetricSpec* const>;

// The most series that a page of this table ever has.
int64_t MaxSeries(MetricTable table);

// What a table promises: names begin with `prefix`, are well formed and unique, a counter's ends with _total and only a
// counter's, there is one line of help, a label has values and each once. Errors: INVALID_ARGUMENT naming the metric
absl::Status CheckMetricTable(MetricTable table, absl::string_view prefix);

// The table as docs/metrics.md shows it.
std::string MetricTableMarkdown(MetricTable table);

}  // namespace eps

#endif  // EPS_COMMON_TELEMETRY_METRIC_TABLE_H_
