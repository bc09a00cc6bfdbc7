// eps top: a live view of a run.

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "cli/command.h"
#include "cli/common_flags.h"
#include "cli/daemon_client.h"
#include "cli/progress.h"
#include "cli/run_report.h"
#include "cli/signal_queue.h"
#include "cli/top_view.h"
#include "common/base/exit_code.h"
#include "common/base/flags.h"
#include "common/base/status_macros.h"

namespace eps::cli {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(5);
constexpr TopSize kNoTerminal = {.columns = 200, .rows = 1000};

struct TopFlags {
  DaemonFlags daemon;
  bool once = false;
  double interval_seconds = 1;
};

TopSize TerminalSize() {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0) return {};
  return {.columns = size.ws_col, .rows = size.ws_row};
}

// The terminal's second screen, without a cursor; gives the first one back, as it was.
class SecondScreen {
 public:
  SecondScreen() { Print("\033[?1049h\033[?25l"); }
  ~SecondScreen() { Print("\033[?25h\033[?1049l"); }
  SecondScreen(const SecondScreen&) = delete;

  void Show(const std::vector<std::string>& lines) {
    std::string text = "\033[H";
    for (size_t i = 0; i < lines.size(); ++i) absl::StrAppend(&text, i == 0 ? "" : "\r\n", lines[i], "\033[K");
    Print(text + "\033[J");
  }

 private:
  static void Print(const std::string& text) {
    std::fputs(text.c_str(), stdout);
    std::fflush(stdout);
  }
};

absl::Status ShowOnce(DaemonClient& client) {
  EPS_ASSIGN_OR_RETURN(const proto::StatusReply status, client.Status(kTimeout));
  for (const std::string& line : TopView(status, kNoTerminal)) std::printf("%s\n", line.c_str());
  return absl::OkStatus();
}

// Until a signal, or until the daemon is gone: a run that is over takes its daemon with it.
absl::Status ShowLive(const DaemonFlags& daemon, DaemonClient& client, SignalQueue& signals, absl::Duration interval,
                      std::string& last_words) {
  EPS_ASSIGN_OR_RETURN(proto::StatusReply status, client.Status(kTimeout));
  SecondScreen screen;
  std::string silence;  // of a daemon that does not answer: what is shown below it is old
  while (true) {
    const TopSize size = TerminalSize();
    std::vector<std::string> lines = TopView(status, size);
    if (!silence.empty() && !lines.empty()) {
      lines.front() = Printable(silence).substr(0, static_cast<size_t>(size.columns));
    }
    screen.Show(lines);
    if (signals.Wait(interval).has_value()) return absl::OkStatus();
    absl::StatusOr<proto::StatusReply> next = client.Status(kTimeout);
    if (absl::IsDeadlineExceeded(next.status())) {  // it may answer again
      silence = std::string(daemon.Explain(next.status()).message());
      continue;
    }
    // Other keys than this command's count by now: the daemon goes on, and the command has to begin anew.
    if (absl::IsUnauthenticated(next.status()) || absl::IsPermissionDenied(next.status())) {
      return daemon.Explain(next.status());
    }
    if (!next.ok()) {
      last_words =
          absl::StrCat("eps: the daemon is gone (", daemon.Explain(next.status()).message(),
                       "); last seen: ", StateWords(status.state()), ", step ", status.step(), " of ", status.steps());
      return absl::OkStatus();
    }
    status = *std::move(next);
    silence.clear();
  }
}

int RunTop(const TopFlags& flags) {
  if (flags.daemon.IsOfFinishedRun()) {
    std::printf("%s\n", FinishedText(flags.daemon.out).c_str());
    return kExitDone;
  }
  if (flags.once || isatty(STDOUT_FILENO) != 1) return flags.daemon.Run(ShowOnce);
  // Before gRPC starts threads: a signal that one of them took would leave the second screen standing.
  absl::StatusOr<SignalQueue> signals = SignalQueue::Create();
  if (!signals.ok()) return ReportStart(signals.status());
  return flags.daemon.Run([&](DaemonClient& client) -> absl::Status {
    std::string last_words;
    EPS_RETURN_IF_ERROR(ShowLive(flags.daemon, client, *signals, absl::Seconds(flags.interval_seconds), last_words));
    if (!last_words.empty()) std::printf("%s\n", last_words.c_str());
    return absl::OkStatus();
  });
}

}  // namespace

void AddTop(CLI::App& app, int* exit_code) {
  CLI::App* command =
      app.add_subcommand("top", "A live view of a run: progress, loss curve, workers, memory, checkpoints");
  auto flags = std::make_shared<TopFlags>();
  flags->daemon.AddTo(*command);
  command->add_flag("--once", flags->once, "Prints one view and ends, as it does where there is no terminal");
  command->add_option("--interval-seconds", flags->interval_seconds, "Between two views")
      ->type_name("S")
      ->check(NumberIn(0.1, 3600))
      ->capture_default_str();
  command->footer(
      "Ctrl-C ends the view; the run goes on. Of a run in DIR that has done all of its steps it says where it ended, "
      "and of one that has failed, why.");
  command->callback([flags, exit_code] { *exit_code = RunTop(*flags); });
}

}  // namespace eps::cli
