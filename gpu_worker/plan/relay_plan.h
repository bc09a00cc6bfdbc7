#ifndef EPS_GPU_WORKER_PLAN_RELAY_PLAN_H_
#define EPS_GPU_WORKER_PLAN_RELAY_PLAN_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "common/tensor/dtype.h"
#include "gpu_worker/device/arena_span.h"
#include "gpu_worker/plan/inner_places.h"

namespace eps::worker {

// Where every buffer of a run lies in the arena, and what becomes of activations. Made once, before step one, by
// MakeRelayPlan (planner.h). The relay executor carries it out and chooses nothing.
//
// With boundaries on the host and nothing kept, no term of the arena depends on the number of layers or micro-batches
// (L2L's constant-memory form, arXiv:2002.05645).
struct RelayPlan {
  int64_t cap_bytes = 0;    // what the user allows
  int64_t arena_bytes = 0;  // what the plan uses: <= cap_bytes, and the run's high-water mark

  bool resident = false;  // every layer's weights and every boundary stay on the device
  // Wire form of a layer: the first one has room for any, the others for a block at least. Resident: one per layer, of
  // its size.
  std::vector<ArenaSpan> weight_slots;
  Dtype wire = Dtype::kBf16;  // precision.wire
  // A block in the compute dtype; empty where blocks are pulled in that, with nothing quantized.
  ArenaSpan expanded_weights;
  // fp32 gradient accumulators of a layer (GradientElems): one, and one more for each level of the reduction tree that
  // is summed on the device. d of them sum subtrees of up to 2^(d-1) leaves.
  std::vector<ArenaSpan> gradient_slots;
  // So many of the last blocks are depth first (Turns), and weight_slots has one more for each, unless the plan is
  // resident. Each has slots for its gradient of its own, as many as there are gradient_slots, the lowest one's first;
  // steps name them by their index behind those of all others. It has none where a micro-batch is a vnode, whose
  // gradient leaves alone as soon as it is there: gradient_slots, of which there is one then, do for all.
  int depth_first_blocks = 0;
  std::vector<ArenaSpan> depth_first_gradient_slots;
  // Whether the last gradients of head and depth-first blocks leave from the slots in which their weights lay, and the
  // embedding's from the first one: nobody needs these any more. Only where what is pushed is no wider than the wire.
  // Steps name weight slot i as push slot push_slots.size() + i.
  bool pushes_from_weight_slots = false;
  // What else leaves the device, in the dtype of the push: the first one has room for any layer's gradient, the others
  // for a block's. With pushes_from_weight_slots and a single vnode of the run, all for a block's.
  std::vector<ArenaSpan> push_slots;
  // Layer inputs and outputs and their gradients, one micro-batch each. What has no slot is on the host.
  std::vector<ArenaSpan> boundary_slots;
  // Token ids, labels and the like of one micro-batch; two where blocks load documents a turn ahead.
  std::vector<ArenaSpan> token_slots;
  // Inner activations. What is not kept uses slots in its turn, also those of what is kept later.
  std::vector<ArenaSpan> inner_slots;
  // Where blocks are depth first: within the memory of gradients, which nobody needs on the way there. From here the
  // last inner activations that are swapped leave for the host, each as soon as it is made, the very last one from the
  // first slot, whose memory is needed last. Steps name them by their index behind inner_slots.
  std::vector<ArenaSpan> leaving_inner_slots;
  InnerCounts inner;  // of the largest pass
  // Of the largest pass, where the search found better ones than SpreadInner's; else empty.
  std::vector<InnerPlace> inner_places;
  // Of a pass with so many micro-batches, in which so many blocks have a backward some time after their forward.
  std::vector<InnerPlace> PlacesOf(int64_t blocks, int64_t items) const;
  ArenaSpan scratch;  // the largest layer's, forward or backward
  // Whether the head's logits stay in scratch from its first pass over the vocabulary to the second; else they are
  // computed twice, but for those of the last chunk.
  bool keeps_logits = false;
  // Where a group's nodes of this worker's part of a layer come together, fp32 (GroupParts); empty: it forms no groups.
  ArenaSpan group_area;
  // Angles of rotary positions (common/model/rotary.h), fp32, the same all along; empty where the family has none.
  ArenaSpan rotary_table;
  ArenaSpan records;        // loss records and finite flags: RecordOffset, FlagsOffset, GroupFlagsOffset
  int max_pass_vnodes = 1;  // a worker that holds more runs further passes
  int num_vnodes = 1;       // of the run

