#include "cli/machine_profile.h"

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "cli/child_process.h"
#include "common/base/exit_code.h"
#include "common/base/status_macros.h"
#include "common/model/model_spec.h"
#include "common/spec/run_config.h"
#include "eps_server/memory/daemon_memory.h"
#include "eps_server/memory/offload_speed.h"
#include "gpu_worker/profile/kept_profile.h"
#include "gpu_worker/profile/profile_file.h"

namespace eps::cli {
namespace {

// Of a line in which `gpu_worker --measure` says how far it is: `... measuring what="backward h.0" percent=35`.
void ShowMeasuring(const std::string& line, ProgressPrinter& progress) {
  constexpr char kWhat[] = " measuring what=\"", kPercent[] = "\" percent=";
  const size_t what = line.find(kWhat), percent = line.rfind(kPercent);
  int share = 0;
  if (what == std::string::npos || percent == std::string::npos) return;
  if (!absl::SimpleAtoi(line.substr(percent + sizeof(kPercent) - 1), &share)) return;
  const size_t begin = what + sizeof(kWhat) - 1;
  progress.ShowLine([&](int width) {
    const std::string text = absl::StrCat(ProgressBar(share, 100), absl::Dec(share, absl::kSpacePad4), "% measuring ",
                                          Printable(line.substr(begin, percent - begin)));
    return text.substr(0, static_cast<size_t>(width));
  });
}

// Where the run puts some of its state on a disk: that disk's speed. One that cannot be measured, as the daemon's own on a
// worker's machine, leaves what was known.
void MeasureDisk(const MachineToMeasure& machine, worker::Profile& profile) {
  const absl::StatusOr<RunConfig> run = machine.run.Load();
  if (!run.ok() || !run->optimizer_offload.is_on()) return;
  const absl::StatusOr<ModelSpec> model = BuildModel(run->model);
  if (!model.ok()) return;
  const int64_t disk_bytes = server::ComputeDaemonMemory(*model, *run).store.disk_bytes;
  if (disk_bytes == 0) return;
  const absl::StatusOr<double> speed = server::MeasureOffloadBytesPerSecond(run->optimizer_offload.path, disk_bytes);
  if (speed.ok()) {
    profile.disk_bytes_per_second = *speed;
  } else {
    std::fprintf(stderr, "eps: optimizer_offload.path is not measured: %s\n",
                 Printable(std::string(speed.status().message())).c_str());
  }
}

}  // namespace

absl::StatusOr<worker::Profile> MeasureMachine(const MachineToMeasure& machine, const std::string& out,
                                               SignalQueue& signals, ProgressPrinter& progress) {
  EPS_ASSIGN_OR_RETURN(const std::string programs, ProgramFolder());
  const std::string fresh = absl::StrCat(out, ".measured-", getpid());
  std::vector<std::string> arguments = {"--measure", machine.run.run, "--profile", fresh,
                                        "--device",  machine.device,  "--threads", absl::StrCat(machine.threads),
                                        "--vectors", machine.vectors};
  std::vector<std::string> fields = machine.run.set;
  if (machine.run.steps > 0) fields.push_back(absl::StrCat("steps=", machine.run.steps));
  for (const std::string& field : fields) arguments.insert(arguments.end(), {"--set", field});
  const ProgramWatch watch = {
      .cancelled_within = [&signals](absl::Duration time) { return signals.Wait(time).has_value(); },
      .on_line = [&progress](const std::string& line) { ShowMeasuring(line, progress); }};
  const absl::StatusOr<ProgramEnd> end = RunProgram(programs + "/gpu_worker", std::move(arguments), watch);
  progress.Finish();
  const absl::StatusOr<worker::Profile> measured = worker::ReadProfile(fresh);
  unlink(fresh.c_str());  // whatever became of it
  EPS_RETURN_IF_ERROR(end.status());
  if (end->exit_code == kExitBadInput) return absl::InvalidArgumentError(end->last_words);
  if (end->exit_code != kExitDone) return absl::InternalError(end->last_words);
  EPS_RETURN_IF_ERROR(measured.status());
  worker::Profile kept = *measured;
  if (const absl::StatusOr<worker::Profile> before = worker::ReadProfile(out); before.ok()) {
    worker::AddLayersOf(*before, kept);
    kept.disk_bytes_per_second = before->disk_bytes_per_second;
  }
  MeasureDisk(machine, kept);
  EPS_RETURN_IF_ERROR(worker::WriteProfile(out, kept));
  worker::Profile shown = *measured;
  shown.disk_bytes_per_second = kept.disk_bytes_per_second;
  return shown;
}

}  // namespace eps::cli
