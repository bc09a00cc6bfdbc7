#ifndef EPS_GPU_WORKER_RELAY_SCHEDULE_H_
#define EPS_GPU_WORKER_RELAY_SCHEDULE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/model/model_spec.h"
#include "common/schedule/reduction_tree.h"
#include "common/tensor/dtype.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/plan/relay_plan.h"

namespace eps::worker {

// One line of a pass: it can be printed, compared, checked and replayed.
//
// Slots are indices into the plan's; -1 where a step uses none.
struct RelayStep {
  enum class Kind {
    kPull,           // in: every blob of the layer -> weights
    kExpand,         // compute: weights -> the expanded weights
    kLoadTokens,     // out: token ids, labels and the like of a micro-batch -> tokens
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
    kZeroGradient,   // compute: a vnode's gradient starts
    kFinishLeaf,     // compute: a vnode's gradient is complete
    kAddGradient,    // compute: gradient += other_gradient
    kEmitGradient,   // compute: gradient -> push
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
  TreeNode node;  // kFinishLeaf, kAddGradient, kEmitGradient, kPush: what is gathered
  int weights = -1, input = -1, output = -1, tokens = -1, inner = -1;
  int gradient = -1, other_gradient = -1, push = -1, record = -1;
  int round = -1, flag_turn = -1;  // of a group: GroupParts, RelayPlan::GroupFlagsOffset
  // Steps of other streams, earlier in the list, that must be done before this one starts. Steps of the same stream
  // run in the order of the list.
  std::vector<int> waits_for;
  bool signals = false;  // another step waits for this one

  StreamId stream() const;
  // What a stream that waits for this step waits for.
  WaitCause cause() const;
};

struct PassShape {
  std::vector<int> vnodes;  // of the run, rising; at most plan.max_pass_vnodes
  int num_vnodes = 1;       // of the run
  int micro_batches = 1;    // a vnode
  Dtype gradients = Dtype::kF32;
  bool expands = false;        // the wire form is not the compute dtype
  bool has_documents = false;  // every layer needs to know where they begin and end
  bool forward_only = false;   // logits of one micro-batch: one vnode, micro_batches 1; or, if it evaluates,
  bool evaluates = false;      // each vnode's record; alone
  int group_rounds = 0;        // GroupParts::rounds; 0: this worker goes alone
};

// The order of a whole pass: the forward relay, the head, the relay back.
//
// What the order does (and no bits depend on it):
//  - The in-stream carries pulls alone, so a pull that waits for its version holds up nothing but later pulls. A pull
//    starts when the last reader of its slot is done. Slots are reused least recently used first, and a layer that is
//    still in a slot is not pulled again: with weight_slots >= 2 the last block is pulled once, and with as many slots
//    as layers (resident) every layer is.
//  - The way back ends with the lowest layer that trains. A frozen layer above it makes the gradient of its input, and
//    pushes nothing.
//  - The embedding's backward needs tokens only. So N layers, N - 2 of them blocks, take N pulls on the way there and
//    N - 2 on the way back with one slot, one fewer for each further slot.
//  - The out-stream carries everything that is short: loads and stores of boundaries, gradients that leave. The loads
//    of a micro-batch are put before the stores of the one before it, so that compute finds its input there.
//  - In a group, a layer's exchange runs beside the backward of the layer below, and its sums are made one turn before the
//    first gradient of that one is complete. Every member has the same exchanges in the same order: the rounds of the head,
//    then of each layer below, whatever nodes it gathers itself.
// Waits follow from what each step reads and writes: a step waits for the last writer of what it reads, and for the
// last readers of what it overwrites.
std::vector<RelayStep> BuildSchedule(const ModelSpec& model, const RelayPlan& plan, const PassShape& pass);

// Changes a schedule that was built: what a test's program does wrong on purpose (gpu_worker/faults). Those that are
// shipped have none.
using AlterSchedule = std::function<void(const ModelSpec&, const RelayPlan&, std::vector<RelayStep>&)>;

// "recompute h.3 vnode 1 micro-batch 0 weights 1 input 0 inner 2 after 17".
std::string DebugString(const RelayStep& step, const ModelSpec& model);

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_RELAY_SCHEDULE_H_
