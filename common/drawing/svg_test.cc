#include "common/drawing/svg.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(SvgTest, TicksAreRoundNumbersInside) {
  EXPECT_THAT(Ticks(0, 10, 5), ElementsAre(0, 2, 4, 6, 8, 10));
  EXPECT_THAT(Ticks(-0.3, 0.7, 4), ElementsAre(0, 0.5));
  EXPECT_THAT(Ticks(2.2, 5.6, 6), ElementsAre(3, 4, 5));
}

TEST(SvgTest, TextsAreEscapedWhereverTheyStand) {
  const std::string svg = SvgStart(10, 10, "<a>", "") + SvgText(0, 0, "start", "b & \"c\"") +
                          SvgRect("bar", 0, 0, 1, 1, "<d>") + std::string(kSvgEnd);
  EXPECT_THAT(svg, HasSubstr("aria-label=\"&lt;a&gt;\""));
  EXPECT_THAT(svg, HasSubstr(">b &amp; &quot;c&quot;</text>"));
  EXPECT_THAT(svg, HasSubstr("<title>&lt;d&gt;</title>"));
  EXPECT_THAT(svg, Not(HasSubstr("<d>")));
}

TEST(SvgTest, AFrameTurnsValuesIntoPixels) {
  const SvgFrame frame = {
      .left = 10, .right = 110, .top = 20, .bottom = 220, .low_x = 0, .high_x = 4, .low_y = 1, .high_y = 3};
  EXPECT_EQ(frame.x(1), 35);
  EXPECT_EQ(frame.y(1), 220);
  EXPECT_EQ(frame.y(3), 20);
  EXPECT_THAT(DrawAxes(frame, {.name_x = "step", .name_y = "loss", .whole_x = true}), Not(HasSubstr("0.5")));
}

}  // namespace
}  // namespace eps
