#include "gpu_worker/relay/schedule.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"
#include "gpu_worker/plan/group_parts.h"
#include "gpu_worker/plan/pushed_nodes.h"
#include "gpu_worker/relay/hazards.h"

namespace eps::worker {
namespace {

using Kind = RelayStep::Kind;
using Resources = std::vector<Resource>;

Resource Of(ResourceKind kind, int64_t index) { return {kind, index}; }

// A micro-batch in a layer, on the way there or back: one turn of the compute stream.
struct Turn {
  LayerId layer;
  LayerKind kind = LayerKind::kBlock;
  bool backward = false;
  int vnode = 0;
  int micro_batch = 0;
  bool starts_visit = false;  // the first of its layer in this direction
};

class ScheduleBuilder {
 public:
  ScheduleBuilder(const ModelSpec& model, const RelayPlan& plan, const PassShape& pass)
      : model_(model),
        plan_(plan),
        pass_(pass),
        num_layers_(static_cast<int>(model.layers.size())),
        lowest_(model.lowest_trainable_layer().value()),
        items_(static_cast<int>(pass.vnodes.size()) * pass.micro_batches),
        pushed_(NodesOf(plan, pass)),
        slot_layer_(plan.weight_slots.size(), -1),
        slot_used_(plan.weight_slots.size(), -1) {}

  std::vector<RelayStep> Build() {
    ListTurns();
    for (size_t t = 0; t < turns_.size(); ++t) {
      if (turns_[t].starts_visit) StartVisit(turns_[t]);
      Load(t);
      if (t + 1 < turns_.size() && SourcesAreStored(turns_[t + 1])) Load(t + 1);
      if (SumsGroupBefore(turns_[t])) SumGroup();
      Compute(t);
      Store(t);  // before the vnode's gradient goes out: the next layer waits for it
      if (EndsVnode(turns_[t])) EndVnode(turns_[t]);
    }
    SumGroup();
    return std::move(steps_);
  }

 private:
  static std::vector<TreeNode> NodesOf(const RelayPlan& plan, const PassShape& pass) {
    const int most = static_cast<int>(plan.max_subtree_leaves());
    return pass.group_rounds > 0 ? GroupNodes(pass.vnodes, pass.num_vnodes, most)
                                 : PushedNodes(pass.vnodes, pass.num_vnodes, most, pass.gradients);
  }
  bool in_group() const { return pass_.group_rounds > 0; }

  // ---- turns ----
  void ListTurns() {
    for (int layer = 0; layer < num_layers_; ++layer) ListVisit(layer, layer == num_layers_ - 1);
    if (pass_.forward_only) return;
    for (int layer = num_layers_ - 2; layer >= lowest_; --layer) ListVisit(layer, true);
  }
  void ListVisit(int layer, bool backward) {
    for (int item = 0; item < items_; ++item) {
      turns_.push_back({.layer = LayerId(layer),
                        .kind = model_.layers[static_cast<size_t>(layer)].kind,
                        .backward = backward,
                        .vnode = item / pass_.micro_batches,
                        .micro_batch = item % pass_.micro_batches,
                        .starts_visit = item == 0});
    }
  }
  int Item(const Turn& turn) const { return turn.vnode * pass_.micro_batches + turn.micro_batch; }

