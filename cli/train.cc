// eps train: a daemon and its workers on this machine in one command.

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cli/checkpoint_size.h"
#include "cli/child_process.h"
#include "cli/command.h"
#include "cli/common_flags.h"
#include "cli/doctor/machine.h"
#include "cli/export_model.h"
#include "cli/machine_profile.h"
#include "cli/plan_trace.h"
#include "cli/preflight.h"
#include "cli/progress.h"
#include "cli/run_report.h"
#include "cli/signal_queue.h"
#include "cli/sitting.h"
#include "cli/timeline_svg.h"
#include "cli/trace_files.h"
#include "cli/whole_plan.h"
#include "cli/worker_replacements.h"
#include "common/base/control_groups.h"
#include "common/base/exit_code.h"
#include "common/base/file_util.h"
#include "common/base/flags.h"
#include "common/base/memory_room.h"
#include "common/base/monotonic_clock.h"
#include "common/base/status_macros.h"
#include "common/base/thread.h"
#include "common/checkpoint/checkpoint_directory.h"
#include "common/checkpoint/checkpoint_files.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/resumed_run.h"
#include "common/formats/model_folder_writer.h"
#include "common/formats/new_folder.h"
#include "common/grpc/thread_needs.h"
#include "common/model/hf_config.h"
#include "common/model/model_spec.h"
#include "common/run_folder/run_folder.h"
#include "common/spec/run_config.h"
#include "common/telemetry/http_page.h"
#include "common/telemetry/trace_file.h"
#include "gpu_worker/device_sizes.h"
#include "gpu_worker/profile/kept_profile.h"
#include "gpu_worker/profile/worth_measuring.h"

namespace eps::cli {
namespace {

struct TrainFlags {
  RunFlags run;
  WorkerFlags worker;
  int workers = 1;
  std::string out;
  std::string metrics_listen;
  bool resume = false;
  bool quiet = false;
  int restarts = 0;
  bool tensorboard = false;
  bool trace = false;
  std::string export_to;  // "": nowhere
  ModelFolderForm export_form;

