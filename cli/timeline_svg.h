#ifndef EPS_CLI_TIMELINE_SVG_H_
#define EPS_CLI_TIMELINE_SVG_H_

#include <string>
#include <vector>

#include "common/telemetry/trace_file.h"

namespace eps::cli {

// A picture of what tracks did between `begin` and `end`, in their seconds: a row for each track, a bar for each event,
// coloured by the first word of its name ("forward h.3": forward; "wait: pull" by both), whose whole name and length are
// shown where the mouse rests. Tracks without an event in that time are left out. Events within others are drawn over them.
std::string TimelineSvg(const std::string& title, const std::vector<TraceTrack>& tracks, double begin, double end);

}  // namespace eps::cli

#endif  // EPS_CLI_TIMELINE_SVG_H_
