#ifndef EPS_GPU_WORKER_PLAN_RELAY_STEP_H_
#define EPS_GPU_WORKER_PLAN_RELAY_STEP_H_

#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/model/model_spec.h"
#include "common/schedule/reduction_tree.h"
#include "gpu_worker/device/stream_id.h"

namespace eps::worker {

// One line of a pass: it can be printed, compared, checked and replayed.
//
// Slots are indices into the plan's; -1 where a step uses none.
struct RelayStep {
  enum class Kind {
    kPull,           // in: every blob of the layer -> weights
    kExpand,         // compute: weights -> the expanded weights
    kLoadTokens,     // compute: token ids, labels and the like of a micro-batch -> tokens; so little that a stream in
                     // which it waited for other copies would cost more
    kLoadDocuments,  // out: of these, where documents begin and end, which is all that a block reads -> tokens
    kLoadBoundary,   // out: host -> input
    kLoadGradient,   // out: host -> output: the gradient of the layer's output
    kForward,        // compute: input (or tokens) -> output, and inner
    kRecompute,      // compute: input -> inner
    kHead,           // compute: input -> output (its gradient), gradient, record
    kLogits,         // compute: input -> the logits of the last row; forward-only passes
    kLoss,           // compute: input -> record; passes that evaluate
    kBackward,       // compute: input, inner, output (gradient of the output -> that of the input), gradient
    kStoreBoundary,  // out: output -> host: the input of layer + 1
    kStoreGradient,  // out: output -> host: the gradient of the layer's input
    kStoreInner,     // out: inner -> host
    kLoadInner,      // in: host -> inner
    kZeroGradient,   // compute: zeroes what a vnode's first backward does not write (ZeroedGradientRanges)
    kFinishLeaf,     // compute: a vnode's gradient is complete
    kAddGradient,    // compute: gradient += other_gradient
    kEmitGradient,   // compute: gradient -> push
    kEmitLeaf,       // compute: kFinishLeaf and kEmitGradient at once, of a vnode's gradient that is pushed alone
    kPush,           // out: push -> a host buffer -> the transport
    kStartRecord,    // compute: a vnode's loss record starts
    kStoreRecord,    // out: record -> host
    // In a group, in place of kPush; kEmitGradient keeps this worker's own part in its group area then.
    kExchange,  // out: push -> the other members, theirs -> the group area: one round of a layer
    kSumGroup,  // compute: the sums of the group area, once every round is there
    kPushPart,  // out: the sums -> a host buffer -> the transport: this worker's part of a layer
  };
  Kind kind = Kind::kPull;
  LayerId layer;
  bool backward = false;  // on the way back; the head counts as backward
  int vnode = -1;         // index into PassShape::vnodes
  int micro_batch = -1;
  TreeNode node;  // kFinishLeaf, kAddGradient, kEmitGradient, kEmitLeaf, kPush, kExchange: what is gathered
  int weights = -1, input = -1, output = -1, tokens = -1, inner = -1;
  int gradient = -1, other_gradient = -1, record = -1;
  // inner behind the inner slots: RelayPlan::leaving_inner_slots.
  int push = -1;   // behind the push slots: a weight slot (RelayPlan::pushes_from_weight_slots)
  int flags = -1;  // of a node's leaves: RelayPlan::FlagsOffset
  // Of loads and stores: a place on the host, one of RelayPlan::host_boundary_slots, or of inner.swapped.
  int host = -1;
  int round = -1, flag_turn = -1;  // of a group: GroupParts, RelayPlan::GroupFlagsOffset
  bool keeps_logits = false;       // kHead: RelayPlan::keeps_logits
  bool starts_gradient = false;    // kHead, kBackward: of a vnode's first micro-batch (BlockArgs)
  // kPush: it may wait until the daemon has taken what was pushed before: no earlier push of the pass is of a lower
  // layer than a later one, or this one. Else what it waits for could be waiting for it.
  bool may_wait = true;
  // Steps of other streams, earlier in the list, that must be done before this one starts. Steps of the same stream
  // run in the order of the list.
  std::vector<int> waits_for;
  bool signals = false;  // another step waits for this one

  StreamId stream() const;
  // What a stream that waits for this step waits for.
  WaitCause cause() const;
};

// "recompute h.3".
std::string Title(const RelayStep& step, const ModelSpec& model);
// "recompute h.3 back vnode 1 micro-batch 0 weights 1 input 0 inner 2 after 17".
std::string DebugString(const RelayStep& step, const ModelSpec& model);

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_PLAN_RELAY_STEP_H_
