#include "cli/timeline_svg.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps::cli {
namespace {

using ::testing::ElementsAre;
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
  EXPECT_THAT(svg, HasSubstr("class=\"k-wait-pull\""));
  EXPECT_THAT(svg, HasSubstr("class=\"k-other\""));  // "expand"
  EXPECT_THAT(svg, HasSubstr(">daemon</text>"));
}

TEST(TimelineSvgTest, LeavesOutWhatDoesNot) {
  const std::string svg = TimelineSvg("step 3", kTracks, 0.5, 4.5);
  EXPECT_THAT(svg, Not(HasSubstr("backward h.0")));
  EXPECT_THAT(svg, Not(HasSubstr(">in</text>")));  // a track without events
  EXPECT_THAT(svg, Not(HasSubstr("class=\"k-pull\"")));
}

// What stands in the legend, in its order.
std::vector<std::string> LegendOf(const std::string& svg) {
  std::vector<std::string> titles;
  const std::string first = "height=\"12.0\"";
  for (size_t at = svg.find(first); at != std::string::npos; at = svg.find(first, at + 1)) {
    const size_t text = svg.find("<text", at), begin = svg.find('>', text) + 1;
    titles.push_back(svg.substr(begin, svg.find('<', begin) - begin));
  }
  return titles;
}

TEST(TimelineSvgTest, TheLegendHasWordsAndSaysForWhatIsWaited) {
  std::vector<TraceEvent> events;
  for (const char* name : {"load_inner h.0", "store_inner h.0", "step 3", "wait: pull", "wait: version", "wait: moon",
                           "store_record head"}) {
    const auto at = static_cast<double>(events.size());
    events.push_back({.name = name, .begin = at, .end = at + 1});
  }
  const std::string svg = TimelineSvg("step 3", {{.process = "worker 1", .thread = "in", .events = events}}, 0, 9);
  EXPECT_THAT(LegendOf(svg),
              ElementsAre("swap in", "swap out", "step", "waits for pull", "waits for version", "waits", "other"));
}

TEST(TimelineSvgTest, ALegendThatIsTooLongForALineGoesOnBelowItAndNothingLiesOnIt) {
  std::vector<TraceEvent> events;
  for (const char* name :
       {"forward h", "backward h", "recompute h", "head h", "pull h", "push h", "update h", "sum h", "measure h",
        "wait: pull", "wait: version", "wait: stash", "wait: push", "wait: room", "wait: compute"}) {
    events.push_back({.name = name, .begin = 0, .end = 1});
  }
  const std::string svg = TimelineSvg("step 3", {{.process = "worker 1", .thread = "in", .events = events}}, 0, 1);
  EXPECT_EQ(LegendOf(svg).size(), events.size());
  EXPECT_THAT(svg, HasSubstr("y=\"64.0\" width=\"12.00\""));
  EXPECT_THAT(svg, Not(HasSubstr("y=\"82.0\" width=\"12.00\"")));
}

}  // namespace
}  // namespace eps::cli