  int ThreadsPerWorker() const { return ThreadsOfEach(workers); }
  int ThreadsOfEach(int num_workers) const {
    if (worker.threads > 0) return worker.threads;
    return std::max(1, UsableCores() / num_workers);
  }
  std::vector<std::string> DaemonArguments(bool goes_on) const {
    std::vector<std::string> arguments;
    if (goes_on) arguments.push_back("--resume");
    if (tensorboard) arguments.push_back("--tensorboard");
    if (!metrics_listen.empty()) arguments.insert(arguments.end(), {"--metrics-listen", metrics_listen});
    return arguments;
  }
  std::string OutFolder() const {
    return out.empty() ? absl::StrCat("runs/", std::filesystem::path(run.run).stem().string()) : out;
  }
  Preflight ForPreflight() const { return {.run = run, .out = OutFolder(), .worker = worker, .resume = resume}; }
};

// How long a sitting waits for the daemon of one that was killed, which ends its step and writes a checkpoint first.
constexpr absl::Duration kOrphanTime = absl::Minutes(1);

// One sitting at a time, from before it writes a token or a log until it has ended: the daemon's own lock comes later.
// Errors: FAILED_PRECONDITION another sitting, or a daemon that was started by hand, has the folder
absl::StatusOr<FileDescriptor> LockSitting(const std::string& out, bool resume) {
  absl::StatusOr<FileDescriptor> sitting = LockDirectory(RunFolder(out).logs());
  EPS_RETURN_IF_ERROR_WITH(sitting.status(), "--out");
  const absl::Duration deadline = SteadyNow() + (resume ? kOrphanTime : absl::ZeroDuration());
  for (bool said = false;; absl::SleepFor(absl::Milliseconds(50))) {
    const absl::Status free = LockDirectory(out).status();  // and let go of again, for our daemon
    if (free.ok()) return sitting;
    if (!absl::IsFailedPrecondition(free) || SteadyNow() >= deadline) return Annotate(free, "--out");
    if (!std::exchange(said, true)) {
      std::fprintf(stderr, "eps: a daemon is still at work in %s: waiting for its end\n", out.c_str());
    }
  }
}

absl::StatusOr<Version> NewestCheckpointOf(const std::string& out) {
  return FindNewestCheckpoint(RunFolder(out).checkpoints());
}

void SayStart(const TrainFlags& flags, const RunOutline& outline) {
  const std::string out = flags.OutFolder();
  StartOptions options = {.workers = flags.workers,
                          .device = flags.worker.device,
                          .threads = flags.ThreadsPerWorker(),
                          .device_memory_bytes = flags.worker.device_memory_bytes,
                          .out = out};
  if (flags.resume) {
    const absl::StatusOr<Version> newest = NewestCheckpointOf(out);
    if (newest.ok()) options.resumes_from = StepFolderName(*newest);
  }
  std::printf("%s\n", StartText(outline, options).c_str());
  std::fflush(stdout);
}

// Warnings are said to those too who want to hear nothing else.
void SayIdleWorkers(const RunOutline& outline, int workers) {
  const int64_t idle = workers - outline.virtual_nodes;
  if (idle <= 0) return;
  std::fprintf(
      stderr,
      "eps: warning: %d workers share batch.virtual_nodes: %lld: %lld will stand by until another is lost, and have "
      "their part of cores and memory; more virtual nodes give them work\n",
      workers, static_cast<long long>(outline.virtual_nodes), static_cast<long long>(idle));
}

void SayLittleRoom(const RunOutline& outline, const std::string& out) {
  const std::string folder = RunFolder(out).checkpoints().path();
  const absl::StatusOr<int64_t> room_bytes = ThisMachine().DiskRoomBytes(folder);
  if (!room_bytes.ok()) return;
  const std::string warning = CheckpointRoomWarning(outline.checkpoint_bytes, *room_bytes, folder);
  if (!warning.empty()) std::fprintf(stderr, "eps: warning: %s\n", warning.c_str());
}

// What the plan says of a step, to be drawn below one that was measured. Empty where it says nothing of that: several
// workers, no measured profile, a cap that the worker alone knows, steps that each leave out other blocks, or that are
// so long that a part of one is simulated.
absl::StatusOr<std::vector<TraceTrack>> PredictedTracks(const TrainFlags& flags, int workers,
                                                        const TracedStep& measured) {
  if (workers > 1 || flags.worker.profile == worker::kNominalProfile || flags.worker.device_memory_bytes == 0) {
    return std::vector<TraceTrack>();
  }
  EPS_ASSIGN_OR_RETURN(RunConfig run, LoadRunToTrain(flags.ForPreflight()));
  if (run.layer_drop.is_on()) return std::vector<TraceTrack>();
  EPS_ASSIGN_OR_RETURN(const WholePlan plan, MakeWholePlan({.run = std::move(run),
                                                            .device = flags.worker.device,
                                                            .device_memory_bytes = flags.worker.device_memory_bytes,
                                                            .host_memory_bytes = flags.worker.host_memory_bytes,
                                                            .threads = flags.ThreadsPerWorker(),
                                                            .profile = flags.worker.profile}));
  if (plan.step.scale > 1) return std::vector<TraceTrack>();
  return Later(TracksOf(plan), measured.begin);
}

// Makes trace.json and timeline.svg of what the processes left; `workers`: that were started.
absl::Status FinishTrace(const TrainFlags& flags, int workers) {
  const std::string out = flags.OutFolder();
  std::vector<std::string> files = TraceLogFiles(out, workers);
  std::error_code ignored;
  // Also one that its process was ended before it wrote anything to.
  const auto is_empty = [&](const std::string& file) {
    return !std::filesystem::exists(file, ignored) || std::filesystem::file_size(file, ignored) == 0;
  };
  files.erase(std::remove_if(files.begin(), files.end(), is_empty), files.end());
  if (files.empty()) return absl::OkStatus();  // it ended before anything was begun, and has said why
  EPS_ASSIGN_OR_RETURN(std::vector<TraceTrack> tracks, JoinTraceLogs(files));
  absl::Status picture;  // what lacks in it; what was measured is kept all the same
  if (const std::optional<TracedStep> step = MedianStep(tracks); step.has_value()) {
    const absl::StatusOr<std::vector<TraceTrack>> predicted = PredictedTracks(flags, workers, *step);
    picture = predicted.status();
    const bool is_predicted = predicted.ok() && !predicted->empty();
    if (is_predicted) tracks.insert(tracks.end(), predicted->begin(), predicted->end());
    const std::string title = absl::StrFormat("%s, which took the median time: %.4g s%s", step->name, step->seconds(),
                                              is_predicted ? "; predicted below" : "");
    EPS_RETURN_IF_ERROR(WriteFileAtomically(out + "/timeline.svg", TimelineSvg(title, tracks, step->begin, step->end)));
  } else {
    picture =
        absl::NotFoundError("there is no timeline.svg, as the first worker has ended no step that could be drawn");
  }
  EPS_RETURN_IF_ERROR(WriteFileAtomically(out + "/trace.json", ToChromeTrace(tracks)));
  std::filesystem::remove_all(RunFolder(out).trace(), ignored);
  return picture;
}

absl::Status CheckExportPlace(const std::string& to, const std::string& out) {
  if (LiesIn(out, to)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--export ", to, ": the run's folder, ", out, ", lies there; give another"));
  }
  if (LiesIn(to, out)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--export ", to, ": lies in the run's folder, ", out, "; give one outside of it"));
  }
  return absl::OkStatus();
}

// Whether nothing is left to do: the run of `steps` is at its end, and --export has written its model there before.
// Errors: INVALID_ARGUMENT another model is there, and how it is known
absl::StatusOr<bool> IsDoneAndExported(const TrainFlags& flags, int64_t steps) {
  std::error_code ignored;
  if (!flags.resume || !std::filesystem::exists(flags.export_to + "/config.json", ignored)) return false;
  const absl::StatusOr<Version> newest = NewestCheckpointOf(flags.OutFolder());
  if (!newest.ok() || newest->value() < steps) return false;
  const absl::Status is_there = CheckIsExport(flags.OutFolder(), flags.export_to, flags.export_form);
  if (is_there.ok()) return true;
  return absl::InvalidArgumentError(absl::StrCat("--export ", flags.export_to, ": is there, and not this run's model: ",
                                                 is_there.message(), "; give another folder"));
}

// Whether the run is at its end and whole, with its report: there is nothing to start, nor anything to start it with to
// be looked at. What is damaged or differs is left for the daemon to say.
bool IsDone(const TrainFlags& flags) {
  const std::string out = flags.OutFolder();
  if (!flags.resume || !IsFinished(out)) return false;
  const absl::StatusOr<RunConfig> run = LoadRunToTrain(flags.ForPreflight());
  const absl::StatusOr<Version> newest = NewestCheckpointOf(out);
  if (!run.ok() || !newest.ok() || newest->value() < run->steps) return false;
  const std::string folder = RunFolder(out).checkpoints().FolderOf(*newest);
  const absl::StatusOr<Manifest> manifest = ReadManifest(folder);
  return manifest.ok() && DifferencesThatMatter(*manifest, *run).empty() && VerifyCheckpointFolder(folder).ok();
}

// What --export asks for, before the run takes its hours.
absl::Status CheckExport(const TrainFlags& flags) {
  if (flags.export_to.empty()) return absl::OkStatus();
  EPS_RETURN_IF_ERROR(CheckExportPlace(flags.export_to, flags.OutFolder()));
  EPS_ASSIGN_OR_RETURN(const RunConfig run, LoadRunToTrain(flags.ForPreflight()));
  EPS_ASSIGN_OR_RETURN(const bool is_exported, IsDoneAndExported(flags, run.steps));
  if (is_exported) return absl::OkStatus();
  EPS_RETURN_IF_ERROR_WITH(CheckNewFolder(flags.export_to), "--export");
  EPS_RETURN_IF_ERROR_WITH(CheckSaysAll(run.model), "--export");
  EPS_RETURN_IF_ERROR_WITH(CheckExportSource(run, flags.resume ? flags.OutFolder() : ""), "--export");
  if (run.checkpoint.last) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "--export: checkpoint.last is false, so that the run leaves no checkpoint of its end; leave one of the two out");
}

absl::StatusOr<RunOutline> CheckAll(const TrainFlags& flags) {
  EPS_RETURN_IF_ERROR(CheckThreadRoom(RunThreads(flags.workers, flags.ThreadsPerWorker())));
  if (!flags.metrics_listen.empty()) {
    EPS_RETURN_IF_ERROR_WITH(CheckPageAddress(flags.metrics_listen, /*any_address=*/true), "--metrics-listen");
    if (!CheckPageAddress(flags.metrics_listen, /*any_address=*/false).ok()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--metrics-listen: ", flags.metrics_listen,
          ": not a loopback address (127.0.0.1, [::1], localhost), where the pages of eps train stay, which "
          "have neither TLS nor a password; ssh -L shows one elsewhere"));
    }
  }
  EPS_RETURN_IF_ERROR(CheckExport(flags));
  return CheckBeforeTraining(flags.ForPreflight());
}

