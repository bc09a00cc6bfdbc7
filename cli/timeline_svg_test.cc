#include "cli/timeline_svg.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const std::vector<TraceTrack> kTracks = {
    {.process = "worker 1",
     .thread = "compute",
     .events = {{.name = "forward h.0", .begin = 1, .end = 2, .detail = "vnode 0"},
                {.name = "wait: pull", .begin = 2, .end = 3},
                {.name = "backward h.0", .begin = 8, .end = 9}}},
    {.process = "worker 1", .thread = "in", .events = {{.name = "pull h.3", .begin = 9, .end = 10}}},
    {.process = "daemon", .thread = "optimizer 1", .events = {{.name = "expand h.0", .begin = 0, .end = 10}}}};

TEST(TimelineSvgTest, DrawsWhatHappensInItsTime) {
  const std::string svg = TimelineSvg("step 3: 4 s", kTracks, 0.5, 4.5);
  EXPECT_THAT(svg, HasSubstr(">step 3: 4 s</text>"));
  EXPECT_THAT(svg, HasSubstr("class=\"k-forward\""));
  EXPECT_THAT(svg, HasSubstr("<title>forward h.0: 1e+03 ms; vnode 0</title>"));
  EXPECT_THAT(svg, HasSubstr("class=\"k-wait\""));
  EXPECT_THAT(svg, HasSubstr("class=\"k-other\""));  // "expand"
  EXPECT_THAT(svg, HasSubstr(">daemon</text>"));
}

TEST(TimelineSvgTest, LeavesOutWhatDoesNot) {
  const std::string svg = TimelineSvg("step 3", kTracks, 0.5, 4.5);
  EXPECT_THAT(svg, Not(HasSubstr("backward h.0")));
  EXPECT_THAT(svg, Not(HasSubstr(">in</text>")));  // a track without events
  EXPECT_THAT(svg, Not(HasSubstr("class=\"k-pull\"")));
}

}  // namespace
}  // namespace eps::cli
