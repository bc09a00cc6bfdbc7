#ifndef EPS_GPU_WORKER_RELAY_ARENA_MAP_H_
#define EPS_GPU_WORKER_RELAY_ARENA_MAP_H_

#include <cstddef>
#include <vector>

#include "absl/status/statusor.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/plan/relay_plan.h"

namespace eps::worker {

// The plan's spans as addresses of one device.
struct ArenaMap {
  std::vector<std::byte*> weights, gradients, pushes, boundaries, tokens, inners;
  std::byte* expanded = nullptr;
  std::byte* scratch = nullptr;
  std::byte* group_area = nullptr;
  std::byte* rotary_table = nullptr;  // fp32, filled once; null where the plan has none
  std::byte* records = nullptr;
};

// Errors: RESOURCE_EXHAUSTED when the device's arena is smaller than the plan's
absl::StatusOr<ArenaMap> MapArena(const RelayPlan& plan, Device& device);

// slots[index], where a step must name one.
inline std::byte* Slot(const std::vector<std::byte*>& slots, int index) { return slots.at(static_cast<size_t>(index)); }

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_RELAY_ARENA_MAP_H_
