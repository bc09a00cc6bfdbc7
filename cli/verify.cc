// eps verify: the same steps of a run, carried out in different ways, compared bit for bit and tensor by tensor.

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/child_process.h"
#include "cli/command.h"
#include "cli/common_flags.h"
#include "cli/preflight.h"
#include "cli/progress.h"
#include "cli/runs_folder.h"
#include "cli/signal_queue.h"
#include "cli/sitting.h"
#include "cli/verify/comparison.h"
#include "cli/verify/digest_file.h"
#include "cli/verify/report.h"
#include "cli/verify/variants.h"
#include "common/base/control_groups.h"
#include "common/base/exit_code.h"
#include "common/base/file_util.h"
#include "common/base/flags.h"
#include "common/base/memory_room.h"
#include "common/base/status_macros.h"
#include "common/base/thread.h"
#include "common/grpc/thread_needs.h"
#include "common/model/model_spec.h"
#include "common/run_folder/run_folder.h"

namespace eps::cli {
namespace {

const std::map<std::string, VerifyTopic> kTopics = {{"relay", VerifyTopic::kRelay},
                                                    {"recompute", VerifyTopic::kRecompute},
                                                    {"swap", VerifyTopic::kSwap},
                                                    {"workers", VerifyTopic::kWorkers},
                                                    {"transport", VerifyTopic::kTransport}};

// Over the RunSpec's in every variant: nobody reads its checkpoints.
const std::vector<std::string> kNoCheckpoints = {"checkpoint.every_steps=0", "checkpoint.last=false"};

struct VerifyFlags {
  RunFlags run;
  WorkerFlags worker;
  int64_t steps = 2;
  int workers = 2;
  std::vector<std::string> only;
  std::string out;
  bool json = false;

  std::set<VerifyTopic> Topics() const {
    std::set<VerifyTopic> topics;
    for (const std::string& name : only) topics.insert(kTopics.at(name));
    return topics;
  }
};

class Verification {
 public:
  Verification(const VerifyFlags& flags, ModelSpec model, std::vector<Variant> variants, std::string programs,
               SignalQueue* signals, RunsFolder* folder)
      : flags_(flags),
        model_(std::move(model)),
        variants_(std::move(variants)),
        programs_(std::move(programs)),
        signals_(*signals),
        folder_(*folder),
        printer_(variants_, flags.json) {}

  // The program's exit code.
  int Run() {
    bool all_same = true;
    for (size_t i = 0; i < variants_.size(); ++i) {
      const VariantResult result = Try(i);
      if (signals_.last() != 0) {
        printer_.Interrupted();
        std::fprintf(stderr, "eps: ended by a signal\n");
        return kExitSignal + signals_.last();
      }
      if (refused_ != kExitDone) {
        printer_.Interrupted();
        PrintError(absl::InternalError(result.why));
        return refused_;
      }
      printer_.Add(result);
      all_same = all_same && (result.outcome == VariantResult::Outcome::kSame ||
                              result.outcome == VariantResult::Outcome::kSkipped);
      if (i == 0 && !all_same) break;  // nothing to compare with
    }
    if (!all_same) folder_.Keep();
    printer_.End(all_same, folder_.kept() ? folder_.path() : "");
    return all_same ? kExitDone : kExitFailed;
  }

 private:
  VariantResult Try(size_t index) {
    const Variant& variant = variants_[index];
    VariantResult result = {.name = variant.name, .is_baseline = index == 0};
    if (!variant.skipped.empty()) {
      result.outcome = VariantResult::Outcome::kSkipped;
      result.why = variant.skipped;
      return result;
    }
    const absl::Status status = RunAndCompare(index, result);
    if (status.ok()) return result;
    // What only the device itself knows: it is the arithmetic's skip, a little later.
    const bool too_small = index > 0 && absl::IsResourceExhausted(status);
    result.outcome = too_small ? VariantResult::Outcome::kSkipped : VariantResult::Outcome::kFailed;
    result.why = std::string(status.message());
    return result;
  }

