#include "cli/sitting.h"

#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cli/daemon_client.h"
#include "cli/endpoint_wait.h"
#include "cli/log_notes.h"
#include "cli/progress.h"
#include "cli/run_report.h"
#include "cli/worker_count.h"
#include "common/base/exit_code.h"
#include "common/base/file_util.h"
#include "common/base/memory_room.h"
#include "common/base/monotonic_clock.h"
#include "common/base/state_names.h"
#include "common/base/status_macros.h"
#include "common/grpc/client_credentials.h"
#include "common/run_folder/endpoint_file.h"
#include "common/run_folder/run_folder.h"

namespace eps::cli {
namespace {

constexpr absl::Duration kPollInterval = absl::Milliseconds(100);
constexpr absl::Duration kQuietStart = absl::Seconds(1);   // of most runs it is over by then, and nothing to be shown
constexpr absl::Duration kAbortTime = absl::Seconds(5);    // for a daemon that is to end at once
constexpr absl::Duration kGraceAtEnd = absl::Seconds(10);  // for a child to end by itself

SittingEnd Failed(const absl::Status& status, int exit_code = kExitFailed) {
  return {.exit_code = exit_code, .errors = {std::string(status.message())}};
}

// What a signal asks of a worker, or of the daemon.
bool EndedForSignal(const ChildProcess& child) {
  if (!child.wait_status.has_value() || !WIFEXITED(*child.wait_status)) return false;
  const int code = WEXITSTATUS(*child.wait_status);
  return code == kExitSignal + SIGINT || code == kExitSignal + SIGTERM;
}

std::string Ended(const ChildProcess& child) {
  if (EndedForSignal(child)) return absl::StrCat("a signal asked it to (", EndOf(child), ")");
  const std::string words = LastWords(child), trouble = LogTrouble(child);
  return absl::StrCat(EndOf(child), WhyKilled(child, FindMemoryRoom()), words.empty() ? "" : ": ", words,
                      trouble.empty() ? "" : "; ", trouble);
}

bool DoesNotFit(const ChildProcess& worker) {
  return worker.wait_status.has_value() && WIFEXITED(*worker.wait_status) &&
         WEXITSTATUS(*worker.wait_status) == kExitDoesNotFit;
}

}  // namespace

std::string WorkerLogFile(const std::string& out, int worker) {
  return absl::StrCat(RunFolder(out).logs(), "/gpu_worker-", worker, ".log");
}

std::string ForwardDigestFile(const std::string& out, int worker) {
  return absl::StrCat(out, "/forward-", worker, ".jsonl");
}

std::string WorkerTraceLogFile(const std::string& out, int worker) {
  return absl::StrCat(RunFolder(out).trace(), "/worker-", worker, ".json");
}

std::string DaemonTraceLogFile(const std::string& out) { return RunFolder(out).trace() + "/daemon.json"; }

std::vector<std::string> TraceLogFiles(const std::string& out, int workers) {
  std::vector<std::string> files;
  for (int worker = 1; worker <= workers; ++worker) files.push_back(WorkerTraceLogFile(out, worker));
  files.push_back(DaemonTraceLogFile(out));
  return files;
}

Sitting::Sitting(SittingOptions options, SignalQueue* signals)
    : options_(std::move(options)),
      signals_(*signals),
      replacements_(options_.restarts),
      workers_wanted_(options_.workers) {}

SittingEnd Sitting::Run() {
  SittingEnd end = RunAll();
  end.workers = static_cast<int>(workers_.size());
  end.workers_wanted = std::max(1, workers_wanted_);
  end.restarts = static_cast<int>(
      std::count_if(workers_.begin(), workers_.end(), [](const Worker& worker) { return worker.counts_as_restart(); }));
  return end;
}

SittingEnd Sitting::RunAll() {
  if (absl::Status status = StartDaemon(); !status.ok()) return Failed(status);
  const absl::StatusOr<bool> listening = WaitUntilListening();
  if (absl::IsCancelled(listening.status())) {
    if (options_.end_at_once) AbortDaemon();
    EndStart();
    return Failed(listening.status(), kExitSignal + signals_.last());
  }
  if (!listening.ok()) return Failed(listening.status());
  if (!*listening) return DaemonEnded();
  for (int i = 0; i < options_.workers; ++i) {
    if (absl::Status status = StartWorker(options_.worker); !status.ok()) return Failed(status);
  }
  return Watch();
}

absl::Status Sitting::StartDaemon() {
  EPS_ASSIGN_OR_RETURN(doors_, WriteRunToken(options_.out));
  std::vector<std::string> arguments = options_.run_arguments;
  const std::vector<std::string> more = {
      "--out",        options_.out,      "--listen",         "127.0.0.1:0",
      "--token-file", doors_.token_file, "--expect-workers", absl::StrCat(options_.workers)};
  arguments.insert(arguments.end(), more.begin(), more.end());
  arguments.insert(arguments.end(), options_.daemon_arguments.begin(), options_.daemon_arguments.end());
  if (options_.trace) {
    arguments.insert(arguments.end(), {"--trace", DaemonTraceLogFile(options_.out)});
  }
  // A daemon whose starter died finishes its step, writes the checkpoint, and lets its workers go.
  EPS_ASSIGN_OR_RETURN(daemon_, Spawn({.name = "eps_server",
                                       .program = options_.programs + "/eps_server",
                                       .arguments = arguments,
                                       .log_path = RunFolder(options_.out).logs() + "/eps_server.log",
                                       .signal_when_parent_dies = SIGHUP,
                                       .reads_signals = true}));
  return absl::OkStatus();
}

absl::StatusOr<bool> Sitting::WaitUntilListening() {
  const absl::Duration begin = SteadyNow();
  absl::Duration shown = begin;
  bool has_ended = false;
  // As long as it runs: tokenizing and loading hundreds of GB take as long as they take, and a signal ends it.
  const absl::StatusOr<Endpoint> endpoint = WaitForEndpoint(options_.out, daemon_.pid, [&](absl::Duration pause) {
    Reap({&daemon_});
    has_ended = !daemon_.running();
    if (has_ended) return absl::AbortedError("the daemon has ended");
    const absl::Duration now = SteadyNow();
    if (now - begin > kQuietStart && now - shown > kPollInterval) {
      shown = now;
      ShowStart();
    }
    if (!signals_.Wait(pause).has_value()) return absl::OkStatus();
    return absl::CancelledError(
        options_.is_restart
            ? absl::StrCat("ended by a signal while all was started anew; ", NewestCheckpointText(options_.out))
            : "ended by a signal before the run had begun; nothing was changed");
  });
  if (has_ended) return false;
  EPS_RETURN_IF_ERROR(endpoint.status());
  address_ = endpoint->address;
  SayPage(endpoint->page);
  starting_.reset();
  return true;
}

void Sitting::ShowStart() {
  if (!options_.show) return;
  if (starting_ == nullptr) {
    const absl::StatusOr<Endpoint> endpoint = ReadEndpointFile(options_.out, EndpointFile::kStarting);
    if (!endpoint.ok() || endpoint->process_id != daemon_.pid) return;
    auto credentials = NewChannelCredentials(doors_, endpoint->address, absl::Now());
    if (!credentials.ok()) return;  // Watch says why
    SayPage(endpoint->page);
    starting_ = std::make_unique<DaemonClient>(endpoint->address, *std::move(credentials));
  }
  const absl::StatusOr<proto::StatusReply> status = starting_->Status(absl::Seconds(1));
  if (status.ok() && status->has_start_work()) options_.show(*status);
}

void Sitting::SayPage(const std::string& page) {
  if (page.empty() || !options_.note || std::exchange(page_is_said_, true)) return;
  options_.note(absl::StrCat("eps: http://", Printable(page), "/ shows the run"));
}

std::vector<std::string> Sitting::WorkerArguments(const WorkerFlags& flags, int worker, int place) const {
  std::vector<std::string> arguments = flags.ToArguments(address_, options_.threads, place);
  arguments.insert(arguments.end(), {"--token-file", doors_.token_file});
  if (options_.forward_digests) {
    arguments.insert(arguments.end(), {"--digests", ForwardDigestFile(options_.out, worker)});
  }
  if (options_.trace) arguments.insert(arguments.end(), {"--trace", WorkerTraceLogFile(options_.out, worker)});
  return arguments;
}

absl::Status Sitting::StartWorker(const WorkerFlags& flags) {
  const int number = static_cast<int>(workers_.size()) + 1;
  int place = 0;
  while (std::any_of(workers_.begin(), workers_.end(),
                     [&](const Worker& w) { return w.process.running() && w.place == place; })) {
    ++place;
  }
  EPS_ASSIGN_OR_RETURN(ChildProcess worker, Spawn({.name = absl::StrCat("gpu_worker ", number),
                                                   .program = options_.programs + "/gpu_worker",
                                                   .arguments = WorkerArguments(flags, number, place),
                                                   .log_path = WorkerLogFile(options_.out, number),
                                                   .signal_when_parent_dies = 0,
                                                   .reads_signals = true}));
  workers_.push_back({std::move(worker), place});
  return absl::OkStatus();
}

void Sitting::FollowOrders(const proto::StatusReply& status) {
  if (status.start_order().number() > newest_order_) {
    newest_order_ = status.start_order().number();
    workers_wanted_ = status.start_order().workers();
  }
  const std::set<pid_t> ready = ReadyProcesses(status);
  // Also one that the daemon does not know yet, or not any more: it may attach at any moment.
  const bool one_is_starting = std::any_of(workers_.begin(), workers_.end(), [&](const Worker& worker) {
    return worker.process.running() && ready.count(worker.process.pid) == 0;
  });
  if (!orders_.WantsOneMore(status, one_is_starting)) return;
  if (is_interrupted() || none_left_) return GiveUpOrder("the run is being ended");
  const std::string name = absl::StrCat("gpu_worker ", workers_.size() + 1);
  if (absl::Status started = StartWorker(options_.worker.ForOneMore(FindMemoryRoom(), NumRunning())); !started.ok()) {
    GiveUpOrder(absl::StrCat(name, ": ", started.message()));
    if (options_.note) options_.note(absl::StrCat("eps: ", name, " cannot be started: ", started.message()));
    return;
  }
  workers_.back().order = orders_.report().order();
  if (options_.note) options_.note(absl::StrCat("eps: starting ", name, ", as eps resize asks for it"));
}

SittingEnd Sitting::Watch() {
  auto credentials = NewChannelCredentials(doors_, address_, absl::Now());
  if (!credentials.ok()) return Failed(credentials.status());
  client_.emplace(address_, *std::move(credentials));
  LogNotes notes(daemon_.log_path, daemon_.log_start);
  // From now on the daemon knows that somebody starts workers.
  if (options_.follows_orders) client_->FollowOrders(orders_.report(), absl::Seconds(1)).IgnoreError();
  int expected = options_.workers;  // as the daemon last took it
  while (true) {
    if (const std::optional<int> number = signals_.Wait(kPollInterval)) PassOn(*number);
    ReapAll();
    for (const std::string& note : notes.Next()) {
      if (options_.note) options_.note(Printable(note));
    }
    if (!daemon_.running()) return DaemonEnded();
    NoteDeadWorkers();
    const absl::StatusOr<proto::StatusReply> status = options_.follows_orders
                                                          ? client_->FollowOrders(orders_.report(), absl::Seconds(1))
                                                          : client_->Status(absl::Seconds(1));
    replacements_.OnAnswer(status);
    while (replacements_.TakeOne(SteadyNow())) ReplaceWorker();  // before those that run are counted
    // A worker that died before it attached is not waited for.
    const int num_running = NumRunning();
    if (num_running > 0 && num_running < expected && client_->ExpectWorkers(num_running, absl::Seconds(1)).ok()) {
      expected = num_running;
    }
    if (!none_left_ && IsNobodyLeft(status)) {
      // Nobody can finish the step: the daemon ends with the checkpoint that stands. One that was told to end does so
      // by itself, and a second signal would cost the checkpoint that it may be writing.
      none_left_ = true;
      gave_up_ = !is_interrupted();
      if (gave_up_) kill(daemon_.pid, SIGTERM);
    }
    if (status.ok()) NoteReadyWorkers(*status);
    if (status.ok() && MayGrow(*status)) NoteWorkersLetGo();
    if (status.ok() && options_.follows_orders) {
      // A signal that came meanwhile goes first: nobody is started for a run that ends.
      if (const std::optional<int> number = signals_.Wait(absl::ZeroDuration())) PassOn(*number);
      FollowOrders(*status);
    }
    if (status.ok() && options_.show) options_.show(*status);
  }
}

bool Sitting::IsNobodyLeft(const absl::StatusOr<proto::StatusReply>& status) {
  if (NumRunning() > 0 || replacements_.is_pending()) {
    alone_since_.reset();
    return false;
  }
  // A worker that ended well was told that the run is over, and then the daemon ends by itself, whoever was lost
  // before; or it was let go (eps drain, eps resize), and then the daemon may wait for another.
  const bool ended_well =
      std::any_of(workers_.begin(), workers_.end(), [](const Worker& w) { return w.process.ended_well(); });
  if (ended_well && !(status.ok() && status->state() == run_state::kWaitingForWorkers)) return false;
  // A run that failed has ended its workers, and its daemon, which closes its doors first, ends by itself, and says why.
  const bool may_be_ending =
      !status.ok() || status->state() == run_state::kFailed || status->state() == run_state::kFinished;
  if (!may_be_ending) return true;
  const absl::Duration now = SteadyNow();
  if (!alone_since_.has_value()) alone_since_ = now;
  return now - *alone_since_ > kGraceAtEnd;
}

void Sitting::ReapAll() {
  std::vector<ChildProcess*> children = {&daemon_};
  for (Worker& worker : workers_) children.push_back(&worker.process);
  Reap(children);
}

void Sitting::NoteReadyWorkers(const proto::StatusReply& status) {
  const std::set<pid_t> ready = ReadyProcesses(status);
  for (Worker& worker : workers_) worker.was_ready = worker.was_ready || ready.count(worker.process.pid) > 0;
}

void Sitting::NoteDeadWorkers() {
  for (Worker& worker : workers_) {
    if (worker.process.running() || worker.end_is_said) continue;
    worker.end_is_said = true;
    const std::string end = absl::StrCat(worker.process.name, " ended: ", Ended(worker.process));
    // Whether it was ready or not: else one that fails in its first pass would be started again and again.
    if (worker.order > 0 && worker.order == orders_.report().order()) GiveUpOrder(end);
    if (options_.note && !worker.process.ended_well()) options_.note(absl::StrCat("eps: ", end));
    if (!none_left_ && HasCrashed(worker)) replacements_.OnCrash();
  }
}

// They are not wanted any more, but for those by whom there were more than that.
void Sitting::NoteWorkersLetGo() {
  const int num_running = NumRunning();
  for (Worker& worker : workers_) {
    if (!worker.process.ended_well() || std::exchange(worker.was_let_go, true)) continue;
    if (num_running < workers_wanted_) --workers_wanted_;
  }
}

void Sitting::GiveUpOrder(const std::string& why) {
  const bool was_over = orders_.report().is_over();
  orders_.GiveUp(why);
  if (!was_over && !orders_.report().failure().empty()) workers_wanted_ = std::min(workers_wanted_, NumRunning());
}

// One that says at its start why it cannot work would say it again; one that was started for an order had its turn.
bool Sitting::HasCrashed(const Worker& worker) {
  const int status = *worker.process.wait_status;
  if (worker.order > 0 && !worker.was_ready) return false;
  return WIFSIGNALED(status) || (worker.was_ready && WIFEXITED(status) && WEXITSTATUS(status) == kExitFailed);
}

void Sitting::ReplaceWorker() {
  const std::string name = absl::StrCat("gpu_worker ", workers_.size() + 1);
  const absl::Status started = StartWorker(options_.worker);
  if (started.ok()) workers_.back().replaces_one = true;
  if (!options_.note) return;
  options_.note(started.ok() ? absl::StrCat("eps: starting ", name,
                                            " in place of one that crashed; restarts left: ", replacements_.num_left())
                             : absl::StrCat("eps: ", name, " cannot be started: ", started.message()));
}

int Sitting::NumRunning() const {
  return static_cast<int>(
      std::count_if(workers_.begin(), workers_.end(), [](const Worker& worker) { return worker.process.running(); }));
}

void Sitting::PassOn(int number) {
  if (options_.end_at_once) {
    // The daemon waits until nobody is connected any more, of which a client that is busy here would say nothing.
    client_.reset();
    AbortDaemon();
  }
  const EndSignals::Meaning meaning = end_signals_.OnSignal(number);
  if (meaning == EndSignals::Meaning::kNothingNew) return;
  if (meaning == EndSignals::Meaning::kEndAtOnce || options_.end_at_once) {
    at_once_ = true;
    return EndChildren();
  }
  replacements_.Stop();
  if (options_.note) options_.note("eps: finishing the step in progress; once more ends at once");
  if (daemon_.running()) kill(daemon_.pid, number);
}

SittingEnd Sitting::DaemonEnded() {
  WaitForWorkers();
  const int status = *daemon_.wait_status;
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : kExitFailed;
  if (code == kExitDone) return {.too_small = TooSmall()};
  if (at_once_) {
    return {.exit_code = kExitFailed,
            .errors = {absl::StrCat("ended at once, by a ", options_.end_at_once ? "" : "second ", "signal")},
            .standing = NewestCheckpointText(options_.out)};
  }
  const std::string words = LastWords(daemon_);
  if (address_.empty() && (code == kExitBadInput || code == kExitDoesNotFit)) {
    RemoveNewFolder();  // nothing was started
    return {.exit_code = code, .errors = {words.empty() ? absl::StrCat("the daemon ended: ", Ended(daemon_)) : words}};
  }
  // A service manager may have asked the workers before us: they left, and the daemon ended as well as ever. Of one that
  // was told to end as they had crashed the signal came too late.
  const bool all_left =
      std::all_of(workers_.begin(), workers_.end(), [](const Worker& worker) { return worker.process.ended_well(); });
  if (EndedForSignal(daemon_) && (!none_left_ || (is_interrupted() && (!gave_up_ || all_left)))) {
    return {.exit_code = is_interrupted() ? kExitSignal + end_signals_.first() : code,
            .errors = {"ended by a signal"},
            .standing = NewestCheckpointText(options_.out)};
  }
  const std::vector<const Worker*> workers = WorkersThatCount();
  if (!workers.empty() &&
      std::all_of(workers.begin(), workers.end(), [](const Worker* worker) { return DoesNotFit(worker->process); })) {
    // Each said so before its first step: this sitting has done nothing.
    const ChildProcess& first = workers.front()->process;
    const std::string why = LastWords(first);
    RemoveNewFolder();
    return {.exit_code = kExitDoesNotFit, .errors = {why.empty() ? Ended(first) : why}, .too_small = TooSmall()};
  }
  const bool is_wanted = is_interrupted() || replacements_.run_is_being_stopped();  // that it ends
  SittingEnd end = {.exit_code = kExitFailed,
                    .too_small = TooSmall(),
                    .may_go_on = (WIFSIGNALED(status) || code == kExitStepLost) && !is_wanted};
  const bool all_let_go = none_left_ && std::all_of(workers.begin(), workers.end(),
                                                    [](const Worker* worker) { return worker->process.ended_well(); });
  if (all_let_go)
    end.errors.push_back("no worker was left: those that this command started were let go (eps drain, eps resize)");
  for (const Worker* worker : workers) {
    const ChildProcess& process = worker->process;
    if (process.ended_well() || worker->was_killed) continue;
    end.errors.push_back(absl::StrCat(process.name, " ended: ", Ended(process)));
  }
  if (none_left_ && !all_let_go) {
    end.errors.push_back(absl::StrCat("no worker was left", options_.restarts > 0 ? ", and no restart" : "",
                                      ": the daemon was told to end"));
  }
  end.errors.push_back(absl::StrCat("the daemon ended: ", Ended(daemon_), " (log: ", daemon_.log_path, ")"));
  end.standing = NewestCheckpointText(options_.out);
  return end;
}

std::vector<int> Sitting::TooSmall() const {
  std::vector<int> workers;
  for (size_t i = 0; i < workers_.size(); ++i) {
    if (DoesNotFit(workers_[i].process)) workers.push_back(static_cast<int>(i) + 1);
  }
  return workers;
}

std::vector<const Sitting::Worker*> Sitting::WorkersThatCount() const {
  std::vector<const Worker*> workers;
  for (const Worker& worker : workers_) {
    if (!worker.never_computed()) workers.push_back(&worker);  // who came late, and never computed, is no reason
  }
  return workers;
}

void Sitting::RemoveNewFolder() {
  // Another daemon may have been quicker, and have it: then it is that one's. Held while it goes.
  const absl::StatusOr<FileDescriptor> lock = LockDirectory(options_.out);
  if (!lock.ok()) return;
  // Whatever a program's exit code says: what was trained stays.
  std::error_code ignored;
  const std::uintmax_t steps_bytes = std::filesystem::file_size(RunFolder(options_.out).metrics(), ignored);
  const bool has_steps = !ignored && steps_bytes > 0;
  if (options_.out_is_new && !has_steps) std::filesystem::remove_all(options_.out, ignored);
}

// Workers end by themselves once the daemon has said that the run is over; those of a dead daemon, or of a lost step,
// are ended. One that was still starting may look for it for a while: it is asked to leave, which it does at once where
// it has not attached.
void Sitting::WaitForWorkers() {
  for (const Worker& worker : workers_) {
    if (worker.never_computed() && worker.process.running()) kill(worker.process.pid, SIGTERM);
  }
  const int status = *daemon_.wait_status;
  const bool at_once = WIFSIGNALED(status) || WEXITSTATUS(status) == kExitStepLost;
  const absl::Duration deadline = SteadyNow() + (at_once ? absl::ZeroDuration() : kGraceAtEnd);
  while (AnyRunning() && SteadyNow() < deadline) {
    absl::SleepFor(absl::Milliseconds(5));
    ReapAll();
  }
  EndChildren();
}

// It ends at once by a second signal, which must come a second after the first (EndSignals), and takes what it
// has in the temporary folder with it, which it cannot when killed.
void Sitting::AbortDaemon() {
  const absl::Duration deadline = SteadyNow() + kAbortTime;
  while (daemon_.running() && SteadyNow() < deadline) {
    kill(daemon_.pid, SIGTERM);
    absl::SleepFor(absl::Milliseconds(20));
    Reap({&daemon_});
  }
}

// The first signal ends a daemon that starts, and takes what it has half made with it.
void Sitting::EndStart() {
  if (daemon_.running()) kill(daemon_.pid, SIGTERM);
  const absl::Duration deadline = SteadyNow() + kAbortTime;
  while (daemon_.running() && SteadyNow() < deadline) {
    absl::SleepFor(absl::Milliseconds(5));
    Reap({&daemon_});
  }
  EndChildren();
}

bool Sitting::AnyRunning() const { return daemon_.running() || NumRunning() > 0; }

void Sitting::EndChildren() {
  ReapAll();
  for (Worker& worker : workers_) {
    if (!worker.process.running()) continue;
    worker.was_killed = true;
    kill(worker.process.pid, SIGKILL);
  }
  if (daemon_.running()) kill(daemon_.pid, SIGKILL);
  while (AnyRunning()) {
    absl::SleepFor(absl::Milliseconds(2));
    ReapAll();
  }
}

}  // namespace eps::cli
