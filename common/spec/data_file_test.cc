#include "common/spec/run_config.h"
#include "common/spec/testing.h"
#include "common/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

// Sources of two files, one of them twice.
constexpr char kSources[] = R"(
model { layers: 1 d_model: 8 heads: 2 context: 4 vocab: 9 }
data { sources { path: "a.bin" } sources { path: "b.bin" } sources { path: "a.bin" } }
optimizer { schedule { peak: 0.1 } }
steps: 3
)";

TEST_F(RunConfigTest, OfAFileThatIsSeveralSourcesEachGoesOnAsItWas) {
  RunConfig was = MustLoad(kSources);
  was.sources[2].data.token_bytes = 4;
  EXPECT_THAT(LoadResumedRunConfig(dir_.File("run.textproto"), {}, was), IsOkAndHolds(was));
}

TEST_F(RunConfigTest, ASourceInAnotherPlaceIsKnownByItsPath) {
  RunConfig was = MustLoad(kSources);
  was.sources[1].data.token_bytes = 4;
  const FieldOverride swapped[] = {{"data.sources[0].path", "b.bin"}, {"data.sources[1].path", "a.bin"}};
  ASSERT_OK_AND_ASSIGN(const RunConfig now,
                       LoadResumedRunConfig(dir_.File("run.textproto"), {swapped[0], swapped[1]}, was));
  EXPECT_EQ(now.sources[0].data.token_bytes, 4);
  EXPECT_EQ(now.sources[1].data.token_bytes, 2);
}

}  // namespace
}  // namespace eps
