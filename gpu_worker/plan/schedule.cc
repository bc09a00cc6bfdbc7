#include "gpu_worker/plan/schedule.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "common/base/ids.h"
#include "common/base/status_macros.h"
#include "gpu_worker/plan/gradient_steps.h"
#include "gpu_worker/plan/hazards.h"
#include "gpu_worker/plan/inner_places.h"
#include "gpu_worker/plan/slot_pool.h"
#include "gpu_worker/plan/stash.h"
#include "gpu_worker/plan/step_list.h"
#include "gpu_worker/plan/weight_slots.h"

namespace eps::worker {
namespace {

using Kind = RelayStep::Kind;

class ScheduleBuilder {
 public:
  // boundaries, inners: null: everything that may leave its slot is stored, to see what comes back; nothing is listed.
  ScheduleBuilder(const ModelSpec& model, const RelayPlan& plan, const PassShape& pass, const Reloaded* boundaries,
                  const Reloaded* inners)
      : plan_(plan),
        pass_(pass),
        turns_(TurnsOf(model, plan, pass)),
        inner_places_(pass.inner.empty() ? plan.PlacesOf(turns_.num_stashed_blocks(), turns_.num_items()) : pass.inner),
        is_final_(boundaries != nullptr),
        steps_(is_final_),
        weight_slots_(model, plan, turns_, pass.expands),
        turn_slots_(turns_.size()),
        boundaries_(static_cast<int>(plan.boundary_slots.size()), turns_.size(), boundaries),
        inners_(static_cast<int>(plan.inner_slots.size()), turns_.size(), inners),
        leaving_(inner_places_.size(), -1),
        gradients_(model, plan, pass, turns_, steps_, FindLeaving()) {
    EPS_CHECK(pass.forward_only ||
              static_cast<int>(inner_places_.size()) == turns_.num_stashed_blocks() * turns_.num_items());
    EPS_CHECK(!pass.has_documents ||
              plan.token_slots.size() > 1);  // a turn's are loaded while those before it are read
  }

  std::vector<RelayStep> Build() {
    for (size_t t = 0; t < turns_.size(); ++t) {
      if (turns_[t].starts_visit) StartVisit(t);
      if (turns_[t].needs_weights()) UseWeights(turns_[t]);
      LoadDocuments(t);
      Arrange(t, t);
      if (t + 1 < turns_.size()) {
        LoadDocuments(t + 1);
        Arrange(t + 1, t);
      }
      if (turns_[t].backward) ArrangeInner(t);
      gradients_.StartTurn(turns_[t]);
      Compute(t);
      Store(t);  // before the vnode's gradient goes out: the next layer waits for it
      Release(t);
      if (turns_.EndsVnode(turns_[t])) {
        ArrangeAhead(t);
        EndVnode(turns_[t]);
      }
      if (turns_.EndsVisit(turns_[t])) EndVisit(turns_[t]);
    }
    gradients_.EndPass();
    EPS_CHECK(boundaries_.num_host_slots() <= plan_.host_boundary_slots || !is_final_);
    EPS_CHECK(inners_.num_host_slots() <= plan_.inner.swapped || !is_final_);
    return steps_.Take();
  }
  const Reloaded& reloaded_boundaries() const { return boundaries_.reloaded(); }
  const Reloaded& reloaded_inners() const { return inners_.reloaded(); }

 private:
  // The slots of one turn, once what lies in them is there or on its way.
  struct TurnSlots {
    int input = -1, output = -1, inner = -1;
  };

  // ---- values ----
  // Boundary slots hold numbered values: layer * items + item is that layer's input. A gradient under way is numbered
  // as the input of a layer behind the last, one for each item: an item has one at a time, wherever it is.
  int64_t Input(int layer, const Turn& turn) const { return int64_t{layer} * turns_.num_items() + turn.item; }
  int64_t Gradient(const Turn& turn) const { return Input(turns_.num_layers(), turn); }
  int64_t Output(const Turn& turn) const {
    return turn.backward ? Gradient(turn) : Input(turn.layer.value() + 1, turn);
  }
  int64_t Inner(const Turn& turn) const { return Input(turn.layer.value(), turn); }

