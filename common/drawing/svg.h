#ifndef EPS_COMMON_DRAWING_SVG_H_
#define EPS_COMMON_DRAWING_SVG_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace eps {

// The parts that our pictures are made of, in pixels. Texts are escaped here, and nowhere else.

// From <svg> on: the ground, in light and dark; `style` holds the picture's own CSS rules beside those of .title, .grid,
// .axis and text.
std::string SvgStart(double width, double height, absl::string_view title, absl::string_view style);
inline constexpr absl::string_view kSvgEnd = "</svg>\n";

// `kind` is a class of the style.
std::string SvgLine(absl::string_view kind, double x1, double y1, double x2, double y2);
// anchor: "start", "middle", "end". `more`: further attributes.
std::string SvgText(double x, double y, absl::string_view anchor, absl::string_view text, absl::string_view more = "");
// `tip` is shown where the mouse rests; "": none.
std::string SvgRect(absl::string_view kind, double x, double y, double width, double height,
                    absl::string_view tip = "");

// A corner of a line.
struct SvgPoint {
  double x = 0, y = 0;
};
std::string SvgPath(absl::string_view kind, const std::vector<SvgPoint>& points);

// Round numbers (1, 2 or 5 times a power of ten apart) within [low, high], about `count` of them. low < high.
std::vector<double> Ticks(double low, double high, int count);

// A rectangle in which a chart lies, and the values at its edges.
struct SvgFrame {
  double left = 0, right = 0, top = 0, bottom = 0;      // pixels
  double low_x = 0, high_x = 1, low_y = 0, high_y = 1;  // values
  double x(double value) const { return left + (value - low_x) / (high_x - low_x) * (right - left); }
  double y(double value) const { return bottom - (value - low_y) / (high_y - low_y) * (bottom - top); }
};

// Two axes with their names. Ticks are drawn as grid lines.
struct SvgAxes {
  std::string name_x, name_y;
  bool whole_x = false;  // ticks of x at whole numbers alone
};
std::string DrawAxes(const SvgFrame& frame, const SvgAxes& axes);

}  // namespace eps

#endif  // EPS_COMMON_DRAWING_SVG_H_
