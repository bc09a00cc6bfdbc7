#include "gpu_worker/plan/turns.h"

#include <algorithm>

#include "gpu_worker/plan/slot_pool.h"

namespace eps::worker {

Turns::Turns(const ModelSpec& model, int num_vnodes, int micro_batches, bool forward_only, bool back_to_back)
    : num_layers_(static_cast<int>(model.layers.size())),
      num_items_(num_vnodes * micro_batches),
      micro_batches_(micro_batches),
      forward_only_(forward_only),
      lowest_(model.lowest_trainable_layer().value()),
      first_backward_block_(std::max(lowest_, 1)),
      num_backward_blocks_(forward_only ? 0 : std::max(0, num_layers_ - 1 - first_backward_block_)),
      back_to_back_(back_to_back && num_backward_blocks_ > 0) {
  const int last_block = num_layers_ - 2;
  const int apart = back_to_back_ ? last_block : num_layers_;  // layers of which one way is a visit of its own
  for (int layer = 0; layer < apart; ++layer) ListVisit(model, layer, layer == num_layers_ - 1);
  if (back_to_back_) ListBackToBack(model);
  if (forward_only) return;
  for (int layer = back_to_back_ ? last_block - 1 : last_block; layer >= lowest_; --layer) {
    ListVisit(model, layer, true);
  }
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

void Turns::ListBackToBack(const ModelSpec& model) {
  for (int item = 0; item < num_items_; ++item) {
    Turn there = TurnOf(model, num_layers_ - 2, false, item);
    there.back_to_back = true;
    Turn back = there;
    back.backward = true;
    back.starts_visit = false;
    turns_.push_back(there);
    turns_.push_back(TurnOf(model, num_layers_ - 1, true, item));
    turns_.push_back(back);
  }
}

int64_t Turns::ForwardOf(int layer, int item) const {
  const int64_t first_visit = int64_t{num_layers_ - 2} * num_items_;  // of the last block
  if (!back_to_back_ || layer < num_layers_ - 2) return int64_t{layer} * num_items_ + item;
  return first_visit + 3 * int64_t{item} + (layer - (num_layers_ - 2));
}

int64_t Turns::BackwardOf(int layer, int item) const {
  if (forward_only_ || layer < lowest_ || layer > num_layers_ - 2) return SlotPool::kNever;
  if (back_to_back_ && layer == num_layers_ - 2) return ForwardOf(layer, item) + 2;
  return int64_t{num_layers_ + num_layers_ - 2 - layer} * num_items_ + item;
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
