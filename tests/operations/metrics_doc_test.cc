#include <string>

#include "common/base/file_util.h"
#include "common/testing/status_matchers.h"
#include "gtest/gtest.h"
#include "tests/operations/metrics_page.h"

namespace eps {
namespace {

TEST(MetricsDocTest, DocsMetricsIsWhatTheTablesSay) {
  ASSERT_OK_AND_ASSIGN(const std::string page, ReadFile("docs/metrics.md"));
  EXPECT_EQ(page, MetricsMarkdown()) << "bazel run //tests/operations:metrics_doc > docs/metrics.md";
}

}  // namespace
}  // namespace eps