  int TokenSlot(size_t t) const { return static_cast<int>(t % plan_.token_slots.size()); }
  TurnSlots& SlotsOf(size_t t) { return turn_slots_[t]; }
  InnerPlace PlaceOf(const Turn& turn) const {
    if (turn.depth_first) return InnerPlace::kKeep;
    const bool is_stashed = !pass_.forward_only && turn.layer.value() >= turns_.first_stashed_block();
    return is_stashed ? inner_places_[PlaceIndex(turn)] : InnerPlace::kRecompute;  // else nobody asks for it again
  }
  // Of a stashed block's turn.
  size_t PlaceIndex(const Turn& turn) const {
    const int block = turn.layer.value() - turns_.first_stashed_block();
    return static_cast<size_t>(block * turns_.num_items() + turn.item);
  }

  // How many of RelayPlan::leaving_inner_slots are used.
  int FindLeaving() {
    int count = 0;
    if (turns_.num_depth_first() == 0) return count;
    const auto first = static_cast<int>(plan_.inner_slots.size()),
               most = static_cast<int>(plan_.leaving_inner_slots.size());
    for (size_t place = inner_places_.size(); place-- > 0 && count < most;) {
      if (inner_places_[place] == InnerPlace::kSwap) leaving_[place] = first + count++;
    }
    return count;
  }
  // Of a turn on the way there. -1: in none of them.
  int LeavingSlotOf(const Turn& turn) const {
    if (turn.backward || PlaceOf(turn) != InnerPlace::kSwap) return -1;
    return leaving_[PlaceIndex(turn)];
  }

  // ---- weights ----
  void StartVisit(size_t t) {
    gradients_.StartVisit(turns_[t]);
    if (!turns_[t].needs_weights()) return;
    PullAhead();
    weight_slots_.StartVisit(turns_[t]);
  }
  void EndVisit(const Turn& turn) {
    weight_slots_.EndVisit(turn.layer.value());
    PullAhead();
  }
  void PullAhead() {
    for (const WeightSlots::Pull& pull : weight_slots_.PullAhead()) {
      RelayStep step = StepOfVisit(Kind::kPull, pull.visit);
      step.weights = pull.slot;
      steps_.Add(step, {}, {ResourceOf(ResourceKind::kWeights, pull.slot)});
    }
  }
  // In the dtype that the turn computes in. Blocks that are depth first are expanded anew for each item.
  void UseWeights(const Turn& turn) {
    weights_ = weight_slots_.SlotOf(turn.layer.value());
    if (!pass_.expands || turn.kind != LayerKind::kBlock || expanded_layer_ == turn.layer.value()) return;
    RelayStep step = StepOfVisit(Kind::kExpand, turn);
    step.weights = weights_;
    steps_.Add(step, {ResourceOf(ResourceKind::kWeights, weights_)}, {ResourceOf(ResourceKind::kExpanded, 0)});
    expanded_layer_ = turn.layer.value();
  }

  // ---- loads and stores ----
  // Of a block, a turn ahead; embedding and head load theirs themselves.
  void LoadDocuments(size_t t) {
    if (!pass_.has_documents || turns_[t].kind != LayerKind::kBlock || t < next_documents_) return;
    next_documents_ = t + 1;
    AddTokens(Kind::kLoadDocuments, t);
  }
  int AddTokens(Kind kind, size_t t) {
    RelayStep step = StepOf(kind, turns_[t]);
    step.tokens = TokenSlot(t);
    steps_.Add(step, {}, {ResourceOf(ResourceKind::kTokens, step.tokens)});
    return step.tokens;
  }

