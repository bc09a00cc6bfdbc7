#include "gpu_worker/plan/relay_plan.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/byte_size.h"
#include "common/base/status_macros.h"
#include "gpu_worker/layers/layer_shape.h"
#include "gpu_worker/plan/group_parts.h"
#include "gpu_worker/plan/pushed_nodes.h"

namespace eps::worker {
namespace {

constexpr int64_t kRecordStrideBytes = 64;
constexpr int64_t kFlagBytes = sizeof(int32_t);

// Far beyond what a device could compute, and low enough that no size overflows and the steps of a pass can be listed.
constexpr int64_t kMostTurns = int64_t{1} << 22;          // layers * micro-batches of a pass
constexpr int64_t kMostBoundaryBytes = int64_t{1} << 36;  // of one micro-batch

int PassVnodes(const PlanRequest& request) {
  const int all = request.run->batch.virtual_nodes;
  return request.max_pass_vnodes > 0 ? std::min(request.max_pass_vnodes, all) : all;
}

absl::Status CheckPass(const PlanRequest& request) {
  const BatchConfig& batch = request.run->batch;
  const auto num_layers = static_cast<int64_t>(request.model->layers.size());
  const int64_t turns = num_layers * PassVnodes(request) * batch.micro_batches;
  if (turns > kMostTurns) {
    return absl::InvalidArgumentError(absl::StrCat(
        "batch.micro_batches: ", batch.micro_batches, " of each of ", PassVnodes(request), " virtual nodes in ",
        num_layers, " layers are ", turns, " turns of a pass, must be at most ", kMostTurns));
  }
  const ModelConfig& config = request.model->config;
  const int64_t boundary_bytes =
      batch.micro_batch * config.context * config.d_model * SizeOf(request.kernels.compute_dtype);
  if (boundary_bytes > kMostBoundaryBytes) {
    return absl::InvalidArgumentError(absl::StrCat("batch.micro_batch: ", batch.micro_batch, " sequences of ",
                                                   config.context, " tokens, ", config.d_model, " wide, are ",
                                                   boundary_bytes, " bytes, must be at most ", kMostBoundaryBytes));
  }
  return absl::OkStatus();
}

// What the run needs, whatever the plan chooses.
struct Needs {
  LayerSizes largest;               // each field over all layers
  std::vector<int64_t> wire_bytes;  // of each layer
  int64_t boundary_bytes = 0;
  int64_t token_bytes = 0;
  int64_t rotary_bytes = 0;
  int64_t num_layers = 0;   // embedding and head included
  int64_t items = 0;        // micro-batches of a pass
  int64_t inner_total = 0;  // (block, micro-batch)s of a pass that have a backward
  int64_t push_elems = 0;   // of the layer that pushes most
  Dtype gradients = Dtype::kF32;
  int num_vnodes = 1;  // of the run
  int max_pass_vnodes = 1;
  int max_group_members = 0;
  RelayConfig relay;

