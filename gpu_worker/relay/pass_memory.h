#ifndef EPS_GPU_WORKER_RELAY_PASS_MEMORY_H_
#define EPS_GPU_WORKER_RELAY_PASS_MEMORY_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/schedule/expert_rows.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/device/kernels.h"
#include "gpu_worker/layers/layer_shape.h"
#include "gpu_worker/plan/relay_plan.h"

namespace eps::worker {

// What flags and records start as, where the device copies it from.
struct StartValues {
  int32_t finite = 1;
  LossRecord record;
};

// The host's end of a pass's copies, but for weights and pushed gradients: memory of the device's choice, as copies of
// any other kind keep a GPU's stream, or the thread that issues its work, waiting.
//
// An item is a micro-batch of a pass: vnode * micro_batches + micro_batch.
//
// Threads: none of its own; who copies says who waits
class PassMemory {
 public:
  // `shape`: of the run's micro-batches, the largest that comes. told: of a step's records.
  // Errors: RESOURCE_EXHAUSTED the host has not so much memory
  static absl::StatusOr<PassMemory> New(Device& device, const RelayPlan& plan, const LayerShape& shape,
                                        int micro_batches, const ToldExperts& told);

  // Of RelayPlan::host_boundary_slots; as long as one of `shape` is.
  absl::Span<std::byte> Boundary(int slot, const LayerShape& shape) const;
  absl::Span<std::byte> Inner(int slot) const;  // as long as a slot of the arena
  // As LayerShape::token_bytes has them.
  absl::Span<std::byte> Tokens(int64_t item, const LayerShape& shape) const;
  absl::Span<LossRecord> records() const;  // by vnode of the pass
  // Routing::first_row of a block, from 0, and an item: experts + 1 of them.
  absl::Span<int32_t> FirstRows(int64_t block, int64_t item) const;
  absl::Span<int32_t> flags() const;  // of the push under way, by leaf; in a group by vnode of the run
  const StartValues& start_values() const;

 private:
  // Fixed after construction.
  int64_t boundary_bytes_ = 0, inner_bytes_ = 0, token_bytes_ = 0;  // of an item, at most
  int64_t items_ = 0, experts_ = 0;                                 // of a pass; of a block
  HostMemory boundaries_, inners_, tokens_, records_, first_rows_, flags_, start_values_;
};

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_RELAY_PASS_MEMORY_H_