  // Brings what turn `t` needs of boundaries into slots, as far as it has been made by turn `now`.
  void Arrange(size_t t, size_t now) {
    const Turn& turn = turns_[t];
    if (turn.needs_input() && SlotsOf(t).input < 0) {
      SlotsOf(t).input = Bring(Kind::kLoadBoundary, Input(turn.layer.value(), turn), t, now);
    }
    if (turn.needs_gradient() && SlotsOf(t).output < 0) {
      SlotsOf(t).output = Bring(Kind::kLoadGradient, Gradient(turn), t, now);
    }
  }
  // A gradient that leaves after turn `t` occupies the out-stream, which also brings boundaries. So those of some turns
  // behind the next one are loaded first: of the same visit, and only while kLeastEmpty slots are empty.
  void ArrangeAhead(size_t t) {
    constexpr size_t kMostTurns = 3;  // with more no planned step was shorter
    constexpr int kLeastEmpty = 4;    // an input and a gradient of two turns
    for (size_t next = t + 2; next < turns_.size() && next < t + 2 + kMostTurns; ++next) {
      const bool same_visit =
          turns_[next].layer == turns_[t + 1].layer && turns_[next].backward == turns_[t + 1].backward;
      if (!same_visit || boundaries_.slots().num_empty() < kLeastEmpty) return;
      Arrange(next, t);
    }
  }
  int Bring(Kind kind, int64_t value, size_t t, size_t now) {
    int slot = boundaries_.slots().Find(value);
    if (slot == SlotPool::kNone) {
      if (!boundaries_.IsOnHost(value)) return -1;  // not made yet
      const auto need = static_cast<int64_t>(t);
      slot = t == now ? boundaries_.slots().Take(value, need) : boundaries_.slots().TryTake(value, need);
      if (slot == SlotPool::kNone) return -1;
      RelayStep step = StepOf(kind, turns_[t]);
      (kind == Kind::kLoadBoundary ? step.input : step.output) = slot;
      step.host = boundaries_.HostSlot(value);
      steps_.Add(step, {ResourceOf(ResourceKind::kHostBoundary, step.host)},
                 {ResourceOf(ResourceKind::kBoundary, slot)});
    } else if (t != now && IsMadeBy(now, value)) {
      return -1;  // what lies there is what goes into that turn
    }
    boundaries_.slots().Pin(slot);
    return slot;
  }
  bool IsMadeBy(size_t now, int64_t value) const { return turns_[now].backward && value == Gradient(turns_[now]); }

  void Store(size_t t) {
    const Turn& turn = turns_[t];
    const int64_t next_use = NextUseOfOutput(t);
    if (next_use == SlotPool::kNever || !boundaries_.Stores(t)) return;
    RelayStep step = StepOf(turn.backward ? Kind::kStoreGradient : Kind::kStoreBoundary, turn);
    step.output = SlotsOf(t).output;
    step.host = boundaries_.NewHostSlot(Output(turn), t);
    steps_.Add(step, {ResourceOf(ResourceKind::kBoundary, step.output)},
               {ResourceOf(ResourceKind::kHostBoundary, step.host)});
  }
  int64_t NextUseOfOutput(size_t t) const {
    const Turn& turn = turns_[t];
    if (turn.backward) return pass_.forward_only ? SlotPool::kNever : turns_.NextUseOfGradient(turn);
    return turns_.NextUseOfInput(turn.layer.value() + 1, turn.item, static_cast<int64_t>(t));
  }

