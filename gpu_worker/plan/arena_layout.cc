#include "gpu_worker/plan/arena_layout.h"

#include <algorithm>
#include <bit>

#include "common/base/byte_size.h"
#include "common/formats/wire_layout.h"
#include "common/model/model_spec.h"
#include "common/schedule/expert_rows.h"
#include "common/schedule/pushed_nodes.h"
#include "common/spec/run_config.h"
#include "common/tensor/dtype.h"
#include "gpu_worker/plan/group_parts.h"

namespace eps::worker {
namespace {

// What the steps of one turn take in a worker, while the schedule is made too. Seen, of a `cpu` worker's own memory on
// x86-64 with glibc 2.36, 23 Nov 2026: 5.3 to 6.5 KB from 512 to 8,192 turns.
constexpr int64_t kTurnBytes = 6656;

int SummedLeaves(int gradient_slots) { return 1 << (gradient_slots - 1); }

// Large enough for whatever is pushed, or given to a group.
Dtype PushDtype(const PlanNeeds& needs, int gradient_slots) {
  if (needs.forms_groups()) return Dtype::kF32;
  return SummedLeaves(gradient_slots) >= LeastSummedLeaves(needs.gradients) ? Dtype::kF32 : needs.gradients;
}

// Lays the arena out.
class ArenaBuilder {
 public:
  ArenaSpan Take(int64_t num_bytes) {
    const ArenaSpan span{end_bytes_, RoundUp(num_bytes, kArenaAlignBytes)};
    end_bytes_ = span.end_bytes();
    return span;
  }
  std::vector<ArenaSpan> Take(int64_t count, int64_t num_bytes) {
    std::vector<ArenaSpan> spans;
    for (int64_t i = 0; i < count; ++i) spans.push_back(Take(num_bytes));
    return spans;
  }
  // The first one of another size than the others; one at least.
  std::vector<ArenaSpan> TakeWithFirst(int64_t count, int64_t first_bytes, int64_t other_bytes) {
    std::vector<ArenaSpan> spans = {Take(first_bytes)};
    while (static_cast<int64_t>(spans.size()) < count) spans.push_back(Take(other_bytes));
    return spans;
  }
  int64_t end_bytes() const { return end_bytes_; }