// Of a run of `steps` that has ended well; the exit code.
int FinishExport(const TrainFlags& flags, int64_t steps) {
  // What else is there ExportCheckpoint refuses.
  if (IsDoneAndExported(flags, steps).value_or(false)) {
    std::printf("eps: %s has the model already: it stays as it is\n", flags.export_to.c_str());
    return kExitDone;
  }
  const absl::StatusOr<Version> newest = NewestCheckpointOf(flags.OutFolder());
  if (newest.ok() && newest->value() < steps) {
    std::printf("eps: stopped at step %lld of %lld: --export writes the model once it is done; go on with --resume\n",
                static_cast<long long>(newest->value()), static_cast<long long>(steps));
    return kExitDone;
  }
  const absl::Status exported = ExportCheckpoint(flags.OutFolder(), flags.export_to, flags.export_form);
  if (exported.ok()) return kExitDone;
  const absl::StatusOr<std::string> checkpoint = FindCheckpointFolder(flags.OutFolder());
  PrintError(Annotate(exported, absl::StrCat("--export: the run is done, its checkpoint is ",
                                             checkpoint.ok() ? *checkpoint : flags.OutFolder(),
                                             " (eps export --checkpoint writes it once this is mended)")));
  return kExitFailed;
}

// How a run ended that ended well. What is wrong with its model is said to those too who want to hear nothing else.
void SayEnd(const TrainFlags& flags) {
  if (!flags.quiet) std::printf("%s\n", EndText(flags.OutFolder()).c_str());
  std::fflush(stdout);
  for (const std::string& warning : EndWarnings(flags.OutFolder())) {
    std::fprintf(stderr, "eps: warning: %s\n", warning.c_str());
  }
}

