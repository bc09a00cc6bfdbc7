#include "cli/top_view.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "cli/progress.h"
#include "cli/worker_count.h"
#include "common/base/byte_size.h"
#include "common/base/state_names.h"
#include "common/base/wait_cause.h"

namespace eps::cli {
namespace {

constexpr int kPlotRows = 6, kFewestPlotRows = 3;
constexpr size_t kWorkersBeforePlot = 4;  // so many are shown rather than the loss curve
constexpr size_t kHostColumns = 12, kDeviceColumns = 16, kVnodeColumns = 20;  // at most
constexpr absl::string_view kNoWait = "nothing";
constexpr int kScaleColumns = 10;  // "   2.6131 |"

// `fields` with `gap` between them, on as many lines as their width takes; what is longer than a line is cut by TopView.
void AddFields(const std::vector<std::string>& fields, absl::string_view gap, int columns,
               std::vector<std::string>& lines) {
  std::string line;
  for (const std::string& field : fields) {
    if (field.empty()) continue;
    const bool fits = static_cast<int>(line.size() + gap.size() + field.size()) <= columns;
    if (!line.empty() && !fits) {
      lines.push_back(std::move(line));
      line = absl::StrCat("  ", field);
    } else {
      absl::StrAppend(&line, line.empty() ? "" : gap, field);
    }
  }
  lines.push_back(std::move(line));
}
// The same of the words of a text that may be long.
void AddText(absl::string_view text, int columns, std::vector<std::string>& lines) {
  AddFields(absl::StrSplit(text, ' '), " ", columns, lines);
}

// Shares of the worker's last pass.
std::string FormatWorkerWaits(const proto::WorkerStatus& worker) {
  std::string text;
  for (const absl::string_view cause : kWaitCauses) {
    const auto found = worker.wait_seconds().find(std::string(cause));
    if (found == worker.wait_seconds().end() || worker.pass_seconds() <= 0) continue;
    const long percent = std::lround(100 * found->second / worker.pass_seconds());
    if (percent > 0) absl::StrAppend(&text, text.empty() ? "" : " ", cause, " ", percent, "%");
  }
  return text.empty() ? std::string(kNoWait) : text;
}

// 1, where it is not used, says nothing.
std::string FormatLossScale(const proto::StatusReply& status) {
  return status.loss_scale() == 1 ? "" : absl::StrCat("loss scale ", status.loss_scale());
}

void AddProgress(const proto::StatusReply& status, int columns, std::vector<std::string>& lines) {
  const int64_t percent = status.steps() > 0 ? 100 * status.step() / status.steps() : 0;
  AddFields(
      {absl::StrCat(StateWords(status.state()), "  ", ProgressBar(status.step(), status.steps()), " ", percent, "%"),
       absl::StrCat("step ", status.step(), " of ", status.steps()),
       absl::StrCat("eta ", FormatEta(status.eta_seconds()))},
      "  ", columns, lines);
  if (!status.failure().empty()) AddText(absl::StrCat("failed: ", status.failure()), columns, lines);
  if (const std::string awaited = FormatAwaitedWorkers(status); !awaited.empty()) {
    AddText(absl::StrCat("workers: ", awaited), columns, lines);
  }
  const bool has_loss = status.step() > 0, has_done_one = status.last_step_seconds() > 0;  // that, in this sitting
  const double norm = status.gradient_norm(), rate = status.learning_rate();
  AddFields({absl::StrCat("loss ", has_loss ? absl::StrFormat("%.4f nats", status.loss()) : "-"),
             absl::StrCat("gradient norm ", Known(norm >= 0, absl::StrFormat("%.3g", norm))),
             absl::StrCat("learning rate ", Known(has_loss && rate >= 0, absl::StrFormat("%.3g", rate))),
             absl::StrCat(Known(has_done_one, absl::StrFormat("%.0f", status.tokens_per_second())), " ",
                          WhatIsCounted(status), "/s"),
             Known(status.model_flops_per_second() > 0, FormatFlopRate(status.model_flops_per_second()))},
            "  ", columns, lines);
  if (status.has_evaluation()) {
    const proto::EvaluationStatus& newest = status.evaluation();
    AddFields({absl::StrFormat("evaluation after step %d: loss %.4f nats", newest.step(), newest.loss()),
               absl::StrFormat("accuracy %.4f", newest.accuracy()),
               newest.has_pairs() ? absl::StrFormat("reward margin %.3g",
                                                    newest.pairs().chosen_reward() - newest.pairs().rejected_reward())
                                  : "",
               absl::StrCat(newest.tokens(), " ", WhatIsCounted(status))},
              "  ", columns, lines);
  }
  AddFields({absl::StrCat("last step ", FormatLastStep(status)), absl::StrCat("skipped ", status.skipped_steps()),
             FormatLossScale(status), absl::StrCat("waited too long ", status.step_waits()),
             absl::StrCat("compute waits for ", Known(has_done_one, FormatWaits(status)))},
            "  ", columns, lines);
  if (const std::string pairs = FormatPairs(status); !pairs.empty()) {
    AddText(absl::StrCat("pairs: ", pairs), columns, lines);
  }
  if (const std::string load = FormatExpertLoad(status); !load.empty()) {
    AddText(absl::StrCat("experts: ", load), columns, lines);
  }
  if (const std::string evaluating = FormatEvaluating(status); !evaluating.empty()) {
    lines.push_back(absl::StrCat("evaluating ", evaluating));
  }
  if (const std::string long_step = FormatLongStep(status); !long_step.empty()) AddText(long_step, columns, lines);
  if (const std::string wait = FormatStepWait(status); !wait.empty()) {
    AddText(absl::StrCat("THIS STEP WAITS for ", wait), columns, lines);
  }
}

// Nothing else is known yet.
void AddStart(const proto::StatusReply& status, std::vector<std::string>& lines) {
  const proto::StartWork& work = status.start_work();
  lines.push_back(work.total_bytes() > 0 ? absl::StrFormat("%s  %s %d%%", status.state(),
                                                           ProgressBar(work.done_bytes(), work.total_bytes()),
                                                           100 * work.done_bytes() / work.total_bytes())
                                         : status.state());
  if (const std::string text = FormatStartWork(status); !text.empty()) lines.push_back(text);
}

// Of at most `rows` lines, the empty one before it among them.
std::vector<std::string> LossPlot(const proto::StatusReply& status, int rows, int columns) {
  const std::vector<double> points(status.loss_curve().begin(), status.loss_curve().end());
  if (points.size() < 2 || rows - 1 < kFewestPlotRows) return {};
  std::vector<std::string> lines = PlotLines(points, std::min(rows - 1, kPlotRows), columns);
  if (!lines.empty()) lines.insert(lines.begin(), "");
  return lines;
}

void AddDaemon(const proto::StatusReply& status, int columns, std::vector<std::string>& lines) {
  lines.push_back("");
  AddFields({absl::StrCat("memory      state ", FormatByteSize(status.model_state_bytes())),
             absl::StrCat("window ", FormatByteSize(status.contribution_window_used_bytes()), " of ",
                          FormatByteSize(status.contribution_window_bytes())),
             absl::StrCat("held ", FormatByteSize(status.hold_bytes())),
             absl::StrCat("resident ", FormatByteSize(status.resident_bytes()))},
            "  ", columns, lines);
  const std::string age = FormatCheckpointAge(status), writing = FormatCheckpointWriting(status);
  AddFields({absl::StrCat("checkpoint  ", status.checkpoint_step() < 0 ? "none yet"
                                                                       : absl::StrCat("step ", status.checkpoint_step(),
                                                                                      age.empty() ? "" : ", ", age)),
             writing.empty() ? "" : absl::StrCat("being written: ", writing)},
            "  ", columns, lines);
  if (status.checkpoint_failures() > 0) {
    AddText(absl::StrCat("checkpoints FAILED ", status.checkpoint_failures(), " times",
                         status.checkpoint_error().empty() ? "" : absl::StrCat(": ", status.checkpoint_error())),
            columns, lines);
  }
  for (const std::string& warning : KeyWarnings(status)) AddText(warning, columns, lines);
  AddFields(
      {absl::StrCat("workers     attached ", status.workers_attached()), absl::StrCat("lost ", status.workers_lost()),
       absl::StrCat("virtual nodes redone ", status.vnodes_redone()),
       status.lease_seconds() > 0 ? absl::StrCat("lease ", FormatSeconds(status.lease_seconds())) : "",
       FormatStartOrder(status)},
      "  ", columns, lines);
}

std::string Cut(std::string text, size_t columns) {
  return text.size() <= columns ? text : absl::StrCat(text.substr(0, columns - 2), "..");
}

// "88% of 16.0 MiB".
std::string DeviceShare(const proto::WorkerStatus& worker) {
  if (worker.device_cap_bytes() <= 0) return "-";
  const double share = static_cast<double>(worker.device_peak_bytes()) / static_cast<double>(worker.device_cap_bytes());
  return absl::StrFormat("%.0f%% of %s", 100 * share, FormatByteSize(worker.device_cap_bytes()));
}

// A line of the table of workers, a text for each column; the last is what it waits for.
using Cells = std::vector<std::string>;

// `host`: there are several, and each worker says its own.
Cells Headings(bool host) {
  Cells cells = {"id", "state", "device", "vnodes", "last pass", "silent", "memory", "waits for"};
  if (host) cells.insert(cells.begin() + 2, "host");
  return cells;
}
Cells CellsOf(const proto::WorkerStatus& worker, bool host) {
  const std::vector<int> vnodes(worker.vnodes().begin(), worker.vnodes().end());
  const bool has_passed = worker.pass_seconds() > 0;
  Cells cells = {absl::StrCat(worker.worker_id()),
                 worker.state(),
                 Cut(worker.device_name(), kDeviceColumns),
                 Cut(FormatVnodes(vnodes), kVnodeColumns),
                 Known(has_passed, FormatSeconds(worker.pass_seconds())),
                 Known(IsAttached(worker), FormatSeconds(worker.silent_seconds())),
                 DeviceShare(worker),
                 Known(has_passed, FormatWorkerWaits(worker))};
  if (host) cells.insert(cells.begin() + 2, Cut(worker.host_name(), kHostColumns));
  return cells;
}

// Each column as wide as its widest text. Where what the workers wait for does not fit beside the rest, it stands below
// it, for those that wait.
class WorkerTable {
 public:
  WorkerTable(const std::vector<const proto::WorkerStatus*>& workers, bool host, int columns)
      : headings_(Headings(host)), widths_(headings_.size(), 0) {
    for (const proto::WorkerStatus* worker : workers) rows_.push_back(CellsOf(*worker, host));
    size_t waits_columns = headings_.back().size();
    for (const Cells& cells : rows_) waits_columns = std::max(waits_columns, cells.back().size());
    for (size_t i = 0; i + 1 < widths_.size(); ++i) {
      widths_[i] = headings_[i].size();
      for (const Cells& cells : rows_) widths_[i] = std::max(widths_[i], cells[i].size());
    }
    widths_[0] = std::max<size_t>(widths_[0], 4);
    const size_t gaps = 2 * (widths_.size() - 1);
    const size_t all = std::accumulate(widths_.begin(), widths_.end(), gaps + waits_columns);
    waits_below_ = all > static_cast<size_t>(std::max(0, columns));
  }