  // The input of every layer but the first, of each micro-batch of a pass.
  int64_t boundaries() const { return (num_layers - 1) * items; }
  // A gradient takes the place of the input that the turn before has read. No fewer than the least, which every pass uses.
  int64_t most_boundary_slots() const { return std::max<int64_t>(boundaries() + 1, RelayPlan::kLeastBoundarySlots); }
  bool boundaries_stay() const { return relay.resident || relay.boundaries == BoundaryPolicy::kDevice; }
  bool forms_groups() const { return std::min(max_group_members, num_vnodes) >= 2; }
};

Needs NeedsOf(const PlanRequest& request) {
  const ModelSpec& model = *request.model;
  const RunConfig& run = *request.run;
  const LayerShape shape =
      MakeLayerShape(model.config, {.micro_batch = run.batch.micro_batch, .has_documents = run.data.has_documents()},
                     run.precision.wire, request.kernels.compute_dtype);
  Needs needs;
  int64_t backward_blocks = 0;
  for (const LayerSpec& layer : model.layers) {
    const LayerSizes sizes = SizesOf(model, layer, shape, request.kernels);
    const auto raise = [&](int64_t LayerSizes::*field) {
      needs.largest.*field = std::max(needs.largest.*field, sizes.*field);
    };
    for (auto field :
         {&LayerSizes::wire_bytes, &LayerSizes::expanded_bytes, &LayerSizes::gradient_bytes, &LayerSizes::inner_bytes,
          &LayerSizes::forward_scratch_bytes, &LayerSizes::backward_scratch_bytes}) {
      raise(field);
    }
    needs.wire_bytes.push_back(sizes.wire_bytes);
    needs.push_elems = std::max(needs.push_elems, layer.trainable_elems);
    if (layer.kind == LayerKind::kBlock && layer.id >= model.lowest_trainable_layer()) ++backward_blocks;
  }
  needs.boundary_bytes = shape.boundary_bytes();
  needs.token_bytes = shape.token_bytes();
  if (shape.is_rotary) needs.rotary_bytes = shape.T * shape.D * int64_t{sizeof(float)};
  needs.num_layers = static_cast<int64_t>(model.layers.size());
  needs.num_vnodes = run.batch.virtual_nodes;
  needs.max_pass_vnodes = PassVnodes(request);
  needs.items = int64_t{needs.max_pass_vnodes} * run.batch.micro_batches;
  needs.inner_total = backward_blocks * needs.items;
  needs.gradients = run.precision.gradients;
  needs.max_group_members = request.max_group_members;
  needs.relay = run.relay;
  return needs;
}

// What the plan may choose.
struct Choice {
  int64_t kept_inner = 0, swapped_inner = 0;
  int64_t turn_slots = 1;  // of inner activations, beside those that are kept, unless all are
  int64_t boundary_slots = RelayPlan::kLeastBoundarySlots;
  int gradient_slots = 1;
  int push_slots = 1;
};

int SummedLeaves(int gradient_slots) { return 1 << (gradient_slots - 1); }

// Large enough for whatever is pushed, or given to a group.
Dtype PushDtype(const Needs& needs, int gradient_slots) {
  if (needs.forms_groups()) return Dtype::kF32;
  return SummedLeaves(gradient_slots) >= LeastSummedLeaves(needs.gradients) ? Dtype::kF32 : needs.gradients;
}

// The depths worth having, rising: 1, then those that make larger subtrees than the one before.
std::vector<int> UsefulGradientSlots(const Needs& needs) {
  std::vector<int> slots = {1};
  const int most = 1 + static_cast<int>(std::bit_width(static_cast<unsigned>(needs.max_pass_vnodes) - 1));
  for (int depth = 2; depth <= most; ++depth) {
    if (SummedLeaves(depth) >= LeastSummedLeaves(needs.gradients)) slots.push_back(depth);
  }
  return slots;
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
  int64_t end_bytes() const { return end_bytes_; }

 private:
  int64_t end_bytes_ = 0;
};

// A worker whose daemon takes nothing until the end of the step, and that got the vnodes one after the other, as others
// were lost: each is a leaf of its own. Sums take no more.
int64_t HostPushBytes(const ModelSpec& model, const Needs& needs) {
  int64_t elems = 0;
  for (const LayerSpec& layer : model.layers) elems += layer.trainable_elems;
  return elems * needs.num_vnodes * SizeOf(needs.gradients);
}

// The daemon's weights in their wire form: both versions of what is trained, the frozen ones once.
int64_t WeightsBytes(const PlanRequest& request) {
  const ModelSpec& model = *request.model;
  return (model.num_elems() + model.num_trainable_elems()) * SizeOf(request.run->precision.wire);
}

// One slot serves layers below the lowest that trains, or all, where nothing has a backward.
int64_t InnerSlots(const Needs& needs, const Choice& choice) {
  const bool keeps_all = choice.kept_inner == needs.inner_total;
  return std::max<int64_t>(1, choice.kept_inner + (keeps_all ? 0 : choice.turn_slots));
}

RelayPlan Lay(const PlanRequest& request, const Needs& needs, const Choice& choice) {
  RelayPlan plan;
  ArenaBuilder arena;
  plan.cap_bytes = request.cap_bytes;
  plan.resident = needs.relay.resident;
  plan.max_pass_vnodes = needs.max_pass_vnodes;
  plan.num_vnodes = needs.num_vnodes;

  if (plan.resident) {
    for (const int64_t bytes : needs.wire_bytes) plan.weight_slots.push_back(arena.Take(bytes));
  } else {
    plan.weight_slots =
        arena.Take(std::clamp<int64_t>(needs.relay.weight_slots, 1, needs.num_layers), needs.largest.wire_bytes);
  }
  plan.expanded_weights = arena.Take(needs.largest.expanded_bytes);
  plan.gradient_slots = arena.Take(choice.gradient_slots, needs.largest.gradient_bytes);
  plan.push_slots = arena.Take(choice.push_slots, needs.push_elems * SizeOf(PushDtype(needs, choice.gradient_slots)));
  plan.boundary_slots = arena.Take(choice.boundary_slots, needs.boundary_bytes);
  plan.token_slots = arena.Take(RelayPlan::kTokenSlots, needs.token_bytes);
  plan.inner = {.total = needs.inner_total, .kept = choice.kept_inner, .swapped = choice.swapped_inner};
  plan.inner_slots = arena.Take(InnerSlots(needs, choice), needs.largest.inner_bytes);
  plan.scratch = arena.Take(std::max(needs.largest.forward_scratch_bytes, needs.largest.backward_scratch_bytes));
  if (needs.forms_groups()) {
    const GroupBounds bounds = {.num_vnodes = needs.num_vnodes,
                                .max_pass_vnodes = needs.max_pass_vnodes,
                                .max_subtree_leaves = plan.max_subtree_leaves(),
                                .gradients = needs.gradients};
    plan.group_area =
        arena.Take(GroupAreaElems(*request.model, needs.max_group_members, bounds) * int64_t{sizeof(float)});
  }
  plan.rotary_table = arena.Take(needs.rotary_bytes);
  plan.records = arena.Take(plan.GroupFlagsOffset(needs.forms_groups() ? RelayPlan::kGroupFlagTurns : 0));
  plan.arena_bytes = arena.end_bytes();

  plan.host_boundary_slots =
      std::max<int64_t>(0, needs.boundaries() - (choice.boundary_slots - RelayPlan::kLeastBoundarySlots));
  if (choice.boundary_slots >= needs.most_boundary_slots()) plan.host_boundary_slots = 0;
  plan.host_boundary_bytes = plan.host_boundary_slots * needs.boundary_bytes;
  plan.host_inner_bytes = choice.swapped_inner * RoundUp(needs.largest.inner_bytes, kArenaAlignBytes);
  plan.host_push_bytes = HostPushBytes(*request.model, needs);
  if (request.kernels.pins_host_memory) {
    plan.host_pinned_bytes =
        plan.host_boundary_bytes + plan.host_inner_bytes + plan.host_push_bytes + WeightsBytes(request);
  }
  return plan;
}

Choice LeastChoice(const Needs& needs) {
  Choice choice;
  if (needs.relay.inner == InnerPolicy::kKeep) choice.kept_inner = needs.inner_total;
  if (needs.relay.inner == InnerPolicy::kSwap) choice.swapped_inner = needs.inner_total;
  if (needs.boundaries_stay()) choice.boundary_slots = needs.most_boundary_slots();
  return choice;
}

// Spends what the cap leaves, in this order:
//   1. inner activations: each one kept saves recomputing a block's forward pass, compute time that nothing hides;
//   2. gradient slots: they save bytes pushed, which mostly travel under compute;
//   3. a second push slot: a gradient then leaves while the next one is emitted;
//   4. boundaries, which travel under compute as well.
// Where all are swapped, a second slot comes first: one is computed in while the other is copied.
Choice BestChoice(const PlanRequest& request, const Needs& needs) {
  const int64_t cap = request.cap_bytes > 0 ? request.cap_bytes : std::numeric_limits<int64_t>::max();
  const auto fits = [&](const Choice& choice) { return Lay(request, needs, choice).arena_bytes <= cap; };
  Choice best = LeastChoice(needs);
  const auto left = [&] { return cap - Lay(request, needs, best).arena_bytes; };
  const int64_t inner_bytes = RoundUp(needs.largest.inner_bytes, kArenaAlignBytes);
  if (needs.relay.inner == InnerPolicy::kAuto) {
    // Where all are kept none is in turn.
    const int64_t slots = 1 + left() / inner_bytes;
    best.kept_inner = slots >= needs.inner_total ? needs.inner_total : slots - 1;
  }
  if (best.swapped_inner > 0 && left() >= inner_bytes) best.turn_slots = 2;
  for (const int slots : UsefulGradientSlots(needs)) {
    Choice more = best;
    more.gradient_slots = slots;
    if (fits(more)) best = more;
  }
  Choice more = best;
  more.push_slots = 2;
  if (fits(more)) best = more;
  if (needs.relay.boundaries == BoundaryPolicy::kAuto && !needs.relay.resident) {
    const int64_t slots = left() / RoundUp(needs.boundary_bytes, kArenaAlignBytes);
    best.boundary_slots = std::min(best.boundary_slots + slots, needs.most_boundary_slots());
  }
  return best;
}

// What the user could change, each with the cap that would then do.
std::string Suggestions(const PlanRequest& request, int64_t needed_bytes) {
  std::vector<std::string> lines;
  const auto suggest = [&](absl::string_view what, auto change) {
    RunConfig run = *request.run;
    change(run);
    PlanRequest changed = request;
    changed.run = &run;
    const int64_t bytes = SmallestCapBytes(changed);
    if (bytes < needed_bytes) lines.push_back(absl::StrCat(what, " (", bytes, " bytes)"));
  };
  suggest("relay.resident: false", [](RunConfig& run) { run.relay.resident = false; });
  suggest("relay.boundaries: HOST", [](RunConfig& run) { run.relay.boundaries = BoundaryPolicy::kHost; });
  suggest("relay.inner: RECOMPUTE", [](RunConfig& run) { run.relay.inner = InnerPolicy::kRecompute; });
  suggest("relay.weight_slots: 1", [](RunConfig& run) { run.relay.weight_slots = 1; });
  suggest("batch.micro_batch: 1", [](RunConfig& run) { run.batch.micro_batch = 1; });
  if (lines.empty()) return "";
  return absl::StrCat("; less would do with ", absl::StrJoin(lines, ", "));
}

std::string Slots(const std::vector<ArenaSpan>& slots) {
  return absl::StrCat(slots.size(), slots.size() == 1 ? " slot * " : " slots * ",
                      FormatByteSize(slots.empty() ? 0 : slots[0].num_bytes));
}

int64_t TotalBytes(const std::vector<ArenaSpan>& slots) {
  int64_t sum = 0;
  for (const ArenaSpan& slot : slots) sum += slot.num_bytes;
  return sum;
}

std::string BoundariesWhy(const RelayPlan& plan) {
  if (plan.host_boundary_slots == 0) return ": every layer's input, and one gradient";
  const size_t staying = plan.boundary_slots.size() - RelayPlan::kLeastBoundarySlots;
  if (staying == 0) return ": two inputs, two outputs or gradients";
  return absl::StrCat(": ", staying, " that stay; two inputs, two outputs or gradients");
}

std::string InnerWhy(const RelayPlan& plan) {
  const InnerCounts& inner = plan.inner;
  if (inner.keeps_all()) return ": all kept, nothing is recomputed";
  const int64_t in_turn = static_cast<int64_t>(plan.inner_slots.size()) - inner.kept;
  std::string why =
      absl::StrCat(": ", inner.kept, " kept, ", in_turn == 1 ? "one" : absl::StrCat(in_turn), " in turn; ");
  if (inner.swapped == 0) return absl::StrCat(why, "the rest is recomputed");
  return absl::StrCat(why, inner.swapped, " swapped to the host, ", inner.recomputed(), " recomputed");
}

}  // namespace

int64_t RelayPlan::RecordOffset(int index) { return index * kRecordStrideBytes; }

int64_t RelayPlan::FlagsOffset(int push_slot) const {
  return kLossRecords * kRecordStrideBytes + push_slot * max_subtree_leaves() * kFlagBytes;
}

int64_t RelayPlan::GroupFlagsOffset(int turn) const {
  return FlagsOffset(static_cast<int>(push_slots.size())) + turn * num_vnodes * kFlagBytes;
}

absl::StatusOr<RelayPlan> MakeRelayPlan(const PlanRequest& request) {
  EPS_RETURN_IF_ERROR(CheckPass(request));
  const int64_t smallest = SmallestCapBytes(request);
  if (request.cap_bytes < 0 || (request.cap_bytes > 0 && request.cap_bytes < smallest)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("device memory of ", request.cap_bytes, " bytes is too small: this run needs at least ", smallest,
                     " bytes (", FormatByteSize(smallest), ")", Suggestions(request, smallest)));
  }
  const Needs needs = NeedsOf(request);
  return Lay(request, needs, BestChoice(request, needs));
}

