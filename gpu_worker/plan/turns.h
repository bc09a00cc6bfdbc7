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
  bool starts_visit = false;  // the first of its layer's for which weights are brought, where it needs any
  bool depth_first = false;   // of a block whose backward follows before the next item comes

  bool needs_input() const { return kind != LayerKind::kEmbedding; }
  bool needs_gradient() const { return backward && kind != LayerKind::kHead; }
  bool needs_weights() const { return kind != LayerKind::kEmbedding || !backward; }
};

// The turns of a pass in their order: every layer's items on the way there, the head's, and back to the lowest layer
// that trains. A turn's index is its moment.
//
// That is breadth first: a layer is there once for all items, whose activations all wait for the way back. The last
// blocks may be depth first instead: each item passes through them, the head and back before the next item comes, so
// that what they keep inside is that of one item, while the weights and gradients of all of them are there. The items
// of a layer have the same order either way.
//
// Threads: never changes after construction; safe
class Turns {
 public:
  // depth_first_blocks: so many of the last ones, of those that have a backward
  Turns(const ModelSpec& model, int num_vnodes, int micro_batches, bool forward_only, int depth_first_blocks);

  size_t size() const { return turns_.size(); }
  const Turn& operator[](size_t t) const { return turns_[t]; }
  int num_layers() const { return num_layers_; }
  int num_items() const { return num_items_; }
  int num_depth_first() const { return num_depth_first_; }
  int first_depth_first() const { return num_layers_ - 1 - num_depth_first_; }  // the head, where no block is
  // Whether its layer's weights are needed no more by then: a block's that is depth first until its last backward.
  bool EndsVisit(const Turn& turn) const {
    return turn.needs_weights() && turn.item == num_items_ - 1 && (turn.backward || !turn.depth_first);
  }
  // Whether its vnode's gradient of the layer is complete with it.
  bool EndsVnode(const Turn& turn) const {
    return turn.backward && !forward_only_ && turn.micro_batch == micro_batches_ - 1;
  }
  // Blocks that have a backward some time after their forward: the lowest of them, and how many there are.
  int first_stashed_block() const { return first_backward_block_; }
  int num_stashed_blocks() const { return num_backward_blocks_ - num_depth_first_; }

  // Moments after `t`; SlotPool::kNever: none.
  int64_t NextUseOfInput(int layer, int item, int64_t t) const;
  int64_t NextUseOfGradient(const Turn& made_by) const;  // of the gradient that leaves that turn
  int64_t BackwardOf(int layer, int item) const;

 private:
  Turn TurnOf(const ModelSpec& model, int layer, bool backward, int item) const;
  void ListVisit(const ModelSpec& model, int layer, bool backward);
  void ListDepthFirst(const ModelSpec& model);
  int64_t ForwardOf(int layer, int item) const;
  // Of the part that is depth first: an item's turns, and the first one's moment.
  int64_t depth_first_turns() const { return 2 * int64_t{num_depth_first_} + 1; }
  int64_t depth_first_begin() const { return int64_t{first_depth_first()} * num_items_; }

  const int num_layers_, num_items_, micro_batches_;
  const bool forward_only_;
  const int lowest_;  // layer that trains
  const int first_backward_block_, num_backward_blocks_;
  const int num_depth_first_;
  std::vector<Turn> turns_;
};

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_PLAN_TURNS_H_
