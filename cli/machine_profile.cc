#include "cli/machine_profile.h"

#include <functional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "cli/child_process.h"
#include "common/base/exit_code.h"
#include "common/base/status_macros.h"
#include "gpu_worker/profile/kept_profile.h"
#include "gpu_worker/profile/profile_file.h"

namespace eps::cli {

absl::StatusOr<worker::Profile> MeasureMachine(const MachineToMeasure& machine, const std::string& out,
                                               SignalQueue* signals) {
  EPS_ASSIGN_OR_RETURN(const std::string programs, ProgramFolder());
  const absl::StatusOr<worker::Profile> before = worker::ReadProfile(out);
  std::vector<std::string> arguments = {"--measure", machine.run.run, "--profile", out,
                                        "--device",  machine.device,  "--threads", absl::StrCat(machine.threads),
                                        "--vectors", machine.vectors};
  for (const std::string& field : machine.run.set) arguments.insert(arguments.end(), {"--set", field});
  std::function<bool()> is_cancelled;
  if (signals != nullptr) is_cancelled = [signals] { return signals->Wait(absl::Milliseconds(50)).has_value(); };
  EPS_ASSIGN_OR_RETURN(const ProgramEnd end, RunProgram(programs + "/gpu_worker", std::move(arguments), is_cancelled));
  if (end.exit_code == kExitBadInput) return absl::InvalidArgumentError(end.last_words);
  if (end.exit_code != kExitDone) return absl::InternalError(end.last_words);
  EPS_ASSIGN_OR_RETURN(worker::Profile profile, worker::ReadProfile(out));
  if (before.ok() && worker::AddLayersOf(*before, profile)) EPS_RETURN_IF_ERROR(worker::WriteProfile(out, profile));
  return profile;
}

}  // namespace eps::cli
