#ifndef EPS_SERVER_REPORT_FAILURE_H_
#define EPS_SERVER_REPORT_FAILURE_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace eps::server {

// failure.json of a run that has failed, for `why`, with `steps` committed; diverged: HasDiverged.
std::string FailureJson(int64_t steps, absl::string_view why, bool diverged);

}  // namespace eps::server

#endif  // EPS_SERVER_REPORT_FAILURE_H_