 private:
  int64_t end_bytes_ = 0;
};

// As many spans of that size as fit between two places, `most` at most.
std::vector<ArenaSpan> Within(int64_t begin_bytes, int64_t end_bytes, int64_t num_bytes, int64_t most) {
  std::vector<ArenaSpan> spans;
  if (num_bytes > 0) most = std::min(most, (end_bytes - begin_bytes) / num_bytes);
  for (int64_t i = 0; i < most; ++i) spans.push_back({begin_bytes + i * num_bytes, num_bytes});
  return spans;
}

// What the plan takes of the worker's host memory.
void AddHostBytes(const PlanRequest& request, const PlanNeeds& needs, const PlanChoice& choice, RelayPlan& plan) {
  const int64_t staying = choice.boundary_slots - RelayPlan::LeastBoundarySlots(choice.depth_first_blocks);
  plan.host_boundary_slots = std::max<int64_t>(0, needs.waiting_boundaries(choice.depth_first_blocks) - staying);
  if (choice.boundary_slots >= needs.most_boundary_slots(choice.depth_first_blocks)) plan.host_boundary_slots = 0;
  plan.host_boundary_bytes = plan.host_boundary_slots * needs.boundary_bytes;
  plan.host_inner_bytes = choice.swapped_inner * needs.inner_slot_bytes();
  int64_t trainable_elems = 0;
  for (const LayerSpec& layer : request.model->layers) trainable_elems += layer.trainable_elems;
  // Each vnode's gradient as a leaf of its own. Sums take no more.
  const int64_t all_pushes_bytes = trainable_elems * needs.num_vnodes * SizeOf(needs.gradients);
  const int64_t two_pushes_bytes =
      2 * RoundUp(needs.push_elems * SizeOf(PushDtype(needs, choice.gradient_slots)), kArenaAlignBytes);
  plan.host_push_bytes =
      std::min(two_pushes_bytes + needs.pushes_at_once_bytes(choice.depth_first_blocks), all_pushes_bytes);
  if (needs.num_vnodes > 1) plan.host_redo_push_bytes = all_pushes_bytes;
  // There through every layer, and back through the blocks that have a backward and the embedding.
  plan.host_pass_bytes = (needs.num_layers + needs.backward_blocks + 1) * needs.items * kTurnBytes;
  const ToldExperts told = ToldExpertsOf(request.model->config, needs.num_vnodes);
  if (told.size() > 0) {  // PassMemory::FirstRows
    plan.host_pass_bytes += told.blocks * needs.items * (told.experts + 1) * int64_t{sizeof(int32_t)};
  }
  if (request.kernels.pins_host_memory) {
    const PrecisionConfig& precision = request.run->precision;
    const WireLayout weights(*request.model, precision.wire, precision.wire_versions);  // the daemon's
    plan.host_pinned_bytes =
        plan.host_boundary_bytes + plan.host_inner_bytes + plan.host_push_bytes + weights.weights_bytes();
  }
}

}  // namespace

int64_t InnerTotal(const PlanNeeds& needs, const PlanChoice& choice) {
  return (needs.backward_blocks - choice.depth_first_blocks) * needs.items;
}

PlanChoice LeastChoice(const PlanNeeds& needs, int depth_first_blocks) {
  PlanChoice choice;
  if (needs.relay.weight_slots > 0) choice.weight_slots = needs.relay.weight_slots;
  choice.depth_first_blocks = depth_first_blocks;
  if (needs.relay.inner == InnerPolicy::kKeep) choice.kept_inner = InnerTotal(needs, choice);
  if (needs.relay.inner == InnerPolicy::kSwap) choice.swapped_inner = InnerTotal(needs, choice);
  // Layers without a backward use one, too.
  choice.inner_slots = std::max<int64_t>(1, choice.kept_inner + choice.depth_first_blocks);
  choice.boundary_slots = LeastBoundarySlots(needs, choice.depth_first_blocks);
  return choice;
}

PlanChoice LeastChoice(const PlanNeeds& needs) {
  const auto bytes_of = [&](const PlanChoice& choice) {
    const int64_t wire_bytes = needs.relay.resident ? 0 : needs.block_wire_bytes;  // which have slots anyway
    return choice.inner_slots * needs.inner_slot_bytes() + choice.boundary_slots * needs.boundary_slot_bytes() +
           choice.depth_first_blocks * RoundUp(wire_bytes, kArenaAlignBytes) +
           needs.depth_first_gradient_slots(choice.depth_first_blocks, choice.gradient_slots) *
               RoundUp(needs.block_gradient_bytes, kArenaAlignBytes);
  };
  PlanChoice least = LeastChoice(needs, needs.least_depth_first_blocks());
  for (int blocks = least.depth_first_blocks + 1; blocks <= needs.most_depth_first_blocks(); ++blocks) {
    const PlanChoice choice = LeastChoice(needs, blocks);
    if (bytes_of(choice) < bytes_of(least)) least = choice;
  }
  return least;
}

int64_t LeastBoundarySlots(const PlanNeeds& needs, int64_t depth_first_blocks) {
  const int64_t most = needs.most_boundary_slots(depth_first_blocks);
  if (needs.boundaries_stay()) return most;
  const int64_t beyond_host =
      needs.waiting_boundaries(depth_first_blocks) - needs.most_host_boundaries(depth_first_blocks);
  return std::min(most, RelayPlan::LeastBoundarySlots(depth_first_blocks) + beyond_host);
}

std::vector<int> UsefulGradientSlots(const PlanNeeds& needs) {
  std::vector<int> slots = {1};
  const int most = 1 + static_cast<int>(std::bit_width(static_cast<unsigned>(needs.max_pass_vnodes) - 1));
  for (int depth = 2; depth <= most; ++depth) {
    if (SummedLeaves(depth) >= LeastSummedLeaves(needs.gradients)) slots.push_back(depth);
  }
  return slots;
}

RelayPlan LayArena(const PlanRequest& request, const PlanNeeds& needs, const PlanChoice& choice) {
  RelayPlan plan;
  ArenaBuilder arena;
  plan.cap_bytes = request.cap_bytes;
  plan.resident = needs.relay.resident;
  plan.max_pass_vnodes = needs.max_pass_vnodes;
  plan.num_vnodes = needs.num_vnodes;
  plan.wire = request.run->precision.wire;

  if (plan.resident) {
    for (const int64_t bytes : needs.wire_bytes) plan.weight_slots.push_back(arena.Take(bytes));
  } else {
    const int64_t slots = choice.weight_slots + choice.depth_first_blocks;
    plan.weight_slots = arena.TakeWithFirst(std::clamp<int64_t>(slots, 1, needs.num_layers), needs.largest.wire_bytes,
                                            needs.block_wire_bytes);
  }
  plan.expanded_weights = arena.Take(needs.largest.expanded_bytes);
  // Memory of gradients: what is needed last, going back through the layers, first (leaving_inner_slots).
  const int64_t gradients_begin = arena.end_bytes();
  const int64_t push_elem_bytes = SizeOf(PushDtype(needs, choice.gradient_slots));
  plan.pushes_from_weight_slots = !plan.resident && push_elem_bytes <= SizeOf(request.run->precision.wire);
  const int64_t block_push_bytes = needs.block_push_elems * push_elem_bytes;
  const bool only_blocks_push = plan.pushes_from_weight_slots && needs.num_vnodes == 1;
  plan.push_slots = arena.TakeWithFirst(
      choice.push_slots, only_blocks_push ? block_push_bytes : needs.push_elems * push_elem_bytes, block_push_bytes);
  plan.depth_first_blocks = choice.depth_first_blocks;
  plan.depth_first_gradient_slots = arena.Take(
      needs.depth_first_gradient_slots(choice.depth_first_blocks, choice.gradient_slots), needs.block_gradient_bytes);
  plan.gradient_slots = arena.Take(choice.gradient_slots, needs.largest.gradient_bytes);
  if (plan.depth_first_blocks > 0) {
    plan.leaving_inner_slots =
        Within(gradients_begin, arena.end_bytes(), needs.inner_slot_bytes(), InnerTotal(needs, choice));
  }
  plan.boundary_slots = arena.Take(choice.boundary_slots, needs.boundary_bytes);
  plan.token_slots = arena.Take(request.run->data.has_documents() ? 2 : 1, needs.token_bytes);
  plan.inner = {.total = InnerTotal(needs, choice), .kept = choice.kept_inner, .swapped = choice.swapped_inner};
  plan.inner_slots = arena.Take(choice.inner_slots, needs.largest.inner_bytes);
  plan.keeps_logits = choice.keeps_logits;
  plan.scratch = arena.Take(std::max({needs.largest.forward_scratch_bytes, needs.largest.backward_scratch_bytes,
                                      choice.keeps_logits ? needs.keeping_head_bytes : 0}));
  if (needs.forms_groups()) {
    plan.group_area =
        arena.Take(GroupAreaElems(*request.model, needs.max_group_members, BoundsOf(plan, needs.gradients)) *
                   int64_t{sizeof(float)});
  }
  plan.rotary_table = arena.Take(needs.rotary_bytes);
  plan.records = arena.Take(plan.GroupFlagsOffset(needs.forms_groups() ? RelayPlan::kGroupFlagTurns : 0));
  plan.arena_bytes = arena.end_bytes();
  AddHostBytes(request, needs, choice, plan);
  return plan;
}

}  // namespace eps::worker
