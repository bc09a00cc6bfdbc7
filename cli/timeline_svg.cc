#include "cli/timeline_svg.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/drawing/svg.h"

namespace eps::cli {
namespace {

// In pixels.
constexpr double kWidth = 1280, kLeft = 170, kRight = 24, kTop = 84, kBottom = 40;
constexpr double kRow = 26, kBar = 20, kProcessGap = 26;
constexpr double kLegendRow = 18;

// Steps of the relay and of the daemon that people look for; the rest is small, and grey. `key`: an event's whole name, or
// its first word.
struct Kind {
  absl::string_view key, title, color;
};
// Work is dark, and waiting pale, in the colour of what is waited for where that is drawn as well.
constexpr Kind kKinds[] = {
    {"forward", "forward", "#2da44e"},
    {"backward", "backward", "#0b5cad"},
    {"recompute", "recompute", "#bf8700"},
    {"head", "head", "#8250df"},
    {"pull", "pull", "#1b7c83"},
    {"push", "push", "#bc4c00"},
    {"load_inner", "swap in", "#bf3989"},
    {"store_inner", "swap out", "#f778ba"},
    {"update", "update", "#cf222e"},
    {"sum", "sum", "#e16f24"},
    {"measure", "measure", "#fb8f44"},
    {"step", "step", "#d0d7de"},
    {"wait: pull", "waits for pull", "#bfe3e6"},
    {"wait: version", "waits for version", "#ffd8d3"},
    {"wait: stash", "waits for stash", "#ffd6ec"},
    {"wait: push", "waits for push", "#f6d5b8"},
    {"wait: room", "waits for room", "#fff1b8"},
    {"wait: compute", "waits for compute", "#c6ecd0"},
    {"wait: checkpoint", "waits for checkpoint", "#e6dcfd"},
    {"wait:", "waits", "#eaeef2"},
};
constexpr absl::string_view kOther = "other";

// Of an event's kind, an index into kKinds; their number: another.
std::string ClassOf(size_t kind) {
  const absl::string_view key = kind == std::size(kKinds) ? kOther : kKinds[kind].key;
  return absl::StrCat("k-", absl::StrReplaceAll(key, {{": ", "-"}, {":", ""}}));
}

size_t KindOf(const TraceEvent& event) {
  const auto find = [](absl::string_view key) {
    return static_cast<size_t>(
        std::find_if(std::begin(kKinds), std::end(kKinds), [&](const Kind& kind) { return kind.key == key; }) -
        std::begin(kKinds));
  };
  const size_t whole = find(event.name);
  return whole < std::size(kKinds) ? whole : find(*absl::StrSplit(event.name, ' ').begin());
}

// Of an event that can be seen, the part that can.
struct Shown {
  double from = 0, to = 0;
  bool is_empty() const { return from >= to; }
};
Shown PartBetween(const TraceEvent& event, double begin, double end) {
  return {std::max(event.begin, begin), std::min(event.end, end)};
}

std::set<size_t> KindsBetween(const std::vector<TraceTrack>& tracks, double begin, double end) {
  std::set<size_t> kinds;
  for (const TraceTrack& track : tracks) {
    for (const TraceEvent& event : track.events) {
      if (!PartBetween(event, begin, end).is_empty()) kinds.insert(KindOf(event));
    }
  }
  return kinds;
}

std::string Style() {
  std::string style = "\n  .row { fill: #8882; } .process { font-weight: 600; }\n  .k-other { fill: #8c959f; }";
  for (const Kind& kind : kKinds) {
    absl::StrAppend(&style, "\n  .", ClassOf(static_cast<size_t>(&kind - kKinds)), " { fill: ", kind.color, "; }");
  }
  return style;
}

struct Legend {
  std::string svg;
  double height = 0;  // of the rows behind the first
};
Legend LegendOf(const std::set<size_t>& kinds) {
  Legend legend;
  double x = kLeft;
  for (const size_t kind : kinds) {
    const absl::string_view title = kind == std::size(kKinds) ? kOther : kKinds[kind].title;
    const double width = 34 + 7.5 * static_cast<double>(title.size());
    if (x + width > kWidth - kRight) {
      x = kLeft;
      legend.height += kLegendRow;
    }
    absl::StrAppend(&legend.svg, SvgRect(ClassOf(kind), x, 46 + legend.height, 12, 12),
                    SvgText(x + 17, 57 + legend.height, "start", title));
    x += width;
  }
  return legend;
}

}  // namespace

std::string TimelineSvg(const std::string& title, const std::vector<TraceTrack>& tracks, double begin, double end) {
  const Legend legend = LegendOf(KindsBetween(tracks, begin, end));
  SvgFrame frame = {
      .left = kLeft, .right = kWidth - kRight, .top = kTop + legend.height, .low_x = 0, .high_x = end - begin};
  std::string rows, process;
  double y = frame.top;
  for (const TraceTrack& track : tracks) {
    std::string bars;
    for (const TraceEvent& event : track.events) {
      const Shown part = PartBetween(event, begin, end);
      if (part.is_empty()) continue;
      const double x = frame.x(part.from - begin);
      // What is shorter than can be seen is drawn as wide as can.
      absl::StrAppend(&bars, SvgRect(ClassOf(KindOf(event)), x,
                                     y + (kRow - kBar) / 2 + (track.process == process ? 0 : kProcessGap),
                                     std::max(frame.x(part.to - begin) - x, 0.3), kBar,
                                     absl::StrFormat("%s: %.3g ms%s%s", event.name, 1e3 * (event.end - event.begin),
                                                     event.detail.empty() ? "" : "; ", event.detail)));
    }
    if (bars.empty()) continue;
    if (track.process != process) {
      process = track.process;
      absl::StrAppend(&rows, SvgText(16, y + 18, "start", process, " class=\"process\""));
      y += kProcessGap;
    }
    absl::StrAppend(&rows, SvgRect("row", kLeft, y + (kRow - kBar) / 2, frame.right - frame.left, kBar),
                    SvgText(kLeft - 8, y + kRow / 2 + 4, "end", track.thread), bars);
    y += kRow;
  }
  frame.bottom = y + 6;
  std::string grid;
  for (const double tick : Ticks(frame.low_x, frame.high_x, 10)) {
    absl::StrAppend(&grid, SvgLine("grid", frame.x(tick), frame.top, frame.x(tick), frame.bottom),
                    SvgText(frame.x(tick), frame.bottom + 18, "middle", absl::StrFormat("%g s", tick)));
  }
  return absl::StrCat(SvgStart(kWidth, frame.bottom + kBottom, title, Style()),
                      SvgText(16, 30, "start", title, " class=\"title\""), legend.svg, grid, rows, kSvgEnd);
}

}  // namespace eps::cli