// Of a run that IsDone; the exit code.
int SayDone(const TrainFlags& flags) {
  SayEnd(flags);
  if (flags.export_to.empty()) return kExitDone;
  if (const absl::Status place = CheckExport(flags); !place.ok()) {
    PrintError(place);
    return StartExitCode(place);
  }
  return FinishExport(flags, StepsDone(flags.OutFolder()));
}

// Where the programs are that a sitting starts. Errors: the system's, naming the one that cannot be started
absl::StatusOr<std::string> FindPrograms() {
  EPS_ASSIGN_OR_RETURN(std::string folder, ProgramFolder());
  for (const char* name : {"/eps_server", "/gpu_worker"}) {
    const std::string program = folder + name;
    if (access(program.c_str(), X_OK) != 0) return FileError(errno, "execute", program);
  }
  return folder;
}

// What sittings have in common beside the flags.
struct SittingSetup {
  std::string programs;
  bool out_is_new = false;
  ProgressPrinter& progress;
  SignalQueue& signals;
};

SittingEnd RunSitting(const TrainFlags& flags, const SittingSetup& setup, int workers, int restarts, bool is_restart) {
  Sitting sitting({.run_arguments = flags.run.ToArguments(),
                   .worker = flags.worker.ForSoMany(FindMemoryRoom(), workers),
                   .workers = workers,
                   .threads = flags.ThreadsOfEach(workers),
                   .programs = setup.programs,
                   .out = flags.OutFolder(),
                   .out_is_new = setup.out_is_new && !is_restart,
                   .daemon_arguments = flags.DaemonArguments(/*goes_on=*/flags.resume || is_restart),
                   .trace = flags.trace,
                   .follows_orders = true,
                   .restarts = restarts,
                   .is_restart = is_restart,
                   .show = [&](const proto::StatusReply& status) { setup.progress.Show(status); },
                   .note = [&](const std::string& text) { setup.progress.Note(text); }},
                  &setup.signals);
  return sitting.Run();
}