  // ---- slots ----
  int ResidentSlot(int boundary, const Turn& turn) const {
    const int per_boundary = static_cast<int>(plan_.boundary_slots.size()) / num_layers_;
    return boundary * per_boundary + Item(turn);
  }
  int InputSlot(size_t t) const {
    if (plan_.resident) return ResidentSlot(turns_[t].layer.value() - 1, turns_[t]);
    return static_cast<int>(t % RelayPlan::kInputSlots);
  }
  // Of a layer's output; on the way back, of the gradient that goes in and out.
  int OutputSlot(size_t t) const {
    if (plan_.resident) return ResidentSlot(turns_[t].backward ? num_layers_ - 1 : turns_[t].layer.value(), turns_[t]);
    return RelayPlan::kInputSlots + static_cast<int>(t % RelayPlan::kOutputSlots);
  }
  static int TokenSlot(size_t t) { return static_cast<int>(t % RelayPlan::kTokenSlots); }
  // The slot that keeps the inner activations of a turn, or the one that every turn uses in its turn.
  int InnerSlot(const Turn& turn) const {
    const int first = std::max(lowest_, 1);  // block that has a backward
    const int64_t total = int64_t{num_layers_ - 1 - first} * items_;
    const int64_t kept = std::min(plan_.kept_inner(), total);
    const int64_t ordinal = int64_t{turn.layer.value() - first} * items_ + Item(turn);
    if (ordinal >= total - kept) return static_cast<int>(ordinal - (total - kept));
    return static_cast<int>(plan_.inner_slots.size()) - 1;
  }
  bool IsKept(const Turn& turn) const {
    return plan_.keeps_all_inner || InnerSlot(turn) != static_cast<int>(plan_.inner_slots.size()) - 1;
  }

  // ---- steps ----
  RelayStep StepOf(Kind kind, const Turn& turn) const {
    RelayStep step;
    step.kind = kind;
    step.layer = turn.layer;
    step.backward = turn.backward;
    step.vnode = turn.vnode;
    step.micro_batch = turn.micro_batch;
    return step;
  }
  void Add(RelayStep step, const Resources& reads, const Resources& writes) {
    step.waits_for = hazards_.Add(step.stream(), reads, writes);
    for (const int other : step.waits_for) steps_[static_cast<size_t>(other)].signals = true;
    steps_.push_back(std::move(step));
  }

  // ---- weights ----
  void StartVisit(const Turn& turn) {
    gathered_ = 0;
    if (turn.kind == LayerKind::kEmbedding && turn.backward) return;  // needs no weights
    weights_ = PullIntoSlot(turn);
    if (!pass_.expands || turn.kind != LayerKind::kBlock || expanded_layer_ == turn.layer.value()) return;
    RelayStep step = StepOf(Kind::kExpand, turn);
    step.vnode = step.micro_batch = -1;
    step.weights = weights_;
    Add(step, {Of(ResourceKind::kWeights, weights_)}, {Of(ResourceKind::kExpanded, 0)});
    expanded_layer_ = turn.layer.value();
  }
  int PullIntoSlot(const Turn& turn) {
    const int layer = turn.layer.value();
    const auto held = std::find(slot_layer_.begin(), slot_layer_.end(), layer);
    const auto oldest = std::min_element(slot_used_.begin(), slot_used_.end());
    const int slot =
        static_cast<int>(held != slot_layer_.end() ? held - slot_layer_.begin() : oldest - slot_used_.begin());
    slot_used_[static_cast<size_t>(slot)] = num_visits_++;
    if (held != slot_layer_.end()) return slot;
    slot_layer_[static_cast<size_t>(slot)] = layer;
    RelayStep step = StepOf(Kind::kPull, turn);
    step.vnode = step.micro_batch = -1;
    step.weights = slot;
    Add(step, {}, {Of(ResourceKind::kWeights, slot)});
    return slot;
  }

  // ---- loads and stores ----
  bool NeedsTokens(const Turn& turn) const { return pass_.has_documents || turn.kind != LayerKind::kBlock; }
  bool NeedsInput(const Turn& turn) const { return turn.kind != LayerKind::kEmbedding; }
  bool NeedsGradient(const Turn& turn) const { return turn.backward && turn.kind != LayerKind::kHead; }

