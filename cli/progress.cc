#include "cli/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "common/base/byte_size.h"
#include "common/base/state_names.h"
#include "common/base/wait_cause.h"
#include "common/grpc/keys_state.h"

namespace eps::cli {
namespace {

constexpr absl::Duration kPlainInterval = absl::Seconds(5);  // between lines where there is no terminal
constexpr int kBarCells = 20;
constexpr int kNoTerminalWidth = 200;
constexpr int kMostWorkersNamed = 8;
constexpr double kLongStepSeconds = 10;
constexpr int64_t kDaySeconds = 24 * 3600;

int TerminalWidth(std::FILE* to) {
  winsize size{};
  return ioctl(fileno(to), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

double PeakOfCap(const proto::WorkerStatus& worker) {
  return static_cast<double>(worker.device_peak_bytes()) / static_cast<double>(worker.device_cap_bytes());
}

// The worker nearest its cap.
std::string DeviceMemory(const proto::StatusReply& status) {
  const proto::WorkerStatus* fullest = nullptr;
  for (const proto::WorkerStatus& worker : status.workers()) {
    if (worker.device_cap_bytes() <= 0 || worker.device_peak_bytes() <= 0) continue;
    if (fullest == nullptr || PeakOfCap(worker) > PeakOfCap(*fullest)) fullest = &worker;
  }
  if (fullest == nullptr) return "";
  return absl::StrCat("  dev ", FormatByteSize(fullest->device_peak_bytes()), " of ",
                      FormatByteSize(fullest->device_cap_bytes()));
}

// "14 d 6 h", "1 h 5 min", "2 min 5 s".
std::string LongTime(int64_t seconds) {
  if (seconds >= kDaySeconds) return absl::StrCat(seconds / kDaySeconds, " d ", seconds / 3600 % 24, " h");
  if (seconds >= 3600) return absl::StrCat(seconds / 3600, " h ", seconds / 60 % 60, " min");
  return absl::StrCat(seconds / 60, " min ", seconds % 60, " s");
}

// Whether a first step may count on it: what MayBegin of the daemon's coordinator goes by.
bool CountsAsReady(const proto::WorkerStatus& worker) {
  return worker.state() == worker_state::kIdle || worker.state() == worker_state::kRunning;
}

// "31%"; only what is over is all of it.
std::string EvaluatedShare(const proto::EvaluationProgress& evaluating) {
  return absl::StrCat(static_cast<int>(100 * std::clamp(evaluating.share(), 0.0, 1.0)), "%");
}

// In place of the line's figures, for as long as there is nothing of a step to show; "": there is.
std::string BeforeSteps(const proto::StatusReply& status) {
  if (status.state() == run_state::kTraining || status.state() == run_state::kFinishing) return "";
  const std::string state = StateWords(status.state()), awaited = FormatAwaitedWorkers(status);
  if (!awaited.empty()) return absl::StrCat(state, ": ", awaited);
  if (status.step() > 0) return "";
  const std::string work = Printable(FormatStartWork(status));
  return work.empty() ? absl::StrCat(state, " ...") : absl::StrCat(state, ": ", work);
}

}  // namespace

std::string FormatEta(double seconds) {
  if (!(seconds >= 0) || seconds > 1e8) return "-:--";
  const int64_t whole = std::llround(seconds);
  if (whole >= kDaySeconds) return LongTime(whole);
  if (whole >= 3600) return absl::StrFormat("%d:%02d:%02d", whole / 3600, whole / 60 % 60, whole % 60);
  return absl::StrFormat("%d:%02d", whole / 60, whole % 60);
}

std::string FormatSeconds(double seconds) {
  if (seconds >= 120 && seconds < 1e12) return LongTime(std::llround(seconds));
  return seconds >= 10 ? absl::StrFormat("%.1f s", seconds) : absl::StrFormat("%.3f s", seconds);
}

std::string FormatFlopRate(double flops_per_second) {
  constexpr const char* kPrefixes[] = {"", "k", "M", "G", "T", "P", "E"};
  size_t prefix = 0;
  for (; flops_per_second >= 999.5 && prefix + 1 < std::size(kPrefixes); ++prefix) flops_per_second /= 1000;
  return absl::StrFormat("%.3g %sFLOP/s", flops_per_second, kPrefixes[prefix]);
}

std::string WhatIsCounted(const proto::StatusReply& status) {
  return status.counted().empty() ? "tokens" : Printable(status.counted());
}

std::string ProgressBar(int64_t step, int64_t steps) {
  const int64_t filled = steps > 0 ? std::clamp<int64_t>(kBarCells * step / steps, 0, kBarCells) : 0;
  return absl::StrCat("[", std::string(filled, '#'), std::string(kBarCells - filled, '-'), "]");
}

std::string Printable(std::string text) {
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    // U+0080 to U+009F, which in UTF-8 are C2 80 to C2 9F, control some terminals too.
    const bool in_c1 = byte >= 0x80 && byte <= 0x9f && i > 0 && static_cast<unsigned char>(text[i - 1]) == 0xc2;
    if (in_c1) text[i - 1] = '?';
    if (byte < 0x20 || byte == 0x7f || in_c1) text[i] = '?';
  }
  return text;
}

std::string StateWords(absl::string_view state) { return absl::StrReplaceAll(state, {{"_", " "}}); }

std::string FormatAwaitedWorkers(const proto::StatusReply& status) {
  if (status.state() != run_state::kWaitingForWorkers) return "";
  const auto ready = std::count_if(status.workers().begin(), status.workers().end(), CountsAsReady);
  if (status.workers_expected() <= 0) return ready == 0 ? "none is ready" : "";
  std::string text = absl::StrCat(ready, " of ", status.workers_expected(), " expected ",
                                  status.workers_expected() == 1 ? "is" : "are", " ready");
  if (ready > 0 && status.start_in_seconds() >= 0) {
    absl::StrAppend(&text, "; begins with ", ready == 1 ? "that" : "those", " in ",
                    FormatSeconds(status.start_in_seconds()));
  }
  return text;
}

std::string FormatEvaluating(const proto::StatusReply& status) {
  if (!status.has_evaluating()) return "";
  const proto::EvaluationProgress& evaluating = status.evaluating();
  const std::string when =
      evaluating.step() == 0 ? "before the first step" : absl::StrCat("after step ", evaluating.step());
  return absl::StrCat(when, ": ", EvaluatedShare(evaluating), " of it, ", FormatSeconds(evaluating.seconds()));
}

std::string FormatExpertLoad(const proto::StatusReply& status) {
  if (!status.has_expert_load()) return "";
  const proto::ExpertLoad& load = status.expert_load();
  return absl::StrFormat(
      "busiest %.2fx of an even share (block %d, expert %d), %.2fx in the mean over blocks; %d of %d without a token",
      load.busiest(), load.busiest_block(), load.busiest_expert(), load.mean_busiest(), load.idle(), load.running());
}

std::string FormatRewards(double chosen, double rejected) {
  return absl::StrFormat("%.3g chosen, %.3g rejected, margin %.3g", chosen, rejected, chosen - rejected);
}

std::string FormatPairs(const proto::StatusReply& status) {
  if (!status.has_pairs()) return "";
  const proto::PairsStatus& pairs = status.pairs();
  return absl::StrFormat("accuracy %.4g; rewards %s", pairs.accuracy(),
                         FormatRewards(pairs.chosen_reward(), pairs.rejected_reward()));
}

std::string FormatCheckpointWriting(const proto::StatusReply& status) {
  if (status.checkpoint_writing_seconds() <= 0) return "";
  return absl::StrCat("step ", status.checkpoint_writing_step(), ", ",
                      FormatSeconds(status.checkpoint_writing_seconds()));
}

std::string FormatCheckpointAge(const proto::StatusReply& status) {
  if (status.checkpoint_write_seconds() <= 0) return "";
  return absl::StrCat(FormatSeconds(status.checkpoint_age_seconds()), " ago, ",
                      FormatByteSize(status.checkpoint_bytes()), " in ",
                      FormatSeconds(status.checkpoint_write_seconds()));
}

std::string FormatCertificateEnd(const proto::StatusReply& status) {
  const double left = status.keys().expires_in_seconds();
  if (left == 0) return "";
  return left > 0 ? absl::StrCat("ends in ", FormatSeconds(left))
                  : absl::StrCat("ended ", FormatSeconds(-left), " ago");
}

std::vector<std::string> KeyWarnings(const proto::StatusReply& status) {
  std::vector<std::string> warnings;
  const proto::KeysStatus& keys = status.keys();
  if (!keys.not_reloaded().empty()) {
    warnings.push_back(absl::StrCat("new keys are NOT in use, the old ones go on: ", keys.not_reloaded()));
  }
  if (keys.expires_in_seconds() != 0 && absl::Seconds(keys.expires_in_seconds()) <= kExpiresSoon) {
    warnings.push_back(absl::StrCat("a certificate of the daemon ", FormatCertificateEnd(status)));
  }
  return warnings;
}

std::string FormatLastStep(const proto::StatusReply& status) {
  const std::string age = FormatSeconds(status.step_age_seconds());
  if (status.last_step_seconds() <= 0) return absl::StrCat("none in this sitting, which began ", age, " ago");
  return absl::StrCat(FormatSeconds(status.last_step_seconds()), ", ended ", age, " ago");
}

std::string FormatWaits(const proto::StatusReply& status) {
  std::string text;
  for (const absl::string_view cause : kWaitCauses) {
    const auto found = status.wait_fraction().find(std::string(cause));
    if (found == status.wait_fraction().end() || found->second < 0.005) continue;
    absl::StrAppend(&text, text.empty() ? "" : " ", cause, " ", std::lround(found->second * 100), "%");
  }
  return text.empty() ? "nothing" : text;
}

std::string FormatLongStep(const proto::StatusReply& status) {
  if (status.step_seconds() < kLongStepSeconds) return "";
  const int64_t done = status.blobs() - status.blobs_pending();
  const std::string begin = absl::StrCat("this step ", FormatSeconds(status.step_seconds()), ", ");
  if (done > 0 || !status.updates_wait_for_norm()) {
    return absl::StrCat(begin, done, " of ", status.blobs(), " blobs done");
  }
  return absl::StrCat(begin, "gradients of ", status.blobs_summed(), " of ", status.blobs(),
                      " blobs are in, whose updates wait for their norm");
}

std::string FormatStepWait(const proto::StatusReply& status) {
  if (!status.has_step_wait()) return "";
  const proto::StepWait& wait = status.step_wait();
  // The other causes stand in docs/operations.md as they are.
  std::string text =
      absl::StrCat(wait.cause() == "no_worker" ? "a worker" : wait.cause(), ", ", FormatSeconds(wait.seconds()));
  const int count = wait.worker_id_size(), shown = std::min(count, kMostWorkersNamed);
  if (count == 0) return text;
  absl::StrAppend(&text, count == 1 ? ", of worker " : ", of workers ",
                  absl::StrJoin(wait.worker_id().begin(), wait.worker_id().begin() + shown, ", "));
  if (count > shown) absl::StrAppend(&text, " and ", count - shown, " more");
  return text;
}

std::string FormatStartWork(const proto::StatusReply& status) {
  const proto::StartWork& work = status.start_work();
  if (work.what().empty()) return "";
  const std::string bytes = work.total_bytes() > 0 ? absl::StrCat(", ", FormatByteSize(work.done_bytes()), " of ",
                                                                  FormatByteSize(work.total_bytes()))
                                                   : "";
  return absl::StrCat(work.what(), bytes, ", ", FormatSeconds(work.seconds()));
}

std::string FormatStartOrder(const proto::StatusReply& status) {
  const proto::StartOrder& order = status.start_order();
  if (order.number() == 0 || (order.is_over() && order.failure().empty())) return "";
  if (order.failure().empty()) return absl::StrCat(order.workers(), " wanted, being started");
  return absl::StrCat("the newest order, of ", order.workers(), ", failed: ", order.failure());
}

std::string ProgressLine(const proto::StatusReply& status, int width) {
  const std::string before = BeforeSteps(status);
  if (!before.empty() && status.step() == 0) return before.substr(0, width);
  const int64_t percent = status.steps() > 0 ? 100 * status.step() / status.steps() : 0;
  std::string line = absl::StrFormat("%3d%% step %d/%d", percent, status.step(), status.steps());
  if (!before.empty()) return absl::StrCat(line, "  ", before).substr(0, width);
  if (const std::string long_step = FormatLongStep(status); !long_step.empty()) absl::StrAppend(&line, "  ", long_step);
  if (status.has_evaluating()) {
    absl::StrAppend(&line, "  evaluating, ", EvaluatedShare(status.evaluating()), ", ",
                    FormatSeconds(status.evaluating().seconds()));
  }
  if (status.step() == 0) return line.substr(0, width);      // nothing else is known yet
  const bool has_done_one = status.last_step_seconds() > 0;  // in this sitting
  absl::StrAppend(&line, absl::StrFormat("  loss %.3f", status.loss()));
  if (status.has_evaluation()) absl::StrAppend(&line, absl::StrFormat("  eval %.3f", status.evaluation().loss()));
  const std::string counted = WhatIsCounted(status);
  absl::StrAppend(&line, "  ", Known(has_done_one, absl::StrFormat("%.0f", status.tokens_per_second())), " ",
                  counted == "tokens" ? "tok" : counted, "/s  eta ", FormatEta(status.eta_seconds()));
  const std::string memory = DeviceMemory(status);
  const std::string waits = absl::StrCat("  waits ", Known(has_done_one, FormatWaits(status)));
  // What a narrow terminal has no room for goes whole: the bar first, then the waits, then the memory.
  for (const std::string& longest : {absl::StrCat(ProgressBar(status.step(), status.steps()), " ", line, memory, waits),
                                     absl::StrCat(line, memory, waits), absl::StrCat(line, memory)}) {
    if (static_cast<int>(longest.size()) <= width) return longest;
  }
  return line.substr(0, width);
}

ProgressPrinter::ProgressPrinter(bool quiet, std::FILE* to, MonotonicClock clock)
    : quiet_(quiet), to_(to), terminal_(isatty(fileno(to)) == 1), clock_(std::move(clock)) {}

void ProgressPrinter::Show(const proto::StatusReply& status) {
  ShowLine([&status](int width) { return ProgressLine(status, width); });
}

bool ProgressPrinter::ShowLine(const std::function<std::string(int width)>& line) {
  if (quiet_) return false;
  if (terminal_) {
    std::fprintf(to_, "\r\033[K%s", line(TerminalWidth(to_) - 1).c_str());
    line_open_ = true;
  } else {
    const absl::Duration now = clock_();
    if (now - last_shown_ < kPlainInterval) return false;
    std::string text = line(kNoTerminalWidth);
    if (text == last_line_) return false;
    std::fprintf(to_, "%s\n", text.c_str());
    last_line_ = std::move(text);
    last_shown_ = now;
  }
  std::fflush(to_);
  return true;
}

void ProgressPrinter::Note(const std::string& text) {
  if (quiet_) return;
  std::fprintf(to_, "%s%s\n", line_open_ ? "\r\033[K" : "", text.c_str());
  std::fflush(to_);
  line_open_ = false;
}

void ProgressPrinter::Finish() {
  if (line_open_) std::fprintf(to_, "\n");
  std::fflush(to_);
  line_open_ = false;
}

}  // namespace eps::cli
