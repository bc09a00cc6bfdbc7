#ifndef EPS_TESTS_OPERATIONS_METRICS_PAGE_H_
#define EPS_TESTS_OPERATIONS_METRICS_PAGE_H_

#include <string>

namespace eps {

// docs/metrics.md, made of the tables that the programs' pages are made of.
std::string MetricsMarkdown();

}  // namespace eps

#endif  // EPS_TESTS_OPERATIONS_METRICS_PAGE_H_