void PrintErrors(const SittingEnd& end) {
  for (const std::string& error : end.errors) std::fprintf(stderr, "eps: %s\n", error.c_str());
  if (!end.standing.empty()) std::fprintf(stderr, "eps: %s\n", end.standing.c_str());
}

// Where a restart begins.
std::string StartingPoint(const std::string& out) {
  const absl::StatusOr<Version> newest = NewestCheckpointOf(out);
  return newest.ok() ? StepFolderName(*newest) : "step 0, as there is no checkpoint yet";
}

// One sitting after the other, as long as the daemon crashes or loses a step and --restarts are left, and what became
// of them; the last one's end.
SittingEnd RunSittings(const TrainFlags& flags, const SittingSetup& setup) {
  int restarts_left = flags.restarts, workers = flags.workers;
  for (bool is_restart = false;; is_restart = true) {
    SittingEnd end = RunSitting(flags, setup, workers, restarts_left, is_restart);
    workers = end.workers_wanted;  // what eps resize and eps drain have changed stays
    setup.progress.Finish();
    restarts_left -= end.restarts;
    const bool goes_on = end.may_go_on && restarts_left > 0;
    if (end.may_go_on && !goes_on && flags.restarts > 0) {
      end.errors.push_back("it is not started again, as no restart is left");
    }
    if (goes_on) end.standing.clear();  // by itself, and not with --resume
    PrintErrors(end);
    if (!goes_on) return end;
    --restarts_left;
    std::fprintf(stderr, "eps: starting daemon and workers again from %s, with %d %s; restarts left: %d\n",
                 StartingPoint(flags.OutFolder()).c_str(), workers, workers == 1 ? "worker" : "workers", restarts_left);
    if (setup.signals.Wait(WorkerReplacements::kPause).has_value()) {
      std::fprintf(stderr, "eps: ended by a signal before they were; %s\n",
                   NewestCheckpointText(flags.OutFolder()).c_str());
      end.exit_code = kExitSignal + setup.signals.last();
      return end;
    }
  }
}

// Whether the run's GPU should be measured before it is planned: the run begins, nobody has said what to plan from, and
// no profile that is kept has its layers. With a cpu there is less to choose. What cannot be read is told by who needs
// it.
bool IsWorthMeasuringFirst(const TrainFlags& flags) {
  if (flags.resume || !flags.worker.profile_is_default || flags.worker.device == "cpu") return false;
  const absl::StatusOr<RunConfig> run = flags.run.Load();
  const absl::StatusOr<worker::Profile> profile = LoadProfile(flags.worker.profile, flags.worker.device);
  if (!run.ok() || !profile.ok()) return false;
  const absl::StatusOr<ModelSpec> model = BuildModel(run->model);
  const absl::StatusOr<worker::KernelSizes> kernels = worker::FindKernelSizes(flags.worker.device, run->precision.wire);
  return model.ok() && kernels.ok() && worker::IsWorthMeasuring(*profile, *model, *run, *kernels, flags.workers);
}