  // Whether what a turn loads has been stored by steps that are already in the list.
  bool SourcesAreStored(const Turn& turn) const {
    if (plan_.resident) return true;
    if (NeedsInput(turn) && !stored_.contains({turn.layer.value(), Item(turn), false})) return false;
    return !NeedsGradient(turn) || stored_.contains({turn.layer.value() + 1, Item(turn), true});
  }
  void Load(size_t t) {
    if (static_cast<int>(t) < num_loaded_) return;
    num_loaded_ = static_cast<int>(t) + 1;
    const Turn& turn = turns_[t];
    if (NeedsTokens(turn)) {
      RelayStep step = StepOf(Kind::kLoadTokens, turn);
      step.tokens = TokenSlot(t);
      Add(step, {}, {Of(ResourceKind::kTokens, step.tokens)});
    }
    if (plan_.resident) return;
    if (NeedsInput(turn)) {
      RelayStep step = StepOf(Kind::kLoadBoundary, turn);
      step.input = InputSlot(t);
      Add(step, {HostBoundary(turn.layer.value(), turn)}, {Of(ResourceKind::kBoundary, step.input)});
    }
    if (NeedsGradient(turn)) {
      RelayStep step = StepOf(Kind::kLoadGradient, turn);
      step.output = OutputSlot(t);
      Add(step, {HostGradient(turn)}, {Of(ResourceKind::kBoundary, step.output)});
    }
  }
  void Store(size_t t) {
    const Turn& turn = turns_[t];
    const bool is_last = turn.backward && turn.layer.value() == lowest_;  // nothing below trains
    if (plan_.resident || is_last || IsOver(turn)) return;
    RelayStep step = StepOf(turn.backward ? Kind::kStoreGradient : Kind::kStoreBoundary, turn);
    step.output = OutputSlot(t);
    const int stored_layer = turn.layer.value() + (turn.backward ? 0 : 1);
    Add(step, {Of(ResourceKind::kBoundary, step.output)},
        {turn.backward ? HostGradient(turn) : HostBoundary(stored_layer, turn)});
    stored_.insert({stored_layer, Item(turn), turn.backward});
  }
  bool IsOver(const Turn& turn) const { return pass_.forward_only && turn.kind == LayerKind::kHead; }
  Resource HostBoundary(int layer, const Turn& turn) const {
    return Of(ResourceKind::kHostBoundary, int64_t{layer} * items_ + Item(turn));
  }
  Resource HostGradient(const Turn& turn) const { return Of(ResourceKind::kHostGradient, Item(turn)); }

  // ---- compute ----
  void Compute(size_t t) {
    const Turn& turn = turns_[t];
    if (!turn.backward) return Forward(t);
    if (pass_.evaluates) return Loss(t);
    if (pass_.forward_only) return Logits(t);
    if (turn.micro_batch == 0) StartVnode(turn);
    if (turn.kind == LayerKind::kHead) {
      Head(t);
    } else {
      Backward(t);
    }
  }
  bool EndsVnode(const Turn& turn) const {
    return turn.backward && !pass_.forward_only && turn.micro_batch == pass_.micro_batches - 1;
  }

  Resource Parameters(const Turn& turn) const {
    if (pass_.expands && turn.kind == LayerKind::kBlock) return Of(ResourceKind::kExpanded, 0);
    return Of(ResourceKind::kWeights, weights_);
  }

  void Forward(size_t t) {
    const Turn& turn = turns_[t];
    RelayStep step = StepOf(Kind::kForward, turn);
    step.weights = weights_;
    step.output = OutputSlot(t);
    Resources reads = {Parameters(turn)}, writes = {Of(ResourceKind::kBoundary, step.output)};
    if (turn.kind == LayerKind::kEmbedding) {
      step.tokens = TokenSlot(t);
      reads.push_back(Of(ResourceKind::kTokens, step.tokens));
    } else {
      step.input = InputSlot(t);
      step.inner = InnerSlot(turn);
      reads.push_back(Of(ResourceKind::kBoundary, step.input));
      writes.push_back(Of(ResourceKind::kInner, step.inner));
      AddDocuments(t, step, reads);
    }
    Add(step, reads, writes);
  }