  // Those beside one for each block that is depth first: what relay.weight_slots tells.
  size_t weight_slots_in_turn() const {
    return weight_slots.size() - (resident ? 0 : static_cast<size_t>(depth_first_blocks));
  }

  // By index as of steps.
  const ArenaSpan& GradientSpan(int gradient) const;

  int64_t max_subtree_leaves() const { return int64_t{1} << (gradient_slots.size() - 1); }
  // Within `records`, in bytes: loss record `index` of kLossRecords (one is copied out while the next is filled) ...
  static int64_t RecordOffset(int index);
  static constexpr int64_t kRecordStrideBytes = 64;  // at least a LossRecord's
  // ... and the finite flags (int32) of a node that is gathered: one a leaf, max_subtree_leaves() of them. One such
  // slot for each push slot, and as many for each block that is depth first, as its nodes are under way beside the
  // head's.
  int num_flag_slots() const { return static_cast<int>(push_slots.size()) * (1 + depth_first_blocks); }
  int64_t FlagsOffset(int flag_slot) const;
  // ... and those of a group, of which each member has one for every vnode of the run; layers take turns.
  int64_t GroupFlagsOffset(int turn) const;
  static constexpr int kGroupFlagTurns = 2;
  static constexpr int kLossRecords = 2;
  // Two for a layer's input, the next one loaded while this one is read, and two for its output, or, on the way back,
  // for the gradient that goes in and out. With blocks that are depth first, one more for each but one of them has what
  // an item leaves on its way to the head.
  static constexpr int kLeastBoundarySlots = 4;
  static int64_t LeastBoundarySlots(int64_t depth_first_blocks) {
    return kLeastBoundarySlots + std::max<int64_t>(0, depth_first_blocks - 1);
  }
  // One for what is not kept; or those of one item in the blocks that are depth first, which do for that as well.
  static int64_t LeastInnerSlots(int64_t depth_first_blocks) { return std::max<int64_t>(1, depth_first_blocks); }

  // Worker's host memory: what of the boundaries and their gradients has no slot (one that is over leaves its place to
  // the next, whatever their layers), and what is swapped of the inner activations.
  int64_t host_boundary_slots = 0;
  int64_t host_boundary_bytes = 0;
  int64_t host_inner_bytes = 0;  // inner.swapped slots
  // And gradients on their way to the daemon: two of the largest pushes, one of which leaves while the other one is
  // copied out; and, where blocks are depth first and there are several vnodes, every vnode's of the head and of those
  // blocks, most of which must not wait (RelayStep::may_wait). What does not fit keeps the relay waiting (PushBuffers).
  int64_t host_push_bytes = 0;
  // The most that these can come to in a step in which vnodes of lost workers are run again here, one after the other,
  // while the daemon takes nothing: every vnode's of every layer. 0 where there is one vnode, and so one worker.
  int64_t host_redo_push_bytes = 0;
  // The steps of the largest pass, which is enqueued whole, and what it says of experts.
  int64_t host_pass_bytes = 0;
  // What the device pins of boundaries, inner activations and gradients, and of the daemon's weights in both versions
  // where it copies from there, at most; 0 for one that pins nothing.
  int64_t host_pinned_bytes = 0;

  // Of the host, but for what host_redo_push_bytes is more than host_push_bytes.
  int64_t host_bytes() const { return host_boundary_bytes + host_inner_bytes + host_push_bytes + host_pass_bytes; }
};

// One line of `eps plan`: what, where, how many bytes, and why.
struct PlanLine {
  std::string what;
  int64_t num_bytes = 0;
  std::string why;  // the arithmetic: "2 slots * 3.4 MiB"
};
std::vector<PlanLine> Describe(const RelayPlan& plan);

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_PLAN_RELAY_PLAN_H_
