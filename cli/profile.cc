// eps profile: measures this machine, as plans need it.

#include <csignal>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cli/command.h"
#include "cli/common_flags.h"
#include "cli/device_probe.h"
#include "cli/machine_profile.h"
#include "cli/progress.h"
#include "cli/signal_queue.h"
#include "common/base/control_groups.h"
#include "common/base/exit_code.h"
#include "common/base/file_util.h"
#include "common/base/flags.h"
#include "common/base/status_macros.h"
#include "common/spec/vector_width.h"
#include "gpu_worker/profile/kept_profile.h"
#include "gpu_worker/profile/profile_file.h"

namespace eps::cli {
namespace {

struct ProfileFlags {
  RunFlags run;
  std::string device = "cpu";
  int threads = 0;  // 0: not given
  std::string vectors = kWidestVectors;
  std::string out;  // "": kept where plans find it
};

std::string Name(size_t activity) { return std::string(worker::ActivityName(static_cast<worker::Activity>(activity))); }

void Print(const worker::Profile& profile, bool has_disk) {
  std::printf("%s, %d threads\n\n", Printable(profile.hardware).c_str(), profile.threads);
  std::printf("%-14s %12s %12s %12s\n", "a micro-batch", "forward", "recompute", "backward");
  for (const worker::LayerTimes& times : profile.layers) {
    std::printf("%-14s %9.3f ms %9.3f ms %9.3f ms\n", std::string(worker::LayerKindName(times.kind)).c_str(),
                1e3 * times.forward_seconds, 1e3 * times.recompute_seconds, 1e3 * times.backward_seconds);
  }
  std::printf("\ncopies in %.2f GB/s, out %.2f GB/s; updates %.2f GB/s; gradients %.2f GB/s\n",
              profile.in_bytes_per_second / 1e9, profile.out_bytes_per_second / 1e9,
              profile.update_bytes_per_second / 1e9, profile.gradient_bytes_per_second / 1e9);
  if (has_disk) {
    std::printf("the disk of optimizer_offload %.2f GB/s, read and written\n", profile.disk_bytes_per_second / 1e9);
  }
  std::printf("\nspeed beside  ");
  for (size_t b = 0; b < worker::kNumActivities; ++b) std::printf(" %10s", Name(b).c_str());
  std::printf("\n");
  for (size_t a = 0; a < worker::kNumActivities; ++a) {
    std::printf("%-14s", Name(a).c_str());
    for (size_t b = 0; b < worker::kNumActivities; ++b) {
      if (a == b) {
        std::printf(" %10s", "-");
      } else {
        std::printf(" %9.0f%%", 100 * profile.sharing[a][b]);
      }
    }
    std::printf("\n");
  }
}

absl::Status RunProfile(const ProfileFlags& flags, SignalQueue& signals) {
  EPS_ASSIGN_OR_RETURN(const RunConfig run, flags.run.Load());
  EPS_RETURN_IF_ERROR(ProbeDevice(flags.device, flags.vectors));
  const int threads = flags.threads > 0 ? flags.threads : UsableCores();
  const std::string out = flags.out.empty() ? worker::KeptProfilePath(flags.device, threads, flags.vectors) : flags.out;
  if (out.empty()) {
    return absl::FailedPreconditionError("neither XDG_CACHE_HOME nor HOME says where to keep it: give --out FILE");
  }
  // Before some seconds are spent.
  EPS_RETURN_IF_ERROR(MakeDirs(DirName(out)));
  EPS_RETURN_IF_ERROR_WITH(CheckReplaceable(out), flags.out.empty() ? "where it is kept" : "--out");
  std::fprintf(stderr, "eps: measuring %s with the layers of %s; nothing else should run for some seconds\n",
               flags.device.c_str(), flags.run.run.c_str());
  ProgressPrinter progress(/*quiet=*/false, stderr);
  EPS_ASSIGN_OR_RETURN(
      const worker::Profile profile,
      MeasureMachine({.run = flags.run, .device = flags.device, .threads = threads, .vectors = flags.vectors}, out,
                     signals, progress));
  Print(profile, run.optimizer_offload.is_on());
  if (flags.out.empty()) {
    std::printf("\nkept in %s, where plans and workers with %s and %d threads each find it\n", out.c_str(),
                flags.device.c_str(), threads);
  } else {
    std::printf("\nin %s, for --profile of eps plan, eps train and gpu_worker\n", out.c_str());
  }
  return absl::OkStatus();
}

}  // namespace

void AddProfile(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand(
      "profile", "Measures this machine with the layers of a run: kernels, copies and memory, alone and at once");
  auto flags = std::make_shared<ProfileFlags>();
  flags->run.AddTo(*command);
  command->add_option("--device", flags->device, "What computes: cpu, cuda or cuda:I")
      ->type_name("DEVICE")
      ->capture_default_str();
  command->add_option("--threads", flags->threads, "Threads that compute, as the workers will have. Default: the cores")
      ->type_name("N")
      ->check(CLI::Range(1, 1024));
  AddVectorsTo(*command, flags->vectors);
  command
      ->add_option("--out", flags->out,
                   "Writes it there, for --profile; layers of other runs that the file has of the same hardware stay. "
                   "Default: it is kept where plans and workers look for it, below $XDG_CACHE_HOME/eps or ~/.cache/eps")
      ->type_name("FILE")
      ->check(NotEmpty());
  command->callback([flags, exit_code] {
    absl::StatusOr<SignalQueue> signals = SignalQueue::Create({SIGINT, SIGTERM, SIGHUP});
    const absl::Status status = signals.ok() ? RunProfile(*flags, *signals) : signals.status();
    *exit_code = absl::IsCancelled(status) ? kExitSignal + signals->last() : ReportStart(status);
  });
}

}  // namespace eps::cli
