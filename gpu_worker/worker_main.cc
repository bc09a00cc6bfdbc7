#include "gpu_worker/worker_main.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/command_line.h"
#include "common/base/control_groups.h"
#include "common/base/exit_code.h"
#include "common/base/file_util.h"
#include "common/base/flags.h"
#include "common/base/malloc_settings.h"
#include "common/base/open_files.h"
#include "common/base/program_output.h"
#include "common/base/signal_watcher.h"
#include "common/base/status_macros.h"
#include "common/base/thread.h"
#include "common/base/version.h"
#include "common/grpc/client_credentials.h"
#include "common/grpc/door_flags.h"
#include "common/grpc/grpc_log.h"
#include "common/grpc/page_advice.h"
#include "common/grpc/thread_needs.h"
#include "common/spec/run_config.h"
#include "common/spec/vector_width.h"
#include "common/telemetry/trace_log.h"
#include "gpu_worker/device/cpu/vector_limit.h"
#include "gpu_worker/leave_request.h"
#include "gpu_worker/profile/kept_profile.h"
#include "gpu_worker/profile/profile_file.h"
#include "gpu_worker/telemetry/forward_log.h"
#include "gpu_worker/worker.h"

namespace eps::worker {
namespace {

const std::map<std::string, TransportChoice> kTransports = {{"auto", TransportChoice::kAuto},
                                                            {"grpc", TransportChoice::kGrpc},
                                                            {"shared_memory", TransportChoice::kSharedMemory}};

// What was typed, before it is checked. Every flag and its default stands here and in AddFlags, nowhere else.
struct Flags {
  WorkerOptions options;
  ClientDoors doors;
  int threads = 0;  // 0: not given
  std::string vectors = kWidestVectors;
  std::string digest_file, trace_file;
  std::string transport;
  double reconnect_seconds = absl::ToDoubleSeconds(WorkerOptions().reconnect);
  std::string profile;
  // In place of a run.
  std::string measured_run;
  std::vector<std::string> overrides;  // field.path=value
  bool probe = false;
};

void AddFlags(CLI::App& app, Flags& flags) {
  WorkerOptions& options = flags.options;
  auto* connect = app.add_option("--connect", options.address, "The daemon's gRPC address")
                      ->type_name("HOST:PORT")
                      ->check(IsAddress());
  AddClientDoorFlags(app, flags.doors);
  app.add_option("--device", options.device, "cpu, cuda:I, or cuda: the first GPU, or the --host-turn's")
      ->type_name("DEVICE")
      ->capture_default_str();
  app.add_option("--device-memory", options.device_memory_bytes,
                 "Most device memory to use: bytes, or with KiB, MiB, GiB (default: what the plan can use, at most "
                 "half of the host's free memory on cpu, nine tenths of the GPU's on cuda)")
      ->type_name("SIZE")
      ->transform(AsByteSize());
  app.add_option(
         "--host-memory", options.host_stash_bytes,
         "Most host memory for activations: boundaries, beside them gradients of blocks that are depth first, and with "
         "what is left inner activations that are swapped rather than recomputed (default: boundaries alone, whatever "
         "they take)")
      ->type_name("SIZE")
      ->transform(AsByteSize());
  app.add_option("--host-workers", options.host_workers,
                 "How many workers this host has: those on one device have a part each of the default --device-memory")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(1, 4096));
  app.add_option("--host-turn", options.host_turn,
                 "Which of the --host-workers this is, from 0: of --device cuda it takes this GPU, counted round")
      ->type_name("I")
      ->capture_default_str()
      ->check(CLI::Range(0, 4095));
  app.add_option("--threads", flags.threads, "Threads that compute (default: cores / --host-workers)")
      ->type_name("N")
      ->check(CLI::Range(1, 1024));
  app.add_option("--vectors", flags.vectors,
                 "The widest vector instructions that the cpu device uses: widest (the processor's), avx512 or avx2. "
                 "Processors held to the same are one device model, and give the same bits")
      ->type_name("WIDTH")
      ->capture_default_str()
      ->check(CLI::IsMember(std::vector<std::string>(kVectorWidths.begin(), kVectorWidths.end())));
  app.add_option("--digests", flags.digest_file,
                 "Writes a line of JSON per layer and micro-batch of the forward pass, with a digest of the layer's "
                 "output, by which runs are compared (eps verify)")
      ->type_name("FILE");
  app.add_option(
         "--trace", flags.trace_file,
         "Writes what each stream does and waits for, and when, on the daemon's clock (`eps trace` joins the files "
         "of several processes into one for Perfetto)")
      ->type_name("FILE");
  app.add_option("--transport", flags.transport,
                 "How weights and gradients travel: auto, grpc or shared_memory (default: as the run says)")
      ->type_name("HOW")
      ->check([](const std::string& how) {
        return kTransports.count(how) > 0 ? "" : "must be auto, grpc or shared_memory";
      });
  app.add_flag(
      "--until-done", flags.options.until_done,
      "Looks for a daemon that a signal has stopped before its run was done, or that lost a step, as for one that is "
      "away, in place of ending: where something starts it again");
  app.add_option("--reconnect-seconds", flags.reconnect_seconds, "How long to look for a daemon that is away")
      ->type_name("S")
      ->capture_default_str()
      ->check(NumberIn(0, 1e6));
  app.add_option("--metrics-listen", options.metrics_listen,
                 "HTTP address of /metrics, /healthz and /readyz; port 0: the system chooses, the log says it")
      ->type_name("HOST:PORT")
      ->capture_default_str();
  app.add_option("--health-listen", options.health_listen,
                 "gRPC address of grpc.health.v1, for probes: SERVING while /readyz says 200 (default: not served)")
      ->type_name("HOST:PORT");
  app.add_flag(
      "--metrics-any-address", options.metrics_any_address,
      "Allows a --metrics-listen and --health-listen that other machines reach; neither has TLS or a password");
  auto* profile_flag = app.add_option("--profile", flags.profile,
                                      "What the plan is made from: a file of `eps profile`, or \"nominal\" for figures "
                                      "of an ordinary machine (default: what `eps profile` has kept of this machine, "
                                      "device, number of threads and vectors; else nominal)")
                           ->type_name("FILE");
  auto* measure = app.add_option("--measure", flags.measured_run,
                                 "Only measure the device, with the layers of this RunSpec, into --profile, and end")
                      ->type_name("FILE")
                      ->excludes(connect)
                      ->needs(profile_flag);
  app.add_option("--set", flags.overrides, "Overrides a field of --measure's RunSpec")
      ->type_name("FIELD=VALUE")
      ->needs(measure);
  app.add_flag("--probe", flags.probe, "Only start the device, say what it is, and end")->excludes(connect);
  app.footer(
      "SIGINT, SIGTERM and SIGHUP let it leave once the step that it has a part in is finished; a second one\n"
      "ends it at once, and others do its part again, unless they have all of it.\n"
      "Exit codes: 0 done, 1 failed, 2 bad usage, 3 the run does not fit the device memory, 129, 130 or 143\n"
      "left for a signal.");
}

// The rest of what is typed becomes options here. Errors: INVALID_ARGUMENT naming the flag
absl::Status FinishOptions(Flags& flags) {
  WorkerOptions& options = flags.options;
  if (!flags.probe && flags.measured_run.empty() && options.address.empty()) {
    return absl::InvalidArgumentError("--connect HOST:PORT is required");
  }
  if (options.host_turn >= options.host_workers) {
    return absl::InvalidArgumentError("--host-turn: must be below --host-workers");
  }
  options.threads = flags.threads > 0 ? flags.threads : std::clamp(UsableCores() / options.host_workers, 1, 1024);
  options.reconnect = absl::Seconds(flags.reconnect_seconds);
  if (!flags.transport.empty()) options.transport = kTransports.at(flags.transport);
  return absl::OkStatus();
}

int Report(const absl::Status& status, int exit_code) {
  if (!status.ok()) std::fprintf(stderr, "gpu_worker: %s\n", std::string(status.message()).c_str());
  return exit_code;
}

absl::Status Probe(const WorkerOptions& options) {
  EPS_ASSIGN_OR_RETURN(const DeviceProperties device, ProbeDevice(options));
  std::printf("%s: %s, %d threads\n", device.name.c_str(), device.model.c_str(), device.threads);
  return absl::OkStatus();
}

absl::StatusOr<RunConfig> LoadMeasuredRun(const Flags& flags) {
  std::vector<FieldOverride> fields;
  for (const std::string& text : flags.overrides) {
    EPS_ASSIGN_OR_RETURN(FieldOverride field, ParseFieldOverride(text));
    fields.push_back(std::move(field));
  }
  return LoadRunConfig(flags.measured_run, fields);
}

// Returns the exit code: the two files are what was typed.
int Measure(const Flags& flags) {
  const absl::StatusOr<RunConfig> run = LoadMeasuredRun(flags);
  if (!run.ok()) return Report(run.status(), StartExitCode(run.status()));
  absl::Status place = CheckReplaceable(flags.profile);  // before a minute is spent
  if (place.ok()) place = OpenFile(DirName(flags.profile), O_RDONLY | O_DIRECTORY).status();
  if (!place.ok()) return Report(Annotate(place, "--profile"), StartExitCode(place));
  const absl::StatusOr<Profile> profile = MeasureDevice(flags.options, *run);
  if (!profile.ok()) return Report(profile.status(), WorkerExitCode(profile.status()));
  const absl::Status written = WriteProfile(flags.profile, *profile);
  return Report(written, StartExitCode(written));
}

// What a run writes beside its log.
struct OpenedFiles {
  std::unique_ptr<ForwardLog> digests;
  std::unique_ptr<TraceLog> trace;
};
// Reads the profile and what the doors want, too, into `options`. Errors: naming the file
absl::StatusOr<OpenedFiles> OpenFiles(const Flags& flags, WorkerOptions& options) {
  const std::string chosen = ChooseProfile(flags.profile, options.device, options.threads, flags.vectors);
  if (chosen != kNominalProfile) {
    EPS_ASSIGN_OR_RETURN(Profile profile, LoadProfile(chosen, options.device));
    options.profile = std::make_shared<const Profile>(std::move(profile));
    options.profile_file = chosen;
  }
  EPS_ASSIGN_OR_RETURN(const std::shared_ptr<ClientKeys> keys,
                       ClientKeys::Open(flags.doors, options.address, absl::Now()));
  options.credentials = [keys] { return keys->Credentials(); };
  OpenedFiles files;
  if (!flags.digest_file.empty()) {
    EPS_ASSIGN_OR_RETURN(files.digests, ForwardLog::Open(flags.digest_file));
    options.witness = files.digests.get();
  }
  if (!flags.trace_file.empty()) {
    EPS_ASSIGN_OR_RETURN(files.trace, TraceLog::Create({.path = flags.trace_file}));
    options.trace = files.trace.get();
  }
  return files;
}

// Libraries end the process where they get none.
absl::Status CheckOpenFiles() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= kFilesOfAWorker) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("needs ", kFilesOfAWorker, " open files, and the system allows ",
                                                    limit.rlim_cur, ": raise it (ulimit -n, LimitNOFILE=)"));
}

