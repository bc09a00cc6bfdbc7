#include "common/drawing/svg.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace eps {
namespace {

// Colours are written out twice: not every viewer knows CSS variables.
constexpr absl::string_view kStyle = R"(
  svg { font-family: system-ui, sans-serif; font-size: 13px; }
  .title { font-size: 17px; font-weight: 600; }
  .grid { stroke-width: 1; } .axis { stroke-width: 1.2; }
  .ground { fill: #ffffff; } text { fill: #24292f; } .grid { stroke: #d0d7de; } .axis { stroke: #24292f; }
  @media (prefers-color-scheme: dark) {
    .ground { fill: #0d1117; } text { fill: #e6edf3; } .grid { stroke: #30363d; } .axis { stroke: #e6edf3; }
  })";

std::string Escaped(absl::string_view text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

}  // namespace

std::string SvgStart(double width, double height, absl::string_view title, absl::string_view style) {
  return absl::StrCat(absl::StrFormat("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %g %g\" width=\"%g\" "
                                      "height=\"%g\" role=\"img\" aria-label=\"%s\">\n",
                                      width, height, width, height, Escaped(title)),
                      "<style>", kStyle, style, "\n</style>\n",
                      absl::StrFormat("<rect class=\"ground\" width=\"%g\" height=\"%g\"/>\n", width, height));
}

std::string SvgLine(absl::string_view kind, double x1, double y1, double x2, double y2) {
  return absl::StrFormat("<line class=\"%s\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n", kind, x1, y1, x2,
                         y2);
}

std::string SvgText(double x, double y, absl::string_view anchor, absl::string_view text, absl::string_view more) {
  return absl::StrFormat("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\"%s>%s</text>\n", x, y, anchor, more,
                         Escaped(text));
}

std::string SvgRect(absl::string_view kind, double x, double y, double width, double height, absl::string_view tip) {
  return absl::StrFormat("<rect class=\"%s\" x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\"%s\n", kind, x, y,
                         width, height, tip.empty() ? "/>" : absl::StrCat("><title>", Escaped(tip), "</title></rect>"));
}

std::string SvgPath(absl::string_view kind, const std::vector<SvgPoint>& points) {
  std::string path;
  for (const SvgPoint& point : points) {
    absl::StrAppend(&path, absl::StrFormat("%c%.1f %.1f", path.empty() ? 'M' : 'L', point.x, point.y));
  }
  return absl::StrFormat("<path class=\"%s\" fill=\"none\" d=\"%s\"/>\n", kind, path);
}

std::vector<double> Ticks(double low, double high, int count) {
  const double rough = (high - low) / count;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough) {
      step = factor * power;
      break;
    }
  }
  std::vector<double> ticks;
  for (double i = std::ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; ++i) {
    ticks.push_back(i == 0 ? 0 : i * step);  // no "-0"
  }
  return ticks;
}

std::string DrawAxes(const SvgFrame& frame, const SvgAxes& axes) {
  std::string svg;
  for (const double tick : Ticks(frame.low_y, frame.high_y, 6)) {
    absl::StrAppend(&svg, SvgLine("grid", frame.left, frame.y(tick), frame.right, frame.y(tick)),
                    SvgText(frame.left - 8, frame.y(tick) + 4, "end", absl::StrFormat("%g", tick)));
  }
  for (const double tick : Ticks(frame.low_x, frame.high_x, 8)) {
    if (axes.whole_x && tick != std::floor(tick)) continue;
    const std::string label = axes.whole_x ? absl::StrFormat("%.0f", tick) : absl::StrFormat("%g", tick);
    absl::StrAppend(&svg, SvgLine("grid", frame.x(tick), frame.top, frame.x(tick), frame.bottom),
                    SvgText(frame.x(tick), frame.bottom + 18, "middle", label));
  }
  const double middle_y = (frame.top + frame.bottom) / 2;
  absl::StrAppend(
      &svg, SvgLine("axis", frame.left, frame.bottom, frame.right, frame.bottom),
      SvgLine("axis", frame.left, frame.top, frame.left, frame.bottom),
      SvgText((frame.left + frame.right) / 2, frame.bottom + 42, "middle", axes.name_x),
      SvgText(0, 0, "middle", axes.name_y, absl::StrFormat(" transform=\"translate(20 %.1f) rotate(-90)\"", middle_y)));
  return svg;
}

}  // namespace eps
