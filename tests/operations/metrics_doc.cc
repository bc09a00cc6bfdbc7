// Prints docs/metrics.md.

#include <cstdio>

#include "tests/operations/metrics_page.h"

int main() {
  std::fputs(eps::MetricsMarkdown().c_str(), stdout);
  return 0;
}
