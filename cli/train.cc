// eps train: a daemon and its workers on this machine in one command.

#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cli/child_process.h"
#include "cli/command.h"
#include "cli/common_flags.h"
#include "cli/daemon_client.h"
#include "cli/preflight.h"
#include "cli/progress.h"
#include "cli/signal_queue.h"
#include "common/base/exit_code.h"
#include "common/base/file_util.h"
#include "common/base/status_macros.h"

namespace eps::cli {
namespace {

constexpr absl::Duration kDaemonStartTimeout = absl::Minutes(10);  // loading a checkpoint of hundreds of GB takes long
constexpr absl::Duration kPollInterval = absl::Milliseconds(100);
constexpr absl::Duration kGraceAtEnd = absl::Seconds(10);  // for a child to end by itself

struct TrainFlags {
  RunFlags run;
  WorkerFlags worker;
  int workers = 1;
  std::string out;
  bool resume = false;
  bool quiet = false;

  std::string OutFolder() const {
    return out.empty() ? absl::StrCat("runs/", std::filesystem::path(run.run).stem().string()) : out;
  }
};

std::string NewestCheckpoint(const std::string& out) {
  const absl::StatusOr<std::string> name = ReadFile(absl::StrCat(out, "/checkpoints/latest"));
  if (!name.ok()) return "there is no checkpoint yet";
  return absl::StrCat("the newest checkpoint is ", out, "/checkpoints/", name->substr(0, name->find('\n')),
                      "; go on with --resume");
}

// One sitting of a run: starts the processes, watches them, and says how it ended.
class Sitting {
 public:
  // `out_is_new`: the run's folder was not there before.
  Sitting(const TrainFlags& flags, bool out_is_new, std::string programs, SignalQueue signals)
      : flags_(flags),
        out_(flags.OutFolder()),
        out_is_new_(out_is_new),
        programs_(std::move(programs)),
        signals_(std::move(signals)),
        progress_(flags.quiet) {}

  ~Sitting() { EndChildren(); }

  // The program's exit code; says on stderr what went wrong.
  int Run() {
    if (absl::Status status = StartDaemon(); !status.ok()) return Fail(status);
    absl::StatusOr<bool> listening = WaitForEndpoint();
    if (!listening.ok()) return Fail(listening.status());
    if (!*listening) return DaemonEnded();
    if (absl::Status status = StartWorkers(); !status.ok()) return Fail(status);
    return Watch();
  }

 private:
  int DefaultThreads() const {
    return std::max<int>(1, static_cast<int>(std::thread::hardware_concurrency()) / flags_.workers);
  }

  absl::Status StartDaemon() {
    std::vector<std::string> arguments = flags_.run.ToArguments();
    const std::vector<std::string> more = {
        "--out", out_, "--listen", "127.0.0.1:0", "--expect-workers", absl::StrCat(flags_.workers)};
    arguments.insert(arguments.end(), more.begin(), more.end());
    if (flags_.resume) arguments.push_back("--resume");
    // A daemon whose starter died finishes its step, writes the checkpoint, and lets its workers go.
    EPS_ASSIGN_OR_RETURN(daemon_, Spawn({.name = "eps_server",
                                         .program = programs_ + "/eps_server",
                                         .arguments = arguments,
                                         .log_path = out_ + "/logs/eps_server.log",
                                         .signal_when_parent_dies = SIGTERM}));
    return absl::OkStatus();
  }

  // False when the daemon ended first.
  absl::StatusOr<bool> WaitForEndpoint() {
    const absl::Time deadline = absl::Now() + kDaemonStartTimeout;
    while (true) {
      Reap({&daemon_});
      if (!daemon_.running()) return false;
      const absl::StatusOr<Endpoint> endpoint = ReadEndpoint(out_);
      if (endpoint.ok() && endpoint->process_id == daemon_.pid) {
        address_ = endpoint->address;
        return true;
      }
      if (absl::Now() > deadline) {
        return absl::DeadlineExceededError(absl::StrCat("the daemon did not listen within ",
                                                        absl::FormatDuration(kDaemonStartTimeout), "; see ",
                                                        daemon_.log_path));
      }
      if (const std::optional<int> number = signals_.Wait(absl::Milliseconds(5))) PassOn(*number);
    }
  }