// Measures the GPU where that is worth it, and keeps the profile for later runs. What fails is told, and the run goes
// on without. Errors: CANCELLED by a signal
absl::Status MeasureFirst(TrainFlags& flags, SignalQueue& signals) {
  const int threads = flags.ThreadsPerWorker();
  const std::string kept = worker::KeptProfilePath(flags.worker.device, threads, flags.worker.vectors);
  if (kept.empty() || !IsWorthMeasuringFirst(flags)) return absl::OkStatus();
  if (!MakeDirs(DirName(kept)).ok() || !CheckReplaceable(kept).ok()) return absl::OkStatus();
  std::fprintf(stderr,
               "eps: measuring %s with the layers of %s first, once, some ten seconds and more (--profile nominal goes "
               "without)\n",
               flags.worker.device.c_str(), flags.run.run.c_str());
  ProgressPrinter progress(flags.quiet);
  const absl::Status measured =
      MeasureMachine(
          {.run = flags.run, .device = flags.worker.device, .threads = threads, .vectors = flags.worker.vectors}, kept,
          signals, progress)
          .status();
  if (absl::IsCancelled(measured)) return measured;
  if (!measured.ok()) {
    std::fprintf(stderr, "eps: measuring failed, and the run is planned from what there is: %s\n",
                 std::string(measured.message()).c_str());
  }
  flags.worker.profile = worker::ChooseProfile("", flags.worker.device, threads, flags.worker.vectors);
  return absl::OkStatus();
}

// Of a run that was not begun; the exit code.
int EndBeforeStart(const std::string& out, bool out_is_new, int signal) {
  std::error_code ignored;
  if (out_is_new) {
    for (const std::string& folder : {RunFolder(out).logs(), out}) std::filesystem::remove(folder, ignored);
  }
  std::fprintf(stderr, "eps: ended by a signal before anything was started\n");
  return kExitSignal + signal;
}

int RunTrain(TrainFlags flags) {
  if (IsDone(flags)) return SayDone(flags);
  flags.worker.SetDefaultMemory(FindMemoryRoom(), flags.workers);
  flags.worker.SetDefaultProfile(flags.ThreadsPerWorker());
  const std::string out = flags.OutFolder();
  const absl::StatusOr<RunOutline> outline = CheckAll(flags);
  if (!outline.ok()) {
    PrintError(outline.status());
    return StartExitCode(outline.status());
  }
  if (flags.resume && IsFinished(out) && !NewestCheckpointOf(out).ok()) {
    const std::string text = FinishedText(out);
    if (StepsDone(out) >= outline->steps && flags.export_to.empty()) {
      std::printf("eps: %s\n", text.c_str());
      return kExitDone;
    }
    PrintError(absl::FailedPreconditionError(text + ": there is nothing to go on from; give another --out"));
    return kExitBadInput;
  }
  const absl::Status can_go_on = flags.resume ? RunFolder(out).CheckCanGoOn() : absl::OkStatus();
  const absl::StatusOr<std::string> programs = FindPrograms();
  for (const absl::Status& each : {can_go_on, programs.status()}) {
    if (!each.ok()) {
      PrintError(each);
      return StartExitCode(each);
    }
  }
  const mode_t users_umask = umask(077);  // what is made here and by the daemon is this user's alone
  std::error_code ignored;
  const bool out_is_new = !std::filesystem::exists(out, ignored);
  const absl::Status made = MakeDirs(RunFolder(out).logs());
  const absl::StatusOr<FileDescriptor> lock = made.ok() ? LockSitting(out, flags.resume) : made;
  absl::StatusOr<SignalQueue> signals = SignalQueue::Create();
  for (const absl::Status& each : {lock.status(), signals.status()}) {
    if (!each.ok()) {
      PrintError(each);
      return StartExitCode(each);
    }
  }
  if (!MeasureFirst(flags, *signals).ok()) return EndBeforeStart(out, out_is_new, signals->last());
  if (flags.trace) {
    std::filesystem::remove_all(RunFolder(out).trace(), ignored);  // of a sitting that was killed
    if (const absl::Status folder = MakeDirs(RunFolder(out).trace()); !folder.ok()) {
      PrintError(folder);
      return StartExitCode(folder);
    }
  }
  const bool begins = !RunFolder(out).HoldsCheckpoints();  // by which the daemon decides it, too
  // Pictures of a run that was there before are none of this one.
  if (begins) {
    for (const char* name : {"/trace.json", "/timeline.svg"}) std::filesystem::remove(out + name, ignored);
  }
  if (!flags.quiet) SayStart(flags, *outline);
  if (flags.resume && begins) {  // said in any case: the folder may be another one than was meant
    std::fprintf(stderr, "eps: --resume: there is no checkpoint in %s: it starts from step 0\n", out.c_str());
  }
  SayIdleWorkers(*outline, flags.workers);
  SayLittleRoom(*outline, out);
  ProgressPrinter progress(flags.quiet);
  const SittingEnd end =
      RunSittings(flags, {.programs = *programs, .out_is_new = out_is_new, .progress = progress, .signals = *signals});
  if (flags.trace) {
    const absl::Status traced = FinishTrace(flags, end.workers);
    if (!traced.ok()) std::fprintf(stderr, "eps: trace: %s\n", std::string(traced.message()).c_str());
  }
  if (end.exit_code == kExitDone) SayEnd(flags);
  if (end.exit_code != kExitDone || flags.export_to.empty()) return end.exit_code;
  umask(users_umask);
  return FinishExport(flags, outline->steps);
}

}  // namespace

