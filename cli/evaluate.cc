// eps evaluate: loss, accuracy and rewards of a checkpoint's model, computed by a daemon and workers that make no step.

#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "cli/child_process.h"
#include "cli/command.h"
#include "cli/common_flags.h"
#include "cli/preflight.h"
#include "cli/progress.h"
#include "cli/runs_folder.h"
#include "cli/signal_queue.h"
#include "cli/sitting.h"
#include "common/base/control_groups.h"
#include "common/base/exit_code.h"
#include "common/base/file_util.h"
#include "common/base/flags.h"
#include "common/base/memory_room.h"
#include "common/base/status_macros.h"
#include "common/base/thread.h"
#include "common/checkpoint/evaluated_run.h"
#include "common/grpc/thread_needs.h"
#include "common/run_folder/run_folder.h"
#include "common/spec/run_config.h"
#include "nlohmann/json.hpp"
#include "proto/control.pb.h"

namespace eps::cli {
namespace {

struct EvaluateFlags {
  std::string checkpoint;
  RunFlags run;  // --set alone
  std::string data;
  int64_t samples = 0;  // 0: all, or as many as its run takes
  WorkerFlags worker;
  int workers = 1;
  std::string out;
  bool json = false;

  int ThreadsPerWorker() const { return worker.threads > 0 ? worker.threads : std::max(1, UsableCores() / workers); }
};

// "evaluating: 31%, 12.5 s"; before that what is waited for.
std::string EvaluatingLine(const proto::StatusReply& status) {
  if (status.has_evaluating()) {
    return absl::StrFormat("evaluating: %d%%, %s", static_cast<int>(100 * status.evaluating().share()),
                           FormatSeconds(status.evaluating().seconds()));
  }
  const std::string work = FormatStartWork(status), awaited = FormatAwaitedWorkers(status);
  return Printable(
      absl::StrCat(StateWords(status.state()), !work.empty() ? ": " : "", work, !awaited.empty() ? ": " : "", awaited));
}

// Errors: the system's · INTERNAL it has made none · INVALID_ARGUMENT nothing was counted, so that there is no loss
absl::StatusOr<nlohmann::ordered_json> ReadEvaluation(const std::string& out) {
  EPS_ASSIGN_OR_RETURN(const std::string line, ReadFile(RunFolder(out).evaluations()));
  nlohmann::ordered_json evaluation = nlohmann::ordered_json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!evaluation.is_object()) return absl::InternalError("the daemon was told to end before it had evaluated");
  if (evaluation.value("tokens", int64_t{0}) > 0) return evaluation;
  return absl::InvalidArgumentError("no token of the samples is counted, so that there is no loss");
}

// With `unit`, " nats a token", behind the number.
std::string NumberText(const nlohmann::ordered_json& evaluation, const char* key, const std::string& unit) {
  const auto found = evaluation.find(key);
  if (found == evaluation.end() || !found->is_number()) return "not finite";
  return absl::StrFormat("%.6g", found->get<double>()) + unit;
}

// What was evaluated on what.
struct Subject {
  std::string folder;
  std::vector<std::string> data;
  double held_out = 0;  // the share of `data` that it is; 0: all of it
  std::string unit;     // of what the loss is a mean of

