#ifndef EPS_GPU_WORKER_PLAN_PLAN_NEEDS_H_
#define EPS_GPU_WORKER_PLAN_PLAN_NEEDS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "common/base/byte_size.h"
#include "common/model/model_spec.h"
#include "common/spec/run_config.h"
#include "common/tensor/dtype.h"
#include "gpu_worker/device/arena_span.h"
#include "gpu_worker/device/kernels.h"
#include "gpu_worker/layers/layer_shape.h"
#include "gpu_worker/plan/profile.h"
#include "gpu_worker/plan/relay_plan.h"
#include "gpu_worker/plan/step_costs.h"

namespace eps::worker {

// What is to be planned. What it points at outlives it.
struct PlanRequest {
  const ModelSpec* model = nullptr;
  const RunConfig* run = nullptr;
  KernelSizes kernels;
  int64_t cap_bytes = 0;    // 0: as much as the plan can use
  int max_pass_vnodes = 0;  // 0: all of the run's. No shipped program limits it; tests do
  // Members of the largest group that this worker may join; 0 or 1: it joins none. Else the arena has room for one, and
  // the worker can still run a step alone.
  int max_group_members = 0;
  // The most host memory for stashed activations, and for the gradients of blocks that are depth first by choice. 0:
  // boundaries take what they need, and inner activations are swapped only with relay.inner: SWAP.
  int64_t host_stash_bytes = 0;
  const Profile* profile = nullptr;  // of the machine; null: NominalProfile of a cpu
  LinkKind link = LinkKind::kInPlace;
  bool suggests = true;  // where the cap is too small, the refusal names what the run would need less with
};

// Errors: INVALID_ARGUMENT a pass beyond all measure, by field
absl::Status CheckPass(const PlanRequest& request);

// Of the profile, or of the nominal machine.
Profile ProfileOf(const PlanRequest& request);

// What the run needs, whatever the plan chooses.
struct PlanNeeds {
  LayerSizes largest;               // each field over all layers
  std::vector<int64_t> wire_bytes;  // of each layer
  int64_t boundary_bytes = 0;
  int64_t token_bytes = 0;
  int64_t rotary_bytes = 0;
  int64_t num_layers = 0;        // embedding and head included
  int64_t items = 0;             // micro-batches of a pass
  int micro_batches = 1;         // of a vnode
  int64_t backward_blocks = 0;   // blocks that have a backward
  int64_t block_wire_bytes = 0;  // of the largest block, these three
  int64_t block_gradient_bytes = 0;
  int64_t block_push_elems = 0;
  int64_t head_push_elems = 0;
  int64_t keeping_head_bytes = 0;  // scratch of a head that keeps its logits; 0: it computes none twice
  int64_t push_elems = 0;          // of the layer that pushes most
  Dtype gradients = Dtype::kF32;
  int num_vnodes = 1;  // of the run
  int max_pass_vnodes = 1;
  int max_group_members = 0;
  int64_t host_stash_bytes = 0;  // PlanRequest's
  RelayConfig relay;

  // Layers whose backward reads their input: these blocks, and the head.
  int64_t backward_inputs() const { return backward_blocks + 1; }
  // Their inputs, of each micro-batch of a pass. What enters the layers below goes with the turn that reads
  // it, and no more than that of one layer and a turn is there at once.
  int64_t boundaries() const { return backward_inputs() * items; }
  // Those that wait for something: what a block that is depth first gives goes straight on.
  int64_t waiting_boundaries(int64_t depth_first_blocks) const { return boundaries() - depth_first_blocks * items; }
  // A gradient takes the place of the input that the turn before has read. No fewer than the least, which every pass
  // uses.
  int64_t most_boundary_slots(int64_t depth_first_blocks) const {
    return std::max(waiting_boundaries(depth_first_blocks) + depth_first_blocks + 1,
                    RelayPlan::LeastBoundarySlots(depth_first_blocks));
  }
  // RelayPlan::depth_first_gradient_slots
  int64_t depth_first_gradient_slots(int64_t depth_first_blocks, int64_t gradient_slots) const {
    return micro_batches == 1 && gradient_slots == 1 ? 0 : depth_first_blocks * gradient_slots;
  }
  int64_t inner_slot_bytes() const { return RoundUp(largest.inner_bytes, kArenaAlignBytes); }
  int64_t boundary_slot_bytes() const { return RoundUp(boundary_bytes, kArenaAlignBytes); }
  // Gradients that must not wait for each other in the worker (RelayStep::may_wait): each vnode's of the head and of
  // the blocks that are depth first.
  int64_t pushes_at_once_bytes(int64_t depth_first_blocks) const {
    if (depth_first_blocks == 0 || num_vnodes == 1) return 0;
    return (head_push_elems + depth_first_blocks * block_push_elems) * num_vnodes * SizeOf(gradients);
  }
  // Boundaries that the host may hold, beside those gradients; what is beyond has a slot.
  int64_t most_host_boundaries(int64_t depth_first_blocks) const {
    const int64_t waiting = waiting_boundaries(depth_first_blocks);
    if (host_stash_bytes <= 0) return waiting;
    const int64_t left = host_stash_bytes - pushes_at_once_bytes(depth_first_blocks);
    return std::clamp<int64_t>(left / boundary_bytes, 0, waiting);
  }

  int least_depth_first_blocks() const {
    const int64_t told = forms_groups() ? 0 : relay.depth_first_blocks.value_or(0);
    return static_cast<int>(std::min(told, backward_blocks));
  }
  // Where the run says what becomes of inner activations, it means all. A group's exchanges go layer by layer.
  int most_depth_first_blocks() const {
    const bool is_free = !relay.depth_first_blocks.has_value() && relay.inner == InnerPolicy::kAuto && !forms_groups();
    return is_free ? static_cast<int>(backward_blocks) : least_depth_first_blocks();
  }
  bool weight_slots_are_free() const { return relay.weight_slots == 0 && !relay.resident && !forms_groups(); }
  bool boundaries_stay() const { return relay.resident || relay.boundaries == BoundaryPolicy::kDevice; }
  bool forms_groups() const { return std::min(max_group_members, num_vnodes) >= 2; }
};

PlanNeeds NeedsOf(const PlanRequest& request);

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_PLAN_PLAN_NEEDS_H_