  absl::Status StartWorkers() {
    for (int i = 1; i <= flags_.workers; ++i) {
      EPS_ASSIGN_OR_RETURN(ChildProcess worker,
                           Spawn({.name = absl::StrCat("gpu_worker ", i),
                                  .program = programs_ + "/gpu_worker",
                                  .arguments = flags_.worker.ToArguments(address_, DefaultThreads()),
                                  .log_path = absl::StrCat(out_, "/logs/gpu_worker-", i, ".log"),
                                  .signal_when_parent_dies = 0}));
      workers_.push_back(std::move(worker));
      reported_.push_back(false);
    }
    return absl::OkStatus();
  }

  int Watch() {
    DaemonClient client(address_);
    while (true) {
      if (const std::optional<int> number = signals_.Wait(kPollInterval)) PassOn(*number);
      ReapAll();
      if (!daemon_.running()) return DaemonEnded();
      const int num_running = static_cast<int>(
          std::count_if(workers_.begin(), workers_.end(), [](const ChildProcess& w) { return w.running(); }));
      // A worker that died before it attached is not waited for.
      if (NoteDeadWorkers() && num_running > 0) client.ExpectWorkers(num_running, absl::Seconds(1)).IgnoreError();
      const bool one_failed =
          std::any_of(workers_.begin(), workers_.end(), [](const ChildProcess& w) { return !w.ended_well(); });
      if (num_running == 0 && one_failed && !none_left_) {
        // Nobody can finish the step: the daemon ends with the checkpoint that stands.
        none_left_ = true;
        kill(daemon_.pid, SIGTERM);
      }
      if (const absl::StatusOr<proto::StatusReply> status = client.Status(absl::Seconds(1)); status.ok()) {
        progress_.Show(*status);
      }
    }
  }

  void ReapAll() {
    std::vector<ChildProcess*> children = {&daemon_};
    for (ChildProcess& worker : workers_) children.push_back(&worker);
    Reap(children);
  }

  // True if there are new ones.
  bool NoteDeadWorkers() {
    bool found = false;
    for (size_t i = 0; i < workers_.size(); ++i) {
      if (workers_[i].running() || workers_[i].ended_well() || reported_[i]) continue;
      reported_[i] = found = true;
      const std::string words = LastWords(workers_[i]);
      progress_.Note(absl::StrCat("eps: ", workers_[i].name, " ended: ", EndOf(workers_[i]),
                                  words.empty() ? "" : absl::StrCat(": ", words)));
    }
    return found;
  }

  void PassOn(int number) {
    if (interrupted_) {
      at_once_ = true;
      return EndChildren();
    }
    interrupted_ = true;
    progress_.Note("eps: finishing the step in progress; once more ends at once");
    if (daemon_.running()) kill(daemon_.pid, number);
  }

  int DaemonEnded() {
    WaitForWorkers();
    progress_.Finish();
    const int status = *daemon_.wait_status;
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : kExitFailed;
    if (code == kExitDone) {
      if (!flags_.quiet)
        std::printf("eps: done; figures in %s/summary.json, the curve in %s/loss.svg\n", out_.c_str(), out_.c_str());
      return kExitDone;
    }
    if (at_once_) {
      std::fprintf(stderr, "eps: ended at once, by a second signal; %s\n", NewestCheckpoint(out_).c_str());
      return kExitFailed;
    }
    const std::string words = LastWords(daemon_);
    if (address_.empty() && (code == kExitBadInput || code == kExitDoesNotFit)) {
      std::fprintf(stderr, "eps: %s\n", words.c_str());
      // Nothing was started: nothing is left.
      std::error_code ignored;
      if (out_is_new_) std::filesystem::remove_all(out_, ignored);
      return code;
    }
    const bool asked_to_end = code == kExitSignal + SIGINT || code == kExitSignal + SIGTERM;
    if (asked_to_end && !none_left_) {
      std::fprintf(stderr, "eps: ended by a signal; %s\n", NewestCheckpoint(out_).c_str());
      return code;
    }
    for (const ChildProcess& worker : workers_) {
      if (worker.ended_well()) continue;
      const std::string worker_words = LastWords(worker);
      std::fprintf(stderr, "eps: %s ended: %s%s%s\n", worker.name.c_str(), EndOf(worker).c_str(),
                   worker_words.empty() ? "" : ": ", worker_words.c_str());
    }
    std::fprintf(stderr, "eps: the daemon ended: %s%s%s (log: %s)\n", EndOf(daemon_).c_str(), words.empty() ? "" : ": ",
                 words.c_str(), daemon_.log_path.c_str());
    std::fprintf(stderr, "eps: %s\n", NewestCheckpoint(out_).c_str());
    return kExitFailed;
  }