  // Of a block's turn: where its micro-batch's documents lie.
  void AddDocuments(size_t t, RelayStep& step, Resources& reads) const {
    if (!pass_.has_documents) return;
    step.tokens = TokenSlot(t);
    reads.push_back(Of(ResourceKind::kTokens, step.tokens));
  }

  void Logits(size_t t) {
    RelayStep step = StepOf(Kind::kLogits, turns_[t]);
    step.weights = weights_;
    step.input = InputSlot(t);
    Add(step, {Parameters(turns_[t]), Of(ResourceKind::kBoundary, step.input)}, {});
  }

  void Loss(size_t t) {
    const Turn& turn = turns_[t];
    if (turn.micro_batch == 0) StartRecord(turn);
    RelayStep step = StepOf(Kind::kLoss, turn);
    step.weights = weights_;
    step.input = InputSlot(t);
    step.tokens = TokenSlot(t);
    step.record = RecordSlot(turn);
    Add(step, {Parameters(turn), Of(ResourceKind::kBoundary, step.input), Of(ResourceKind::kTokens, step.tokens)},
        {Of(ResourceKind::kRecord, step.record)});
    if (turn.micro_batch == pass_.micro_batches - 1) StoreRecord(turn);
  }

  static int RecordSlot(const Turn& turn) { return turn.vnode % RelayPlan::kLossRecords; }
  void StartRecord(const Turn& turn) {
    RelayStep record = StepOf(Kind::kStartRecord, turn);
    record.micro_batch = -1;
    record.record = RecordSlot(turn);
    Add(record, {}, {Of(ResourceKind::kRecord, record.record)});
  }
  void StoreRecord(const Turn& turn) {
    RelayStep record = StepOf(Kind::kStoreRecord, turn);
    record.micro_batch = -1;
    record.record = RecordSlot(turn);
    Add(record, {Of(ResourceKind::kRecord, record.record)}, {});
  }

  void Head(size_t t) {
    const Turn& turn = turns_[t];
    RelayStep step = StepOf(Kind::kHead, turn);
    step.weights = weights_;
    step.input = InputSlot(t);
    step.output = OutputSlot(t);
    step.tokens = TokenSlot(t);
    step.gradient = gradient();
    step.record = RecordSlot(turn);
    Add(step, {Parameters(turn), Of(ResourceKind::kBoundary, step.input), Of(ResourceKind::kTokens, step.tokens)},
        {Of(ResourceKind::kBoundary, step.output), Of(ResourceKind::kGradient, step.gradient),
         Of(ResourceKind::kRecord, step.record)});
  }

  void Backward(size_t t) {
    const Turn& turn = turns_[t];
    RelayStep step = StepOf(Kind::kBackward, turn);
    step.output = OutputSlot(t);
    step.gradient = gradient();
    Resources reads;
    if (turn.kind == LayerKind::kEmbedding) {
      step.tokens = TokenSlot(t);
      reads = {Of(ResourceKind::kTokens, step.tokens)};
    } else {
      step.weights = weights_;
      step.input = InputSlot(t);
      step.inner = InnerSlot(turn);
      if (!IsKept(turn)) Recompute(t);
      reads = {Parameters(turn), Of(ResourceKind::kBoundary, step.input), Of(ResourceKind::kInner, step.inner)};
      AddDocuments(t, step, reads);
    }
    Add(step, reads, {Of(ResourceKind::kBoundary, step.output), Of(ResourceKind::kGradient, step.gradient)});
  }

  void Recompute(size_t t) {
    RelayStep step = StepOf(Kind::kRecompute, turns_[t]);
    step.weights = weights_;
    step.input = InputSlot(t);
    step.inner = InnerSlot(turns_[t]);
    Resources reads = {Parameters(turns_[t]), Of(ResourceKind::kBoundary, step.input)};
    AddDocuments(t, step, reads);
    Add(step, reads, {Of(ResourceKind::kInner, step.inner)});
  }

