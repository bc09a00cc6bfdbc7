#include "gpu_worker/plan/planner.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/byte_size.h"
#include "common/base/status_macros.h"
#include "common/spec/run_config.h"
#include "gpu_worker/plan/arena_layout.h"
#include "gpu_worker/plan/plan_search.h"

namespace eps::worker {
namespace {

// Of a feed-forward part: its products are still large. The first that is a part of the rows is suggested.
constexpr std::array<int64_t, 2> kUsualTiles = {4096, 1024};

// What the user could change, each with the cap that would then do.
std::string Suggestions(const PlanRequest& request, int64_t needed_bytes) {
  std::vector<std::string> lines;
  const auto suggest_request = [&](absl::string_view what, const PlanRequest& changed) {
    const int64_t bytes = SmallestCapBytes(changed);
    if (bytes < needed_bytes) lines.push_back(absl::StrCat(what, " (", bytes, " bytes)"));
  };
  const auto suggest = [&](absl::string_view what, auto change) {
    RunConfig run = *request.run;
    change(run);
    PlanRequest changed = request;
    changed.run = &run;
    suggest_request(what, changed);
  };
  suggest("relay.resident: false", [](RunConfig& run) { run.relay.resident = false; });
  suggest("relay.boundaries: HOST", [](RunConfig& run) { run.relay.boundaries = BoundaryPolicy::kHost; });
  suggest("relay.inner: RECOMPUTE", [](RunConfig& run) { run.relay.inner = InnerPolicy::kRecompute; });
  for (const int blocks : {0, static_cast<int>(request.run->model.num_layers)}) {
    suggest(absl::StrCat("relay.depth_first_blocks: ", blocks),
            [blocks](RunConfig& run) { run.relay.depth_first_blocks = blocks; });
  }
  suggest("relay.weight_slots: 1", [](RunConfig& run) { run.relay.weight_slots = 1; });
  const int fewest = request.run->sequences_per_sample();
  suggest(absl::StrCat("batch.micro_batch: ", fewest), [fewest](RunConfig& run) { run.batch.micro_batch = fewest; });
  for (const int64_t tile : kUsualTiles) {
    const int64_t now = request.run->batch.feed_forward_tile,
                  rows = request.run->batch.micro_batch * request.run->model.context;
    if (request.run->model.experts.are_on() || tile >= (now == 0 ? rows : std::min(now, rows))) continue;
    suggest(absl::StrCat("batch.feed_forward_tile: ", tile),
            [tile](RunConfig& run) { run.batch.feed_forward_tile = tile; });
    break;
  }
  PlanRequest alone = request, more_host = request;
  alone.max_group_members = 1;
  suggest_request("relay.group_members: 1", alone);
  more_host.host_stash_bytes = 0;
  suggest_request(absl::StrCat("more than ", request.host_stash_bytes, " bytes of host memory for activations"),
                  more_host);
  if (lines.empty()) return "";
  return absl::StrCat("; less would do with ", absl::StrJoin(lines, ", "));
}

}  // namespace

absl::Status CheckFits(const PlanRequest& request) {
  EPS_RETURN_IF_ERROR(CheckPass(request));
  const int64_t smallest = SmallestCapBytes(request);
  if (request.cap_bytes < 0 || (request.cap_bytes > 0 && request.cap_bytes < smallest)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "device memory of ", request.cap_bytes, " bytes is too small: this run needs at least ", smallest, " bytes (",
        FormatLeastByteSize(smallest), ")", request.suggests ? Suggestions(request, smallest) : ""));
  }
  return absl::OkStatus();
}

absl::StatusOr<RelayPlan> MakeRelayPlan(const PlanRequest& request) {
  EPS_RETURN_IF_ERROR(CheckFits(request));
  return SearchPlan(request);
}

int64_t SmallestCapBytes(const PlanRequest& request) {
  if (!CheckPass(request).ok()) return std::numeric_limits<int64_t>::max();
  const PlanNeeds needs = NeedsOf(request);
  return LayArena(request, needs, LeastChoice(needs)).arena_bytes;
}

}  // namespace eps::worker
