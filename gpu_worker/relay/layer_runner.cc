#include "gpu_worker/relay/layer_runner.h"

#include <optional>

#include "common/base/status_macros.h"
#include "common/numeric/quantized.h"
#include "common/schedule/pushed_nodes.h"

namespace eps::worker {
namespace {

template <typename T>
absl::Span<const std::byte> BytesOf(const T& value) {
  return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(&value), sizeof(value));
}

}  // namespace

bool ReadsInPlace(const LayerSpec& layer, const PassContext& pass) {
  if (!pass.weights.in_place()) return false;
  return layer.kind != LayerKind::kBlock || layer.blobs.size() == 1 || pass.shape.expands_blocks();
}

LayerRunner::LayerRunner(const ModelSpec& model, const RelayPlan& plan, const ArenaMap& arena,
                         const StartValues& start_values, Kernels& kernels, Stream& compute)
    : model_(model),
      plan_(plan),
      arena_(arena),
      start_values_(start_values),
      kernels_(kernels),
      compute_(compute),
      blocks_(model.layers.size()) {
  for (const LayerSpec& layer : model.layers) {
    zeroed_.push_back(ZeroedGradientRanges(model, layer));
    switch (layer.kind) {
      case LayerKind::kEmbedding:
        embedding_ = EmbeddingOffsetsOf(model, layer.id);
        break;
      case LayerKind::kBlock:
        blocks_[static_cast<size_t>(layer.id.value())] = BlockOffsetsOf(model, layer.id);
        break;
      case LayerKind::kHead:
        head_ = HeadOffsetsOf(model, layer.id);
        break;
    }
  }
}

void LayerRunner::Run(const RelayStep& step, const PassContext& pass) {
  switch (step.kind) {
    case RelayStep::Kind::kExpand:
      return Expand(step, pass);
    case RelayStep::Kind::kForward:
      return Forward(step, pass);
    case RelayStep::Kind::kRecompute:
      return BlockForward(kernels_, BlockOf(step, pass), Slot(arena_.boundaries, step.input), nullptr);
    case RelayStep::Kind::kHead:
      return Head(step, pass);
    case RelayStep::Kind::kLogits:
      return Logits(step, pass);
    case RelayStep::Kind::kLoss:
      return Loss(step, pass);
    case RelayStep::Kind::kBackward:
      return Backward(step, pass);
    case RelayStep::Kind::kZeroGradient:
      return ZeroGradient(step);
    case RelayStep::Kind::kFinishLeaf:
      return FinishLeaf(step, pass, /*dst=*/nullptr);
    case RelayStep::Kind::kEmitLeaf:
      return FinishLeaf(step, pass, Slot(arena_.pushes, step.push));
    case RelayStep::Kind::kAddGradient:
      return kernels_.AddGradient({.n = model_.layer(step.layer).trainable_elems,
                                   .dst = Gradient(step.gradient),
                                   .src = Gradient(step.other_gradient)});
    case RelayStep::Kind::kEmitGradient:
      return Emit(step, pass);
    case RelayStep::Kind::kSumGroup:
      return SumGroup(step, *pass.group);
    case RelayStep::Kind::kStartRecord:
      return compute_.CopyIn(Record(step), BytesOf(start_values_.record));
    default:
      EPS_CHECK(false);  // a copy
  }
}

void LayerRunner::RunEach(const PassContext& pass, bool starts_gradient) {
  for (const LayerSpec& layer : model_.layers) {
    RelayStep step;
    step.layer = layer.id;
    step.micro_batch = 0;
    step.vnode = 0;
    step.weights = plan_.resident ? layer.id.value() : 0;
    step.gradient = 0;
    step.tokens = 0;
    step.record = 0;
    step.input = 0;
    step.output = static_cast<int>(plan_.boundary_slots.size()) - 1;
    step.inner = static_cast<int>(plan_.inner_slots.size()) - 1;
    step.keeps_logits = plan_.keeps_logits;
    step.starts_gradient = starts_gradient;
    if (layer.kind == LayerKind::kHead) {
      pass.has_adapters ? Head(step, pass) : Loss(step, pass);
      continue;
    }
    Forward(step, pass);
    if (pass.has_adapters && layer.id >= model_.lowest_trainable_layer()) Backward(step, pass);
  }
}

MicroBatchKey LayerRunner::Key(const RelayStep& step, const PassContext& pass) const {
  return {.seed = pass.seed,
          .step = pass.step,
          .vnode = pass.vnodes[static_cast<size_t>(step.vnode)],
          .layer = step.layer,
          .micro_batch = step.micro_batch,
          .training = pass.training};
}

const std::byte* LayerRunner::Weights(const RelayStep& step, const PassContext& pass) const {
  if (!ReadsInPlace(model_.layer(step.layer), pass)) return Slot(arena_.weights, step.weights);
  return pass.weights.address(model_.layer(step.layer).blobs.front().blob);
}

