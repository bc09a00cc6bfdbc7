#include "gpu_worker/plan/turns.h"

#include <algorithm>

#include "gpu_worker/plan/slot_pool.h"

namespace eps::worker {

Turns::Turns(const ModelSpec& model, int num_vnodes, int micro_batches, bool forward_only, int depth_first_blocks)
    : num_layers_(static_cast<int>(model.layers.size())),
      num_items_(num_vnodes * micro_batches),
      micro_batches_(micro_batches),
      forward_only_(forward_only),
      lowest_(model.lowest_trainable_layer().value()),
      first_backward_block_(std::max(lowest_, 1)),
      num_backward_blocks_(forward_only ? 0 : std::max(0, num_layers_ - 1 - first_backward_block_)),
      num_depth_first_(std::min(depth_first_blocks, num_backward_blocks_)) {
  for (int layer = 0; layer < first_depth_first(); ++layer) ListVisit(model, layer, false);
  ListDepthFirst(model);
  if (forward_only) return;
  for (int layer = first_depth_first() - 1; layer >= lowest_; --layer) ListVisit(model, layer, true);
}

Turn Turns::TurnOf(const ModelSpec& model, int layer, bool backward, int item) const {
  return {.layer = LayerId(layer),
          .kind = model.layers[static_cast<size_t>(layer)].kind,
          .backward = backward,
          .vnode = item / micro_batches_,
          .micro_batch = item % micro_batches_,
          .item = item,
          .starts_visit = item == 0};
}

void Turns::ListVisit(const ModelSpec& model, int layer, bool backward) {
  for (int item = 0; item < num_items_; ++item) turns_.push_back(TurnOf(model, layer, backward, item));
}

void Turns::ListDepthFirst(const ModelSpec& model) {
  const int head = num_layers_ - 1;
  for (int item = 0; item < num_items_; ++item) {
    const auto add = [&](int layer, bool backward) {
      Turn turn = TurnOf(model, layer, backward, item);
      turn.depth_first = layer != head;
      turn.starts_visit &= !backward || layer == head;
      turns_.push_back(turn);
    };
    for (int layer = first_depth_first(); layer < head; ++layer) add(layer, false);
    add(head, true);
    for (int layer = head - 1; layer >= first_depth_first(); --layer) add(layer, true);
  }
}

int64_t Turns::ForwardOf(int layer, int item) const {
  if (layer < first_depth_first()) return int64_t{layer} * num_items_ + item;
  return depth_first_begin() + item * depth_first_turns() + (layer - first_depth_first());
}

int64_t Turns::BackwardOf(int layer, int item) const {
  if (forward_only_ || layer < lowest_ || layer > num_layers_ - 2) return SlotPool::kNever;
  if (layer >= first_depth_first()) return ForwardOf(layer, item) + 2 * int64_t{num_layers_ - 1 - layer};
  const int64_t begin = depth_first_begin() + num_items_ * depth_first_turns();  // of the way back from there
  return begin + int64_t{first_depth_first() - 1 - layer} * num_items_ + item;
}

int64_t Turns::NextUseOfInput(int layer, int item, int64_t t) const {
  const int64_t forward = ForwardOf(layer, item);
  if (forward > t) return forward;
  const int64_t backward = BackwardOf(layer, item);
  return backward > t ? backward : SlotPool::kNever;
}

int64_t Turns::NextUseOfGradient(const Turn& made_by) const {
  return BackwardOf(made_by.layer.value() - 1, made_by.item);
}

}  // namespace eps::worker
