#ifndef EPS_GPU_WORKER_PLAN_GRADIENT_STEPS_H_
#define EPS_GPU_WORKER_PLAN_GRADIENT_STEPS_H_

#include <cstddef>
#include <optional>
#include <vector>

#include "common/model/model_spec.h"
#include "common/schedule/reduction_tree.h"
#include "gpu_worker/plan/hazards.h"
#include "gpu_worker/plan/pass_shape.h"
#include "gpu_worker/plan/relay_plan.h"
#include "gpu_worker/plan/relay_step.h"
#include "gpu_worker/plan/step_list.h"
#include "gpu_worker/plan/turns.h"

namespace eps::worker {

// What becomes of a layer's gradient on the way back: each vnode's is started, added to and finished; vnodes are summed
// in the reduction tree's order, as far as the plan's gradient slots reach; each node that is complete leaves by a push
// slot, or by a weight slot that is over. In a group it goes round among the members instead, whose rounds are the same
// for all of them, and this worker pushes its part of the sums.
//
// A layer's visits, vnodes and turns are told in the order of the pass.
//
// Threads: none of its own; one caller
class GradientSteps {
 public:
  // All of these outlive it. num_leaving: so many of RelayPlan::leaving_inner_slots, the first ones, are used.
  GradientSteps(const ModelSpec& model, const RelayPlan& plan, const PassShape& pass, const Turns& turns,
                StepList& steps, int num_leaving);

  // Of the turn's layer; of blocks that are depth first, beside the head's.
  void StartVisit(const Turn& turn);
  void StartVnode(const Turn& turn);
  // Where the vnode in work adds up its gradient.
  int SlotOf(const Turn& turn) const;
  // free_weight_slot: one that has room for the layer's gradient, and that nobody needs any more; -1: none.
  void EndVnode(const Turn& turn, int free_weight_slot);

  // Before each turn is computed. In a group: if the group's area is written after this turn, what lies there is summed
  // and leaves first.
  void StartTurn(const Turn& turn);
  // After the last turn: what was exchanged last is summed and leaves.
  void EndPass() { SumGroup(); }

 private:
  // What a layer's visit has gathered.
  struct Gathering {
    std::vector<TreeNode> sums;  // partial ones of the node under way, by gradient slot; the vnode in work has the next
    size_t num_nodes = 0;        // that are complete: index into pushed_
    int flags = 0;               // turn of the flags of the node under way, which are set leaf by leaf
  };
  // Those of blocks that are depth first are under way beside the head's.
  size_t IndexOf(const Turn& turn) const;
  Gathering& GatheringOf(const Turn& turn) { return gatherings_[IndexOf(turn)]; }

  int num_push_slots() const { return static_cast<int>(plan_.push_slots.size()); }
  int TakePushSlot(LayerId layer);
  int PushSlotOf(const Turn& turn, int free_weight_slot);
  Resource PushResource(int slot) const;
  Resources PushWrites(int slot);
  // What may still leave from that memory (RelayPlan::leaving_inner_slots). Once is enough, as all that writes
  // gradients is of one stream; and the other way round nothing has to wait: inner activations come to lie there before
  // the first gradient of their pass, and after all of the pass before, as streams are idle between passes.
  void AddLeaving(const ArenaSpan& span, Resources& writes);
  RelayStep StepOfNode(RelayStep::Kind kind, const Turn& turn, TreeNode node);
  bool TopTwoAreSiblings(const std::vector<TreeNode>& sums) const;
  void AddTopTwo(const Turn& turn, TreeNode node);
  void PushNode(const Turn& turn, TreeNode node, int slot);
  void PushLeaf(const Turn& turn, TreeNode leaf, int slot);
  void AddPush(const Turn& turn, const RelayStep& emitted);

  bool GivesFirstNode(const Turn& turn) const;
  void GiveNode(const Turn& turn, TreeNode node);
  // push: what this worker gives; -1: it only gets
  void Exchange(const Turn& turn, int round, int push);
  void SumGroup();

  const ModelSpec& model_;
  const RelayPlan& plan_;
  const PassShape& pass_;
  StepList& steps_;
  const Turns& turns_;
  const int64_t most_block_elems_;      // that are trained
  const std::vector<TreeNode> pushed_;  // of every layer, in order
  std::vector<int> leaving_;            // slots that no gradient has written to yet
  std::vector<Gathering> gatherings_;   // by IndexOf
  int next_push_ = 0;
  int flag_turn_ = 0;             // of the present layer
  std::optional<Turn> unsummed_;  // whose rounds are in the list, and not their sum
  int flag_turn_of_unsummed_ = 0;
};

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_PLAN_GRADIENT_STEPS_H_
