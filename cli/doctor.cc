// eps doctor: whether this machine can run, and what to do where it cannot or could do better.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/checkpoint_size.h"
#include "cli/command.h"
#include "cli/common_flags.h"
#include "cli/doctor/checks.h"
#include "cli/doctor/machine.h"
#include "cli/preflight.h"
#include "cli/whole_plan.h"
#include "common/base/byte_size.h"
#include "common/base/exit_code.h"
#include "common/base/flags.h"
#include "common/base/memory_room.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace eps::cli {
namespace {

struct DoctorFlags {
  RunFlags run;
  std::string out = "runs";  // where `eps train` puts runs that are given no --out
  WorkerFlags worker;
  int workers = 1;
  bool no_measuring = false;
  bool json = false;
};

void Append(std::vector<Finding>& findings, std::vector<Finding> more) {
  for (Finding& finding : more) findings.push_back(std::move(finding));
}

// A run that is wrong in itself is bad input and no finding.
absl::StatusOr<std::vector<Finding>> CheckRunOfFlags(const DoctorFlags& flags, const Machine& machine) {
  EPS_ASSIGN_OR_RETURN(RunConfig run, flags.run.Load());
  EPS_RETURN_IF_ERROR(CheckWorkers("--workers", flags.workers, run.batch));
  WorkerFlags worker = flags.worker;
  const bool given = worker.device_memory_bytes > 0;
  const int threads = worker.threads > 0 ? worker.threads : std::max(1, UsableCores(machine) / flags.workers);
  worker.SetDefaultMemory(FindMemoryRoom(machine), flags.workers);
  worker.SetDefaultProfile(threads);
  std::vector<Finding> findings;
  if (const absl::StatusOr<int64_t> samples = CountSamples(run); samples.ok()) {
    std::vector<std::string> paths;
    for (const DataSource& source : run.all_sources()) paths.push_back(source.data.path);
    const std::string files = absl::StrJoin(paths, ", ");
    findings.push_back(
        {Verdict::kOk, "run: data",
         *samples == 0 ? absl::StrCat(files, ", to be tokenized") : absl::StrCat(*samples, " samples in ", files), ""});
  } else {
    findings.push_back({Verdict::kProblem, "run: data", std::string(samples.status().message()),
                        "put it there, or change data.path, which is seen from the RunSpec's folder"});
  }
  WholePlanRequest request = {.run = std::move(run),
                              .device = worker.device,
                              .device_memory_bytes = worker.device_memory_bytes,
                              .host_memory_bytes = worker.host_memory_bytes,
                              .threads = threads,
                              .profile = worker.profile};
  absl::StatusOr<WholePlan> plan = MakeWholePlan(request);
  if (absl::IsResourceExhausted(plan.status())) {
    findings.push_back({Verdict::kProblem, "run: device", std::string(plan.status().message()),
                        given ? "a larger --device-memory, or a smaller batch.micro_batch"
                              : "fewer --workers, which share half of the free memory, --device-memory, or a smaller "
                                "batch.micro_batch"});
    if (given) return findings;
    request.device_memory_bytes = 0;
    plan = MakeWholePlan(request);  // what memory and disk would have to be
  }
  EPS_RETURN_IF_ERROR(plan.status());
  if (worker.device_memory_bytes == 0) {
    findings.push_back({Verdict::kNote, "run: device",
                        absl::StrCat("a GPU's memory is seen by its worker alone; this run wants at least ",
                                     FormatLeastByteSize(plan->smallest_cap_bytes)),
                        "give --device-memory, and it is looked at here"});
  }
  const int64_t keep = CheckpointsThatStay(plan->run);
  Append(findings, CheckRun(machine, flags.out,
                            {.daemon_bytes = plan->host.total_bytes(),
                             .worker_bytes = plan->worker_host_bytes(),
                             .workers = flags.workers,
                             .checkpoints_bytes = SizeOfCheckpoints(plan->model, plan->run).bytes_of(keep + 1),
                             .keep = keep,
                             .offload_path = plan->run.optimizer_offload.path,
                             .offload_bytes = plan->host.store.disk_bytes}));
  return findings;
}

void PrintForPeople(const std::vector<Finding>& findings, int problems) {
  for (const Finding& finding : findings) {
    std::printf("%-8s %-14s %s\n", std::string(VerdictName(finding.verdict)).c_str(), finding.check.c_str(),
                finding.found.c_str());
    if (!finding.mend.empty()) std::printf("%-8s %-14s -> %s\n", "", "", finding.mend.c_str());
  }
  if (problems == 0) {
    std::printf("nothing here would stop a run\n");
  } else {
    std::printf("%d of these would stop a run\n", problems);
  }
}

void PrintJson(const std::vector<Finding>& findings, int problems) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Finding& finding : findings) {
    list.push_back({{"verdict", std::string(VerdictName(finding.verdict))},
                    {"check", finding.check},
                    {"found", finding.found},
                    {"mend", finding.mend}});
  }
  const nlohmann::ordered_json json = {{"problems", problems}, {"findings", list}};
  std::printf("%s\n",
              json.dump(2, ' ', /*ensure_ascii=*/true, nlohmann::ordered_json::error_handler_t::replace).c_str());
}

