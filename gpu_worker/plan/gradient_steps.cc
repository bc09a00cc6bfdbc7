#include "gpu_worker/plan/gradient_steps.h"

#include <iterator>
#include <numeric>
#include <utility>
#include <vector>

#include "common/base/status_macros.h"
#include "common/schedule/pushed_nodes.h"
#include "gpu_worker/plan/group_parts.h"
#include "gpu_worker/plan/hazards.h"

namespace eps::worker {
namespace {

using Kind = RelayStep::Kind;

std::vector<TreeNode> NodesOf(const RelayPlan& plan, const PassShape& pass) {
  const int most = static_cast<int>(plan.max_subtree_leaves());
  return pass.in_group() ? GroupNodes(pass.vnodes, pass.num_vnodes, most)
                         : PushedNodes(pass.vnodes, pass.num_vnodes, most, pass.gradients);
}

}  // namespace

GradientSteps::GradientSteps(const ModelSpec& model, const RelayPlan& plan, const PassShape& pass, const Turns& turns,
                             StepList& steps, int num_leaving)
    : model_(model),
      plan_(plan),
      pass_(pass),
      steps_(steps),
      turns_(turns),
      most_block_elems_(model.max_trainable_block_elems()),
      pushed_(NodesOf(plan, pass)),
      leaving_(static_cast<size_t>(num_leaving)),
      gatherings_(1 + static_cast<size_t>(turns.num_depth_first())) {
  std::iota(leaving_.begin(), leaving_.end(), 0);
}

size_t GradientSteps::IndexOf(const Turn& turn) const {
  return turn.depth_first ? 1 + static_cast<size_t>(turn.layer.value() - turns_.first_depth_first()) : 0;
}

void GradientSteps::StartVisit(const Turn& turn) {
  Gathering& gathering = GatheringOf(turn);
  gathering = {.sums = {}, .num_nodes = 0, .flags = gathering.flags};
}

int GradientSteps::SlotOf(const Turn& turn) const {
  const size_t index = IndexOf(turn);
  const size_t first = plan_.depth_first_gradient_slots.empty() ? 0 : index * plan_.gradient_slots.size();
  return static_cast<int>(first + gatherings_[index].sums.size());
}

// In a frozen layer, too, where kernels add up what nobody reads: else it would grow without bounds.
void GradientSteps::StartVnode(const Turn& turn) {
  RelayStep zero = StepOfVnode(Kind::kZeroGradient, turn);
  zero.gradient = SlotOf(turn);
  Resources writes = {ResourceOf(ResourceKind::kGradient, zero.gradient)};
  AddLeaving(plan_.GradientSpan(zero.gradient), writes);
  steps_.Add(zero, {}, writes);
}

void GradientSteps::EndVnode(const Turn& turn, int free_weight_slot) {
  if (!model_.layer(turn.layer).trains()) return;
  Gathering& gathering = GatheringOf(turn);
  const TreeNode node = pushed_[gathering.num_nodes];
  if (node.is_leaf() && !pass_.in_group()) {
    ++gathering.num_nodes;
    return PushLeaf(turn, node, PushSlotOf(turn, free_weight_slot));
  }
  RelayStep finish = StepOfNode(Kind::kFinishLeaf, turn, node);
  steps_.Add(finish, {},
             {ResourceOf(ResourceKind::kGradient, finish.gradient),
              pass_.in_group() ? ResourceOf(ResourceKind::kGroupOwnFlags, flag_turn_)
                               : ResourceOf(ResourceKind::kFlags, finish.flags)});
  gathering.sums.push_back({pass_.vnodes[static_cast<size_t>(turn.vnode)], 1});
  while (TopTwoAreSiblings(gathering.sums)) AddTopTwo(turn, node);
  if (gathering.sums.back() != node) return;
  EPS_CHECK(gathering.sums.size() == 1);
  gathering.sums.clear();
  ++gathering.num_nodes;
  if (pass_.in_group()) {
    GiveNode(turn, node);
  } else {
    PushNode(turn, node, PushSlotOf(turn, free_weight_slot));
  }
}

// Only the first one has room for what is larger than a block's.
int GradientSteps::TakePushSlot(LayerId layer) {
  const bool is_large = model_.layer(layer).trainable_elems > most_block_elems_;
  EPS_CHECK(!is_large || !plan_.pushes_from_weight_slots || plan_.num_vnodes > 1);
  const int slot = is_large ? 0 : next_push_;
  next_push_ = (slot + 1) % num_push_slots();
  return slot;
}

int GradientSteps::PushSlotOf(const Turn& turn, int free_weight_slot) {
  return free_weight_slot >= 0 ? num_push_slots() + free_weight_slot : TakePushSlot(turn.layer);
}

Resource GradientSteps::PushResource(int slot) const {
  return slot < num_push_slots() ? ResourceOf(ResourceKind::kPush, slot)
                                 : ResourceOf(ResourceKind::kWeights, slot - num_push_slots());
}

Resources GradientSteps::PushWrites(int slot) {
  Resources writes = {PushResource(slot)};
  if (slot < num_push_slots()) AddLeaving(plan_.push_slots[static_cast<size_t>(slot)], writes);
  return writes;
}

void GradientSteps::AddLeaving(const ArenaSpan& span, Resources& writes) {
  std::erase_if(leaving_, [&](int slot) {
    const bool overlaps = plan_.leaving_inner_slots[static_cast<size_t>(slot)].Overlaps(span);
    if (overlaps) writes.push_back(ResourceOf(ResourceKind::kInner, std::ssize(plan_.inner_slots) + slot));
    return overlaps;
  });
}

RelayStep GradientSteps::StepOfNode(Kind kind, const Turn& turn, TreeNode node) {
  RelayStep step = StepOfVnode(kind, turn);
  step.node = node;
  step.gradient = SlotOf(turn);
  if (pass_.in_group()) {
    step.flag_turn = flag_turn_;
  } else {
    const size_t index = IndexOf(turn);
    step.flags = static_cast<int>(index) * num_push_slots() + gatherings_[index].flags;
  }
  return step;
}

bool GradientSteps::TopTwoAreSiblings(const std::vector<TreeNode>& sums) const {
  if (sums.size() < 2) return false;
  const TreeNode left = sums[sums.size() - 2], right = sums.back();
  const TreeNode parent{left.first, left.count + right.count};
  return IsTreeNode(parent, pass_.num_vnodes) && LeftLeaves(parent.count) == left.count;
}

void GradientSteps::AddTopTwo(const Turn& turn, TreeNode node) {
  std::vector<TreeNode>& sums = GatheringOf(turn).sums;
  const TreeNode right = sums.back();
  sums.pop_back();
  sums.back().count += right.count;
  RelayStep step = StepOfNode(Kind::kAddGradient, turn, node);
  step.other_gradient = step.gradient;
  step.gradient = step.other_gradient - 1;
  steps_.Add(step, {ResourceOf(ResourceKind::kGradient, step.other_gradient)},
             {ResourceOf(ResourceKind::kGradient, step.gradient)});
}

void GradientSteps::PushNode(const Turn& turn, TreeNode node, int slot) {
  RelayStep emit = StepOfNode(Kind::kEmitGradient, turn, node);
  emit.push = slot;
  steps_.Add(emit, {ResourceOf(ResourceKind::kGradient, emit.gradient)}, PushWrites(emit.push));
  AddPush(turn, emit);
}

void GradientSteps::PushLeaf(const Turn& turn, TreeNode leaf, int slot) {
  RelayStep emit = StepOfNode(Kind::kEmitLeaf, turn, leaf);
  emit.push = slot;
  Resources writes = PushWrites(emit.push);
  writes.push_back(ResourceOf(ResourceKind::kFlags, emit.flags));
  steps_.Add(emit, {ResourceOf(ResourceKind::kGradient, emit.gradient)}, writes);
  AddPush(turn, emit);
}

void GradientSteps::AddPush(const Turn& turn, const RelayStep& emitted) {
  RelayStep push = emitted;
  push.kind = Kind::kPush;
  push.gradient = -1;
  steps_.Add(push, {PushResource(push.push), ResourceOf(ResourceKind::kFlags, push.flags)}, {});
  Gathering& gathering = GatheringOf(turn);
  gathering.flags = (gathering.flags + 1) % num_push_slots();
}

bool GradientSteps::GivesFirstNode(const Turn& turn) const {
  return turns_.EndsVnode(turn) && gatherings_[0].num_nodes == 0 &&
         pass_.vnodes[static_cast<size_t>(turn.vnode)] == pushed_.front().end() - 1;
}

// A turn early, so that what lies in the area has left when it is written again. In a frozen layer, which gives none,
// the sums of the layer above leave at the same place.
void GradientSteps::StartTurn(const Turn& turn) {
  if (pass_.in_group() && GivesFirstNode(turn) && !turn.starts_visit) SumGroup();
}

void GradientSteps::GiveNode(const Turn& turn, TreeNode node) {
  SumGroup();  // of the layer above, if this one has a single turn
  const size_t num_nodes = GatheringOf(turn).num_nodes;
  const int round = static_cast<int>(num_nodes) - 1;
  RelayStep emit = StepOfNode(Kind::kEmitGradient, turn, node);
  emit.push = TakePushSlot(turn.layer);
  emit.round = round;
  steps_.Add(emit, {ResourceOf(ResourceKind::kGradient, emit.gradient)},
             {ResourceOf(ResourceKind::kPush, emit.push), ResourceOf(ResourceKind::kGroupOwn, 0)});
  Exchange(turn, round, emit.push);
  if (num_nodes < pushed_.size()) return;
  // The others may have more nodes than this worker, which then only gets.
  for (int more = round + 1; more < pass_.group_rounds; ++more) Exchange(turn, more, /*push=*/-1);
  unsummed_ = turn;
  flag_turn_of_unsummed_ = flag_turn_;
  flag_turn_ = (flag_turn_ + 1) % RelayPlan::kGroupFlagTurns;
}

void GradientSteps::Exchange(const Turn& turn, int round, int push) {
  RelayStep exchange = StepOfVisit(Kind::kExchange, turn);
  exchange.round = round;
  exchange.flag_turn = flag_turn_;
  Resources reads;
  if (push >= 0) {
    exchange.node = pushed_[static_cast<size_t>(round)];
    exchange.push = push;
    reads = {ResourceOf(ResourceKind::kPush, exchange.push), ResourceOf(ResourceKind::kGroupOwnFlags, flag_turn_)};
  }
  steps_.Add(exchange, reads,
             {ResourceOf(ResourceKind::kGroupGot, 0), ResourceOf(ResourceKind::kGroupGotFlags, flag_turn_)});
}

// Of what was exchanged last, if it is not summed yet.
void GradientSteps::SumGroup() {
  if (!unsummed_.has_value()) return;
  const RelayStep sum = StepOfVisit(Kind::kSumGroup, *unsummed_);
  steps_.Add(sum, {}, {ResourceOf(ResourceKind::kGroupOwn, 0), ResourceOf(ResourceKind::kGroupGot, 0)});
  RelayStep push = StepOfVisit(Kind::kPushPart, *unsummed_);
  push.flag_turn = flag_turn_of_unsummed_;
  steps_.Add(push,
             {ResourceOf(ResourceKind::kGroupOwn, 0), ResourceOf(ResourceKind::kGroupGot, 0),
              ResourceOf(ResourceKind::kGroupOwnFlags, push.flag_turn),
              ResourceOf(ResourceKind::kGroupGotFlags, push.flag_turn)},
             {});
  unsummed_.reset();
}

}  // namespace eps::worker