int64_t SmallestCapBytes(const PlanRequest& request) {
  if (!CheckPass(request).ok()) return std::numeric_limits<int64_t>::max();
  const Needs needs = NeedsOf(request);
  return Lay(request, needs, LeastChoice(needs)).arena_bytes;
}

std::vector<PlanLine> Describe(const RelayPlan& plan) {
  std::vector<PlanLine> lines;
  const auto add = [&](std::string what, int64_t num_bytes, std::string why) {
    lines.push_back({std::move(what), num_bytes, std::move(why)});
  };
  add("weights", TotalBytes(plan.weight_slots),
      plan.resident ? absl::StrCat(plan.weight_slots.size(), " layers, each in a slot of its own, wire form")
                    : absl::StrCat(Slots(plan.weight_slots), ": the largest layer, wire form"));
  if (plan.expanded_weights.num_bytes > 0) {
    add("expanded weights", plan.expanded_weights.num_bytes, "one block in the compute dtype");
  }
  add("gradients", TotalBytes(plan.gradient_slots),
      absl::StrCat(Slots(plan.gradient_slots),
                   plan.max_subtree_leaves() == 1
                       ? std::string(": one vnode's, fp32")
                       : absl::StrCat(": sums of up to ", plan.max_subtree_leaves(), " vnodes, fp32")));
  add("push", TotalBytes(plan.push_slots), absl::StrCat(Slots(plan.push_slots), ": a layer's gradient on its way out"));
  add("boundaries", TotalBytes(plan.boundary_slots), absl::StrCat(Slots(plan.boundary_slots), BoundariesWhy(plan)));
  add("tokens", TotalBytes(plan.token_slots), absl::StrCat(Slots(plan.token_slots), ": token ids and labels"));
  add("inner activations", TotalBytes(plan.inner_slots), absl::StrCat(Slots(plan.inner_slots), InnerWhy(plan)));
  add("scratch", plan.scratch.num_bytes, "the largest layer's, forward or backward");
  if (plan.group_area.num_bytes > 0) {
    add("group", plan.group_area.num_bytes,
        "what the other members of a group sum of this worker's part of a layer, fp32");
  }
  if (plan.rotary_table.num_bytes > 0) add("positions", plan.rotary_table.num_bytes, "cosines and sines of each, fp32");
  add("records", plan.records.num_bytes, "loss records and finite flags");
  add("device total", plan.arena_bytes,
      plan.cap_bytes > 0 ? absl::StrCat("of ", FormatByteSize(plan.cap_bytes), " allowed") : "no cap given");
  add("host boundaries", plan.host_boundary_bytes,
      plan.host_boundary_slots == 0
          ? "boundaries stay on the device"
          : absl::StrCat(plan.host_boundary_slots, ": layers' inputs; gradients take the places of what is over"));
  if (plan.host_inner_bytes > 0) {
    add("host inner activations", plan.host_inner_bytes, absl::StrCat(plan.inner.swapped, " that are swapped"));
  }
  add("host gradients", plan.host_push_bytes,
      "at most, while the daemon has no room; with shared memory they lie in the inbox, beside 4 MiB of slots");
  if (plan.host_pinned_bytes > 0) {
    add("host, pinned of it", plan.host_pinned_bytes,
        "at most, with the daemon's weights in both versions (over gRPC: one layer); what the system refuses is copied "
        "more slowly");
  }
  return lines;
}

}  // namespace eps::worker
