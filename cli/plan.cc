// eps plan: every byte that a run will take, on the device and on the host, before anything is started.

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "cli/cap_curve.h"
#include "cli/command.h"
#include "cli/common_flags.h"
#include "cli/plan_explanation.h"
#include "cli/plan_trace.h"
#include "cli/progress.h"
#include "cli/timeline_svg.h"
#include "cli/whole_plan.h"
#include "common/base/byte_size.h"
#include "common/base/file_util.h"
#include "common/base/flags.h"
#include "common/base/monotonic_clock.h"
#include "common/base/status_macros.h"
#include "common/model/model_flops.h"
#include "common/model/model_spec.h"
#include "common/spec/vector_width.h"
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
  int workers = 1;
  int64_t host_memory_bytes = 0;  // 0: not given
  std::string model;              // in place of a RunSpec
  std::string vectors = kWidestVectors;
  std::string profile, timeline, cap_curve;
  bool explain = false;
  bool json = false;
};

void Row(const std::string& what, int64_t num_bytes, const std::string& why,
         std::string (*format)(int64_t) = FormatByteSize) {
  std::printf("  %-28s %14lld  %10s  %s\n", what.c_str(), static_cast<long long>(num_bytes), format(num_bytes).c_str(),
              why.c_str());
}

double PerParameter(int64_t num_bytes, const ModelSpec& model) {
  return static_cast<double>(num_bytes) / static_cast<double>(std::max<int64_t>(1, model.num_parameters()));
}

// Whether the smallest cap does: something that there is one of for each layer must stay on the device.
bool DependsOnDepth(const WholePlan& plan) {
  const RelayConfig& relay = plan.run.relay;
  return relay.resident || relay.inner == InnerPolicy::kKeep || relay.boundaries == BoundaryPolicy::kDevice ||
         plan.host_raises_cap || relay.depth_first_blocks.value_or(0) > 0;
}

std::string WorkersText(int workers) {
  return workers == 1 ? "one worker" : absl::StrCat(workers, " workers with a device each");
}
// Of a plan's step: of the last of them.
std::string WorkersText(const WholePlan& plan) {
  const int members = plan.step.group_members;
  return absl::StrCat(WorkersText(plan.workers), members > 0 ? absl::StrCat(" in a group of ", members) : "");
}

// Of what makes several plans: each of hundreds of layers takes seconds. On a terminal one line, which is gone at the
// end; elsewhere a line every few seconds.
std::function<void(size_t done, size_t all)> ShowPlans(const char* what) {
  return [what, last = SteadyNow()](size_t done, size_t all) mutable {
    if (isatty(STDERR_FILENO) == 1) {
      std::fprintf(stderr, "\r\033[K");
      if (done < all) std::fprintf(stderr, "eps: %s: %zu of %zu plans", what, done, all);
    } else if (SteadyNow() - last >= absl::Seconds(5)) {
      std::fprintf(stderr, "eps: %s: %zu of %zu plans\n", what, done, all);
      last = SteadyNow();
    }
  };
}

// Of a step of all blocks, where no token is padding.
double ModelFlopsOf(const WholePlan& plan) {
  return ModelFlops(plan.model, plan.run.preferences.has_reference())
      .Of({.tokens = plan.run.tokens_per_step(), .samples = plan.run.batch.sequences_per_step()});
}

bool IsNominal(const WholePlan& plan) { return plan.profile.measured == "nominal"; }
// How a plan's times are known: those of nominal figures are no predictions, and are not called so.
const char* HowKnown(const WholePlan& plan) { return IsNominal(plan) ? "by nominal figures" : "predicted"; }