  absl::Status RunAndCompare(size_t index, VariantResult& result) {
    const Variant& variant = variants_[index];
    const std::string out = absl::StrCat(folder_.path(), "/", index, "-", FolderName(variant.name));
    EPS_RETURN_IF_ERROR(MakeDirs(RunFolder(out).logs()));
    EPS_ASSIGN_OR_RETURN(const SittingEnd end, Carry(index, out));
    EPS_ASSIGN_OR_RETURN(std::vector<StepDigests> digests, ReadDigestFile(DigestFile(out)));
    EPS_ASSIGN_OR_RETURN(ForwardDigests forward, ReadForward(variant, out, end));
    if (digests.empty()) return absl::InternalError("it has committed no step");
    result.steps = static_cast<int64_t>(digests.size());
    result.tensors = digests.front().tensors.size();
    for (const StepDigests& step : digests) {
      result.seconds += step.seconds;
      result.tokens += step.tokens;
    }
    if (index > 0) {
      EPS_RETURN_IF_ERROR(CompareWithBaseline(digests, forward, result));
      return CheckProof(variant, out, result);
    }
    baseline_ = std::move(digests);
    baseline_forward_ = std::move(forward);
    return absl::OkStatus();
  }

  // Of all workers, each of which has computed something: without one of them the others make the step, and its bits
  // are another variant's. Errors: RESOURCE_EXHAUSTED its device was too small · INTERNAL it computed nothing
  static absl::StatusOr<ForwardDigests> ReadForward(const Variant& variant, const std::string& out,
                                                    const SittingEnd& end) {
    ForwardDigests forward;
    for (int worker = 1; worker <= variant.workers; ++worker) {
      const size_t before = forward.size();
      EPS_RETURN_IF_ERROR(ReadForwardFile(ForwardDigestFile(out, worker), forward));
      if (forward.size() > before) continue;
      const std::string why = absl::StrCat("worker ", worker, " computed nothing: ",
                                           LastWords({.name = "gpu_worker", .log_path = WorkerLogFile(out, worker)}));
      const bool is_too_small = std::count(end.too_small.begin(), end.too_small.end(), worker) > 0;
      return is_too_small ? absl::ResourceExhaustedError(why) : absl::InternalError(why);
    }
    return forward;
  }

  // Of a variant with the baseline's bits: skips it where it was the baseline by another name.
  static absl::Status CheckProof(const Variant& variant, const std::string& out, VariantResult& result) {
    if (variant.proof.empty() || result.outcome != VariantResult::Outcome::kSame) return absl::OkStatus();
    EPS_ASSIGN_OR_RETURN(const std::string log, ReadFile(WorkerLogFile(out, 1)));
    if (absl::StrContains(log, absl::StrCat(" ", variant.proof, " "))) return absl::OkStatus();
    result.outcome = VariantResult::Outcome::kSkipped;
    result.why = variant.why_without_proof;
    return absl::OkStatus();
  }

  // Errors: RESOURCE_EXHAUSTED a worker says that its device is too small · why it failed otherwise
  absl::StatusOr<SittingEnd> Carry(size_t index, const std::string& out) {
    const Variant& variant = variants_[index];
    const int cores = UsableCores();
    SittingOptions options = {
        .worker = flags_.worker,
        .workers = variant.workers,
        .threads = std::max(1, cores / variant.workers),
        .programs = programs_,
        .out = out,
        .daemon_arguments = {"--digests", DigestFile(out), "--most-steps", absl::StrCat(flags_.steps)},
        .forward_digests = true,
        .end_at_once = true,
        .show = [&](const proto::StatusReply& status) { printer_.Progress(index, status.step(), flags_.steps); }};
    options.worker.device_memory_bytes = variant.device_memory_bytes;
    RunFlags run = flags_.run;
    run.set.insert(run.set.end(), kNoCheckpoints.begin(), kNoCheckpoints.end());
    run.set.insert(run.set.end(), variant.set.begin(), variant.set.end());
    options.run_arguments = run.ToArguments();
    printer_.Progress(index, 0, flags_.steps);
    const SittingEnd end = Sitting(std::move(options), &signals_).Run();
    if (end.exit_code == kExitDone) return end;
    const std::string why = end.errors.empty() ? absl::StrCat("exit code ", end.exit_code) : end.errors.front();
    // Of the run as it is given: it is refused before anything is compared.
    const bool is_refused = end.exit_code == kExitBadInput || end.exit_code == kExitDoesNotFit;
    if (index == 0 && is_refused) refused_ = end.exit_code;
    return end.too_small.empty() ? absl::InternalError(why) : absl::ResourceExhaustedError(why);
  }

  absl::Status CompareWithBaseline(const std::vector<StepDigests>& digests, const ForwardDigests& forward,
                                   VariantResult& result) const {
    EPS_ASSIGN_OR_RETURN(const std::optional<Difference> difference, Compare(model_, baseline_, digests));
    if (!difference.has_value()) return absl::OkStatus();
    result.outcome = VariantResult::Outcome::kDifferent;
    result.difference = *difference;
    result.first = Explain(model_, *difference, baseline_forward_, forward);
    return absl::OkStatus();
  }

