#include "eps_server/report/loss_svg.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "common/drawing/svg.h"

namespace eps::server {
namespace {

// In pixels.
constexpr double kWidth = 800, kHeight = 480;
constexpr double kLeft = 72, kRight = 24, kTop = 56, kBottom = 56;
constexpr int64_t kMaxPoints = 1600;  // two for each pixel column: more cannot be seen

constexpr absl::string_view kStyle = R"(
  .raw { fill: none; stroke-width: 1; stroke-linejoin: round; }
  .mean { fill: none; stroke-width: 2.2; stroke-linejoin: round; }
  .raw { stroke: #9ec5e8; } .mean { stroke: #0b5cad; }
  @media (prefers-color-scheme: dark) { .raw { stroke: #2f5d86; } .mean { stroke: #6cb6ff; } })";

SvgFrame FrameOf(absl::Span<const double> losses) {
  SvgFrame frame = {.left = kLeft, .right = kWidth - kRight, .top = kTop, .bottom = kHeight - kBottom};
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

std::string Point(const SvgFrame& frame, double step, double value, bool first) {
  return absl::StrFormat("%c%.1f %.1f", first ? 'M' : 'L', frame.x(step), frame.y(value));
}

// A path through `values`; where there are too many, through the lowest and the highest of each group.
std::string Curve(const SvgFrame& frame, absl::string_view kind, absl::Span<const double> values) {
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

// "Training loss: 5.23 to 2.1 in 100 steps". Steps without a finite loss: those that counted no token, and those that
// went wrong, of which a run may have nothing else from some step on.
std::string Title(absl::Span<const double> losses) {
  const auto is_finite = [](double loss) { return std::isfinite(loss); };
  const auto first = std::find_if(losses.begin(), losses.end(), is_finite);
  const auto end = std::find_if(losses.rbegin(), losses.rend(), is_finite).base();  // behind the last one
  if (losses.empty()) return "Training loss";
  if (first == losses.end()) return absl::StrFormat("Training loss: no finite one in %d steps", losses.size());
  std::string title = absl::StrFormat("Training loss: %.4g to %.4g in %d steps", *first, *(end - 1), losses.size());
  if (end == losses.end()) return title;
  return absl::StrFormat("%s, no finite one from step %d on", title, end - losses.begin());
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

std::string LossSvg(absl::Span<const double> losses) {
  const SvgFrame frame = FrameOf(losses);
  const int64_t radius = std::max<int64_t>(1, static_cast<int64_t>(losses.size()) / 50);
  const std::string title = Title(losses);
  return absl::StrCat(
      SvgStart(kWidth, kHeight, title, kStyle), SvgText(kLeft, 32, "start", title, " class=\"title\""),
      DrawAxes(frame, {.name_x = "step", .name_y = "loss (nats)", .whole_x = true}), Curve(frame, "raw", losses),
      Curve(frame, "mean", MovingMean(losses, radius)), SvgLine("raw", kWidth - 220, 28, kWidth - 196, 28),
      SvgText(kWidth - 190, 32, "start", "each step"), SvgLine("mean", kWidth - 120, 28, kWidth - 96, 28),
      SvgText(kWidth - 90, 32, "start", absl::StrCat("mean of ", 2 * radius + 1)), kSvgEnd);
}

}  // namespace eps::server
