#ifndef EPS_CLI_PLAN_TRACE_H_
#define EPS_CLI_PLAN_TRACE_H_

#include <vector>

#include "cli/whole_plan.h"
#include "common/telemetry/trace_file.h"

namespace eps::cli {

// The predicted step as lines of a picture: the worker's streams, and the daemon's updates. Time 0 is the step's start.
std::vector<TraceTrack> TracksOf(const WholePlan& plan);

}  // namespace eps::cli

#endif  // EPS_CLI_PLAN_TRACE_H_