  // Workers end by themselves once the daemon has said that the run is over; those of a dead daemon are ended.
  void WaitForWorkers() {
    const bool daemon_died = WIFSIGNALED(*daemon_.wait_status);
    const absl::Time deadline = absl::Now() + (daemon_died ? absl::ZeroDuration() : kGraceAtEnd);
    while (AnyRunning() && absl::Now() < deadline) {
      absl::SleepFor(absl::Milliseconds(5));
      ReapAll();
    }
    EndChildren();
  }

  bool AnyRunning() const {
    return daemon_.running() ||
           std::any_of(workers_.begin(), workers_.end(), [](const ChildProcess& worker) { return worker.running(); });
  }

  void EndChildren() {
    ReapAll();
    for (ChildProcess& worker : workers_) {
      if (worker.running()) kill(worker.pid, SIGKILL);
    }
    if (daemon_.running()) kill(daemon_.pid, SIGKILL);
    while (AnyRunning()) {
      absl::SleepFor(absl::Milliseconds(2));
      ReapAll();
    }
  }

  int Fail(const absl::Status& status) {
    progress_.Finish();
    PrintError(status);
    return kExitFailed;
  }

  const TrainFlags& flags_;
  const std::string out_;
  const bool out_is_new_;
  const std::string programs_;
  SignalQueue signals_;
  ProgressPrinter progress_;
  std::string address_;
  ChildProcess daemon_;
  std::vector<ChildProcess> workers_;
  std::vector<bool> reported_;  // whose end was said
  bool none_left_ = false;      // the last worker has died, and the daemon was told to end for that
  bool interrupted_ = false;
  bool at_once_ = false;  // interrupted twice
};

int RunTrain(const TrainFlags& flags) {
  const std::string out = flags.OutFolder();
  absl::Status status =
      CheckBeforeTraining({.run = flags.run, .out = out, .worker = flags.worker, .resume = flags.resume});
  if (!status.ok()) {
    PrintError(status);
    return StartExitCode(status);
  }
  std::error_code ignored;
  const bool out_is_new = !std::filesystem::exists(out, ignored);
  status = MakeDirs(out + "/logs");
  const absl::StatusOr<std::string> programs = ProgramFolder();
  absl::StatusOr<SignalQueue> signals = SignalQueue::Create();
  for (const absl::Status& each : {status, programs.status(), signals.status()}) {
    if (!each.ok()) {
      PrintError(each);
      return kExitFailed;
    }
  }
  return Sitting(flags, out_is_new, *programs, *std::move(signals)).Run();
}

}  // namespace

void AddTrain(CLI::App& app, int* exit_code) {
  CLI::App* command =
      app.add_subcommand("train",
                         "Trains: starts a daemon and workers on this machine, shows progress, ends when the last "
                         "checkpoint is on disk");
  auto flags = std::make_shared<TrainFlags>();
  flags->run.AddTo(*command);
  command->add_option("--workers", flags->workers, "Worker processes")
      ->type_name("N")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  flags->worker.AddTo(*command);
  command->add_option("--out", flags->out, "The run's folder. Default: runs/NAME of the RunSpec")->type_name("DIR");
  command->add_flag("--resume", flags->resume, "Goes on from the newest checkpoint in the run's folder");
  command->add_flag("--quiet", flags->quiet, "No progress");
  command->footer(
      "In DIR it leaves summary.json, metrics.jsonl, loss.svg, checkpoints/ and logs/ (docs/formats.md).\n"
      "SIGINT and SIGTERM let the step in progress finish, write its checkpoint, and end with 130 or 143.");
  command->callback([flags, exit_code] { *exit_code = RunTrain(*flags); });
}

}  // namespace eps::cli
