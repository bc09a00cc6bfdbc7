#include "cli/cap_curve.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/parallel_for.h"
#include "common/base/status_macros.h"
#include "common/drawing/svg.h"

namespace eps::cli {
namespace {

constexpr size_t kPoints = 17;

// Nothing where that does not fit.
std::optional<double> SecondsWith(WholePlanRequest request, InnerPolicy policy) {
  request.run.relay.inner = policy;
  const absl::StatusOr<WholePlan> plan = MakeWholePlan(std::move(request));
  if (!plan.ok()) return std::nullopt;
  return plan->step.timeline.step_seconds;
}

absl::StatusOr<CapPoint> PointAt(WholePlanRequest request, int64_t cap_bytes) {
  request.device_memory_bytes = cap_bytes;
  EPS_ASSIGN_OR_RETURN(const WholePlan plan, MakeWholePlan(request));
  CapPoint point = {.cap_bytes = cap_bytes, .planned = plan.step.timeline.step_seconds};
  point.recomputed = SecondsWith(request, InnerPolicy::kRecompute);
  if (request.host_memory_bytes > 0) point.swapped = SecondsWith(request, InnerPolicy::kSwap);
  return point;
}

constexpr double kWidth = 800, kHeight = 480;  // pixels
constexpr absl::string_view kStyle = R"(
  path, .planned, .recomputed, .swapped { stroke-linejoin: round; }
  .planned { stroke: #0b5cad; stroke-width: 2.4; }
  .recomputed { stroke: #bf8700; stroke-width: 1.6; stroke-dasharray: 6 4; }
  .swapped { stroke: #57606a; stroke-width: 1.6; stroke-dasharray: 2 3; })";

}  // namespace

absl::StatusOr<std::vector<CapPoint>> CapCurve(const WholePlanRequest& request,
                                               const std::function<void(size_t done, size_t all)>& on_progress) {
  WholePlanRequest unlimited = request;
  unlimited.device_memory_bytes = 0;
  EPS_ASSIGN_OR_RETURN(const WholePlan most, MakeWholePlan(unlimited));
  const int64_t low = most.smallest_cap_bytes, high = std::max(most.device.arena_bytes, low);
  std::vector<absl::StatusOr<CapPoint>> made(kPoints);
  on_progress(0, made.size());
  ParallelFor(
      made.size(),
      [&](size_t i) {
        const int64_t step = (high - low) / static_cast<int64_t>(kPoints - 1);
        made[i] = PointAt(request, i + 1 == made.size() ? high : low + step * static_cast<int64_t>(i));
      },
      [&](size_t done) { on_progress(done, made.size()); });
  std::vector<CapPoint> points;
  for (const absl::StatusOr<CapPoint>& point : made) {
    EPS_RETURN_IF_ERROR(point.status());
    points.push_back(*point);
  }
  return points;
}

std::string CapCurveSvg(const std::string& title, const std::vector<CapPoint>& points) {
  constexpr double kGiB = 1 << 30, kMiB = 1 << 20;
  const bool large = points.back().cap_bytes >= 4 * kGiB;
  const auto cap = [&](const CapPoint& point) { return static_cast<double>(point.cap_bytes) / (large ? kGiB : kMiB); };
  SvgFrame frame = {.left = 80, .right = kWidth - 24, .top = 76, .bottom = kHeight - 56};
  frame.low_x = cap(points.front());
  frame.high_x = std::max(cap(points.back()), frame.low_x * 1.01);
  frame.low_y = 0;
  frame.high_y = 0;
  std::vector<SvgPoint> planned, recomputed, swapped;
  for (const CapPoint& point : points) {
    for (const double seconds : {point.planned, point.recomputed.value_or(0), point.swapped.value_or(0)}) {
      frame.high_y = std::max(frame.high_y, 1.05 * seconds);
    }
  }
  for (const CapPoint& point : points) {
    const double x = frame.x(cap(point));
    planned.push_back({x, frame.y(point.planned)});
    if (point.recomputed.has_value()) recomputed.push_back({x, frame.y(*point.recomputed)});
    if (point.swapped.has_value()) swapped.push_back({x, frame.y(*point.swapped)});
  }
  std::string svg = absl::StrCat(
      SvgStart(kWidth, kHeight, title, kStyle), SvgText(frame.left, 30, "start", title, " class=\"title\""),
      DrawAxes(frame, {.name_x = large ? "device memory (GiB)" : "device memory (MiB)", .name_y = "step (s)"}));
  double x = frame.left;
  const auto draw = [&](absl::string_view kind, absl::string_view name, const std::vector<SvgPoint>& line) {
    if (line.empty()) return;
    absl::StrAppend(&svg, SvgPath(kind, line), SvgLine(kind, x, 52, x + 28, 52), SvgText(x + 34, 56, "start", name));
    x += 190;
  };
  draw("swapped", "everything swapped", swapped);
  draw("recomputed", "everything recomputed", recomputed);
  draw("planned", "planned", planned);
  return absl::StrCat(svg, kSvgEnd);
}

}  // namespace eps::cli
