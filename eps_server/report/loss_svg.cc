#include "eps_server/report/loss_svg.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"

namespace eps::server {
namespace {

// In pixels.
constexpr double kWidth = 800, kHeight = 480;
constexpr double kLeft = 72, kRight = 24, kTop = 56, kBottom = 56;
constexpr int64_t kMaxPoints = 1600;  // two for each pixel column: more cannot be seen

// Colours are written out twice: not every viewer knows CSS variables.
constexpr absl::string_view kStyle = R"(<style>
  svg { font-family: system-ui, sans-serif; font-size: 13px; }
  .title { font-size: 17px; font-weight: 600; }
  .grid { stroke-width: 1; } .axis { stroke-width: 1.2; }
  .raw { fill: none; stroke-width: 1; stroke-linejoin: round; }
  .mean { fill: none; stroke-width: 2.2; stroke-linejoin: round; }
  .ground { fill: #ffffff; } text { fill: #24292f; } .grid { stroke: #d0d7de; } .axis { stroke: #24292f; }
  .raw { stroke: #9ec5e8; } .mean { stroke: #0b5cad; }
  @media (prefers-color-scheme: dark) {
    .ground { fill: #0d1117; } text { fill: #e6edf3; } .grid { stroke: #30363d; } .axis { stroke: #e6edf3; }
    .raw { stroke: #2f5d86; } .mean { stroke: #6cb6ff; }
  }
</style>
)";

struct Frame {
  double low_x = 0, high_x = 1, low_y = 0, high_y = 1;

  double x(double value) const { return kLeft + (value - low_x) / (high_x - low_x) * (kWidth - kLeft - kRight); }
  double y(double value) const {
    return kHeight - kBottom - (value - low_y) / (high_y - low_y) * (kHeight - kTop - kBottom);
  }
};

Frame FrameOf(absl::Span<const double> losses) {
  Frame frame;
  frame.high_x = std::max<double>(1, static_cast<double>(losses.size()) - 1);
  double low = std::numeric_limits<double>::infinity(), high = -low;
  for (const double loss : losses) {
    if (!std::isfinite(loss)) continue;
    low = std::min(low, loss);
    high = std::max(high, loss);
  }
  if (low > high) low = 0, high = 1;  // nothing to show
  const double margin = std::max((high - low) * 0.06, 1e-3 * std::max(1.0, std::fabs(high)));
  frame.low_y = low - margin;
  frame.high_y = high + margin;
  return frame;
}

std::string Line(absl::string_view kind, double x1, double y1, double x2, double y2) {
  return absl::StrFormat("<line class=\"%s\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n", kind, x1, y1, x2,
                         y2);
}

std::string Text(double x, double y, absl::string_view anchor, absl::string_view text, absl::string_view more = "") {
  return absl::StrFormat("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\"%s>%s</text>\n", x, y, anchor, more, text);
}

std::string Axes(const Frame& frame) {
  std::string svg;
  for (const double tick : Ticks(frame.low_y, frame.high_y, 6)) {
    absl::StrAppend(&svg, Line("grid", kLeft, frame.y(tick), kWidth - kRight, frame.y(tick)),
                    Text(kLeft - 8, frame.y(tick) + 4, "end", absl::StrFormat("%g", tick)));
  }
  for (const double tick : Ticks(frame.low_x, frame.high_x, 8)) {
    if (tick != std::floor(tick)) continue;  // steps are whole
    absl::StrAppend(&svg, Line("grid", frame.x(tick), kTop, frame.x(tick), kHeight - kBottom),
                    Text(frame.x(tick), kHeight - kBottom + 18, "middle", absl::StrFormat("%.0f", tick)));
  }
  absl::StrAppend(
      &svg, Line("axis", kLeft, kHeight - kBottom, kWidth - kRight, kHeight - kBottom),
      Line("axis", kLeft, kTop, kLeft, kHeight - kBottom),
      Text((kLeft + kWidth - kRight) / 2, kHeight - 14, "middle", "step"),
      Text(0, 0, "middle", "loss (nats per token)",
           absl::StrFormat(" transform=\"translate(20 %.1f) rotate(-90)\"", (kTop + kHeight - kBottom) / 2)));
  return svg;
}

std::string Point(const Frame& frame, double step, double value, bool first) {
  return absl::StrFormat("%c%.1f %.1f", first ? 'M' : 'L', frame.x(step), frame.y(value));
}

// A path through `values`; where there are too many, through the lowest and the highest of each group.
std::string Curve(const Frame& frame, absl::string_view kind, absl::Span<const double> values) {
  const int64_t count = static_cast<int64_t>(values.size());
  const int64_t group = count <= kMaxPoints ? 1 : (count + kMaxPoints / 2 - 1) / (kMaxPoints / 2);
  std::string path;
  bool pen_down = false;
  for (int64_t begin = 0; begin < count; begin += group) {
    int64_t low = -1, high = -1;
    for (int64_t i = begin; i < std::min(begin + group, count); ++i) {
      if (!std::isfinite(values[i])) continue;
      if (low < 0 || values[i] < values[low]) low = i;
      if (high < 0 || values[i] > values[high]) high = i;
    }
    if (low < 0) {
      pen_down = false;
      continue;
    }
    for (const int64_t i : {std::min(low, high), std::max(low, high)}) {
      absl::StrAppend(&path, Point(frame, static_cast<double>(i), values[i], !pen_down));
      pen_down = true;
      if (low == high) break;
    }
  }
  // A single point has no length: a dot of the line's width shows it.
  return absl::StrFormat("<path class=\"%s\" stroke-linecap=\"round\" d=\"%s%s\"/>\n", kind, path,
                         count == 1 && !path.empty() ? "h0.1" : "");
}

}  // namespace

std::vector<double> MovingMean(absl::Span<const double> values, int64_t radius) {
  const int64_t count = static_cast<int64_t>(values.size());
  std::vector<double> means(values.size());
  double sum = 0;
  int64_t finite = 0;
  const auto add = [&](int64_t i, int sign) {
    if (i < 0 || i >= count || !std::isfinite(values[i])) return;
    sum += sign * values[i];
    finite += sign;
  };
  for (int64_t i = 0; i < std::min(radius, count); ++i) add(i, 1);
  for (int64_t i = 0; i < count; ++i) {
    add(i + radius, 1);
    means[i] = finite > 0 ? sum / static_cast<double>(finite) : std::numeric_limits<double>::quiet_NaN();
    add(i - radius, -1);
  }
  return means;
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

std::string LossSvg(absl::Span<const double> losses) {
  const Frame frame = FrameOf(losses);
  const int64_t radius = std::max<int64_t>(1, static_cast<int64_t>(losses.size()) / 50);
  std::string title = "Training loss";
  if (!losses.empty()) {
    absl::StrAppend(&title,
                    absl::StrFormat(": %.4g to %.4g in %d steps", losses.front(), losses.back(), losses.size()));
  }
  return absl::StrCat(
      absl::StrFormat("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %g %g\" width=\"%g\" height=\"%g\" "
                      "role=\"img\" aria-label=\"%s\">\n",
                      kWidth, kHeight, kWidth, kHeight, title),
      kStyle, absl::StrFormat("<rect class=\"ground\" width=\"%g\" height=\"%g\"/>\n", kWidth, kHeight),
      Text(kLeft, 32, "start", title, " class=\"title\""), Axes(frame), Curve(frame, "raw", losses),
      Curve(frame, "mean", MovingMean(losses, radius)), Line("raw", kWidth - 220, 28, kWidth - 196, 28),
      Text(kWidth - 190, 32, "start", "each step"), Line("mean", kWidth - 120, 28, kWidth - 96, 28),
      Text(kWidth - 90, 32, "start", absl::StrCat("mean of ", 2 * radius + 1)), "</svg>\n");
}

}  // namespace eps::server
