#ifndef EPS_SERVER_REPORT_STEP_LINES_H_
#define EPS_SERVER_REPORT_STEP_LINES_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "eps_server/report/growing_file.h"

namespace eps::server {

// A file of lines of JSON, each with a "step". Keeps those of `path` up to the last one whose step is less than
// `first_step`, and removes what follows, also a line that a killed process wrote in half.
// Errors: the system's, naming the file · CheckReplaceable's
absl::StatusOr<std::unique_ptr<GrowingFile>> OpenStepLines(const std::string& path, int64_t first_step);

}  // namespace eps::server

#endif  // EPS_SERVER_REPORT_STEP_LINES_H_