  static std::string DigestFile(const std::string& out) { return out + "/digests.jsonl"; }
  static std::string FolderName(const std::string& name) {
    std::string folder;
    for (const char c : name.substr(0, name.find(" (")))
      folder += std::isalnum(static_cast<unsigned char>(c)) ? c : '-';
    return folder;
  }

  const VerifyFlags& flags_;
  const ModelSpec model_;
  const std::vector<Variant> variants_;
  const std::string programs_;
  SignalQueue& signals_;
  RunsFolder& folder_;
  VerifyPrinter printer_;
  int refused_ = kExitDone;  // the exit code of a baseline that was
  std::vector<StepDigests> baseline_;
  ForwardDigests baseline_forward_;
};

absl::StatusOr<int> Verify(VerifyFlags flags) {
  const int most_threads = std::max(flags.worker.threads, UsableCores());
  // The same cap and profile for all, whatever their number.
  flags.worker.SetDefaultMemory(FindMemoryRoom(), flags.workers);
  flags.worker.SetDefaultProfile(flags.worker.threads > 0 ? flags.worker.threads : most_threads);
  EPS_RETURN_IF_ERROR(CheckThreadRoom(RunThreads(flags.workers, most_threads)));
  EPS_RETURN_IF_ERROR(CheckBeforeTraining({.run = flags.run, .worker = flags.worker}).status());
  EPS_ASSIGN_OR_RETURN(RunConfig run, flags.run.Load());
  flags.steps = std::min(flags.steps, run.steps);
  EPS_ASSIGN_OR_RETURN(ModelSpec model, BuildModel(run.model));
  EPS_ASSIGN_OR_RETURN(std::vector<Variant> variants,
                       PlanVariants({.run = std::move(run),
                                     .device = flags.worker.device,
                                     .device_memory_bytes = flags.worker.device_memory_bytes,
                                     .host_memory_bytes = flags.worker.host_memory_bytes,
                                     .profile = flags.worker.profile,
                                     .workers = flags.workers,
                                     .topics = flags.Topics()}));
  EPS_ASSIGN_OR_RETURN(std::string programs, ProgramFolder());
  EPS_ASSIGN_OR_RETURN(SignalQueue signals, SignalQueue::Create({SIGINT, SIGTERM, SIGHUP}));
  umask(077);
  EPS_ASSIGN_OR_RETURN(const std::unique_ptr<RunsFolder> folder, RunsFolder::Make(flags.out, "eps-verify"));
  return Verification(flags, std::move(model), std::move(variants), std::move(programs), &signals, folder.get()).Run();
}

}  // namespace

void AddVerify(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand("verify",
                                         "Carries out some steps of a run in different ways, relayed and resident, "
                                         "recomputed, swapped and kept, by one worker and "
                                         "several, and compares every tensor bit for bit");
  auto flags = std::make_shared<VerifyFlags>();
  flags->run.AddTo(*command);
  command->remove_option(command->get_option("--steps"));  // ours leaves the schedule as it is
  command
      ->add_option("--steps", flags->steps, "How many of the run's steps, from the first; its schedule stays as it is")
      ->type_name("N")
      ->check(CLI::Range(int64_t{1}, int64_t{1'000'000'000'000}))
      ->capture_default_str();
  command->add_option("--workers", flags->workers, "Of the variant with several workers; all others have one")
      ->type_name("N")
      ->check(CLI::Range(2, 4096))
      ->capture_default_str();
  flags->worker.AddTo(*command);
  command->add_option("--only", flags->only, "Some variants only: relay, recompute, swap, workers, transport")
      ->type_name("WHAT,...")
      ->delimiter(',')
      ->check(CLI::IsMember({"relay", "recompute", "swap", "workers", "transport"}));
  command
      ->add_option("--out", flags->out,
                   "Keeps the runs' folders there. Default: a temporary folder, which is kept after a difference")
      ->type_name("DIR")
      ->check(NotEmpty());
  command->add_flag("--json", flags->json, "As JSON");
  command->footer(
      "Exit codes: 0 the same bits, 1 a difference (or a variant failed), 2 bad input, 3 the run does not fit the "
      "device\n"
      "memory, 130 or 143 ended by a signal. docs/verify.md says how a difference is read.");
  command->callback([flags, exit_code] {
    const absl::StatusOr<int> code = Verify(*flags);
    *exit_code = code.ok() ? *code : ReportStart(code.status());
  });
}

}  // namespace eps::cli