int64_t LayerRunner::WeightOffset(LayerId layer, int64_t slot_offset_elems, const PassContext& pass) const {
  if (!pass.weights.in_place()) return slot_offset_elems;
  const std::vector<BlobUse>& uses = model_.layer(layer).blobs;
  const auto address = [&](const BlobUse& use) { return pass.weights.address(use.blob); };
  const BlobUse* in = &uses.front();
  for (const BlobUse& use : uses) {
    if (use.offset_elems <= slot_offset_elems) in = &use;
  }
  return (address(*in) - address(uses.front())) / SizeOf(pass.shape.wire) + slot_offset_elems - in->offset_elems;
}

BlockArgs LayerRunner::BlockOf(const RelayStep& step, const PassContext& pass) const {
  return {.shape = pass.shape,
          .key = Key(step, pass),
          .offsets = &blocks_[static_cast<size_t>(step.layer.value())],
          .is_first = model_.layer(LayerId(step.layer.value() - 1)).kind == LayerKind::kEmbedding,
          .has_adapters = pass.has_adapters,
          .weights = pass.shape.expands_blocks() ? arena_.expanded : Weights(step, pass),
          .trainable_elems = model_.layer(step.layer).trainable_elems,
          .starts_gradient = step.starts_gradient,
          .expert_balance = pass.expert_balance,
          .documents = pass.shape.has_documents ? Tokens(step, pass).documents : Documents(),
          .rotary_table = reinterpret_cast<const float*>(arena_.rotary_table),
          .inner = Slot(arena_.inners, step.inner),
          .scratch = arena_.scratch};
}

HeadArgs LayerRunner::HeadOf(const RelayStep& step, const PassContext& pass) const {
  const auto offset = [&](int64_t slot_offset_elems) { return WeightOffset(step.layer, slot_offset_elems, pass); };
  return {.shape = pass.shape,
          .key = Key(step, pass),
          .offsets = head_,
          .weight_offsets = head_.Mapped(offset),
          .weights = Weights(step, pass),
          .trainable_elems = model_.layer(step.layer).trainable_elems,
          .starts_gradient = step.starts_gradient,
          .keeps_logits = step.keeps_logits,
          .reference = Reference(step, pass),
          .scratch = arena_.scratch};
}

int32_t* LayerRunner::Flag(const RelayStep& step, int vnode, const PassContext& pass) const {
  if (pass.group != nullptr) {
    return reinterpret_cast<int32_t*>(arena_.records + plan_.GroupFlagsOffset(step.flag_turn)) + vnode;
  }
  return reinterpret_cast<int32_t*>(arena_.records + plan_.FlagsOffset(step.flags)) + (vnode - step.node.first);
}

LossRecord* LayerRunner::Record(const RelayStep& step) const {
  static_assert(sizeof(LossRecord) <= RelayPlan::kRecordStrideBytes);
  return reinterpret_cast<LossRecord*>(arena_.records + RelayPlan::RecordOffset(step.record));
}

SequenceScore* LayerRunner::Reference(const RelayStep& step, const PassContext& pass) const {
  if (!pass.shape.preferences.has_reference() || step.tokens < 0) return nullptr;
  return reinterpret_cast<SequenceScore*>(Slot(arena_.tokens, step.tokens) + pass.shape.reference_offset_bytes());
}

TokenArrays LayerRunner::Tokens(const RelayStep& step, const PassContext& pass) const {
  return TokenArrays(pass.shape, Slot(arena_.tokens, step.tokens));
}

void LayerRunner::ZeroGradient(const RelayStep& step) {
  for (const ElemRange& range : zeroed_[static_cast<size_t>(step.layer.value())]) {
    kernels_.FillZero(
        {.num_bytes = range.num_elems() * int64_t{sizeof(float)}, .dst = Gradient(step.gradient) + range.first});
  }
}

void LayerRunner::Expand(const RelayStep& step, const PassContext& pass) {
  const LayerSpec& layer = model_.layer(step.layer);
  const auto expand = [&](const std::byte* from, const BlobUse& use, int64_t num_elems) {
    std::byte* const to = arena_.expanded + use.offset_elems * pass.shape.act_bytes();
    if (const std::optional<QuantizedFormat> format = model_.blob(use.blob).quantized; format.has_value()) {
      kernels_.Dequantize({.n = num_elems, .format = *format, .src = from, .dst = to});
    } else {
      kernels_.Widen({.n = num_elems, .src = from, .src_dtype = pass.shape.wire, .dst = to});
    }
  };
  if (pass.weights.in_place()) {
    for (const BlobUse& use : layer.blobs) {
      expand(pass.weights.address(use.blob), use, model_.blob(use.blob).num_elems);
    }
    return;
  }
  // In a slot they lie one behind the other, a quantized one last.
  const std::byte* const slot = Slot(arena_.weights, step.weights);
  const BlobUse& last = layer.blobs.back();
  const bool is_quantized = model_.blob(last.blob).is_quantized();
  const int64_t others = is_quantized ? last.offset_elems : layer.num_elems;
  if (others > 0) expand(slot, layer.blobs.front(), others);
  if (is_quantized) {
    expand(slot + ModelSpec::first_wire_byte(last, pass.shape.wire), last, model_.blob(last.blob).num_elems);
  }
}