  std::string DataText() const {
    const std::string all = absl::StrJoin(data, ", ");
    return held_out > 0 ? absl::StrFormat("the %g of %s that is held out", held_out, all) : all;
  }
};

void PrintText(const Subject& subject, const nlohmann::ordered_json& evaluation) {
  const auto tokens = evaluation.value("tokens", int64_t{0});
  std::printf("%s on %s:\n", subject.folder.c_str(), subject.DataText().c_str());
  std::printf("  loss        %s\n", NumberText(evaluation, "loss", absl::StrCat(" nats a ", subject.unit)).c_str());
  if (evaluation.contains("perplexity")) {
    std::printf("  perplexity  %s\n", NumberText(evaluation, "perplexity", "").c_str());
  }
  std::printf("  accuracy    %.2f%% of %lld %ss\n", 100 * evaluation.value("accuracy", std::nan("")),
              static_cast<long long>(tokens), subject.unit.c_str());
  if (evaluation.contains("chosen_reward")) {
    const auto number = [&](const char* key) {  // null: not finite
      return evaluation[key].is_number() ? evaluation[key].get<double>() : std::nan("");
    };
    std::printf("  rewards     %s\n", FormatRewards(number("chosen_reward"), number("rejected_reward")).c_str());
  }
  std::printf("  took        %s\n", FormatSeconds(evaluation.value("seconds", 0.0)).c_str());
}

void PrintJson(const Subject& subject, const nlohmann::ordered_json& evaluation) {
  nlohmann::ordered_json result;
  result["checkpoint"] = subject.folder;
  result["data"] = subject.data;
  if (subject.held_out > 0) result["held_out"] = subject.held_out;
  result.update(evaluation);
  std::printf("%s\n",
              result.dump(2, ' ', /*ensure_ascii=*/false, nlohmann::ordered_json::error_handler_t::replace).c_str());
}

const char* UnitOf(Objective objective) {
  return objective == Objective::kClasses ? "sample" : objective == Objective::kPreferences ? "pair" : "token";
}

Subject SubjectOf(const EvaluatedRun& run) {
  const EvaluationConfig& evaluation = run.config.evaluation;
  Subject subject = {.folder = run.folder, .held_out = evaluation.held_out, .unit = UnitOf(run.config.objective())};
  if (evaluation.path.empty()) {
    for (const DataSource& source : run.config.all_sources()) subject.data.push_back(source.data.path);
  } else {
    subject.data.push_back(evaluation.path);
  }
  return subject;
}

// Of a sitting that did not end well; its exit code.
int SayWhy(const SittingEnd& end, const SignalQueue& signals) {
  if (signals.last() != 0) {
    std::fprintf(stderr, "eps: ended by a signal\n");
    return kExitSignal + signals.last();
  }
  for (const std::string& error : end.errors) std::fprintf(stderr, "eps: %s\n", error.c_str());
  return end.exit_code;
}

// In `folder`, which is kept where it fails, as its logs say more; the exit code.
absl::StatusOr<int> EvaluateIn(const EvaluateFlags& flags, const EvaluatedRun& run, SignalQueue& signals,
                               RunsFolder& folder) {
  EPS_ASSIGN_OR_RETURN(const std::string programs, ProgramFolder());
  EPS_RETURN_IF_ERROR(MakeDirs(RunFolder(folder.path()).logs()));
  std::vector<std::string> run_arguments = {"--evaluate", run.folder};
  for (const std::string& field : flags.run.set) run_arguments.insert(run_arguments.end(), {"--set", field});
  ProgressPrinter progress(/*quiet=*/false, stderr);
  const SittingEnd end =
      Sitting({.run_arguments = std::move(run_arguments),
               .worker = flags.worker,
               .workers = flags.workers,
               .threads = flags.ThreadsPerWorker(),
               .programs = programs,
               .out = folder.path(),
               .end_at_once = true,
               .show =
                   [&](const proto::StatusReply& status) {
                     progress.ShowLine([&](int width) { return EvaluatingLine(status).substr(0, width); });
                   },
               .note = [&](const std::string& text) { progress.Note(text); }},
              &signals)
          .Run();
  progress.Finish();
  const absl::StatusOr<nlohmann::ordered_json> evaluation = ReadEvaluation(folder.path());
  std::error_code ignored;
  const bool has_log = std::filesystem::exists(RunFolder(folder.path()).logs() + "/eps_server.log", ignored);
  const bool is_refused = end.exit_code == kExitBadInput || end.exit_code == kExitDoesNotFit;
  const bool has_failed = end.exit_code == kExitDone ? !evaluation.ok() : !is_refused;
  if (has_failed && has_log && signals.last() == 0) {
    folder.Keep();
    std::fprintf(stderr, "eps: what its programs said is in %s\n", RunFolder(folder.path()).logs().c_str());
  }
  if (end.exit_code != kExitDone) return SayWhy(end, signals);
  EPS_RETURN_IF_ERROR(evaluation.status());
  (flags.json ? PrintJson : PrintText)(SubjectOf(run), *evaluation);
  return kExitDone;
}

// What `flag` sets, --set must not. Errors: INVALID_ARGUMENT it does
absl::Status SetOnce(absl::string_view flag, absl::string_view field, absl::string_view value,
                     std::vector<std::string>& set) {
  const std::string prefix = absl::StrCat(field, "=");
  if (std::any_of(set.begin(), set.end(), [&](const std::string& text) { return absl::StartsWith(text, prefix); })) {
    return absl::InvalidArgumentError(absl::StrCat(flag, ": given beside --set ", field, "; leave one of them out"));
  }
  set.push_back(absl::StrCat(prefix, value));
  return absl::OkStatus();
}

absl::StatusOr<int> Evaluate(EvaluateFlags flags) {
  flags.worker.SetDefaultMemory(FindMemoryRoom(), flags.workers);
  flags.worker.SetDefaultProfile(flags.ThreadsPerWorker());
  if (!flags.data.empty()) EPS_RETURN_IF_ERROR(SetOnce("--data", "evaluation.path", flags.data, flags.run.set));
  if (flags.samples > 0) {
    EPS_RETURN_IF_ERROR(SetOnce("--samples", "evaluation.samples", absl::StrCat(flags.samples), flags.run.set));
  }
  EPS_RETURN_IF_ERROR(CheckThreadRoom(RunThreads(flags.workers, flags.ThreadsPerWorker())));
  EPS_ASSIGN_OR_RETURN(const std::vector<FieldOverride> overrides, flags.run.Overrides());
  // From here on that very folder: a run that goes on makes newer ones.
  EPS_ASSIGN_OR_RETURN(const EvaluatedRun run, FindEvaluatedRun(flags.checkpoint, overrides));
  EPS_RETURN_IF_ERROR(CheckBeforeEvaluating(run, flags.worker));
  EPS_ASSIGN_OR_RETURN(SignalQueue signals, SignalQueue::Create({SIGINT, SIGTERM, SIGHUP}));
  umask(077);
  EPS_ASSIGN_OR_RETURN(const std::unique_ptr<RunsFolder> folder, RunsFolder::Make(flags.out, "eps-evaluate"));
  return EvaluateIn(flags, run, signals, *folder);
}

}  // namespace

