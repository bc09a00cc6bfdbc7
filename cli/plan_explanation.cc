#include "cli/plan_explanation.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/parallel_for.h"
#include "common/base/status_macros.h"
#include "common/model/model_spec.h"
#include "common/spec/run_config.h"
#include "gpu_worker/plan/inner_places.h"
#include "gpu_worker/plan/timeline.h"

namespace eps::cli {
namespace {

constexpr int64_t kMoreBytes = int64_t{1} << 30;

// The last blocks: those that have a backward.
std::vector<BlockPlaces> BlocksOf(const WholePlan& plan) {
  const int64_t items = int64_t{plan.device.max_pass_vnodes} * plan.run.batch.micro_batches;
  const int64_t blocks = plan.device.inner.total / items;
  const int64_t behind = plan.device.depth_first_blocks;
  const std::vector<worker::InnerPlace> places = plan.device.PlacesOf(blocks, items);
  std::vector<std::string> names;
  for (const LayerSpec& layer : plan.model.layers) {
    if (layer.kind == LayerKind::kBlock) names.push_back(layer.name);
  }
  std::vector<BlockPlaces> result;
  for (int64_t block = 0; block < blocks; ++block) {
    const auto begin = places.begin() + block * items, end = begin + items;
    BlockPlaces here;
    here.kept = std::count(begin, end, worker::InnerPlace::kKeep);
    here.swapped = std::count(begin, end, worker::InnerPlace::kSwap);
    here.recomputed = std::count(begin, end, worker::InnerPlace::kRecompute);
    here.first = here.last = names[names.size() - static_cast<size_t>(behind + blocks - block)];
    if (!result.empty() && result.back().kept == here.kept && result.back().swapped == here.swapped) {
      result.back().last = here.last;
    } else {
      result.push_back(std::move(here));
    }
  }
  if (behind > 0) {
    result.push_back(
        {.first = names[names.size() - static_cast<size_t>(behind)], .last = names.back(), .depth_first = true});
  }
  return result;
}

// Where compute's time, a line through what two plans say of it, crosses each of the others'.
std::optional<double> HidingTokens(const WholePlan& plan, const WholePlan& doubled) {
  const auto& now = plan.step.timeline.busy_seconds;
  const auto& then = doubled.step.timeline.busy_seconds;
  constexpr auto kCompute = static_cast<size_t>(worker::Activity::kCompute);
  const double compute_growth = then[kCompute] - now[kCompute];  // by one more of what the step has now
  double times = 0;                                              // the step as it is
  for (size_t a = 0; a < now.size(); ++a) {
    if (a == kCompute) continue;
    const double growth = then[a] - now[a];
    const double lead = now[a] - now[kCompute];
    if (growth >= compute_growth) {
      if (lead > 0) return std::nullopt;
      continue;
    }
    times = std::max(times, 1 + lead / (compute_growth - growth));
  }
  return times * static_cast<double>(plan.run.tokens_per_step());
}

std::string PlacesText(const BlockPlaces& blocks) {
  if (blocks.depth_first) return "depth first: there and back, one micro-batch after the other";
  std::vector<std::string> parts;
  const auto add = [&](int64_t count, absl::string_view what) {
    if (count == 0) return;
    const bool all = count == blocks.kept + blocks.swapped + blocks.recomputed;
    parts.push_back(all ? std::string(what.data(), what.size()) : absl::StrCat(count, " ", what));
  };
  add(blocks.kept, "kept");
  add(blocks.swapped, "swapped");
  add(blocks.recomputed, "recomputed");
  return absl::StrJoin(parts, ", ");
}

std::string HidingText(const PlanExplanation& explanation, const WholePlan& plan) {
  if (!explanation.hiding_is_known) return "  more micro-batches do not fit, as relay or --host-memory say\n";
  if (!explanation.hiding_tokens.has_value()) {
    return "  transfers hide under compute at no number of tokens: what a micro-batch moves takes longer than it "
           "computes\n";
  }
  // A step has a micro-batch of each vnode at least.
  const int64_t least = plan.run.tokens_per_step() / plan.run.batch.micro_batches;
  if (*explanation.hiding_tokens <= static_cast<double>(least)) {
    return "  transfers and updates hide under compute at any number of micro-batches\n";
  }
  return absl::StrFormat(
      "  transfers and updates hide under compute from %.0f tokens a step, by more batch.micro_batches; this run has "
      "%d\n",
      std::ceil(*explanation.hiding_tokens), plan.run.tokens_per_step());
}

std::string MoreText(absl::string_view what, const std::optional<double>& seconds, double now) {
  if (!seconds.has_value()) return absl::StrFormat("  one more GiB of %s: the plan has all that it can use\n", what);
  return absl::StrFormat("  one more GiB of %s: %.4g s instead of %.4g s a step (%+.1f%%)\n", what, *seconds, now,
                         100 * (*seconds / now - 1));
}

}  // namespace

absl::StatusOr<PlanExplanation> Explain(const WholePlanRequest& request, const WholePlan& plan,
                                        const std::function<void(size_t done, size_t all)>& on_progress) {
  WholePlanRequest doubled = request, more_device = request, more_host = request;
  doubled.run.batch.micro_batches *= 2;
  const bool boundaries_leave =
      plan.device.host_boundary_slots > 0 && plan.run.relay.boundaries == BoundaryPolicy::kAuto;
  const bool device_is_short =
      request.device_memory_bytes > 0 &&
      (!plan.device.inner.keeps_all() || plan.device.depth_first_blocks > 0 || boundaries_leave);
  const bool host_is_short = request.host_memory_bytes > 0 && plan.device.inner.recomputed() > 0;
  std::vector<const WholePlanRequest*> requests = {&doubled};
  if (device_is_short) {
    more_device.device_memory_bytes += kMoreBytes;
    requests.push_back(&more_device);
  }
  if (host_is_short) {
    more_host.host_memory_bytes += kMoreBytes;
    requests.push_back(&more_host);
  }

  std::vector<absl::StatusOr<WholePlan>> plans(requests.size());
  on_progress(0, plans.size());
  ParallelFor(
      plans.size(), [&](size_t i) { plans[i] = MakeWholePlan(*requests[i]); },
      [&](size_t done) { on_progress(done, plans.size()); });

  PlanExplanation explanation = {.blocks = BlocksOf(plan)};
  explanation.hiding_is_known = plans[0].ok();
  if (plans[0].ok()) explanation.hiding_tokens = HidingTokens(plan, *plans[0]);
  for (size_t i = 1; i < plans.size(); ++i) {
    EPS_RETURN_IF_ERROR(plans[i].status());
    const double seconds = plans[i]->step.timeline.step_seconds;
    (requests[i] == &more_device ? explanation.seconds_with_more_device : explanation.seconds_with_more_host) = seconds;
  }
  return explanation;
}

std::string ExplanationText(const PlanExplanation& explanation, const WholePlan& plan) {
  const worker::Timeline& step = plan.step.timeline;
  const int64_t items = int64_t{plan.device.max_pass_vnodes} * plan.run.batch.micro_batches;
  std::string text = absl::StrFormat("\ninner activations, of %d micro-batches each:\n", items);
  for (const BlockPlaces& blocks : explanation.blocks) {
    const std::string names =
        blocks.first == blocks.last ? blocks.first : absl::StrCat(blocks.first, " to ", blocks.last);
    absl::StrAppend(&text, absl::StrFormat("  %-28s %s\n", names, PlacesText(blocks)));
  }
  if (plan.device.inner_places.empty() && plan.device.inner.kept > 0 && !plan.device.inner.keeps_all()) {
    absl::StrAppend(&text, "  what is kept is the last on the way there, as the way back begins with it\n");
  }
  absl::StrAppend(&text,
                  absl::StrFormat("\nwhat would make a step shorter:\n  %s is busy for %.1f%% of it, the longest\n",
                                  worker::ActivityName(step.bound()),
                                  100 * step.busy_seconds[static_cast<size_t>(step.bound())] / step.step_seconds));
  absl::StrAppend(&text, HidingText(explanation, plan));
  absl::StrAppend(&text, MoreText("device memory", explanation.seconds_with_more_device, step.step_seconds));
  if (plan.device.inner.recomputed() > 0) {
    absl::StrAppend(&text, explanation.seconds_with_more_host.has_value()
                               ? MoreText("host memory", explanation.seconds_with_more_host, step.step_seconds)
                               : "  nothing is swapped without --host-memory\n");
  }
  return text;
}

}  // namespace eps::cli