void LayerRunner::Forward(const RelayStep& step, const PassContext& pass) {
  void* y = Slot(arena_.boundaries, step.output);
  if (model_.layer(step.layer).kind == LayerKind::kEmbedding) {
    EmbeddingOffsets offsets = {.wte = WeightOffset(step.layer, embedding_.wte, pass)};
    if (embedding_.wpe.has_value()) offsets.wpe = WeightOffset(step.layer, *embedding_.wpe, pass);
    if (embedding_.wtt.has_value()) offsets.wtt = WeightOffset(step.layer, *embedding_.wtt, pass);
    return EmbeddingForward(kernels_, pass.shape, Key(step, pass), offsets, Weights(step, pass), Tokens(step, pass), y);
  }
  BlockForward(kernels_, BlockOf(step, pass), Slot(arena_.boundaries, step.input), y);
}

void LayerRunner::Head(const RelayStep& step, const PassContext& pass) {
  HeadForwardBackward(kernels_, HeadOf(step, pass), Slot(arena_.boundaries, step.input), Tokens(step, pass).labels,
                      pass.token_scale, Record(step), Slot(arena_.boundaries, step.output), Gradient(step.gradient));
}

void LayerRunner::Logits(const RelayStep& step, const PassContext& pass) {
  const auto elem_bytes = static_cast<size_t>(pass.shape.act_bytes());
  HeadLogits(kernels_, HeadOf(step, pass), Slot(arena_.boundaries, step.input), pass.logits_row,
             [&](int64_t first, int64_t chunk, const void* logits) {
               compute_.CopyOut(pass.logits.subspan(static_cast<size_t>(first) * elem_bytes,
                                                    static_cast<size_t>(chunk) * elem_bytes),
                                logits);
             });
}

void LayerRunner::Loss(const RelayStep& step, const PassContext& pass) {
  if (!pass.has_adapters) {
    return HeadReference(kernels_, HeadOf(step, pass), Slot(arena_.boundaries, step.input), Tokens(step, pass).labels);
  }
  HeadForwardBackward(kernels_, HeadOf(step, pass), Slot(arena_.boundaries, step.input), Tokens(step, pass).labels,
                      pass.token_scale, Record(step), /*dx=*/nullptr, /*gradient=*/nullptr);
}

void LayerRunner::Backward(const RelayStep& step, const PassContext& pass) {
  void* dy = Slot(arena_.boundaries, step.output);
  if (model_.layer(step.layer).kind == LayerKind::kEmbedding) {
    return EmbeddingBackward(kernels_, pass.shape, Key(step, pass), embedding_, Tokens(step, pass), dy,
                             Gradient(step.gradient), arena_.scratch);
  }
  BlockBackward(kernels_, BlockOf(step, pass), Slot(arena_.boundaries, step.input), dy, Gradient(step.gradient));
}

void LayerRunner::FinishLeaf(const RelayStep& step, const PassContext& pass, void* dst) {
  int32_t* flag = Flag(step, pass.vnodes[static_cast<size_t>(step.vnode)], pass);
  compute_.CopyIn(flag, BytesOf(start_values_.finite));
  kernels_.FinishLeaf({.n = model_.layer(step.layer).trainable_elems,
                       .src = Gradient(step.gradient),
                       .round_to = pass.gradients,
                       .dst = dst,
                       .finite = flag});
}

void LayerRunner::Emit(const RelayStep& step, const PassContext& pass) {
  const bool in_group = pass.group != nullptr;
  kernels_.EmitGradient({.n = model_.layer(step.layer).trainable_elems,
                         .src = Gradient(step.gradient),
                         .dst_dtype = in_group ? Dtype::kF32 : PushedDtype(step.node, pass.gradients),
                         .dst = Slot(arena_.pushes, step.push)});
  if (!in_group) return;
  const GroupParts& group = *pass.group;
  float* own = GroupPlace(step.layer, {group.rank(), step.round}, group);
  for (const GroupParts::Piece& piece : group.PiecesOf(step.layer, group.rank())) {
    kernels_.EmitGradient({.n = piece.num_elems,
                           .src = Gradient(step.gradient) + piece.slot_elem,
                           .dst_dtype = Dtype::kF32,
                           .dst = own + piece.packed_elem});
  }
}

float* LayerRunner::GroupPlace(LayerId layer, GroupParts::Place place, const GroupParts& group) const {
  return reinterpret_cast<float*>(arena_.group_area) + group.AreaElem(layer, place.rank, place.round);
}

void LayerRunner::SumGroup(const RelayStep& step, const GroupParts& group) {
  const int64_t elems = group.PartElems(step.layer, group.rank());
  if (elems == 0) return;
  for (const GroupParts::Sum& sum : group.sums()) {
    kernels_.AddGradient(
        {.n = elems, .dst = GroupPlace(step.layer, sum.left, group), .src = GroupPlace(step.layer, sum.right, group)});
  }
}

}  // namespace eps::worker