void AddEvaluate(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand(
      "evaluate",
      "Says how a checkpoint's model does on a file: loss, perplexity and accuracy, of preferences rewards, by relay, "
      "with no more of the model in memory than its weights");
  auto flags = std::make_shared<EvaluateFlags>();
  command
      ->add_option("--checkpoint", flags->checkpoint,
                   "A step-NNNNNNNN folder, checkpoints/latest, a run's folder, or a Hugging Face folder")
      ->type_name("PATH")
      ->required();
  command
      ->add_option("--data", flags->data,
                   "What to evaluate on, read as the run's data are; of a Hugging Face folder as a new run's would be. "
                   "Default: what the run itself evaluates")
      ->type_name("FILE")
      ->check(NotEmpty());
  command
      ->add_option("--samples", flags->samples, "At most so many samples, the first ones. Default: all, or the run's")
      ->type_name("N")
      ->check(CLI::Range(int64_t{1}, int64_t{1'000'000'000'000}));
  flags->run.AddSetTo(*command);
  command->add_option("--workers", flags->workers, "Worker processes; those beyond batch.virtual_nodes stand by")
      ->type_name("N")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  flags->worker.AddTo(*command);
  command
      ->add_option("--out", flags->out,
                   "Keeps the daemon's folder there, with evaluations.jsonl and logs/. Default: a temporary one, which "
                   "is kept after a failure")
      ->type_name("DIR")
      ->check(NotEmpty());
  command->add_flag("--json", flags->json, "As JSON");
  command->footer(
      "On a cpu it is the value that the run itself has found, or would, bit for bit on one device model. A Hugging\n"
      "Face folder is computed in bf16, one sequence at a time: --set precision.wire=FP32, --set batch.micro_batch=8.\n"
      "--set precision.frozen=MXINT8 rounds the blocks' matrices to 8 bits before, NF4 to 4.");
  command->callback([flags, exit_code] {
    const absl::StatusOr<int> code = Evaluate(*flags);
    if (!code.ok()) PrintError(code.status());
    *exit_code = code.ok() ? *code : StartExitCode(code.status());
  });
}

}  // namespace eps::cli