  // ---- gradients ----
  // Partial sums of the node being gathered lie in the slots below; the vnode in work has the next one.
  int gradient() const { return static_cast<int>(sums_.size()); }

  bool Trains(const Turn& turn) const { return model_.layer(turn.layer).trains(); }

  // In a frozen layer, too, where kernels add up what nobody reads: else it would grow without bounds.
  void StartVnode(const Turn& turn) {
    RelayStep zero = StepOf(Kind::kZeroGradient, turn);
    zero.micro_batch = -1;
    zero.gradient = gradient();
    Add(zero, {}, {Of(ResourceKind::kGradient, zero.gradient)});
    if (turn.kind == LayerKind::kHead) StartRecord(turn);
  }

  void EndVnode(const Turn& turn) {
    if (turn.kind == LayerKind::kHead) StoreRecord(turn);
    if (!Trains(turn)) return;
    const TreeNode node = pushed_[gathered_];
    RelayStep finish = GradientStep(Kind::kFinishLeaf, turn, node);
    Add(finish, {},
        {Of(ResourceKind::kGradient, finish.gradient),
         in_group() ? Of(ResourceKind::kGroupOwnFlags, flag_turn_) : Of(ResourceKind::kFlags, finish.push)});
    sums_.push_back({pass_.vnodes[static_cast<size_t>(turn.vnode)], 1});
    while (TopTwoAreSiblings()) AddTopTwo(turn, node);
    if (sums_.back() != node) return;
    if (in_group()) {
      GiveNode(turn, node);
    } else {
      PushNode(turn, node);
    }
  }

  RelayStep GradientStep(Kind kind, const Turn& turn, TreeNode node) const {
    RelayStep step = StepOf(kind, turn);
    step.micro_batch = -1;
    step.node = node;
    step.gradient = gradient();
    step.push = next_push_;
    step.flag_turn = in_group() ? flag_turn_ : -1;
    return step;
  }

  bool TopTwoAreSiblings() const {
    if (sums_.size() < 2) return false;
    const TreeNode left = sums_[sums_.size() - 2], right = sums_.back();
    const TreeNode parent{left.first, left.count + right.count};
    return IsTreeNode(parent, pass_.num_vnodes) && LeftLeaves(parent.count) == left.count;
  }
  void AddTopTwo(const Turn& turn, TreeNode node) {
    const TreeNode right = sums_.back();
    sums_.pop_back();
    sums_.back().count += right.count;
    RelayStep step = GradientStep(Kind::kAddGradient, turn, node);
    step.push = -1;
    step.gradient = gradient() - 1;
    step.other_gradient = gradient();
    Add(step, {Of(ResourceKind::kGradient, step.other_gradient)}, {Of(ResourceKind::kGradient, step.gradient)});
  }
  void PushNode(const Turn& turn, TreeNode node) {
    EPS_CHECK(sums_.size() == 1);
    sums_.clear();
    ++gathered_;
    RelayStep emit = GradientStep(Kind::kEmitGradient, turn, node);
    Add(emit, {Of(ResourceKind::kGradient, emit.gradient)}, {Of(ResourceKind::kPush, emit.push)});
    RelayStep push = GradientStep(Kind::kPush, turn, node);
    push.gradient = -1;
    Add(push, {Of(ResourceKind::kPush, push.push), Of(ResourceKind::kFlags, push.push)}, {});
    next_push_ = (next_push_ + 1) % static_cast<int>(plan_.push_slots.size());
  }