// What TLS refuses, on either side, shows as a connection that fails. One without TLS that was there, and broke, is a daemon
// that is gone.
absl::Status WithAdvice(const absl::Status& ended, const ClientDoors& doors) {
  const absl::string_view error = ended.message();
  const bool may_be_tls = absl::IsUnavailable(ended) && !absl::StrContains(error, "Connection refused") &&
                          (!doors.ca_file.empty() || absl::StrContains(error, "failed to connect"));
  if (!may_be_tls) return ended;
  const absl::string_view page = PageAdvice(ended);
  return absl::UnavailableError(
      absl::StrCat(error, page.empty() ? "; docs/operations.md, Across machines, says what this may mean" : page));
}

int Run(const Flags& flags) {
  WorkerOptions options = flags.options;
  auto signals = SignalWatcher::Create();  // before any thread
  if (!signals.ok()) return Report(signals.status(), kExitFailed);
  const absl::Status room = CheckThreadRoom(WorkerThreads(options.threads));
  if (!room.ok()) return Report(room, kExitFailed);
  const absl::StatusOr<OpenedFiles> files = OpenFiles(flags, options);
  if (!files.ok()) return Report(files.status(), StartExitCode(files.status()));
  LeaveRequest leave([](int code) { _exit(code); });
  options.leave = &leave;
  const std::unique_ptr<SignalWatcher> watcher = *std::move(signals);  // ends before what it calls
  watcher->Watch([&leave](int number) { leave.OnSignal(number); });
  const absl::Status ended = RunWorker(options);
  if (ended.ok() && leave.signal() != 0) return kExitSignal + leave.signal();
  return Report(WithAdvice(ended, flags.doors), WorkerExitCode(ended));
}

