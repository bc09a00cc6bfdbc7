// eps_server: keeps a model in memory and trains it with the workers that attach; or serves a checkpoint.

#include <malloc.h>
#include <signal.h>
#include <sys/stat.h>

#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/byte_size.h"
#include "common/base/command_line.h"
#include "common/base/control_groups.h"
#include "common/base/exit_code.h"
#include "common/base/log.h"
#include "common/base/long_work.h"
#include "common/base/malloc_settings.h"
#include "common/base/program_output.h"
#include "common/base/signal_watcher.h"
#include "common/base/status_macros.h"
#include "common/base/thread.h"
#include "common/base/version.h"
#include "common/grpc/door_flags.h"
#include "common/grpc/grpc_log.h"
#include "common/grpc/thread_needs.h"
#include "common/spec/run_config.h"
#include "eps_server/bounded_end.h"
#include "eps_server/daemon.h"
#include "eps_server/interrupts.h"

namespace eps::server {
namespace {

// That a run which has failed has for what it leaves: freeing memory, and the writing of a checkpoint that is given up.
constexpr absl::Duration kEndTime = absl::Seconds(5);

// What was typed, before it is checked. Every flag and its default stands here and in AddFlags, nowhere else.
struct Flags {
  DaemonOptions options;
  std::vector<std::string> overrides;  // field.path=value
  int64_t steps = 0;
  std::string contribution_window;
  int64_t lease_millis = absl::ToInt64Milliseconds(DaemonOptions().lease);
  int64_t linger_seconds = absl::ToInt64Seconds(DaemonOptions().linger);
};

void AddFlags(CLI::App& app, Flags& flags) {
  DaemonOptions& options = flags.options;
  options.threads = UsableCores();
  auto* run = app.add_option("--run", options.run_file, "RunSpec to train (.textproto or .json)")->type_name("FILE");
  auto* serve = app.add_option("--serve", options.serve_folder,
                               "Checkpoint or Hugging Face folder to serve instead: text for `eps sample`; no training")
                    ->type_name("DIR");
  auto* evaluate =
      app.add_option(
             "--evaluate", options.evaluate_folder,
             "Checkpoint or Hugging Face folder to evaluate instead, by --set evaluation.path=FILE or as its run "
             "does; leaves evaluations.jsonl and summary.json, and ends (`eps evaluate`)")
          ->type_name("DIR");
  run->excludes(serve);
  evaluate->excludes(run)->excludes(serve);
  app.add_option(
         "--serve-context", options.serve_context,
         "Plans for texts of so many tokens, of which longer ones keep the last, where the model's positions are no "
         "parameters; default: all that it is made for")
      ->type_name("N")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30))
      ->needs(serve);
  app.add_option("--set", flags.overrides,
                 "Overrides a field of the RunSpec; may be given again. With --serve precision.wire and "
                 "precision.frozen alone")
      ->type_name("FIELD.PATH=VALUE")
      ->expected(1)
      ->take_all();
  app.add_option("--steps", flags.steps, "Overrides the RunSpec's steps")
      ->type_name("N")
      ->check(CLI::Range(int64_t{1}, int64_t{1000000000000}))
      ->needs(run);
  app.add_option("--most-steps", options.most_steps,
                 "Ends after so many of the run's steps; unlike --steps it leaves the schedule as it is")
      ->type_name("N")
      ->check(CLI::Range(int64_t{1}, int64_t{1000000000000}))
      ->needs(run);
  app.add_option("--digests", options.digest_file,
                 "Writes a line of JSON per step: its loss, and digests of every tensor's gradient and fp32 master, by "
                 "which runs are compared (eps verify); takes another pass over both")
      ->type_name("FILE")
      ->needs(run);
  app.add_flag("--tensorboard", options.tensorboard,
               "Leaves event files for TensorBoard in --out's tensorboard/, as the run goes on")
      ->needs(run);
  app.add_option(
         "--trace", options.trace_file,
         "Writes each step, each chunk's sum and update, and what held updates up, with their times (`eps trace` "
         "joins the files of several processes into one for Perfetto)")
      ->type_name("FILE")
      ->needs(run);
  app.add_option("--out", options.out,
                 "Folder for checkpoints, metrics.jsonl, summary.json, loss.svg and endpoints.json")
      ->type_name("DIR")
      ->required();
  app.add_flag("--resume", options.resume, "Goes on from the newest checkpoint in --out")->needs(run);
  app.add_option("--listen", options.listen,
                 "gRPC address; one that other machines reach needs doors; port 0: the system chooses")
      ->type_name("HOST:PORT")
      ->capture_default_str();
  AddServerDoorFlags(app, options.doors);
  app.add_option("--max-connections", options.max_connections,
                 "Most connections at once; default: 1024, or 8 for each expected worker if that is more")
      ->type_name("N")
      ->check(CLI::Range(1, 1000000));
  app.add_option(
         "--metrics-listen", options.metrics_listen,
         "HTTP address of the page that shows the run in a browser, and of /status.json, /metrics, /healthz, /readyz "
         "and /targets; port 0: the system chooses, OUT/endpoints.json says it")
      ->type_name("HOST:PORT")
      ->capture_default_str();
  app.add_flag("--metrics-any-address", options.metrics_any_address,
               "Allows a --metrics-listen that other machines reach; the page has neither TLS nor a password");
  app.add_option("--expect-workers", options.expected_workers, "The first step waits until so many are ready")
      ->type_name("N")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option(
         "--threads", options.threads,
         "Threads of the optimizer, and of loading weights; a quarter as many, 1 to 8, take each worker's gradients "
         "out of shared memory beside them; default: the cores that it may use")
      ->type_name("N")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--contribution-window", flags.contribution_window,
                 "Gradients in flight that are held at most, beside those that are read in workers' inboxes: bytes, or "
                 "with KiB, "
                 "MiB, GiB; training only; default: what the expected workers push of two layers, and 4 times the "
                 "largest blob in "
                 "fp32 at least")
      ->type_name("SIZE");
  app.add_option("--lease-millis", flags.lease_millis,
                 "A worker that is not heard of for so long is lost; training only: 30000 with --serve")
      ->type_name("MS")
      ->check(CLI::Range(int64_t{100}, int64_t{86400000}))
      ->capture_default_str();
  app.add_option(
         "--linger-seconds", flags.linger_seconds,
         "After the run has ended, well or not, the HTTP page stays for so long, and nothing else; a signal ends "
         "it at once")
      ->type_name("N")
      ->check(CLI::Range(int64_t{0}, int64_t{86400}))
      ->capture_default_str();
  app.footer(
      "SIGINT and SIGTERM let the step in progress finish and write its checkpoint; a second one ends at once. While "
      "the\n"
      "model is loaded the first one ends that, with nothing changed; so does SIGHUP.\n"
      "Exit codes: 0 done, 1 the run failed, 2 bad usage, config or input file, 3 does not fit, 75 a lost worker cost\n"
      "the step (precision.wire_versions: 1; --resume goes on), 130 or 143 ended by a signal after its checkpoint.");
}

