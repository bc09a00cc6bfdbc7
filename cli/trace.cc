// eps trace: what several processes have traced, as one file.

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/command.h"
#include "cli/common_flags.h"
#include "cli/timeline_svg.h"
#include "cli/trace_files.h"
#include "common/base/file_util.h"
#include "common/base/status_macros.h"
#include "common/telemetry/trace_file.h"

namespace eps::cli {
namespace {

struct TraceFlags {
  std::vector<std::string> files;
  std::string out;
};

absl::Status RunTrace(const TraceFlags& flags) {
  EPS_ASSIGN_OR_RETURN(const std::vector<TraceTrack> tracks, JoinTraceLogs(flags.files));
  if (!absl::EndsWith(flags.out, ".svg")) return WriteFileAtomically(flags.out, ToChromeTrace(tracks));
  const std::optional<TracedStep> step = MedianStep(tracks);
  if (!step.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--out ", flags.out, ": the first worker in these files has ended no step that could be drawn"));
  }
  const std::string title = absl::StrFormat("%s, which took the median time: %.4g s", step->name, step->seconds());
  return WriteFileAtomically(flags.out, TimelineSvg(title, tracks, step->begin, step->end));
}

}  // namespace

void AddTrace(CLI::App& app, int* exit_code) {
  CLI::App* command =
      app.add_subcommand("trace", "Joins what a daemon and its workers wrote with --trace into one file, on one clock");
  auto flags = std::make_shared<TraceFlags>();
  command
      ->add_option("FILES", flags->files,
                   "Of gpu_worker --trace and eps_server --trace; or one that was joined, as eps train's trace.json")
      ->required();
  command
      ->add_option("--out", flags->out,
                   "A trace that Perfetto and chrome://tracing show; FILE.svg: a picture of the step that took the "
                   "median time")
      ->type_name("FILE")
      ->required();
  command->footer("`eps train --trace` does this by itself.");
  command->callback([flags, exit_code] { *exit_code = ReportStart(RunTrace(*flags)); });
}

}  // namespace eps::cli