  // ---- gradients of a group ----
  // After this turn the group area is written again: what lies there has left by then if its sum was made a turn before.
  bool GivesFirstNode(const Turn& turn) const {
    return in_group() && EndsVnode(turn) && gathered_ == 0 &&
           pass_.vnodes[static_cast<size_t>(turn.vnode)] == pushed_.front().end() - 1;
  }
  // In a frozen layer, which gives none, the sums of the layer above leave at the same place.
  bool SumsGroupBefore(const Turn& turn) const { return GivesFirstNode(turn) && !turn.starts_visit; }
  void GiveNode(const Turn& turn, TreeNode node) {
    EPS_CHECK(sums_.size() == 1);
    sums_.clear();
    SumGroup();  // of the layer above, if this one has a single turn
    const int round = static_cast<int>(gathered_++);
    RelayStep emit = GradientStep(Kind::kEmitGradient, turn, node);
    emit.round = round;
    Add(emit, {Of(ResourceKind::kGradient, emit.gradient)},
        {Of(ResourceKind::kPush, emit.push), Of(ResourceKind::kGroupOwn, 0)});
    Exchange(turn, round);
    if (gathered_ < pushed_.size()) return;
    // The others may have more nodes than this worker, which then only gets.
    for (int more = round + 1; more < pass_.group_rounds; ++more) Exchange(turn, more);
    unsummed_ = turn;
    flag_turn_of_unsummed_ = flag_turn_;
    flag_turn_ = (flag_turn_ + 1) % RelayPlan::kGroupFlagTurns;
  }
  void Exchange(const Turn& turn, int round) {
    RelayStep exchange = StepOf(Kind::kExchange, turn);
    exchange.vnode = exchange.micro_batch = -1;
    exchange.round = round;
    exchange.flag_turn = flag_turn_;
    Resources reads;
    if (round < static_cast<int>(pushed_.size())) {
      exchange.node = pushed_[static_cast<size_t>(round)];
      exchange.push = next_push_;
      next_push_ = (next_push_ + 1) % static_cast<int>(plan_.push_slots.size());
      reads = {Of(ResourceKind::kPush, exchange.push), Of(ResourceKind::kGroupOwnFlags, flag_turn_)};
    }
    Add(exchange, reads, {Of(ResourceKind::kGroupGot, 0), Of(ResourceKind::kGroupGotFlags, flag_turn_)});
  }
  // What was exchanged last, if it is not summed yet.
  void SumGroup() {
    if (!unsummed_.has_value()) return;
    RelayStep sum = StepOf(Kind::kSumGroup, *unsummed_);
    sum.vnode = sum.micro_batch = -1;
    Add(sum, {}, {Of(ResourceKind::kGroupOwn, 0), Of(ResourceKind::kGroupGot, 0)});
    RelayStep push = StepOf(Kind::kPushPart, *unsummed_);
    push.vnode = push.micro_batch = -1;
    push.flag_turn = flag_turn_of_unsummed_;
    Add(push,
        {Of(ResourceKind::kGroupOwn, 0), Of(ResourceKind::kGroupGot, 0),
         Of(ResourceKind::kGroupOwnFlags, push.flag_turn), Of(ResourceKind::kGroupGotFlags, push.flag_turn)},
        {});
    unsummed_.reset();
  }

  const ModelSpec& model_;
  const RelayPlan& plan_;
  const PassShape& pass_;
  const int num_layers_;
  const int lowest_;  // layer that trains: the way back ends there
  const int items_;
  const std::vector<TreeNode> pushed_;  // of every layer, in order