// The rest of what is typed becomes options here. Errors: INVALID_ARGUMENT naming the flag
absl::Status FinishOptions(Flags& flags) {
  DaemonOptions& options = flags.options;
  if (options.run_file.empty() && options.evaluate_folder.empty() && options.serve_folder.empty()) {
    return absl::InvalidArgumentError("--run FILE (or --evaluate DIR, or --serve DIR) is required");
  }
  for (const std::string& text : flags.overrides) {
    EPS_ASSIGN_OR_RETURN(FieldOverride field, ParseFieldOverride(text));
    options.overrides.push_back(std::move(field));
  }
  if (flags.steps > 0) options.overrides.push_back({"steps", absl::StrCat(flags.steps)});
  if (!flags.contribution_window.empty()) {
    const auto bytes = ParseByteSize(flags.contribution_window);
    if (!bytes.ok())
      return absl::InvalidArgumentError(absl::StrCat("--contribution-window: ", bytes.status().message()));
    if (*bytes < 1) return absl::InvalidArgumentError("--contribution-window: must be at least 1 byte");
    options.window_bytes = *bytes;
  }
  options.lease = absl::Milliseconds(flags.lease_millis);
  options.linger = absl::Seconds(flags.linger_seconds);
  return absl::OkStatus();
}

int Fail(const absl::Status& status, int exit_code) {
  std::fprintf(stderr, "eps_server: %s\n", std::string(status.message()).c_str());
  return exit_code;
}

