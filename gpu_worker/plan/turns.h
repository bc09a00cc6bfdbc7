#ifndef EPS_GPU_WORKER_PLAN_TURNS_H_
#define EPS_GPU_WORKER_PLAN_TURNS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/base/ids.h"
#include "common/model/model_spec.h"

namespace eps::worker {

// A micro-batch in a layer, on the way there or back: one turn of the compute stream.
struct Turn {
  LayerId layer;
  LayerKind kind = LayerKind::kBlock;
  bool backward = false;  // the head counts as backward
  int vnode = 0;          // of the pass
  int micro_batch = 0;
  int item = 0;               // of the pass: vnode * micro_batches + micro_batch
  bool starts_visit = false;  // the first of its layer in this direction

  bool needs_input() const { return kind != LayerKind::kEmbedding; }
  bool needs_gradient() const { return backward && kind != LayerKind::kHead; }
};

// The turns of a pass in their order: every layer's items on the way there, the head's, and back to the lowest layer that
// trains. A turn's index is its moment.
class Turns {
 public:
  Turns(const ModelSpec& model, int num_vnodes, int micro_batches, bool forward_only);

  size_t size() const { return turns_.size(); }
  const Turn& operator[](size_t t) const { return turns_[t]; }
  int num_layers() const { return num_layers_; }
  int num_items() const { return num_items_; }
  // The lowest block that has a backward, and how many have.
  int first_backward_block() const { return first_backward_block_; }
  int num_backward_blocks() const { return num_backward_blocks_; }

  // Moments after `t`; SlotPool::kNever: none.
  int64_t NextUseOfInput(int layer, int item, int64_t t) const;
  int64_t NextUseOfGradient(const Turn& made_by) const;  // of the gradient that leaves that turn
  int64_t BackwardOf(int layer, int item) const;

 private:
  void ListVisit(const ModelSpec& model, int layer, bool backward, int micro_batches);

  const int num_layers_, num_items_;
  const bool forward_only_;
  const int lowest_;  // layer that trains
  const int first_backward_block_, num_backward_blocks_;
  std::vector<Turn> turns_;
};

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_PLAN_TURNS_H_
