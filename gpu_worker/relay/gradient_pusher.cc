#include "gpu_worker/relay/gradient_pusher.h"

#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "common/base/status_macros.h"
#include "common/schedule/pushed_nodes.h"
#include "gpu_worker/plan/group_parts.h"
#include "gpu_worker/relay/group_exchange.h"

namespace eps::worker {
namespace {

// The lowest vnode of `node` whose gradient is not finite, by its flags (one a leaf); -1: none.
int NonfiniteVnode(TreeNode node, const int32_t* flags) {
  for (int leaf = 0; leaf < node.count; ++leaf) {
    if (flags[leaf] == 0) return node.first + leaf;
  }
  return -1;
}

}  // namespace

GradientPusher::GradientPusher(const ModelSpec& model, const RelayPlan& plan, Device& device, Transport& transport,
                               const ArenaMap& arena, absl::Span<int32_t> flags, int64_t piece_bytes,
                               std::function<bool()> is_awaited)
    : model_(model),
      plan_(plan),
      device_(device),
      transport_(transport),
      arena_(arena),
      flags_(flags),
      piece_bytes_(piece_bytes),
      buffers_({.device = &device,
                .transport = &transport,
                .most_bytes = plan.host_push_bytes,
                .is_awaited = std::move(is_awaited)}) {}

void GradientPusher::EnqueuePush(const RelayStep& step, const PassContext& pass) {
  const LayerSpec& layer = model_.layer(step.layer);
  std::vector<PushedPart> parts;
  for (const BlobUse& use : layer.blobs) {
    const BlobSpec& blob = model_.blob(use.blob);
    if (blob.frozen) continue;
    parts.push_back(
        {.use = use, .chunks = blob.all_chunks(), .first_elem = use.offset_elems, .num_elems = blob.num_elems});
  }
  Enqueue({.address = Slot(arena_.pushes, step.push),
           .num_elems = layer.trainable_elems,
           .dtype = PushedDtype(step.node, pass.gradients),
           .node = step.node,
           .flags = arena_.records + plan_.FlagsOffset(step.flags),
           .num_flags = step.node.count,
           .first_flag = 0,
           .may_wait = step.may_wait,
           .parts = std::move(parts)},
          pass, /*group=*/nullptr);
}

void GradientPusher::EnqueueExchange(const RelayStep& step, const PassContext& pass, Group& group) {
  const std::byte* push = step.push >= 0 ? Slot(arena_.pushes, step.push) : nullptr;
  group.Enqueue(GroupLane::kPush, ExchangeGradients(*pass.group, step.layer, step.round, push, arena_.group_area,
                                                    arena_.records + plan_.GroupFlagsOffset(step.flag_turn)));
}

void GradientPusher::EnqueuePushPart(const RelayStep& step, const PassContext& pass, Group& group) {
  const GroupParts& parts = *pass.group;
  const int64_t part_elems = parts.PartElems(step.layer, parts.rank());
  if (part_elems == 0) return;
  std::vector<PushedPart> pushed;
  for (const GroupParts::Piece& piece : parts.PiecesOf(step.layer, parts.rank())) {
    pushed.push_back({piece.use, piece.chunks, piece.packed_elem, piece.num_elems});
  }
  for (const GroupParts::Root& root : parts.roots()) {
    const int64_t place = parts.AreaElem(step.layer, root.place.rank, root.place.round);
    Enqueue({.address = arena_.group_area + place * int64_t{sizeof(float)},
             .num_elems = part_elems,
             .dtype = Dtype::kF32,
             .node = root.node,
             .flags = arena_.records + plan_.GroupFlagsOffset(step.flag_turn),
             .num_flags = plan_.num_vnodes,
             .first_flag = root.node.first,
             .parts = pushed},
            pass, &group);
  }
}

void GradientPusher::Enqueue(const Gradient& gradient, const PassContext& pass, Group* group) {
  Stream& out = device_.stream(StreamId::kOut);
  const int64_t elem_bytes = SizeOf(gradient.dtype);
  const std::vector<PushPiece> pieces = CutPush(gradient.parts, gradient.num_elems, piece_bytes_ / elem_bytes);
  const absl::Span<int32_t> flags = flags_.subspan(0, static_cast<size_t>(gradient.num_flags));
  out.CopyOut(absl::MakeSpan(reinterpret_cast<std::byte*>(flags.data()), flags.size() * sizeof(int32_t)),
              gradient.flags);
  for (size_t i = 0; i < pieces.size(); ++i) {
    const PushPiece& piece = pieces[i];
    const bool first = i == 0;
    const int64_t offset_bytes = piece.first_elem * elem_bytes, num_bytes = piece.num_elems * elem_bytes;
    auto destination = [this, group, first, all_bytes = gradient.num_elems * elem_bytes, offset_bytes, num_bytes,
                        may_wait = gradient.may_wait]() -> absl::StatusOr<absl::Span<std::byte>> {
      if (first) {
        absl::StatusOr<PushMemory> memory = buffers_.Acquire(all_bytes, may_wait);
        EPS_RETURN_IF_ERROR(EndOnError(group, memory.status()));
        leaving_ = *std::move(memory);
      }
      return leaving_.bytes.subspan(static_cast<size_t>(offset_bytes), static_cast<size_t>(num_bytes));
    };
    auto push = [this, &pass, group, parts = piece.parts, node = gradient.node, dtype = gradient.dtype,
                 first_flag = gradient.first_flag]() -> absl::Status {
      if (group != nullptr) EPS_RETURN_IF_ERROR(group->status());  // else it may never have come
      for (const PushedPart& part : parts) Push(pass, part, node, dtype, first_flag);
      return absl::OkStatus();
    };
    out.CopyOutTo(std::move(destination), gradient.address + offset_bytes, std::move(push));
  }
  out.HostCall([this] {
    leaving_ = {};
    return absl::OkStatus();
  });
}

void GradientPusher::Push(const PassContext& pass, const PushedPart& part, TreeNode node, Dtype dtype, int first_flag) {
  const int64_t elem_bytes = SizeOf(dtype);
  transport_.Push({.step = pass.step,
                   .blob = part.use.blob,
                   .use = part.use.use,
                   .node = node,
                   .chunks = part.chunks,
                   .dtype = dtype,
                   .nonfinite_vnode = NonfiniteVnode(node, flags_.data() + first_flag),
                   .payload = absl::MakeConstSpan(leaving_.bytes)
                                  .subspan(static_cast<size_t>(part.first_elem * elem_bytes),
                                           static_cast<size_t>(part.num_elems * elem_bytes)),
                   .owner = leaving_.owner});
}

}  // namespace eps::worker