// Before any thread is started. What the environment says already stays, but for what would keep groups from forming.
void SetUpEnvironment() {
  // The members of a group are on one host: NCCL's own sockets, which ask nobody who they are, need no other network.
  setenv("NCCL_SOCKET_IFNAME", "lo", /*overwrite=*/0);
  // With it every group would have the same id, that of a group before it included.
  unsetenv("NCCL_COMM_ID");
  // Three streams, and those of NCCL: of fewer queues two share one, where work that waits stands before what it waits for.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);
}

}  // namespace

int WorkerMain(int argc, char** argv, WorkerHooks hooks) {
  HoldStandardStreams();
  SetUpMalloc();
  std::signal(SIGXFSZ, SIG_IGN);  // a log beyond the limit of files ends, and not the worker
  std::signal(SIGPIPE, SIG_IGN);  // nor does one that nobody reads any more
  SetUpEnvironment();
  LogGrpcErrors();
  CLI::App app(
      "Computes for an eps_server: pulls one layer at a time into a device, runs it, pushes its gradient.\n"
      "Everything else, model and data included, comes from the daemon.");
  app.get_formatter()->column_width(34);
  app.set_version_flag("--version", VersionText("gpu_worker"));
  Flags flags;
  flags.options.hooks = std::move(hooks);
  AddFlags(app, flags);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return EndOfParsing("gpu_worker", app, error);
  }
  if (absl::Status status = FinishOptions(flags); !status.ok()) return Report(status, kExitBadInput);
  if (absl::Status status = CheckOpenFiles(); !status.ok()) return Report(status, kExitFailed);
  absl::Status done = LimitVectors(flags.vectors);  // before anything computes
  if (done.ok() && !flags.probe && flags.measured_run.empty()) return Run(flags);
  // Beside the device's own: updates by all cores, and what is measured side by side.
  if (done.ok()) done = CheckThreadRoom(WorkerThreads(flags.options.threads) + UsableCores());
  if (done.ok() && !flags.probe) return Measure(flags);
  if (done.ok()) done = Probe(flags.options);
  if (done.ok() && !FlushOutput("gpu_worker")) return kExitFailed;
  return Report(done, WorkerExitCode(done));
}

}  // namespace eps::worker
