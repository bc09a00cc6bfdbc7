#include "gpu_worker/relay/arena_map.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace eps::worker {
namespace {

absl::StatusOr<std::byte*> Map(ArenaSpan span, Device& device) {
  EPS_ASSIGN_OR_RETURN(void* address, device.Address(span));
  return static_cast<std::byte*>(address);
}

absl::StatusOr<std::vector<std::byte*>> Map(const std::vector<ArenaSpan>& spans, Device& device) {
  std::vector<std::byte*> addresses;
  for (const ArenaSpan& span : spans) {
    EPS_ASSIGN_OR_RETURN(std::byte * address, Map(span, device));
    addresses.push_back(address);
  }
  return addresses;
}

// Steps name slots of both by one index: the second ones' behind the first ones'.
absl::StatusOr<std::vector<std::byte*>> Map(std::vector<ArenaSpan> spans, const std::vector<ArenaSpan>& more,
                                            Device& device) {
  spans.insert(spans.end(), more.begin(), more.end());
  return Map(spans, device);
}

}  // namespace

absl::StatusOr<ArenaMap> MapArena(const RelayPlan& plan, Device& device) {
  if (plan.arena_bytes > device.arena_bytes()) {
    return absl::ResourceExhaustedError(absl::StrCat("the plan uses ", plan.arena_bytes, " bytes of ",
                                                     device.properties().name, ", whose arena has ",
                                                     device.arena_bytes()));
  }
  ArenaMap map;
  EPS_ASSIGN_OR_RETURN(map.weights, Map(plan.weight_slots, device));
  EPS_ASSIGN_OR_RETURN(map.expanded, Map(plan.expanded_weights, device));
  EPS_ASSIGN_OR_RETURN(map.gradients, Map(plan.gradient_slots, plan.depth_first_gradient_slots, device));
  EPS_ASSIGN_OR_RETURN(map.pushes, Map(plan.push_slots, plan.weight_slots, device));
  EPS_ASSIGN_OR_RETURN(map.boundaries, Map(plan.boundary_slots, device));
  EPS_ASSIGN_OR_RETURN(map.tokens, Map(plan.token_slots, device));
  EPS_ASSIGN_OR_RETURN(map.inners, Map(plan.inner_slots, plan.leaving_inner_slots, device));
  EPS_ASSIGN_OR_RETURN(map.scratch, Map(plan.scratch, device));
  EPS_ASSIGN_OR_RETURN(map.group_area, Map(plan.group_area, device));
  if (plan.rotary_table.num_bytes > 0) {
    EPS_ASSIGN_OR_RETURN(map.rotary_table, Map(plan.rotary_table, device));
  }
  EPS_ASSIGN_OR_RETURN(map.records, Map(plan.records, device));
  return map;
}

}  // namespace eps::worker
