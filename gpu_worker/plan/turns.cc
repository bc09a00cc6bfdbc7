#include "gpu_worker/plan/turns.h"

#include <algorithm>

#include "gpu_worker/plan/slot_pool.h"

namespace eps::worker {

Turns::Turns(const ModelSpec& model, int num_vnodes, int micro_batches, bool forward_only)
    : num_layers_(static_cast<int>(model.layers.size())),
      num_items_(num_vnodes * micro_batches),
      forward_only_(forward_only),
      lowest_(model.lowest_trainable_layer().value()),
      first_backward_block_(std::max(lowest_, 1)),
      num_backward_blocks_(forward_only ? 0 : std::max(0, num_layers_ - 1 - first_backward_block_)) {
  for (int layer = 0; layer < num_layers_; ++layer) ListVisit(model, layer, layer == num_layers_ - 1, micro_batches);
  if (forward_only) return;
  for (int layer = num_layers_ - 2; layer >= lowest_; --layer) ListVisit(model, layer, true, micro_batches);
}

void Turns::ListVisit(const ModelSpec& model, int layer, bool backward, int micro_batches) {
  for (int item = 0; item < num_items_; ++item) {
    turns_.push_back({.layer = LayerId(layer),
                      .kind = model.layers[static_cast<size_t>(layer)].kind,
                      .backward = backward,
                      .vnode = item / micro_batches,
                      .micro_batch = item % micro_batches,
                      .item = item,
                      .starts_visit = item == 0});
  }
}

int64_t Turns::BackwardOf(int layer, int item) const {
  if (forward_only_ || layer < lowest_ || layer > num_layers_ - 2) return SlotPool::kNever;
  return int64_t{num_layers_ + num_layers_ - 2 - layer} * num_items_ + item;
}

int64_t Turns::NextUseOfInput(int layer, int item, int64_t t) const {
  const int64_t forward = int64_t{layer} * num_items_ + item;
  if (forward > t) return forward;
  const int64_t backward = BackwardOf(layer, item);
  return backward > t ? backward : SlotPool::kNever;
}

int64_t Turns::NextUseOfGradient(const Turn& made_by) const {
  return BackwardOf(made_by.layer.value() - 1, made_by.item);
}

}  // namespace eps::worker
