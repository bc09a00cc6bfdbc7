#include "cli/top_view.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/progress.h"
#include "common/base/byte_size.h"
#include "common/base/state_names.h"
#include "common/base/wait_cause.h"

namespace eps::cli {
namespace {

constexpr int kPlotRows = 6;
constexpr int kMinRowsForPlot = 20;
constexpr int kHostColumns = 12;
constexpr int kScaleColumns = 10;  // "   2.6131 |"

// Shares of the worker's last pass.
std::string FormatWorkerWaits(const proto::WorkerStatus& worker) {
  std::string text;
  for (const absl::string_view cause : kWaitCauses) {
    const auto found = worker.wait_seconds().find(std::string(cause));
    if (found == worker.wait_seconds().end() || worker.pass_seconds() <= 0) continue;
    const long percent = std::lround(100 * found->second / worker.pass_seconds());
    if (percent > 0) absl::StrAppend(&text, text.empty() ? "" : " ", cause, " ", percent, "%");
  }
  return text.empty() ? "nothing" : text;
}

// 1, where it is not used, says nothing.
std::string FormatLossScale(const proto::StatusReply& status) {
  return status.loss_scale() == 1 ? "" : absl::StrCat("  loss scale ", status.loss_scale());
}

void AddProgress(const proto::StatusReply& status, std::vector<std::string>& lines) {
  const int64_t percent = status.steps() > 0 ? 100 * status.step() / status.steps() : 0;
  lines.push_back(absl::StrFormat("%s  %s %d%%  step %d of %d  eta %s", status.state(),
                                  ProgressBar(status.step(), status.steps()), percent, status.step(), status.steps(),
                                  FormatEta(status.eta_seconds())));
  if (!status.failure().empty()) lines.push_back(absl::StrCat("failed: ", status.failure()));
  const bool has_loss = status.step() > 0, has_done_one = status.last_step_seconds() > 0;  // that, in this sitting
  lines.push_back(
      absl::StrCat("loss ", has_loss ? absl::StrFormat("%.4f nats", status.loss()) : "-", "  gradient norm ",
                   Known(status.gradient_norm() >= 0, absl::StrFormat("%.3g", status.gradient_norm())),
                   "  learning rate ", Known(has_loss, absl::StrFormat("%.3g", status.learning_rate())), "  ",
                   Known(has_done_one, absl::StrFormat("%.0f", status.tokens_per_second())), " tokens/s  ",
                   Known(status.model_flops_per_second() > 0, FormatFlopRate(status.model_flops_per_second()))));
  if (status.has_evaluation()) {
    lines.push_back(absl::StrFormat("evaluation after step %d: loss %.4f nats  accuracy %.4f  %d tokens",
                                    status.evaluation().step(), status.evaluation().loss(),
                                    status.evaluation().accuracy(), status.evaluation().tokens()));
  }
  const std::string last_step = absl::StrCat(FormatSeconds(status.last_step_seconds()), ", ended ",
                                             FormatSeconds(status.step_age_seconds()), " ago");
  lines.push_back(absl::StrCat("last step ", Known(has_done_one, last_step), "  skipped ", status.skipped_steps(),
                               FormatLossScale(status), "  waited too long ", status.step_waits(),
                               "  compute waits for ", Known(has_done_one, FormatWaits(status))));
  if (const std::string long_step = FormatLongStep(status); !long_step.empty()) lines.push_back(long_step);
  if (const std::string wait = FormatStepWait(status); !wait.empty()) {
    lines.push_back(absl::StrCat("THIS STEP WAITS for ", wait));
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

void AddPlot(const proto::StatusReply& status, TopSize size, std::vector<std::string>& lines) {
  const std::vector<double> points(status.loss_curve().begin(), status.loss_curve().end());
  if (points.size() < 2 || size.rows < kMinRowsForPlot) return;
  lines.push_back("");
  for (std::string& line : PlotLines(points, kPlotRows, size.columns)) lines.push_back(std::move(line));
}

void AddDaemon(const proto::StatusReply& status, std::vector<std::string>& lines) {
  lines.push_back("");
  lines.push_back(absl::StrCat("memory      state ", FormatByteSize(status.model_state_bytes()), "  window ",
                               FormatByteSize(status.contribution_window_used_bytes()), " of ",
                               FormatByteSize(status.contribution_window_bytes()), "  held ",
                               FormatByteSize(status.hold_bytes()), "  resident ",
                               FormatByteSize(status.resident_bytes())));
  std::string checkpoint = "none yet";
  if (status.checkpoint_step() >= 0) {
    checkpoint = absl::StrCat("step ", status.checkpoint_step());
    if (status.checkpoint_write_seconds() > 0) {
      absl::StrAppend(&checkpoint, ", ", FormatSeconds(status.checkpoint_age_seconds()), " ago, ",
                      FormatByteSize(status.checkpoint_bytes()), " in ",
                      FormatSeconds(status.checkpoint_write_seconds()));
    }
  }
  if (status.checkpoint_failures() > 0) {
    absl::StrAppend(&checkpoint, "  FAILED ", status.checkpoint_failures(), " times",
                    status.checkpoint_error().empty() ? "" : absl::StrCat(": ", status.checkpoint_error()));
  }
  lines.push_back(absl::StrCat("checkpoint  ", checkpoint));
  const std::string order = FormatStartOrder(status);
  lines.push_back(absl::StrCat("workers     attached ", status.workers_attached(), "  lost ", status.workers_lost(),
                               "  virtual nodes redone ", status.vnodes_redone(), order.empty() ? "" : "  ", order));
}

// A column of its own, where there is more than one host.
std::string HostColumn(const std::string& host, bool shown) {
  return shown ? absl::StrFormat("%-*s  ", kHostColumns, host.substr(0, kHostColumns)) : "";
}

std::string WorkerLine(const proto::WorkerStatus& worker, bool shows_host) {
  const std::vector<int> vnodes(worker.vnodes().begin(), worker.vnodes().end());
  const bool has_passed = worker.pass_seconds() > 0;
  return absl::StrFormat("%4d  %-9s  %s%-8s  %-10s  %9s  %-22s  %s of %s", worker.worker_id(), worker.state(),
                         HostColumn(worker.host_name(), shows_host), worker.device_name(), FormatVnodes(vnodes),
                         Known(has_passed, FormatSeconds(worker.pass_seconds())),
                         Known(has_passed, FormatWorkerWaits(worker)), FormatByteSize(worker.device_peak_bytes()),
                         FormatByteSize(worker.device_cap_bytes())) +
         (worker.state() == worker_state::kLost
              ? ""
              : absl::StrCat("  heard of ", FormatSeconds(worker.silent_seconds()), " ago"));
}

void AddWorkers(const proto::StatusReply& status, TopSize size, std::vector<std::string>& lines) {
  lines.push_back("");
  std::set<std::string> hosts;
  std::vector<const proto::WorkerStatus*> workers;
  for (const proto::WorkerStatus& worker : status.workers()) {
    hosts.insert(worker.host_name());
    workers.push_back(&worker);
  }
  const bool shows_hosts = hosts.size() > 1;
  lines.push_back(absl::StrCat("  id  state      ", HostColumn("host", shows_hosts),
                               "device    vnodes      last pass  waits for               device memory"));
  std::stable_partition(workers.begin(), workers.end(),
                        [](const auto* worker) { return worker->state() != worker_state::kLost; });
  const size_t room = static_cast<size_t>(std::max(0, size.rows - static_cast<int>(lines.size())));
  for (size_t i = 0; i < workers.size(); ++i) {
    if (i + 1 == room && workers.size() > room) {
      lines.push_back(absl::StrCat("      and ", workers.size() - i, " more"));
      return;
    }
    lines.push_back(WorkerLine(*workers[i], shows_hosts));
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
    AddProgress(status, lines);
    AddPlot(status, size, lines);
    AddDaemon(status, lines);
    AddWorkers(status, size, lines);
  }
  if (static_cast<int>(lines.size()) > size.rows) lines.resize(static_cast<size_t>(std::max(0, size.rows)));
  for (std::string& line : lines)
    line = Printable(std::move(line)).substr(0, static_cast<size_t>(std::max(0, size.columns)));
  return lines;
}

}  // namespace eps::cli