int RunDaemon(const DaemonOptions& options, std::unique_ptr<SignalWatcher> early_signals) {
  LongWork work;
  Interrupts interrupts(&work);
  std::optional<BoundedEnd> bounded_end;                                    // outlives the daemon
  const std::unique_ptr<SignalWatcher> signals = std::move(early_signals);  // ends before what it calls
  signals->Watch([&](int number) { interrupts.OnSignal(number); });
  auto daemon = Daemon::Create(options, work);
  // A signal may have come behind the last that could be given up.
  const bool is_unwanted = daemon.ok() && !(*daemon)->finished_before() && interrupts.first() != 0;
  if (absl::IsCancelled(daemon.status()) || is_unwanted) {
    return Fail(absl::CancelledError("ended by a signal before the run had begun; nothing was changed"),
                kExitSignal + interrupts.first());
  }
  if (!daemon.ok()) return Fail(daemon.status(), StartExitCode(daemon.status()));
  if ((*daemon)->finished_before()) {
    LogInfo("run_is_done", {{"out", options.out}});
    return kExitDone;
  }
  malloc_trim(0);  // what loading needed
  if (absl::Status status = (*daemon)->Start(); !status.ok()) return Fail(status, kExitFailed);
  interrupts.OnStarted(daemon->get());
  const absl::Status ended = (*daemon)->Wait();
  const int number = interrupts.OnRunOver();
  int exit_code = (*daemon)->stopped_early() && number != 0 ? kExitSignal + number : kExitDone;
  if (!ended.ok()) {
    exit_code = Fail(ended, RunExitCode(ended));
    bounded_end.emplace(exit_code, kEndTime);
    (*daemon)->KeepFailure();
  }
  // Who starts it again after a lost step is not kept waiting.
  if (options.linger > absl::ZeroDuration() && number == 0 && exit_code != kExitStepLost) {
    const std::unique_ptr<DaemonPage> page = (*daemon)->TakePage(ended);
    daemon->reset();  // its memory, its ports and the lock of its folder
    bounded_end.reset();
    LogInfo("page_lingers", {{"metrics", page->address()}, {"seconds", absl::ToDoubleSeconds(options.linger)}});
    interrupts.Linger(options.linger);
  }
  return exit_code;
}

int Main(int argc, char** argv) {
  HoldStandardStreams();
  SetUpMalloc();
  LogGrpcErrors();
  CLI::App app("Keeps a model in memory and trains it with the gpu_worker processes that attach.");
  app.get_formatter()->column_width(34);
  app.set_version_flag("--version", VersionText("eps_server"));
  Flags flags;
  AddFlags(app, flags);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return EndOfParsing("eps_server", app, error);
  }
  if (absl::Status status = FinishOptions(flags); !status.ok()) return Fail(status, kExitBadInput);
  umask(077);                // the model, its checkpoints and its figures are this user's alone
  signal(SIGPIPE, SIG_IGN);  // a peer that is gone is an error of its stream
  signal(SIGXFSZ, SIG_IGN);  // a file beyond the limit is an error of its write, as on a full disk
  const absl::Status room = CheckThreadRoom(DaemonThreads(flags.options.threads, flags.options.expected_workers));
  if (!room.ok()) return Fail(room, kExitFailed);
  auto signals = SignalWatcher::Create();
  if (!signals.ok()) return Fail(signals.status(), kExitFailed);
  return RunDaemon(flags.options, *std::move(signals));
}

}  // namespace
}  // namespace eps::server

int main(int argc, char** argv) { return eps::server::Main(argc, argv); }
