// eps train: a daemon and its workers on this machine in one command.

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

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
#include "cli/run_report.h"
#include "cli/signal_queue.h"
#include "common/base/exit_code.h"
#include "common/base/file_util.h"
#include "common/base/flags.h"
#include "common/base/memory_room.h"
#include "common/base/status_macros.h"
#include "common/base/thread.h"
#include "common/checkpoint/checkpoint_directory.h"
#include "common/checkpoint/checkpoint_files.h"
#include "common/grpc/credentials.h"
#include "common/grpc/thread_needs.h"

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
  std::string metrics_listen;
  bool resume = false;
  bool quiet = false;

  int ThreadsPerWorker() const {
    if (worker.threads > 0) return worker.threads;
    return std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / workers);
  }
  std::string OutFolder() const {
    return out.empty() ? absl::StrCat("runs/", std::filesystem::path(run.run).stem().string()) : out;
  }
};

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
    if (absl::IsCancelled(listening.status())) {
      EndChildren();
      PrintError(listening.status());
      return kExitSignal + signals_.last();
    }
    if (!listening.ok()) return Fail(listening.status());
    if (!*listening) return DaemonEnded();
    if (absl::Status status = StartWorkers(); !status.ok()) return Fail(status);
    return Watch();
  }

 private:
  absl::Status StartDaemon() {
    EPS_ASSIGN_OR_RETURN(doors_, WriteRunToken(out_));
    std::vector<std::string> arguments = flags_.run.ToArguments();
    const std::vector<std::string> more = {"--out",
                                           out_,
                                           "--listen",
                                           "127.0.0.1:0",
                                           "--token-file",
                                           doors_.token_file,
                                           "--expect-workers",
                                           absl::StrCat(flags_.workers)};
    arguments.insert(arguments.end(), more.begin(), more.end());
    if (flags_.resume) arguments.push_back("--resume");
    if (!flags_.metrics_listen.empty()) {
      arguments.push_back("--metrics-listen");
      arguments.push_back(flags_.metrics_listen);
    }
    // A daemon whose starter died finishes its step, writes the checkpoint, and lets its workers go.
    EPS_ASSIGN_OR_RETURN(daemon_, Spawn({.name = "eps_server",
                                         .program = programs_ + "/eps_server",
                                         .arguments = arguments,
                                         .log_path = out_ + "/logs/eps_server.log",
                                         .signal_when_parent_dies = SIGHUP}));
    return absl::OkStatus();
  }

  // False when the daemon ended first. Errors: CANCELLED a signal came: there is no step to finish yet
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
      if (signals_.Wait(absl::Milliseconds(5)).has_value()) {
        return absl::CancelledError("ended by a signal before the run had begun; nothing was changed");
      }
    }
  }

  std::vector<std::string> WorkerArguments() const {
    std::vector<std::string> arguments = flags_.worker.ToArguments(address_, flags_.ThreadsPerWorker());
    arguments.insert(arguments.end(), {"--token-file", doors_.token_file});
    return arguments;
  }

  absl::Status StartWorkers() {
    for (int i = 1; i <= flags_.workers; ++i) {
      EPS_ASSIGN_OR_RETURN(ChildProcess worker, Spawn({.name = absl::StrCat("gpu_worker ", i),
                                                       .program = programs_ + "/gpu_worker",
                                                       .arguments = WorkerArguments(),
                                                       .log_path = absl::StrCat(out_, "/logs/gpu_worker-", i, ".log"),
                                                       .signal_when_parent_dies = 0}));
      workers_.push_back(std::move(worker));
      reported_.push_back(false);
    }
    return absl::OkStatus();
  }

  int Watch() {
    auto credentials = NewChannelCredentials(doors_, address_, absl::Now());
    if (!credentials.ok()) return Fail(credentials.status());
    DaemonClient client(address_, *std::move(credentials));
    while (true) {
      if (const std::optional<int> number = signals_.Wait(kPollInterval)) PassOn(*number);
      ReapAll();
      if (!daemon_.running()) return DaemonEnded();
      const int num_running = static_cast<int>(
          std::count_if(workers_.begin(), workers_.end(), [](const ChildProcess& w) { return w.running(); }));
      // A worker that died before it attached is not waited for.
      if (NoteDeadWorkers() && num_running > 0) client.ExpectWorkers(num_running, absl::Seconds(1)).IgnoreError();
      // A worker that ended well was told that the run is over: the daemon ends by itself, whoever was lost before.
      const bool over =
          std::any_of(workers_.begin(), workers_.end(), [](const ChildProcess& w) { return w.ended_well(); });
      if (num_running == 0 && !over && !none_left_) {
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
      if (!flags_.quiet) std::printf("%s\n", EndText(out_).c_str());
      return kExitDone;
    }
    if (at_once_) {
      std::fprintf(stderr, "eps: ended at once, by a second signal; %s\n", NewestCheckpointText(out_).c_str());
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
      std::fprintf(stderr, "eps: ended by a signal; %s\n", NewestCheckpointText(out_).c_str());
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
    std::fprintf(stderr, "eps: %s\n", NewestCheckpointText(out_).c_str());
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
  ClientDoors doors_;
  ChildProcess daemon_;
  std::vector<ChildProcess> workers_;
  std::vector<bool> reported_;  // whose end was said
  bool none_left_ = false;      // the last worker has died, and the daemon was told to end for that
  bool interrupted_ = false;
  bool at_once_ = false;  // interrupted twice
};

// One sitting at a time, from before it writes a token or a log until it has ended: the daemon's own lock comes later.
// Errors: FAILED_PRECONDITION another sitting, or a daemon that was started by hand, has the folder
absl::StatusOr<FileDescriptor> LockSitting(const std::string& out) {
  absl::StatusOr<FileDescriptor> sitting = LockDirectory(out + "/logs");
  EPS_RETURN_IF_ERROR_WITH(sitting.status(), "--out");
  EPS_RETURN_IF_ERROR_WITH(LockDirectory(out).status(), "--out");  // and let go of again, for our daemon
  return sitting;
}

void SayStart(const TrainFlags& flags, const RunOutline& outline) {
  const std::string out = flags.OutFolder();
  StartOptions options = {.workers = flags.workers,
                          .device = flags.worker.device,
                          .threads = flags.ThreadsPerWorker(),
                          .device_memory_bytes = flags.worker.device_memory_bytes,
                          .out = out};
  if (flags.resume) {
    const absl::StatusOr<Version> newest = FindNewestCheckpoint(CheckpointDirectory(out + "/checkpoints"));
    if (newest.ok()) options.resumes_from = StepFolderName(*newest);
  }
  std::printf("%s\n", StartText(outline, options).c_str());
  if (flags.resume && options.resumes_from.empty()) {
    std::printf("eps: there is no checkpoint in %s: it starts from step 0\n", out.c_str());
  }
  std::fflush(stdout);
}

int RunTrain(TrainFlags flags) {
  flags.worker.SetDefaultMemory(FindMemoryRoom(), flags.workers);
  const std::string out = flags.OutFolder();
  const absl::Status room = CheckThreadRoom(RunThreads(flags.workers, flags.ThreadsPerWorker()));
  const absl::StatusOr<RunOutline> outline =
      room.ok() ? CheckBeforeTraining({.run = flags.run, .out = out, .worker = flags.worker, .resume = flags.resume})
                : room;
  if (!outline.ok()) {
    PrintError(outline.status());
    return StartExitCode(outline.status());
  }
  umask(077);  // what is made here and by the daemon is this user's alone
  std::error_code ignored;
  const bool out_is_new = !std::filesystem::exists(out, ignored);
  const absl::Status made = MakeDirs(out + "/logs");
  const absl::StatusOr<FileDescriptor> lock = made.ok() ? LockSitting(out) : made;
  const absl::StatusOr<std::string> programs = ProgramFolder();
  absl::StatusOr<SignalQueue> signals = SignalQueue::Create();
  for (const absl::Status& each : {lock.status(), programs.status(), signals.status()}) {
    if (!each.ok()) {
      PrintError(each);
      return StartExitCode(each);
    }
  }
  if (!flags.quiet) SayStart(flags, *outline);
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
  command->add_option("--out", flags->out, "The run's folder. Default: runs/NAME of the RunSpec")
      ->type_name("DIR")
      ->check(NotEmpty());
  command->add_flag("--resume", flags->resume, "Goes on from the newest checkpoint in the run's folder");
  command
      ->add_option("--metrics-listen", flags->metrics_listen,
                   "HTTP address of the daemon's /metrics, /healthz and /readyz; loopback only. Default: 127.0.0.1:0, "
                   "DIR/endpoints.json says the port")
      ->type_name("HOST:PORT");
  command->add_flag("--quiet", flags->quiet, "No progress");
  command->footer(
      "In DIR it leaves summary.json, metrics.jsonl, loss.svg, checkpoints/ and logs/ (docs/formats.md).\n"
      "SIGINT and SIGTERM let the step in progress finish, write its checkpoint, and end with 130 or 143.");
  command->callback([flags, exit_code] { *exit_code = RunTrain(*flags); });
}

}  // namespace eps::cli