void AddTrain(CLI::App& app, int* exit_code) {
  CLI::App* command =
      app.add_subcommand("train",
                         "Trains: starts a daemon and workers on this machine, shows progress, ends when the last "
                         "checkpoint is on disk");
  auto flags = std::make_shared<TrainFlags>();
  flags->run.AddTo(*command);
  command->add_option("--workers", flags->workers, "Worker processes; those beyond batch.virtual_nodes stand by")
      ->type_name("N")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  flags->worker.AddTo(*command);
  command->add_option("--out", flags->out, "The run's folder. Default: runs/NAME of the RunSpec")
      ->type_name("DIR")
      ->check(NotEmpty());
  command->add_flag("--resume", flags->resume, "Goes on from the newest checkpoint in the run's folder");
  command
      ->add_option(
          "--restarts", flags->restarts,
          "How often what crashed is started again, in all: a worker in its place, or all of them with a daemon "
          "that goes on from the newest checkpoint. What ended with a message about the run stays ended")
      ->type_name("N")
      ->check(CLI::Range(0, 1000000))
      ->capture_default_str();
  command
      ->add_option("--metrics-listen", flags->metrics_listen,
                   "HTTP address of the page that shows the run in a browser, and of /metrics, /healthz and /readyz; "
                   "loopback only. Default: 127.0.0.1:0, DIR/endpoints.json says the port")
      ->type_name("HOST:PORT");
  command->add_flag("--tensorboard", flags->tensorboard,
                    "Leaves event files for TensorBoard in DIR/tensorboard, as the run goes on");
  command->add_flag("--trace", flags->trace,
                    "Leaves trace.json, what each process did and waited for, for ui.perfetto.dev, and timeline.svg, a "
                    "picture of one step, with a measured profile and one worker beside what was predicted");
  CLI::Option* export_to =
      command
          ->add_option(
              "--export", flags->export_to,
              "When the run has ended well, writes its model as a Hugging Face folder, as eps export does; must "
              "not be there, or be empty")
          ->type_name("DIR")
          ->check(NotEmpty());
  AddDtypeTo(*command, "--export-dtype", flags->export_form)->needs(export_to);
  command->add_flag("--quiet", flags->quiet, "No progress; warnings and errors are said all the same");
  command->footer(
      "In DIR it leaves summary.json, metrics.jsonl, loss.svg, checkpoints/ and logs/ (docs/formats.md).\n"
      "A long run on a GPU, of whose layers no profile is kept, is measured first when it begins, as by eps profile.\n"
      "SIGINT and SIGTERM let the step in progress finish, write its checkpoint, and end with 130 or 143.");
  command->callback([flags, exit_code] { *exit_code = RunTrain(*flags); });
}

}  // namespace eps::cli