// Where a step's time goes, on paper.
void PrintStep(const WholePlan& plan) {
  const worker::Profile& profile = plan.profile;
  const double seconds = plan.step.timeline.step_seconds;
  std::printf("\na step of %s, %s: %.4g s, %.0f tokens/s, %s of the model; %s is busy the longest\n",
              WorkersText(plan).c_str(), HowKnown(plan), seconds,
              static_cast<double>(plan.run.tokens_per_step()) / seconds,
              FormatFlopRate(ModelFlopsOf(plan) / seconds).c_str(),
              std::string(worker::ActivityName(plan.step.timeline.bound())).c_str());
  if (IsNominal(plan)) {
    std::printf(
        "  from nominal figures of %s, which rank plans and predict nothing; `eps profile` measures this machine, and "
        "plans find it\n",
        Printable(profile.hardware).c_str());
  } else {
    std::printf("  from %s, %d threads, measured %s, in %s\n", Printable(profile.hardware).c_str(), profile.threads,
                Printable(profile.measured).c_str(), Printable(plan.profile_file).c_str());
    if (!plan.has_exact_times) {
      std::printf("  this run's layers are scaled from others there: `eps profile --run` measures them\n");
    }
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
  using worker::WaitCause;
  for (const WaitCause cause : {WaitCause::kPull, WaitCause::kStash, WaitCause::kPush, WaitCause::kVersion}) {
    row(absl::StrCat("waits for: ", worker::WaitCauseName(cause)),
        plan.step.timeline.compute_wait_seconds[static_cast<size_t>(cause)]);
  }
}

// "", where all of them train.
std::string TrainableText(const ModelSpec& model) {
  const int64_t trainable = model.num_trainable_parameters();
  return trainable == model.num_parameters() ? "" : absl::StrCat(", of which ", trainable, " train,");
}

void PrintForPeople(const WholePlan& plan) {
  const ModelSpec& model = plan.model;
  std::printf("model: %lld parameters%s in %zu layers, %zu blobs; %lld tokens a step\n",
              static_cast<long long>(model.num_parameters()), TrainableText(model).c_str(), model.layers.size(),
              model.blobs.size(), static_cast<long long>(plan.run.tokens_per_step()));
  std::printf("\neach worker, device (%s) and host:\n", plan.device_name.c_str());
  for (const worker::PlanLine& line : worker::Describe(plan.device)) Row(line.what, line.num_bytes, line.why);
  Row("beside the cap", plan.outside_bytes,
      plan.device_on_host
          ? absl::StrCat("libraries and threads, with ", plan.threads, " threads in each worker (--threads)")
          : "the libraries' workspace; CUDA's context and code take more, which is not known before");
  Row("smallest device cap", plan.smallest_cap_bytes,
      DependsOnDepth(plan) ? "as relay and --host-memory say: it grows with the depth and the number of micro-batches"
                           : "whatever the depth and the number of micro-batches",
      FormatLeastByteSize);
  PrintStep(plan);
  std::printf("\nthe daemon:\n");
  for (const server::DaemonMemoryLine& line : server::Describe(plan.host)) Row(line.what, line.num_bytes, line.why);
  Row("total", plan.host.total_bytes(),
      absl::StrFormat("%.1f bytes a parameter; the state alone: %.1f", PerParameter(plan.host.total_bytes(), model),
                      PerParameter(plan.host.model_state_bytes(), model)));
  if (plan.host.store.offloaded_bytes > 0) {
    Row("on a disk", plan.host.store.offloaded_bytes,
        absl::StrFormat(
            "in %s; each step reads and writes all of it, counted with %.2f GB/s in all, which `eps profile` measures",
            Printable(plan.run.optimizer_offload.path), plan.profile.disk_bytes_per_second / 1e9));
  }
  if (plan.workers == 1) return;
  Row(absl::StrCat("with ", plan.workers, " workers' on one host"),
      plan.host.total_bytes() + plan.workers * plan.worker_host_bytes(), "the daemon's, and each worker's of the host");
}

nlohmann::ordered_json ExplanationJson(const PlanExplanation& explanation) {
  const auto number = [](const std::optional<double>& value) {
    return value.has_value() ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
  };
  nlohmann::ordered_json blocks = nlohmann::ordered_json::array();
  for (const BlockPlaces& each : explanation.blocks) {
    blocks.push_back({{"first", each.first},
                      {"last", each.last},
                      {"kept", each.kept},
                      {"swapped", each.swapped},
                      {"recomputed", each.recomputed},
                      {"depth_first", each.depth_first}});
  }
  return {{"blocks", blocks},
          {"hiding_is_known", explanation.hiding_is_known},
          {"hiding_tokens", number(explanation.hiding_tokens)},
          {"seconds_with_one_more_gib_of_device_memory", number(explanation.seconds_with_more_device)},
          {"seconds_with_one_more_gib_of_host_memory", number(explanation.seconds_with_more_host)}};
}

void PrintJson(const WholePlan& plan, const std::optional<PlanExplanation>& explanation) {
  nlohmann::ordered_json buffers = nlohmann::ordered_json::array();
  for (const worker::PlanLine& line : worker::Describe(plan.device)) {
    buffers.push_back({{"what", line.what}, {"bytes", line.num_bytes}, {"why", line.why}});
  }
  nlohmann::ordered_json json = {{"parameters", plan.model.num_parameters()},
                                 {"trainable_parameters", plan.model.num_trainable_parameters()},
                                 {"tokens_per_step", plan.run.tokens_per_step()},
                                 {"device",
                                  {{"cap_bytes", plan.device.cap_bytes},
                                   {"arena_bytes", plan.device.arena_bytes},
                                   {"outside_bytes", plan.outside_bytes},
                                   {"smallest_cap_bytes", plan.smallest_cap_bytes},
                                   {"kept_inner", plan.device.inner.kept},
                                   {"swapped_inner", plan.device.inner.swapped},
                                   {"recomputed_inner", plan.device.inner.recomputed()},
                                   {"depth_first_blocks", plan.device.depth_first_blocks},
                                   {"weight_slots", plan.device.weight_slots_in_turn()},
                                   {"keeps_logits", plan.device.keeps_logits},
                                   {"buffers", buffers}}},
                                 {"step",
                                  {{"workers", plan.workers},
                                   {"group_members", plan.step.group_members},
                                   {"predicted_seconds", plan.step.timeline.step_seconds},
                                   {"model_flops", ModelFlopsOf(plan)},
                                   {"bound", std::string(worker::ActivityName(plan.step.timeline.bound()))},
                                   {"profile", plan.profile.measured},
                                   {"profile_file", plan.profile_file},
                                   {"exact", plan.has_exact_times}}},
                                 {"worker_host",
                                  {{"boundary_bytes", plan.device.host_boundary_bytes},
                                   {"inner_bytes", plan.device.host_inner_bytes},
                                   {"push_bytes", plan.device.host_push_bytes},
                                   {"redo_push_bytes", plan.device.host_redo_push_bytes},
                                   {"pass_bytes", plan.device.host_pass_bytes},
                                   {"pinned_bytes", plan.device.host_pinned_bytes},
                                   {"total_bytes", plan.device.host_bytes()}}},
                                 {"host",
                                  {{"model_state_bytes", plan.host.model_state_bytes()},
                                   {"offloaded_bytes", plan.host.store.offloaded_bytes},
                                   {"contribution_window_bytes", plan.host.contribution_window_bytes},
                                   {"hold_bytes", plan.host.hold_bytes},
                                   {"checkpoint_buffer_bytes", plan.host.capture_bytes},
                                   {"checkpoint_bytes", plan.host.checkpoint_bytes},
                                   {"daemon_constant_bytes", plan.host.constant_bytes},
                                   {"total_bytes", plan.host.total_bytes()}}}};
  if (plan.run.layer_drop.is_on()) {
    json["step"]["average_dropped_blocks"] = plan.average_dropped;
    json["step"]["average_predicted_seconds"] = plan.average_step_seconds;
  }
  if (explanation.has_value()) json["explanation"] = ExplanationJson(*explanation);
  // A path need not be UTF-8.
  std::printf("%s\n", json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
}

// The predicted step, as the file's ending says.
std::string Timeline(const WholePlan& plan, const std::string& file) {
  const std::vector<TraceTrack> tracks = TracksOf(plan);
  if (!absl::EndsWith(file, ".svg")) return ToChromeTrace(tracks);
  const double seconds = plan.step.timeline.step_seconds / plan.step.scale;
  std::string title =
      absl::StrFormat("A step of %s, %s: %.4g s", WorkersText(plan), HowKnown(plan), plan.step.timeline.step_seconds);
  if (plan.step.scale > 1) {
    absl::StrAppend(&title,
                    absl::StrFormat("; drawn: 1 of %.4g parts that are alike, %.4g s", plan.step.scale, seconds));
  }
  return TimelineSvg(title, tracks, 0, seconds);
}

void PrintCurve(const std::vector<CapPoint>& points, const char* how_known) {
  std::printf("\na step under each cap, %s: planned, everything recomputed, everything swapped\n", how_known);
  const auto seconds = [](const std::optional<double>& value) {
    return value.has_value() ? absl::StrFormat("%8.4g s", *value) : std::string("         -");
  };
  for (const CapPoint& point : points) {
    std::printf("  %14lld  %10s  %s  %s  %s\n", static_cast<long long>(point.cap_bytes),
                FormatByteSize(point.cap_bytes).c_str(), seconds(point.planned).c_str(),
                seconds(point.recomputed).c_str(), seconds(point.swapped).c_str());
  }
}

absl::Status DrawCurve(const WholePlanRequest& request, const WholePlan& plan, const PlanFlags& flags) {
  EPS_ASSIGN_OR_RETURN(const std::vector<CapPoint> points, CapCurve(request, ShowPlans("cap curve")));
  if (!flags.json) PrintCurve(points, HowKnown(plan));
  return WriteFileAtomically(flags.cap_curve, CapCurveSvg(absl::StrCat("A step of ", WorkersText(request.workers),
                                                                       " against device memory, ", HowKnown(plan)),
                                                          points));
}

absl::StatusOr<RunConfig> LoadRun(const PlanFlags& flags) {
  if (flags.model.empty() == flags.run.run.empty()) {
    return absl::InvalidArgumentError("one of --run and --model is required, and not both");
  }
  if (flags.model.empty()) return flags.run.Load();
  EPS_ASSIGN_OR_RETURN(const std::vector<FieldOverride> overrides, flags.run.Overrides());
  return RunConfigOfModel(flags.model, overrides);
}

absl::Status RunPlan(const PlanFlags& flags) {
  // Before plans are made that take minutes.
  EPS_RETURN_IF_ERROR_WITH(CheckReplaceable(flags.timeline), "--timeline");
  EPS_RETURN_IF_ERROR_WITH(CheckReplaceable(flags.cap_curve), "--cap-curve");
  EPS_ASSIGN_OR_RETURN(RunConfig run, LoadRun(flags));
  const WholePlanRequest request = {.run = std::move(run),
                                    .device = flags.device,
                                    .device_memory_bytes = flags.device_memory_bytes,
                                    .host_memory_bytes = flags.host_memory_bytes,
                                    .threads = flags.threads,
                                    .profile = flags.profile,
                                    .vectors = flags.vectors,
                                    .workers = flags.workers};
  EPS_ASSIGN_OR_RETURN(const WholePlan plan, MakeWholePlan(request));
  std::optional<PlanExplanation> explanation;
  if (flags.explain) {
    EPS_ASSIGN_OR_RETURN(explanation, Explain(request, plan, ShowPlans("explanation")));
  }
  if (!flags.timeline.empty()) {
    EPS_RETURN_IF_ERROR(WriteFileAtomically(flags.timeline, Timeline(plan, flags.timeline)));
  }
  if (flags.json) {
    PrintJson(plan, explanation);
  } else {
    PrintForPeople(plan);
    if (explanation.has_value()) std::printf("%s", ExplanationText(*explanation, plan).c_str());
  }
  return flags.cap_curve.empty() ? absl::OkStatus() : DrawCurve(request, plan, flags);
}

}  // namespace

void AddPlan(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand(
      "plan", "Says what a run will take: every byte of device and host memory, before anything is started");
  auto flags = std::make_shared<PlanFlags>();
  flags->run.AddTo(*command)->required(false);
  command
      ->add_option(
          "--model", flags->model,
          "In place of --run: a config.json in the Hugging Face form, or its folder; the rest of the run by --set "
          "(a context of more than 4096 tokens is cut to that), to choose a machine before there is one")
      ->type_name("FILE");
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
  command
      ->add_option(
          "--workers", flags->workers,
          "Whose step is predicted: so many, alike, each with a device of its own (cpu: with cores of its own, "
          "as many as the profile was measured with)")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(1, 4096));
  AddHostMemoryTo(*command, flags->host_memory_bytes);
  AddVectorsTo(*command, flags->vectors);
  AddProfileTo(*command, flags->profile);
  command
      ->add_option("--timeline", flags->timeline,
                   "Writes the predicted step here: FILE.svg a picture, else a trace that Perfetto and "
                   "chrome://tracing show")
      ->type_name("FILE")
      ->check(NotEmpty());
  command->add_flag("--explain", flags->explain,
                    "Which layers are kept, swapped and recomputed, what bounds a step, from how many tokens transfers "
                    "hide, and what one more GiB would buy");
  command
      ->add_option(
          "--cap-curve", flags->cap_curve,
          "Draws a step's time against the cap, from the smallest to all that the plan can use; makes some fifty "
          "plans")
      ->type_name("FILE.svg")
      ->check(EndsIn(".svg"));
  command->add_flag("--json", flags->json, "As JSON");
  command->footer("Ends with 3 when the plan does not fit, naming the smallest cap that would do.");
  command->callback([flags, exit_code] { *exit_code = ReportStart(RunPlan(*flags)); });
}

}  // namespace eps::cli
