#include "cli/timeline_svg.h"

#include <algorithm>
#include <cstddef>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/drawing/svg.h"

namespace eps::cli {
namespace {

// In pixels.
constexpr double kWidth = 1280, kLeft = 170, kRight = 24, kTop = 84, kBottom = 40;
constexpr double kRow = 26, kBar = 20, kProcessGap = 26;

// Steps of the relay and of the daemon that people look for; the rest is small, and grey.
struct Kind {
  absl::string_view word, color;
};
constexpr Kind kKinds[] = {
    {"forward", "#2da44e"},    {"backward", "#0b5cad"},    {"recompute", "#bf8700"}, {"head", "#8250df"},
    {"pull", "#1b7c83"},       {"push", "#bc4c00"},        {"update", "#cf222e"},    {"sum", "#e16f24"},
    {"load_inner", "#57606a"}, {"store_inner", "#6e7781"}, {"wait:", "#ffd8d3"},     {"measure", "#fb8f44"},
    {"step", "#d0d7de"},
};
constexpr absl::string_view kOther = "other";

std::string ClassOf(absl::string_view word) {
  std::string name = "k-";
  for (const char c : word) {
    if (c != ':') name += c;
  }
  return name;
}

// The kind of an event, as an index into kKinds; their number: another.
size_t KindOf(const TraceEvent& event) {
  const absl::string_view word = *absl::StrSplit(event.name, ' ').begin();
  return static_cast<size_t>(
      std::find_if(std::begin(kKinds), std::end(kKinds), [&](const Kind& kind) { return kind.word == word; }) -
      std::begin(kKinds));
}

std::string Style() {
  std::string style = "\n  .row { fill: #8882; } .process { font-weight: 600; }\n  .k-other { fill: #8c959f; }";
  for (const Kind& kind : kKinds) {
    absl::StrAppend(&style, "\n  .", ClassOf(kind.word), " { fill: ", kind.color, "; }");
  }
  return style;
}

std::string Legend(const std::set<size_t>& kinds) {
  std::string svg;
  double x = kLeft;
  for (const size_t kind : kinds) {
    const bool is_other = kind == std::size(kKinds);
    const absl::string_view word = is_other ? kOther : kKinds[kind].word;
    absl::StrAppend(&svg, SvgRect(ClassOf(word), x, 46, 12, 12),
                    SvgText(x + 17, 57, "start", absl::StripSuffix(word, ":")));
    x += 34 + 7.5 * static_cast<double>(word.size());
  }
  return svg;
}

}  // namespace

std::string TimelineSvg(const std::string& title, const std::vector<TraceTrack>& tracks, double begin, double end) {
  SvgFrame frame = {.left = kLeft, .right = kWidth - kRight, .top = kTop, .low_x = 0, .high_x = end - begin};
  std::string rows, process;
  std::set<size_t> kinds;
  double y = kTop;
  for (const TraceTrack& track : tracks) {
    std::string bars;
    for (const TraceEvent& event : track.events) {
      const double from = std::max(event.begin, begin), to = std::min(event.end, end);
      if (from >= to) continue;
      const size_t kind = KindOf(event);
      kinds.insert(kind);
      const double x = frame.x(from - begin);
      // What is shorter than can be seen is drawn as wide as can.
      absl::StrAppend(&bars, SvgRect(ClassOf(kind == std::size(kKinds) ? kOther : kKinds[kind].word), x,
                                     y + (kRow - kBar) / 2 + (track.process == process ? 0 : kProcessGap),
                                     std::max(frame.x(to - begin) - x, 0.3), kBar,
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
                      SvgText(16, 30, "start", title, " class=\"title\""), Legend(kinds), grid, rows, kSvgEnd);
}

}  // namespace eps::cli
