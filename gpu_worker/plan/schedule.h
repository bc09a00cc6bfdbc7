#ifndef EPS_GPU_WORKER_PLAN_SCHEDULE_H_
#define EPS_GPU_WORKER_PLAN_SCHEDULE_H_

#include <functional>
#include <vector>

#include "common/model/model_spec.h"
#include "gpu_worker/plan/pass_shape.h"
#include "gpu_worker/plan/relay_plan.h"
#include "gpu_worker/plan/relay_step.h"
#include "gpu_worker/plan/turns.h"

namespace eps::worker {

// The order of a whole pass: the forward relay, the head, the relay back.
//
// What the order does (and no bits depend on it):
//  - On the way there the in-stream carries pulls alone, so a pull that waits for its version holds up nothing but
//    later pulls. On the way back, where every version has been seen, it also brings inner activations from the host. A
//    pull starts when the last reader of its slot is done, as many visits ahead as the plan has weight slots
//    (WeightSlots). A layer that is still in a slot is not pulled again, and the one that is needed last leaves: with
//    two slots and more the last block is pulled once, as are blocks that are depth first, and with as many slots as
//    layers (resident) every layer.
//  - Boundaries, and gradients under way, stay in their slots while there is room, and those that are needed last go to
//    the host: KARMA's swapping by capacity (arXiv:2008.11421), in which the last layers stay, as the way back begins
//    there. What is in a slot until it is needed is neither stored nor loaded.
//  - The order is breadth first, which needs one layer's weights and gradient at a time, but for the last blocks, as
//    many as the plan says: these are depth first, each micro-batch passing through all of them, the head and back, so
//    that nothing of them is kept for long, swapped or recomputed. (Terms: Lamy-Poirier, arXiv:2211.05953.) Not in a
//    group, whose exchanges go layer by layer.
//  - Inner activations are kept, swapped or recomputed as the pass says. On the way back, the slots that become empty
//    take what was swapped, in its order, as far ahead as they reach. Where blocks are depth first, what is swapped
//    last leaves from where their gradients will be (RelayPlan::leaving_inner_slots), so that their own inner
//    activations find slots empty.
//  - The way back ends with the lowest layer that trains. A frozen layer above it makes the gradient of its input, and
//    pushes nothing.
//  - The embedding's backward needs tokens only. So N layers, N - 2 of them blocks, take N pulls on the way there and
//    N - 2 on the way back with one slot, one fewer for each further slot.
//  - The out-stream carries what leaves, gradients, boundaries and inner activations, and what is short: loads of
//    boundaries and of blocks' documents. The loads of a micro-batch are put before the stores of the one before it, so
//    that compute finds its input there; those of some more before a gradient, which takes as long as a turn or two.
//    Tokens, which are fewer still, come by the compute stream: in the out-stream they would wait for all of that.
//  - In a group, a layer's exchange runs beside the backward of the layer below, and its sums are made one turn before
//    the first gradient of that one is complete. Every member has the same exchanges in the same order: the rounds of
//    the head, then of each layer below, whatever nodes it gathers itself.
// Waits follow from what each step reads and writes: a step waits for the last writer of what it reads, and for the
// last readers of what it overwrites.
std::vector<RelayStep> BuildSchedule(const ModelSpec& model, const RelayPlan& plan, const PassShape& pass);

// The order of its forwards and backwards. The blocks that the pass leaves out are not in `model`.
Turns TurnsOf(const ModelSpec& model, const RelayPlan& plan, const PassShape& pass);

// Changes a schedule that was built: what a test's program does wrong on purpose (gpu_worker/faults). Those that are
// shipped have none.
using AlterSchedule = std::function<void(const ModelSpec&, const RelayPlan&, std::vector<RelayStep>&)>;

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_PLAN_SCHEDULE_H_
