#ifndef EPS_GPU_WORKER_PLAN_SCHEDULE_TESTING_H_
#define EPS_GPU_WORKER_PLAN_SCHEDULE_TESTING_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/model/model_spec.h"
#include "common/schedule/reduction_tree.h"
#include "common/tensor/dtype.h"
#include "gpu_worker/device/arena_span.h"
#include "gpu_worker/device/stream_id.h"
#include "gpu_worker/plan/group_parts.h"
#include "gpu_worker/plan/relay_plan.h"
#include "gpu_worker/plan/schedule.h"

namespace eps::worker {

// What a schedule is made of.
struct ScheduleShape {
  int layers = 2, vnodes = 2, micro_batches = 2;
  int weight_slots = 2, inner_slots = 1, gradient_slots = 1, push_slots = 1;
  bool keeps_all = false, resident = false, expands = true, bf16 = true;
  std::vector<int> held;  // empty: all
  int swapped = 0;        // of what is not kept, at most
  int spare = 1;          // inner slots that nothing is kept in
  int boundary_slots = 4;
  int group_rounds = 0;  // 0: alone; else at least as many as this worker has nodes
  // Layers, from 0. The embedding's table is the head's, too: with it frozen the head trains its norm.
  std::vector<int> frozen;
  std::vector<int> dropped;  // blocks, from 1, by the step
  int depth_first = 0;       // blocks, of those that have a backward
  bool pushes_from_weight_slots = false;
  bool large_tables = false;  // which only the first slots have room for; a plan that is not resident
  bool documents = false;
};

inline std::string Print(const ScheduleShape& s) {
  return absl::StrCat(
      "layers ", s.layers, " vnodes ", s.vnodes, " micro-batches ", s.micro_batches, " weight slots ", s.weight_slots,
      " inner slots ", s.inner_slots, s.keeps_all ? " (all)" : "", " gradient slots ", s.gradient_slots, " push slots ",
      s.push_slots, s.resident ? " resident" : "", s.expands ? " expands" : "", s.bf16 ? " bf16" : " fp32", " held ",
      absl::StrJoin(s.held, ","), " rounds ", s.group_rounds, " frozen ", absl::StrJoin(s.frozen, ","), " dropped ",
      absl::StrJoin(s.dropped, ","), " depth first ", s.depth_first, s.large_tables ? " large tables" : "",
      s.pushes_from_weight_slots ? " leaves from weights" : "", s.documents ? " documents" : "");
}

// A schedule with all that the checks need. Counts of slots matter to it, whether the first one is larger, and which
// share memory; so spans stay empty but for that.
struct MadeSchedule {
  explicit MadeSchedule(const ScheduleShape& shape) : shape(shape) {
    ModelConfig config = {.num_layers = shape.layers, .d_model = 4, .num_heads = 1, .context = 2, .vocab = 4};
    if (shape.large_tables) config.vocab = 400;
    for (const int layer : shape.frozen) {
      config.freeze.push_back(layer == 0                  ? "transformer.w*"
                              : layer == shape.layers + 1 ? "transformer.ln_f.*"
                                                          : absl::StrCat("transformer.h.", layer - 1, ".*"));
    }
    model = BuildModel(config).value();
    const int num_layers = shape.layers + 2;
    plan.max_pass_vnodes = plan.num_vnodes = shape.vnodes;
    plan.resident = shape.resident;
    const int depth_first = plan.depth_first_blocks = std::min(shape.depth_first, BackwardBlocks());
    plan.weight_slots.resize(static_cast<size_t>(shape.resident ? num_layers : shape.weight_slots + depth_first));
    plan.inner_slots.resize(static_cast<size_t>(std::max(shape.inner_slots, depth_first)));
    plan.inner = Counts();
    plan.gradient_slots.resize(static_cast<size_t>(shape.gradient_slots));
    const bool share = shape.micro_batches == 1 && shape.gradient_slots == 1;
    plan.depth_first_gradient_slots.resize(static_cast<size_t>(share ? 0 : depth_first * shape.gradient_slots));
    plan.push_slots.resize(static_cast<size_t>(shape.push_slots));
    // Inputs of layers that have a backward; those of depth-first blocks do not wait.
    const int items = shape.vnodes * shape.micro_batches, boundaries = (BackwardBlocks() + 1 - depth_first) * items;
    const auto least = static_cast<int>(RelayPlan::LeastBoundarySlots(depth_first));
    const int boundary_slots = std::max(least, shape.resident ? boundaries + depth_first + 1 : shape.boundary_slots);
    plan.boundary_slots.resize(static_cast<size_t>(boundary_slots));
    plan.host_boundary_slots = shape.resident ? 0 : std::max(0, boundaries - (boundary_slots - least));
    plan.token_slots.resize(shape.documents ? 2 : 1);
    plan.pushes_from_weight_slots = shape.pushes_from_weight_slots;
    if (shape.large_tables) plan.weight_slots.front().num_bytes = 1;
    if (depth_first > 0) LayGradients();
    pass.vnodes = shape.held;
    if (shape.held.empty()) {
      for (int v = 0; v < shape.vnodes; ++v) pass.vnodes.push_back(v);
    }
    pass.num_vnodes = shape.vnodes;
    pass.micro_batches = shape.micro_batches;
    pass.gradients = shape.bf16 ? Dtype::kBf16 : Dtype::kF32;
    pass.expands = shape.expands;
    pass.has_documents = shape.documents;
    pass.group_rounds = shape.group_rounds;
    for (const int layer : shape.dropped) pass.dropped.push_back(LayerId(layer));
  }
  bool IsDropped(int layer) const {
    return std::find(shape.dropped.begin(), shape.dropped.end(), layer) != shape.dropped.end();
  }
  // What this worker gives to its group.
  std::vector<TreeNode> group_nodes() const {
    return GroupNodes(pass.vnodes, pass.num_vnodes, static_cast<int>(plan.max_subtree_leaves()));
  }
  std::vector<RelayStep> Build() const { return BuildSchedule(model, plan, pass); }
  int BackwardBlocks() const {
    return std::max(0, shape.layers + 1 - std::max(1, model.lowest_trainable_layer().value()));
  }
  // What is swapped leaves from there.
  void LayGradients() {
    constexpr int64_t kGradientBytes = 3, kInnerBytes = 4;
    int64_t end = 0;
    for (auto* slots : {&plan.push_slots, &plan.depth_first_gradient_slots, &plan.gradient_slots}) {
      for (ArenaSpan& slot : *slots) {
        slot = {end, kGradientBytes};
        end = slot.end_bytes();
      }
    }
    for (int64_t at = 0; at + kInnerBytes <= end; at += kInnerBytes) {
      plan.leaving_inner_slots.push_back({at, kInnerBytes});
    }
  }
  // Of the largest pass.
  InnerCounts Counts() const {
    const int depth_first = plan.depth_first_blocks;
    const int64_t total = int64_t{BackwardBlocks() - depth_first} * shape.vnodes * shape.micro_batches;
    const int spare = std::max(depth_first, shape.spare);
    const auto slots = static_cast<int64_t>(plan.inner_slots.size());
    InnerCounts counts{.total = total, .kept = std::min(total, slots - spare)};
    if (shape.keeps_all && depth_first == 0) counts.kept = total;
    counts.kept = std::max<int64_t>(0, counts.kept);
    counts.swapped = std::min<int64_t>(shape.swapped, total - counts.kept);
    return counts;
  }

  ScheduleShape shape;
  ModelSpec model;
  RelayPlan plan;
  PassShape pass;
};

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_PLAN_SCHEDULE_TESTING_H_