// Returns how many findings would stop a run.
absl::StatusOr<int> RunDoctor(const DoctorFlags& flags) {
  const Machine& machine = ThisMachine();
  std::vector<Finding> findings = CheckProcessor(machine);
  Append(findings, CheckMemory(machine));
  Append(findings, CheckLimits(machine, flags.workers));
  Append(findings, CheckSpeed(machine, flags.out, !flags.no_measuring));
  Append(findings, CheckNvidia(machine, flags.worker.device));
  if (!flags.run.run.empty()) {
    EPS_ASSIGN_OR_RETURN(std::vector<Finding> of_run, CheckRunOfFlags(flags, machine));
    Append(findings, std::move(of_run));
  }
  int problems = 0;
  for (const Finding& finding : findings) problems += finding.verdict == Verdict::kProblem ? 1 : 0;
  if (flags.json) {
    PrintJson(findings, problems);
  } else {
    PrintForPeople(findings, problems);
  }
  return problems;
}

}  // namespace

void AddDoctor(CLI::App& app, int* exit_code) {
  CLI::App* command =
      app.add_subcommand("doctor", "Checks this machine and says what to do: processor, memory, limits, disk, NVIDIA");
  auto flags = std::make_shared<DoctorFlags>();
  CLI::Option* run = command->add_option("--run", flags->run.run, "Also: does this run (.textproto or .json) fit here?")
                         ->type_name("FILE");
  flags->run.AddSetTo(*command)->needs(run);
  command->add_option("--out", flags->out, "Where the run would write; its disk is looked at")
      ->type_name("DIR")
      ->capture_default_str();
  command->add_option("--workers", flags->workers, "How many there would be")
      ->type_name("N")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  flags->worker.AddTo(*command);
  for (const char* of_run : {"--device", "--device-memory", "--host-memory", "--threads", "--vectors", "--profile"}) {
    command->get_option(of_run)->needs(run);
  }
  command->add_flag("--no-measuring", flags->no_measuring, "Leaves out the speed of disk and memory (about 2 s)");
  command->add_flag("--json", flags->json, "As JSON");
  command->footer("Ends with 0, or with 1 when one of the findings would stop a run.");
  command->callback([flags, exit_code] {
    const absl::StatusOr<int> problems = RunDoctor(*flags);
    if (!problems.ok()) {
      PrintError(problems.status());
      *exit_code = StartExitCode(problems.status());
      return;
    }
    *exit_code = *problems == 0 ? kExitDone : kExitFailed;
  });
}

}  // namespace eps::cli