  int TakeOutput(size_t t) {
    SlotsOf(t).output = boundaries_.slots().Take(Output(turns_[t]), NextUseOfOutput(t));
    boundaries_.slots().Pin(SlotsOf(t).output);
    return SlotsOf(t).output;
  }
  // Frees the host places of what this turn is the last to read, before its own output is stored: that may take them.
  void ForgetHostCopies(size_t t) {
    const Turn& turn = turns_[t];
    if (turn.needs_gradient()) boundaries_.FreeHostSlot(Gradient(turn));
    if (!turn.needs_input()) return;
    if (turns_.NextUseOfInput(turn.layer.value(), turn.item, static_cast<int64_t>(t)) != SlotPool::kNever) return;
    boundaries_.FreeHostSlot(Input(turn.layer.value(), turn));
  }
  // What a turn leaves behind in its slots.
  void Release(size_t t) {
    const Turn& turn = turns_[t];
    const TurnSlots& slots = SlotsOf(t);
    if (slots.input >= 0) {
      const int64_t next_use = turns_.NextUseOfInput(turn.layer.value(), turn.item, static_cast<int64_t>(t));
      boundaries_.Leave(Input(turn.layer.value(), turn), slots.input, next_use);
    }
    if (slots.output >= 0) boundaries_.Leave(Output(turn), slots.output, NextUseOfOutput(t));
    if (slots.inner >= 0) ReleaseInner(t);
  }

  // ---- inner activations ----
  // On the way there; what is kept stays pinned until its backward has read it.
  int TakeInner(size_t t) {
    const Turn& turn = turns_[t];
    if (const int leaving = LeavingSlotOf(turn); leaving >= 0) return leaving;
    const int slot = inners_.slots().Take(Inner(turn), turns_.BackwardOf(turn.layer.value(), turn.item));
    inners_.slots().Pin(slot);
    return slot;
  }
  void ReleaseInner(size_t t) {
    const Turn& turn = turns_[t];
    const int slot = SlotsOf(t).inner;
    const InnerPlace place = PlaceOf(turn);
    if (turn.backward || place == InnerPlace::kRecompute) return inners_.Leave(Inner(turn), slot, SlotPool::kNever);
    if (place == InnerPlace::kKeep) return;
    if (inners_.Stores(t)) {
      RelayStep step = StepOf(Kind::kStoreInner, turn);
      step.inner = slot;
      step.host = inners_.NewHostSlot(Inner(turn), t);
      steps_.Add(step, {ResourceOf(ResourceKind::kInner, slot)}, {ResourceOf(ResourceKind::kHostInner, step.host)});
    }
    if (LeavingSlotOf(turn) < 0) inners_.slots().Unpin(slot);
  }
  // Of a turn on the way back, and then, in the slots that are left, of those that follow.
  void ArrangeInner(size_t t) {
    if (turns_[t].kind == LayerKind::kBlock) {
      const bool recomputes = PlaceOf(turns_[t]) == InnerPlace::kRecompute;
      SlotsOf(t).inner = recomputes ? TakeInner(t) : BringInner(t);
    }
    next_inner_ = std::max(next_inner_, t + 1);
    // The next turn may have to recompute: this one leaves it its slot, if it has any.
    const int least_empty = (SlotsOf(t).inner >= 0 ? 1 : 2) + SlotsOfNextItem(turns_[t]);
    for (; next_inner_ < turns_.size(); ++next_inner_) {
      const Turn& turn = turns_[next_inner_];
      if (turn.kind != LayerKind::kBlock || PlaceOf(turn) != InnerPlace::kSwap) continue;
      if (inners_.slots().Find(Inner(turn)) != SlotPool::kNone) continue;
      if (inners_.slots().num_empty() < least_empty) return;
      LoadInner(next_inner_);
    }
  }
  // Which the next item needs where blocks are depth first, beside those that this one still has and leaves.
  int SlotsOfNextItem(const Turn& turn) const {
    if (!turn.depth_first || turn.item == turns_.num_items() - 1) return 0;
    const int held = turn.layer.value() - turns_.first_depth_first() + 1;
    return turns_.num_depth_first() - held;
  }
  int BringInner(size_t t) {
    const Turn& turn = turns_[t];
    int slot = inners_.slots().Find(Inner(turn));
    if (slot == SlotPool::kNone) slot = LoadInner(t);
    if (PlaceOf(turn) == InnerPlace::kSwap) inners_.slots().Pin(slot);
    return slot;
  }
  int LoadInner(size_t t) {
    RelayStep step = StepOf(Kind::kLoadInner, turns_[t]);
    step.inner = inners_.slots().Take(Inner(turns_[t]), static_cast<int64_t>(t));
    step.host = inners_.HostSlot(Inner(turns_[t]));
    steps_.Add(step, {ResourceOf(ResourceKind::kHostInner, step.host)}, {ResourceOf(ResourceKind::kInner, step.inner)});
    return step.inner;
  }