  std::string Heading() const { return Join(headings_); }
  // One or two.
  std::vector<std::string> Lines(size_t worker) const {
    const Cells& cells = rows_[worker];
    std::vector<std::string> lines = {Join(cells)};
    const bool waits = cells.back() != "-" && cells.back() != kNoWait;
    if (waits_below_ && waits) lines.push_back(absl::StrCat("      waits for ", cells.back()));
    return lines;
  }

 private:
  std::string Join(const Cells& cells) const {
    std::string line = absl::StrFormat("%*s", static_cast<int>(widths_[0]), cells[0]);
    for (size_t i = 1; i + 1 < cells.size(); ++i) {
      absl::StrAppend(&line, "  ", absl::StrFormat("%-*s", static_cast<int>(widths_[i]), cells[i]));
    }
    if (!waits_below_) absl::StrAppend(&line, "  ", cells.back());
    return line;
  }

  const Cells headings_;
  std::vector<Cells> rows_;
  std::vector<size_t> widths_;  // of all but the last
  bool waits_below_ = false;
};

// The heading, and the lines of each worker, those that went last.
std::vector<std::vector<std::string>> WorkerBlocks(const proto::StatusReply& status, int columns) {
  std::set<std::string> hosts;
  std::vector<const proto::WorkerStatus*> workers;
  for (const proto::WorkerStatus& worker : status.workers()) {
    hosts.insert(worker.host_name());
    workers.push_back(&worker);
  }
  std::stable_partition(workers.begin(), workers.end(), [](const auto* worker) { return IsAttached(*worker); });
  const WorkerTable table(workers, hosts.size() > 1, columns);
  std::vector<std::vector<std::string>> blocks = {{"", table.Heading()}};
  for (size_t i = 0; i < workers.size(); ++i) blocks.push_back(table.Lines(i));
  return blocks;
}

// Of the first workers, and one that counts the others.
int LinesBeforePlot(const std::vector<std::vector<std::string>>& blocks) {
  size_t lines = blocks.size() > kWorkersBeforePlot + 1 ? 1 : 0;
  for (size_t i = 0; i < std::min(blocks.size(), kWorkersBeforePlot + 1); ++i) lines += blocks[i].size();
  return static_cast<int>(lines);
}

void AddBlocks(const std::vector<std::vector<std::string>>& blocks, int rows, std::vector<std::string>& lines) {
  for (size_t i = 0; i < blocks.size(); ++i) {
    const bool is_last = i + 1 == blocks.size();
    const int room = rows - static_cast<int>(lines.size()) - static_cast<int>(blocks[i].size());
    if (i > 0 && room < (is_last ? 0 : 1)) {
      lines.push_back(absl::StrCat("      and ", blocks.size() - i, " more"));
      return;
    }
    lines.insert(lines.end(), blocks[i].begin(), blocks[i].end());
  }
}

}  // namespace

std::string FormatVnodes(const std::vector<int>& vnodes) {
  std::string text;
  for (size_t i = 0; i < vnodes.size();) {
    size_t last = i;
    while (last + 1 < vnodes.size() && vnodes[last + 1] == vnodes[last] + 1) ++last;
    absl::StrAppend(&text, text.empty() ? "" : ",", vnodes[i]);
    if (last > i) absl::StrAppend(&text, "-", vnodes[last]);
    i = last + 1;
  }
  return text.empty() ? "-" : text;
}

std::vector<std::string> PlotLines(const std::vector<double>& points, int rows, int columns) {
  double low = INFINITY, high = -INFINITY;
  for (const double point : points) {
    if (!std::isfinite(point)) continue;
    low = std::min(low, point);
    high = std::max(high, point);
  }
  const int cells = std::min<int>(columns - kScaleColumns, static_cast<int>(points.size()));
  if (rows < 2 || cells < 1 || !(low <= high)) return {};
  std::vector<std::string> lines(static_cast<size_t>(rows), std::string(static_cast<size_t>(cells), ' '));
  for (int x = 0; x < cells; ++x) {
    const double point = points[static_cast<size_t>(x) * points.size() / static_cast<size_t>(cells)];
    if (!std::isfinite(point)) continue;
    const double share = high > low ? (high - point) / (high - low) : 0;
    lines[static_cast<size_t>(std::lround(share * (rows - 1)))][static_cast<size_t>(x)] = '*';
  }
  for (int row = 0; row < rows; ++row) {
    const bool known = row == 0 || row == rows - 1;
    const std::string scale = known ? absl::StrFormat("%8.4g", row == 0 ? high : low) : std::string(8, ' ');
    lines[static_cast<size_t>(row)] = absl::StrCat(scale, " |", lines[static_cast<size_t>(row)]);
  }
  return lines;
}

std::vector<std::string> TopView(const proto::StatusReply& status, TopSize size) {
  std::vector<std::string> lines;
  if (status.has_start_work()) {
    AddStart(status, lines);
  } else {
    AddProgress(status, size.columns, lines);
    const auto place_of_plot = static_cast<ptrdiff_t>(lines.size());
    AddDaemon(status, size.columns, lines);
    const std::vector<std::vector<std::string>> workers = WorkerBlocks(status, size.columns);
    const std::vector<std::string> plot =
        LossPlot(status, size.rows - static_cast<int>(lines.size()) - LinesBeforePlot(workers), size.columns);
    lines.insert(lines.begin() + place_of_plot, plot.begin(), plot.end());
    AddBlocks(workers, size.rows, lines);
  }
  if (static_cast<int>(lines.size()) > size.rows) lines.resize(static_cast<size_t>(std::max(0, size.rows)));
  for (std::string& line : lines)
    line = Printable(std::move(line)).substr(0, static_cast<size_t>(std::max(0, size.columns)));
  return lines;
}

}  // namespace eps::cli