  std::vector<Turn> turns_;
  std::vector<RelayStep> steps_;
  HazardTracker hazards_;
  std::vector<int> slot_layer_;  // by weight slot: the layer whose weights it holds, -1 none
  std::vector<int> slot_used_;   // by weight slot: the last visit that used it
  int num_visits_ = 0;
  int weights_ = -1;  // the slot of the present visit
  int expanded_layer_ = -1;
  int num_loaded_ = 0;                           // turns whose loads are in the list
  std::set<std::tuple<int, int, bool>> stored_;  // (layer, item, gradient): input of that layer, or its gradient
  size_t gathered_ = 0;                          // index into pushed_
  std::vector<TreeNode> sums_;
  int next_push_ = 0;
  int flag_turn_ = 0;             // of the present layer
  std::optional<Turn> unsummed_;  // whose rounds are in the list, and not their sum
  int flag_turn_of_unsummed_ = 0;
};

absl::string_view KindName(Kind kind) {
  switch (kind) {
    case Kind::kPull:
      return "pull";
    case Kind::kExpand:
      return "expand";
    case Kind::kLoadTokens:
      return "load_tokens";
    case Kind::kLoadBoundary:
      return "load_boundary";
    case Kind::kLoadGradient:
      return "load_gradient";
    case Kind::kForward:
      return "forward";
    case Kind::kRecompute:
      return "recompute";
    case Kind::kHead:
      return "head";
    case Kind::kLogits:
      return "logits";
    case Kind::kLoss:
      return "loss";
    case Kind::kBackward:
      return "backward";
    case Kind::kStoreBoundary:
      return "store_boundary";
    case Kind::kStoreGradient:
      return "store_gradient";
    case Kind::kZeroGradient:
      return "zero_gradient";
    case Kind::kFinishLeaf:
      return "finish_leaf";
    case Kind::kAddGradient:
      return "add_gradient";
    case Kind::kEmitGradient:
      return "emit_gradient";
    case Kind::kPush:
      return "push";
    case Kind::kStartRecord:
      return "start_record";
    case Kind::kStoreRecord:
      return "store_record";
    case Kind::kExchange:
      return "exchange";
    case Kind::kSumGroup:
      return "sum_group";
    case Kind::kPushPart:
      return "push_part";
  }
  return "unknown";
}

}  // namespace

StreamId RelayStep::stream() const {
  switch (kind) {
    case Kind::kPull:
      return StreamId::kIn;
    case Kind::kLoadTokens:
    case Kind::kLoadBoundary:
    case Kind::kLoadGradient:
    case Kind::kStoreBoundary:
    case Kind::kStoreGradient:
    case Kind::kPush:
    case Kind::kStoreRecord:
    case Kind::kExchange:
    case Kind::kPushPart:
      return StreamId::kOut;
    default:
      return StreamId::kCompute;
  }
}

WaitCause RelayStep::cause() const {
  switch (stream()) {
    case StreamId::kIn:
      return WaitCause::kPull;
    case StreamId::kOut:
      return kind == Kind::kPush || kind == Kind::kExchange || kind == Kind::kPushPart ? WaitCause::kPush
                                                                                       : WaitCause::kStash;
    case StreamId::kCompute:
      return WaitCause::kNone;
  }
  return WaitCause::kNone;
}

std::vector<RelayStep> BuildSchedule(const ModelSpec& model, const RelayPlan& plan, const PassShape& pass) {
  EPS_CHECK(!pass.vnodes.empty() && static_cast<int>(pass.vnodes.size()) <= plan.max_pass_vnodes);
  return ScheduleBuilder(model, plan, pass).Build();
}

std::string DebugString(const RelayStep& step, const ModelSpec& model) {
  std::string text = absl::StrCat(KindName(step.kind), " ", model.layer(step.layer).name);
  const auto field = [&](absl::string_view name, int value) {
    if (value >= 0) absl::StrAppend(&text, " ", name, " ", value);
  };
  field("vnode", step.vnode);
  field("micro-batch", step.micro_batch);
  if (step.kind == Kind::kEmitGradient || step.kind == Kind::kPush) {
    absl::StrAppend(&text, " node ", DebugString(step.node));
  }
  field("weights", step.weights);
  field("tokens", step.tokens);
  field("input", step.input);
  field("output", step.output);
  field("inner", step.inner);
  field("gradient", step.gradient);
  field("from gradient", step.other_gradient);
  field("push", step.push);
  field("record", step.record);
  field("round", step.round);
  for (const int other : step.waits_for) absl::StrAppend(&text, " after ", other);
  return text;
}

}  // namespace eps::worker