  // ---- compute ----
  void Compute(size_t t) {
    const Turn& turn = turns_[t];
    ForgetHostCopies(t);
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

  Resource Parameters(const Turn& turn) const {
    if (pass_.expands && turn.kind == LayerKind::kBlock) return ResourceOf(ResourceKind::kExpanded, 0);
    return ResourceOf(ResourceKind::kWeights, weights_);
  }

  void Forward(size_t t) {
    const Turn& turn = turns_[t];
    RelayStep step = StepOf(Kind::kForward, turn);
    step.weights = weights_;
    step.output = TakeOutput(t);
    Resources reads = {Parameters(turn)}, writes = {ResourceOf(ResourceKind::kBoundary, step.output)};
    if (turn.kind == LayerKind::kEmbedding) {
      step.tokens = AddTokens(Kind::kLoadTokens, t);
      reads.push_back(ResourceOf(ResourceKind::kTokens, step.tokens));
    } else {
      step.input = SlotsOf(t).input;
      step.inner = SlotsOf(t).inner = TakeInner(t);
      reads.push_back(ResourceOf(ResourceKind::kBoundary, step.input));
      writes.push_back(ResourceOf(ResourceKind::kInner, step.inner));
      AddDocuments(t, step, reads);
    }
    steps_.Add(step, reads, writes);
  }

  // Of a block's turn: where its micro-batch's documents lie.
  void AddDocuments(size_t t, RelayStep& step, Resources& reads) const {
    if (!pass_.has_documents) return;
    step.tokens = TokenSlot(t);
    reads.push_back(ResourceOf(ResourceKind::kTokens, step.tokens));
  }

  void Logits(size_t t) {
    RelayStep step = StepOf(Kind::kLogits, turns_[t]);
    step.weights = weights_;
    step.input = SlotsOf(t).input;
    steps_.Add(step, {Parameters(turns_[t]), ResourceOf(ResourceKind::kBoundary, step.input)}, {});
  }

  void Loss(size_t t) {
    const Turn& turn = turns_[t];
    if (turn.micro_batch == 0) StartRecord(turn);
    RelayStep step = StepOf(Kind::kLoss, turn);
    step.weights = weights_;
    step.input = SlotsOf(t).input;
    // The reference's pass writes its scores there, too, which no step of its own reads.
    step.tokens = AddTokens(Kind::kLoadTokens, t);
    step.record = RecordSlot(turn);
    steps_.Add(step,
               {Parameters(turn), ResourceOf(ResourceKind::kBoundary, step.input),
                ResourceOf(ResourceKind::kTokens, step.tokens)},
               {ResourceOf(ResourceKind::kRecord, step.record)});
    if (turn.micro_batch == pass_.micro_batches - 1) StoreRecord(turn);
  }

  static int RecordSlot(const Turn& turn) { return turn.vnode % RelayPlan::kLossRecords; }
  void StartRecord(const Turn& turn) {
    RelayStep record = StepOfVnode(Kind::kStartRecord, turn);
    record.record = RecordSlot(turn);
    steps_.Add(record, {}, {ResourceOf(ResourceKind::kRecord, record.record)});
  }
  void StoreRecord(const Turn& turn) {
    RelayStep record = StepOfVnode(Kind::kStoreRecord, turn);
    record.record = RecordSlot(turn);
    steps_.Add(record, {ResourceOf(ResourceKind::kRecord, record.record)}, {});
  }

  void Head(size_t t) {
    const Turn& turn = turns_[t];
    RelayStep step = StepOf(Kind::kHead, turn);
    step.keeps_logits = plan_.keeps_logits;
    step.starts_gradient = turn.micro_batch == 0;
    step.weights = weights_;
    step.input = SlotsOf(t).input;
    step.output = TakeOutput(t);
    step.tokens = AddTokens(Kind::kLoadTokens, t);
    step.gradient = gradients_.SlotOf(turn);
    step.record = RecordSlot(turn);
    steps_.Add(step,
               {Parameters(turn), ResourceOf(ResourceKind::kBoundary, step.input),
                ResourceOf(ResourceKind::kTokens, step.tokens)},
               {ResourceOf(ResourceKind::kBoundary, step.output), ResourceOf(ResourceKind::kGradient, step.gradient),
                ResourceOf(ResourceKind::kRecord, step.record)});
  }

  void Backward(size_t t) {
    const Turn& turn = turns_[t];
    RelayStep step = StepOf(Kind::kBackward, turn);
    step.starts_gradient = turn.micro_batch == 0;
    step.output = SlotsOf(t).output;
    step.gradient = gradients_.SlotOf(turn);
    Resources reads;
    if (turn.kind == LayerKind::kEmbedding) {
      step.tokens = AddTokens(Kind::kLoadTokens, t);
      reads = {ResourceOf(ResourceKind::kTokens, step.tokens)};
    } else {
      step.weights = weights_;
      step.input = SlotsOf(t).input;
      step.inner = SlotsOf(t).inner;
      if (PlaceOf(turn) == InnerPlace::kRecompute) Recompute(t);
      reads = {Parameters(turn), ResourceOf(ResourceKind::kBoundary, step.input),
               ResourceOf(ResourceKind::kInner, step.inner)};
      AddDocuments(t, step, reads);
    }
    steps_.Add(step, reads,
               {ResourceOf(ResourceKind::kBoundary, step.output), ResourceOf(ResourceKind::kGradient, step.gradient)});
  }

  void Recompute(size_t t) {
    RelayStep step = StepOf(Kind::kRecompute, turns_[t]);
    step.weights = weights_;
    step.input = SlotsOf(t).input;
    step.inner = SlotsOf(t).inner;
    Resources reads = {Parameters(turns_[t]), ResourceOf(ResourceKind::kBoundary, step.input)};
    AddDocuments(t, step, reads);
    steps_.Add(step, reads, {ResourceOf(ResourceKind::kInner, step.inner)});
  }

  // ---- gradients ----
  void StartVnode(const Turn& turn) {
    gradients_.StartVnode(turn);
    if (turn.kind == LayerKind::kHead) StartRecord(turn);
  }
  // A slot that has room for the layer's gradient and is over with this turn: of head and depth-first blocks that in
  // which their weights lay; the embedding's backward needs none, and comes when all visits are over. Not of a block
  // that is breadth first, for whose slot the next pull waits. -1: none.
  int FreeWeightSlot(const Turn& turn) const {
    if (!plan_.pushes_from_weight_slots) return -1;
    if (turn.kind == LayerKind::kEmbedding) return 0;
    const bool is_breadth_first = turn.kind == LayerKind::kBlock && !turn.depth_first;
    return turns_.EndsVisit(turn) && !is_breadth_first ? weights_ : -1;
  }
  void EndVnode(const Turn& turn) {
    if (turn.kind == LayerKind::kHead) StoreRecord(turn);
    gradients_.EndVnode(turn, FreeWeightSlot(turn));
  }

  const RelayPlan& plan_;
  const PassShape& pass_;
  const Turns turns_;
  const std::vector<InnerPlace> inner_places_;

  const bool is_final_;  // what comes back is known
  StepList steps_;
  WeightSlots weight_slots_;
  int weights_ = -1;  // the slot of the present turn's
  int expanded_layer_ = -1;
  size_t next_documents_ = 0;  // turn whose documents are not in the list yet
  std::vector<TurnSlots> turn_slots_;
  Stash boundaries_, inners_;
  size_t next_inner_ = 0;     // turn on the way back whose inner activations were not looked for yet
  std::vector<int> leaving_;  // by place: the slot from which it leaves, of leaving_inner_slots; -1: of none
  GradientSteps gradients_;
};

// RelayStep::may_wait. Pushes of the head and of blocks that are depth first take turns.
void FindPushesThatMayWait(std::vector<RelayStep>& steps) {
  std::vector<RelayStep*> pushes;
  for (RelayStep& step : steps) {
    if (step.kind == RelayStep::Kind::kPush) pushes.push_back(&step);
  }
  std::vector<LayerId> highest_from(pushes.size());  // of each push and those behind it
  for (size_t i = pushes.size(); i-- > 0;) {
    highest_from[i] = pushes[i]->layer;
    if (i + 1 < pushes.size()) highest_from[i] = std::max(highest_from[i], highest_from[i + 1]);
  }
  LayerId lowest;  // of those before
  for (size_t i = 0; i < pushes.size(); ++i) {
    pushes[i]->may_wait = i == 0 || lowest >= highest_from[i];
    lowest = i == 0 ? pushes[i]->layer : std::min(lowest, pushes[i]->layer);
  }
}

std::vector<RelayStep> BuildWhole(const ModelSpec& model, const RelayPlan& plan, const PassShape& pass) {
  ScheduleBuilder stores_all(model, plan, pass, nullptr, nullptr);
  stores_all.Build();
  ScheduleBuilder builder(model, plan, pass, &stores_all.reloaded_boundaries(), &stores_all.reloaded_inners());
  std::vector<RelayStep> steps = builder.Build();
  FindPushesThatMayWait(steps);
  return steps;
}

// The model of the layers that are left; their ids and their blobs stay what they were, which are there for their
// bytes.
ModelSpec WithoutLayers(const ModelSpec& model, const std::vector<LayerId>& dropped) {
  ModelSpec left;
  left.config = model.config;
  left.blobs = model.blobs;
  for (const LayerSpec& layer : model.layers) {
    if (!std::binary_search(dropped.begin(), dropped.end(), layer.id)) left.layers.push_back(layer);
  }
  EPS_CHECK(left.layers.size() + dropped.size() == model.layers.size());
  return left;
}

}  // namespace

Turns TurnsOf(const ModelSpec& model, const RelayPlan& plan, const PassShape& pass) {
  return Turns(model, static_cast<int>(pass.vnodes.size()), pass.micro_batches, pass.forward_only,
               pass.in_group() ? 0 : plan.depth_first_blocks);
}

std::vector<RelayStep> BuildSchedule(const ModelSpec& model, const RelayPlan& plan, const PassShape& pass) {
  EPS_CHECK(!pass.vnodes.empty() && static_cast<int>(pass.vnodes.size()) <= plan.max_pass_vnodes);
  if (pass.dropped.empty()) return BuildWhole(model, plan, pass);
  // In the order of what is left every layer has its place as its id; where its weights and its gradient go, and with
  // what random numbers, is told by its own.
  ModelSpec left = WithoutLayers(model, pass.dropped);
  std::vector<LayerId> ids;
  for (LayerSpec& layer : left.layers) {
    ids.push_back(std::exchange(layer.id, LayerId(static_cast<int32_t>(ids.size()))));
  }
  std::vector<RelayStep> steps = BuildWhole(left, plan, pass);
  for (RelayStep& step : steps) {
    step.layer = ids[static_cast<size_t>(step.layer.value())];
    // Of a resident plan each layer has a slot of its own, of its own size.
    if (plan.resident && step.weights >= 0) step.weights = ids[static_cast<size_t>(step.weights)].value();
  }
  return steps;
}

}  // namespace eps::worker
