// eps plan: every byte that a run will take, on the device and on the host, before anything is started.

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/command.h"
#include "cli/common_flags.h"
#include "cli/plan_trace.h"
#include "cli/whole_plan.h"
#include "common/base/byte_size.h"
#include "common/base/file_util.h"
#include "common/base/flags.h"
#include "common/base/status_macros.h"
#include "common/model/model_spec.h"
#include "common/telemetry/trace_file.h"
#include "eps_server/memory/daemon_memory.h"
#include "gpu_worker/plan/relay_plan.h"
#include "nlohmann/json.hpp"

namespace eps::cli {
namespace {

struct PlanFlags {
  RunFlags run;
  std::string device = "cpu";
  int64_t device_memory_bytes = 0;  // 0: not given
  int threads = 0;                  // 0: not given
  int64_t host_memory_bytes = 0;    // 0: not given
  std::string profile, timeline;
  bool json = false;
};

void Row(const std::string& what, int64_t num_bytes, const std::string& why) {
  std::printf("  %-28s %14lld  %10s  %s\n", what.c_str(), static_cast<long long>(num_bytes),
              FormatByteSize(num_bytes).c_str(), why.c_str());
}

double PerParameter(int64_t num_bytes, const ModelSpec& model) {
  return static_cast<double>(num_bytes) / static_cast<double>(std::max<int64_t>(1, model.num_parameters()));
}

// Whether the smallest cap does: something that there is one of for each layer must stay on the device.
bool DependsOnDepth(const WholePlan& plan) {
  const RelayConfig& relay = plan.run.relay;
  return relay.resident || relay.inner == InnerPolicy::kKeep || relay.boundaries == BoundaryPolicy::kDevice ||
         plan.host_raises_cap;
}

// Where a step's time goes, on paper.
void PrintStep(const WholePlan& plan) {
  const worker::Profile& profile = plan.profile;
  std::printf("\na step of one worker, predicted: %.4g s, %.0f tokens/s; %s is busy the longest\n",
              plan.step.timeline.step_seconds,
              static_cast<double>(plan.run.tokens_per_step()) / plan.step.timeline.step_seconds,
              std::string(worker::ActivityName(plan.step.timeline.bound())).c_str());
  if (profile.measured == "nominal") {
    std::printf(
        "  from nominal figures of %s, which rank plans and predict nothing; `eps profile` measures this machine\n",
        profile.hardware.c_str());
  } else {
    std::printf(
        "  from %s, %d threads, measured %s%s\n", profile.hardware.c_str(), profile.threads, profile.measured.c_str(),
        plan.has_exact_times ? "" : "; this run's layers are scaled from others: `eps profile --run` measures them");
  }
  if (plan.run.layer_drop.is_on()) {
    std::printf(
        "  of all %lld blocks, which the memory is planned for; with %zu dropped, as depth.drop does on average: %.4g "
        "s\n",
        static_cast<long long>(plan.model.config.num_layers), plan.average_dropped, plan.average_step_seconds);
  }
  const auto row = [&](const std::string& what, double seconds) {
    std::printf("  %-28s %13.1f%%\n", what.c_str(), 100 * seconds / plan.step.timeline.step_seconds);
  };
  const auto name = [](size_t activity) { return worker::ActivityName(static_cast<worker::Activity>(activity)); };
  for (size_t a = 0; a < worker::kNumActivities; ++a) {
    row(absl::StrCat("busy: ", name(a)), plan.step.timeline.busy_seconds[a]);
  }
  for (int cause = 1; cause < worker::kNumWaitCauses; ++cause) {
    row(absl::StrCat("waits for: ", worker::WaitCauseName(static_cast<worker::WaitCause>(cause))),
        plan.step.timeline.compute_wait_seconds[static_cast<size_t>(cause)]);
  }
}

void PrintForPeople(const WholePlan& plan) {
  const ModelSpec& model = plan.model;
  std::printf("model: %lld parameters in %zu layers, %zu blobs; %lld tokens a step\n",
              static_cast<long long>(model.num_parameters()), model.layers.size(), model.blobs.size(),
              static_cast<long long>(plan.run.tokens_per_step()));
  std::printf("\neach worker, device (%s) and host:\n", plan.device_name.c_str());
  for (const worker::PlanLine& line : worker::Describe(plan.device)) Row(line.what, line.num_bytes, line.why);
  Row("beside the cap", plan.outside_bytes,
      plan.device_on_host
          ? absl::StrCat("libraries and threads, with ", plan.threads, " threads in each worker (--threads)")
          : "the libraries' workspace; CUDA's context and code take more, which is not known before");
  Row("smallest device cap", plan.smallest_cap_bytes,
      DependsOnDepth(plan) ? "as relay and --host-memory say: it grows with the depth and the number of micro-batches"
                           : "whatever the depth and the number of micro-batches");
  PrintStep(plan);
  std::printf("\nthe daemon:\n");
  for (const server::DaemonMemoryLine& line : server::Describe(plan.host)) Row(line.what, line.num_bytes, line.why);
  Row("total", plan.host.total_bytes(),
      absl::StrFormat("%.1f bytes a parameter; the state alone: %.1f", PerParameter(plan.host.total_bytes(), model),
                      PerParameter(plan.host.model_state_bytes(), model)));
}

void PrintJson(const WholePlan& plan) {
  nlohmann::ordered_json buffers = nlohmann::ordered_json::array();
  for (const worker::PlanLine& line : worker::Describe(plan.device)) {
    buffers.push_back({{"what", line.what}, {"bytes", line.num_bytes}, {"why", line.why}});
  }
  const nlohmann::ordered_json json = {{"parameters", plan.model.num_parameters()},
                                       {"tokens_per_step", plan.run.tokens_per_step()},
                                       {"device",
                                        {{"cap_bytes", plan.device.cap_bytes},
                                         {"arena_bytes", plan.device.arena_bytes},
                                         {"outside_bytes", plan.outside_bytes},
                                         {"smallest_cap_bytes", plan.smallest_cap_bytes},
                                         {"kept_inner", plan.device.inner.kept},
                                         {"swapped_inner", plan.device.inner.swapped},
                                         {"recomputed_inner", plan.device.inner.recomputed()},
                                         {"buffers", buffers}}},
                                       {"step",
                                        {{"predicted_seconds", plan.step.timeline.step_seconds},
                                         {"bound", std::string(worker::ActivityName(plan.step.timeline.bound()))},
                                         {"profile", plan.profile.measured},
                                         {"exact", plan.has_exact_times}}},
                                       {"worker_host",
                                        {{"boundary_bytes", plan.device.host_boundary_bytes},
                                         {"inner_bytes", plan.device.host_inner_bytes},
                                         {"push_bytes", plan.device.host_push_bytes},
                                         {"pinned_bytes", plan.device.host_pinned_bytes}}},
                                       {"host",
                                        {{"model_state_bytes", plan.host.model_state_bytes()},
                                         {"contribution_window_bytes", plan.host.contribution_window_bytes},
                                         {"hold_bytes", plan.host.hold_bytes},
                                         {"checkpoint_buffer_bytes", plan.host.capture_bytes},
                                         {"checkpoint_bytes", plan.host.checkpoint_bytes},
                                         {"daemon_constant_bytes", plan.host.constant_bytes},
                                         {"total_bytes", plan.host.total_bytes()}}}};
  nlohmann::ordered_json shown = json;
  if (plan.run.layer_drop.is_on()) {
    shown["step"]["average_dropped_blocks"] = plan.average_dropped;
    shown["step"]["average_predicted_seconds"] = plan.average_step_seconds;
  }
  std::printf("%s\n", shown.dump(2).c_str());
}

absl::Status RunPlan(const PlanFlags& flags) {
  EPS_ASSIGN_OR_RETURN(RunConfig run, flags.run.Load());
  EPS_ASSIGN_OR_RETURN(const WholePlan plan, MakeWholePlan({.run = std::move(run),
                                                            .device = flags.device,
                                                            .device_memory_bytes = flags.device_memory_bytes,
                                                            .host_memory_bytes = flags.host_memory_bytes,
                                                            .threads = flags.threads,
                                                            .profile = flags.profile}));
  if (!flags.timeline.empty()) {
    EPS_RETURN_IF_ERROR(WriteFileAtomically(flags.timeline, ToChromeTrace(TracksOf(plan))));
  }
  if (flags.json) {
    PrintJson(plan);
  } else {
    PrintForPeople(plan);
  }
  return absl::OkStatus();
}

}  // namespace

void AddPlan(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand(
      "plan", "Says what a run will take: every byte of device and host memory, before anything is started");
  auto flags = std::make_shared<PlanFlags>();
  flags->run.AddTo(*command);
  command->add_option("--device", flags->device, "For which device: cpu, cuda or cuda:I; it need not be there")
      ->type_name("DEVICE")
      ->capture_default_str();
  command
      ->add_option("--device-memory", flags->device_memory_bytes,
                   "What the device may hold. Default: what the plan can use")
      ->type_name("SIZE")
      ->transform(AsByteSize());
  command->add_option("--threads", flags->threads, "Threads that compute in each worker. Default: the cores")
      ->type_name("N")
      ->check(CLI::Range(1, 1024));
  AddHostMemoryTo(*command, flags->host_memory_bytes);
  AddProfileTo(*command, flags->profile);
  command
      ->add_option("--timeline", flags->timeline,
                   "Writes the predicted step here, as a trace that Perfetto and chrome://tracing show")
      ->type_name("FILE");
  command->add_flag("--json", flags->json, "As JSON");
  command->footer("Ends with 3 when the plan does not fit, naming the smallest cap that would do.");
  command->callback([flags, exit_code] { *exit_code = ReportStart(RunPlan(*flags)); });
}

}  // namespace eps::cli
