#include "cli/device_probe.h"

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/child_process.h"
#include "common/base/exit_code.h"
#include "common/base/status_macros.h"
#include "common/spec/vector_width.h"

namespace eps::cli {

absl::Status ProbeDevice(const std::string& device, const std::string& vectors) {
  if (device == "cpu" && vectors == kWidestVectors) return absl::OkStatus();  // always there
  EPS_ASSIGN_OR_RETURN(const std::string programs, ProgramFolder());
  EPS_ASSIGN_OR_RETURN(const ProgramEnd end,
                       RunProgram(programs + "/gpu_worker", {"--device", device, "--vectors", vectors, "--probe"}));
  if (end.exit_code == kExitDone) return absl::OkStatus();
  return absl::InvalidArgumentError(end.last_words);
}

}  // namespace eps::cli
