#include "gpu_worker/plan/relay_plan.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/byte_size.h"
#include "common/formats/shared_message.h"

namespace eps::worker {
namespace {

constexpr int64_t kFlagBytes = sizeof(int32_t);

std::string Slots(size_t count, int64_t num_bytes) {
  return absl::StrCat(count, count == 1 ? " slot * " : " slots * ", FormatByteSize(num_bytes));
}

// The first one may be of another size than the others.
std::string Slots(const std::vector<ArenaSpan>& slots) {
  if (slots.empty()) return Slots(0, 0);
  const int64_t first = slots.front().num_bytes, other = slots.back().num_bytes;
  if (first == other) return Slots(slots.size(), first);
  return absl::StrCat(Slots(1, first), ", ", Slots(slots.size() - 1, other));
}

int64_t TotalBytes(const std::vector<ArenaSpan>& slots) {
  int64_t sum = 0;
  for (const ArenaSpan& slot : slots) sum += slot.num_bytes;
  return sum;
}

std::string DepthFirstText(const RelayPlan& plan) {
  if (plan.depth_first_blocks == 1) return "the last block, which is depth first";
  return absl::StrCat("the last ", plan.depth_first_blocks, " blocks, which are depth first");
}

std::string LeavingText(const RelayPlan& plan) {
  const auto leaving = std::min<int64_t>(std::ssize(plan.leaving_inner_slots), plan.inner.swapped);
  return leaving == 0 ? "" : absl::StrCat("; ", leaving, " of what is swapped leave from where gradients will be");
}

std::string WeightsWhy(const RelayPlan& plan) {
  const bool differ = plan.weight_slots.front().num_bytes > plan.weight_slots.back().num_bytes;
  const std::string all = differ ? "one for the largest layer, the others for blocks, as they are pulled"
                                 : "the largest layer, as it is pulled";
  return plan.depth_first_blocks == 0 ? all : absl::StrCat(all, "; of these one for each of ", DepthFirstText(plan));
}

std::string BoundariesWhy(const RelayPlan& plan) {
  if (plan.host_boundary_slots == 0) {
    const std::string inputs = ": the input of every layer that has a backward";
    return plan.depth_first_blocks == 0
               ? inputs + ", and one gradient"
               : inputs + ", of one micro-batch alone between blocks that are depth first, and one gradient";
  }
  const int64_t least = RelayPlan::LeastBoundarySlots(plan.depth_first_blocks);
  const int64_t staying = static_cast<int64_t>(plan.boundary_slots.size()) - least;
  const int64_t on_the_way = least - RelayPlan::kLeastBoundarySlots;
  return absl::StrCat(": ", staying > 0 ? absl::StrCat(staying, " that stay; ") : "",
                      on_the_way > 0 ? absl::StrCat(on_the_way, " between blocks that are depth first; ") : "",
                      "two inputs, two outputs or gradients");
}

std::string InnerWhy(const RelayPlan& plan) {
  const InnerCounts& inner = plan.inner;
  const std::string turn = plan.depth_first_blocks > 0
                               ? absl::StrCat("; ", plan.depth_first_blocks, " for blocks that are depth first")
                               : "";
  if (inner.keeps_all()) return absl::StrCat(": all kept, nothing is recomputed", turn);
  std::string why = absl::StrCat(": ", inner.kept, " kept, ");
  if (inner.swapped > 0) absl::StrAppend(&why, inner.swapped, " swapped to the host, ");
  return absl::StrCat(why, inner.recomputed(), " recomputed", turn);
}

}  // namespace

const ArenaSpan& RelayPlan::GradientSpan(int gradient) const {
  const auto index = static_cast<size_t>(gradient);
  return index < gradient_slots.size() ? gradient_slots[index]
                                       : depth_first_gradient_slots[index - gradient_slots.size()];
}

int64_t RelayPlan::RecordOffset(int index) { return index * kRecordStrideBytes; }

int64_t RelayPlan::FlagsOffset(int flag_slot) const {
  return kLossRecords * kRecordStrideBytes + flag_slot * max_subtree_leaves() * kFlagBytes;
}

int64_t RelayPlan::GroupFlagsOffset(int turn) const {
  return FlagsOffset(num_flag_slots()) + turn * num_vnodes * kFlagBytes;
}

std::vector<InnerPlace> RelayPlan::PlacesOf(int64_t blocks, int64_t items) const {
  const int64_t total = blocks * items;
  if (static_cast<int64_t>(inner_places.size()) == total) return inner_places;
  const auto slots = static_cast<int64_t>(inner_slots.size());
  std::vector<InnerPlace> places = SpreadInner(inner, total);
  if (InnerFits(places, items, slots, depth_first_blocks)) return places;
  InnerCounts fewer = inner;  // beside the least there is always room
  fewer.kept = slots - LeastInnerSlots(depth_first_blocks);
  return SpreadInner(fewer, total);
}

namespace {

void DescribeDevice(const RelayPlan& plan, std::vector<PlanLine>& lines) {
  const auto add = [&](std::string what, int64_t num_bytes, std::string why) {
    lines.push_back({std::move(what), num_bytes, std::move(why)});
  };
  add("weights", TotalBytes(plan.weight_slots),
      plan.resident ? absl::StrCat(plan.weight_slots.size(), " layers, each in a slot of its own, as it is pulled")
                    : absl::StrCat(Slots(plan.weight_slots), ": ", WeightsWhy(plan)));
  if (plan.expanded_weights.num_bytes > 0) {
    add("expanded weights", plan.expanded_weights.num_bytes, "one block in the compute dtype");
  }
  add("gradients", TotalBytes(plan.gradient_slots),
      absl::StrCat(Slots(plan.gradient_slots),
                   plan.max_subtree_leaves() == 1
                       ? std::string(": one vnode's, fp32")
                       : absl::StrCat(": sums of up to ", plan.max_subtree_leaves(), " vnodes, fp32")));
  if (!plan.depth_first_gradient_slots.empty()) {
    add("depth-first gradients", TotalBytes(plan.depth_first_gradient_slots),
        absl::StrCat(Slots(plan.depth_first_gradient_slots), ": of ", DepthFirstText(plan)));
  }
  add("push", TotalBytes(plan.push_slots),
      absl::StrCat(Slots(plan.push_slots), ": a layer's gradient on its way out",
                   plan.pushes_from_weight_slots && plan.num_vnodes == 1
                       ? "; those of head and embedding leave from a weight slot"
                       : ""));
  add("boundaries", TotalBytes(plan.boundary_slots), absl::StrCat(Slots(plan.boundary_slots), BoundariesWhy(plan)));
  add("tokens", TotalBytes(plan.token_slots), absl::StrCat(Slots(plan.token_slots), ": token ids and labels"));
  add("inner activations", TotalBytes(plan.inner_slots),
      absl::StrCat(Slots(plan.inner_slots), InnerWhy(plan), LeavingText(plan)));
  add("scratch", plan.scratch.num_bytes,
      absl::StrCat("the largest layer's, forward or backward",
                   plan.keeps_logits ? "; the head's logits are kept, none is computed twice" : ""));
  if (plan.group_area.num_bytes > 0) {
    add("group", plan.group_area.num_bytes,
        "what the other members of a group sum of this worker's part of a layer, fp32");
  }
  if (plan.rotary_table.num_bytes > 0) add("positions", plan.rotary_table.num_bytes, "cosines and sines of each, fp32");
  add("records", plan.records.num_bytes, "loss records and finite flags");
  add("device total", plan.arena_bytes,
      plan.cap_bytes > 0 ? absl::StrCat("of ", FormatByteSize(plan.cap_bytes), " allowed") : "no cap given");
}

void DescribeHost(const RelayPlan& plan, std::vector<PlanLine>& lines) {
  const auto add = [&](std::string what, int64_t num_bytes, std::string why) {
    lines.push_back({std::move(what), num_bytes, std::move(why)});
  };
  add("host boundaries", plan.host_boundary_bytes,
      plan.host_boundary_slots == 0
          ? "boundaries stay on the device"
          : absl::StrCat(plan.host_boundary_slots, ": layers' inputs; gradients take the places of what is over"));
  if (plan.host_inner_bytes > 0) {
    add("host inner activations", plan.host_inner_bytes, absl::StrCat(plan.inner.swapped, " that are swapped"));
  }
  add("host gradients", plan.host_push_bytes,
      absl::StrCat("on their way to the daemon; with shared memory they lie in the inbox, beside ",
                   FormatByteSize(kStagingBytes), " of slots"));
  add("host, a pass's steps", plan.host_pass_bytes, "enqueued at once, each with its event and its waits");
  add("host total", plan.host_bytes(), "of each worker, beside its device's memory");
  if (plan.host_redo_push_bytes > plan.host_push_bytes) {
    add("host gradients, at worst", plan.host_redo_push_bytes,
        "in a step in which another worker is lost, and its vnodes are run again here; in no total");
  }
  if (plan.host_pinned_bytes > 0) {
    add("host, pinned of it", plan.host_pinned_bytes,
        "at most, with the daemon's weights in both versions (over gRPC: one layer); what the system refuses is copied "
        "more slowly");
  }
}

}  // namespace

std::vector<PlanLine> Describe(const RelayPlan& plan) {
  std::vector<PlanLine> lines;
  DescribeDevice(plan, lines);
  DescribeHost(plan, lines);
  return lines;
}

}  // namespace eps::worker
