#include "gpu_worker/plan/schedule.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <optional>
#include <utility>

#include "common/base/status_macros.h"
#include "gpu_worker/plan/group_parts.h"
#include "gpu_worker/plan/hazards.h"
#include "gpu_worker/plan/pushed_nodes.h"
#include "gpu_worker/plan/slot_pool.h"
#include "gpu_worker/plan/turns.h"

namespace eps::worker {
namespace {

using Kind = RelayStep::Kind;
using Resources = std::vector<Resource>;

Resource Of(ResourceKind kind, int64_t index) { return {kind, index}; }

// The moment at which a value was made that came to be loaded again: all others need not be stored.
using Reloaded = std::vector<bool>;

class ScheduleBuilder {
 public:
  // boundaries, inners: null: everything that may leave its slot is stored, to see what comes back; nothing is listed.
  ScheduleBuilder(const ModelSpec& model, const RelayPlan& plan, const PassShape& pass, const Reloaded* boundaries,
                  const Reloaded* inners)
      : model_(model),
        plan_(plan),
        pass_(pass),
        turns_(TurnsOf(model, plan, pass)),
        lowest_(model.lowest_trainable_layer().value()),
        pushed_(NodesOf(plan, pass)),
        inner_places_(pass.inner.empty() ? plan.PlacesOf(turns_.num_stashed_blocks(), turns_.num_items()) : pass.inner),
        weights_pool_(static_cast<int>(plan.weight_slots.size())),
        turn_slots_(turns_.size()),
        boundaries_(static_cast<int>(plan.boundary_slots.size()), turns_.size(), boundaries),
        inners_(static_cast<int>(plan.inner_slots.size()), turns_.size(), inners) {
    EPS_CHECK(pass.forward_only ||
              static_cast<int>(inner_places_.size()) == turns_.num_stashed_blocks() * turns_.num_items());
    EPS_CHECK(!turns_.back_to_back() || (plan.weight_slots.size() >= 2 && plan.push_slots.size() >= 2));
    for (size_t t = 0; t < turns_.size(); ++t) {
      if (turns_[t].starts_visit && NeedsWeights(turns_[t])) visits_.push_back(static_cast<int>(t));
    }
  }

  std::vector<RelayStep> Build() {
    for (size_t t = 0; t < turns_.size(); ++t) {
      if (turns_[t].starts_visit) StartVisit(t);
      if (NeedsWeights(turns_[t])) weights_ = weights_pool_.Find(turns_[t].layer.value());
      LoadTokens(t);
      Arrange(t, t);
      if (t + 1 < turns_.size()) {
        LoadTokens(t + 1);
        Arrange(t + 1, t);
      }
      if (turns_[t].backward) ArrangeInner(t);
      if (SumsGroupBefore(turns_[t])) SumGroup();
      Compute(t);
      Store(t);  // before the vnode's gradient goes out: the next layer waits for it
      Release(t);
      if (EndsVnode(turns_[t])) EndVnode(turns_[t]);
    }
    SumGroup();
    EPS_CHECK(boundaries_.num_host_slots <= plan_.host_boundary_slots || boundaries_.reloaded_before == nullptr);
    EPS_CHECK(inners_.num_host_slots <= plan_.inner.swapped || inners_.reloaded_before == nullptr);
    return std::move(steps_);
  }
  const Reloaded& reloaded_boundaries() const { return boundaries_.reloaded; }
  const Reloaded& reloaded_inners() const { return inners_.reloaded; }

 private:
  // The slots of one turn, once what lies in them is there or on its way.
  struct TurnSlots {
    int input = -1, output = -1, inner = -1;
  };
  // Activations of one kind: in slots, on the host, or both.
  struct Stash {
    Stash(int num_slots, size_t num_turns, const Reloaded* reloaded)
        : slots(num_slots), reloaded_before(reloaded), reloaded(num_turns) {}

    bool Stores(size_t made_at) const { return reloaded_before == nullptr || (*reloaded_before)[made_at]; }
    int NewHostSlot(int64_t value, size_t made_at) {
      int host = num_host_slots;
      if (free_host.empty()) {
        ++num_host_slots;
      } else {
        host = free_host.back();
        free_host.pop_back();
      }
      on_host[value] = {host, made_at};
      return host;
    }
    // Of a value that is there; it is being loaded.
    int HostSlot(int64_t value) {
      const auto& [host, made_at] = on_host.at(value);
      reloaded[made_at] = true;
      return host;
    }
    void FreeHostSlot(int64_t value) {
      const auto found = on_host.find(value);
      if (found == on_host.end()) return;
      free_host.push_back(found->second.first);
      on_host.erase(found);
    }

    SlotPool slots;
    const Reloaded* reloaded_before;  // of a build before this one, which ended in the same slots
    Reloaded reloaded;
    std::map<int64_t, std::pair<int, size_t>> on_host;  // by value: host slot, and when it was made
    std::vector<int> free_host;
    int num_host_slots = 0;
  };

  static std::vector<TreeNode> NodesOf(const RelayPlan& plan, const PassShape& pass) {
    const int most = static_cast<int>(plan.max_subtree_leaves());
    return pass.group_rounds > 0 ? GroupNodes(pass.vnodes, pass.num_vnodes, most)
                                 : PushedNodes(pass.vnodes, pass.num_vnodes, most, pass.gradients);
  }
  bool in_group() const { return pass_.group_rounds > 0; }

  // ---- values ----
  int64_t Input(int layer, const Turn& turn) const { return int64_t{layer} * turns_.num_items() + turn.item; }
  int64_t Gradient(const Turn& turn) const { return Input(turns_.num_layers(), turn); }
  int64_t Inner(const Turn& turn) const { return Input(turn.layer.value(), turn); }

  static int TokenSlot(size_t t) { return static_cast<int>(t % RelayPlan::kTokenSlots); }
  TurnSlots& SlotsOf(size_t t) { return turn_slots_[t]; }
  InnerPlace PlaceOf(const Turn& turn) const {
    if (turn.back_to_back) return InnerPlace::kKeep;
    const int block = turn.layer.value() - turns_.first_stashed_block();
    if (pass_.forward_only || block < 0) return InnerPlace::kRecompute;  // nobody asks for it again
    return inner_places_[static_cast<size_t>(block * turns_.num_items() + turn.item)];
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
    if (boundaries_.reloaded_before == nullptr) return;
    step.waits_for = hazards_.Add(step.stream(), reads, writes);
    for (const int other : step.waits_for) steps_[static_cast<size_t>(other)].signals = true;
    steps_.push_back(std::move(step));
  }

  // ---- weights ----
  static bool NeedsWeights(const Turn& turn) { return turn.kind != LayerKind::kEmbedding || !turn.backward; }
  void StartVisit(size_t t) {
    const Turn& turn = turns_[t];
    gatherings_[GatheringIndex(turn)] = {};
    if (!NeedsWeights(turn)) return;
    // The head's weights come beside those of a last block that is back to back.
    if (turn.kind != LayerKind::kHead || !turns_.back_to_back()) EndVisits();
    const size_t ahead = std::min(plan_.weight_slots.size(), visits_.size() - visit_);
    for (size_t v = visit_; v < visit_ + ahead; ++v) Pull(v);
    const int slot = weights_pool_.Find(turn.layer.value());
    weights_pool_.Pin(slot);
    ++visit_;
    ++open_visits_;
    if (!pass_.expands || turn.kind != LayerKind::kBlock || expanded_layer_ == turn.layer.value()) return;
    RelayStep step = StepOf(Kind::kExpand, turn);
    step.vnode = step.micro_batch = -1;
    step.weights = slot;
    Add(step, {Of(ResourceKind::kWeights, slot)}, {Of(ResourceKind::kExpanded, 0)});
    expanded_layer_ = turn.layer.value();
  }
  // The weights of a visit, if they are in no slot yet and there is one that is not needed before.
  void Pull(size_t visit) {
    const Turn& turn = VisitTurn(visit);
    if (weights_pool_.Find(turn.layer.value()) != SlotPool::kNone) return;
    const int slot = weights_pool_.TryTake(turn.layer.value(), static_cast<int64_t>(visit));
    if (slot == SlotPool::kNone) return;
    RelayStep step = StepOf(Kind::kPull, turn);
    step.vnode = step.micro_batch = -1;
    step.weights = slot;
    Add(step, {}, {Of(ResourceKind::kWeights, slot)});
  }
  const Turn& VisitTurn(size_t visit) const { return turns_[static_cast<size_t>(visits_[visit])]; }
  // Those before the next one are over.
  void EndVisits() {
    for (; open_visits_ > 0; --open_visits_) EndVisit(VisitTurn(visit_ - open_visits_).layer);
  }
  void EndVisit(LayerId layer) {
    const int slot = weights_pool_.Find(layer.value());
    weights_pool_.Unpin(slot);
    for (size_t v = visit_; v < visits_.size(); ++v) {
      if (VisitTurn(v).layer == layer) return weights_pool_.SetNextUse(slot, static_cast<int64_t>(v));
    }
    weights_pool_.Free(slot);
  }

  // ---- loads and stores ----
  bool NeedsTokens(const Turn& turn) const { return pass_.has_documents || turn.kind != LayerKind::kBlock; }
  void LoadTokens(size_t t) {
    if (static_cast<int>(t) < num_loaded_) return;
    num_loaded_ = static_cast<int>(t) + 1;
    if (!NeedsTokens(turns_[t])) return;
    RelayStep step = StepOf(Kind::kLoadTokens, turns_[t]);
    step.tokens = TokenSlot(t);
    Add(step, {}, {Of(ResourceKind::kTokens, step.tokens)});
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
  int Bring(Kind kind, int64_t value, size_t t, size_t now) {
    int slot = boundaries_.slots.Find(value);
    if (slot == SlotPool::kNone) {
      if (!boundaries_.on_host.contains(value)) return -1;  // not made yet
      const auto need = static_cast<int64_t>(t);
      slot = t == now ? boundaries_.slots.Take(value, need) : boundaries_.slots.TryTake(value, need);
      if (slot == SlotPool::kNone) return -1;
      RelayStep step = StepOf(kind, turns_[t]);
      (kind == Kind::kLoadBoundary ? step.input : step.output) = slot;
      step.host = boundaries_.HostSlot(value);
      Add(step, {Of(ResourceKind::kHostBoundary, step.host)}, {Of(ResourceKind::kBoundary, slot)});
    } else if (t != now && IsMadeBy(now, value)) {
      return -1;  // what lies there is what goes into that turn
    }
    boundaries_.slots.Pin(slot);
    return slot;
  }
  // A gradient has the same name wherever it is on its way.
  bool IsMadeBy(size_t now, int64_t value) const { return turns_[now].backward && value == Gradient(turns_[now]); }

  void Store(size_t t) {
    const Turn& turn = turns_[t];
    const int64_t next_use = NextUseOfOutput(t);
    if (next_use == SlotPool::kNever || !boundaries_.Stores(t)) return;
    const int64_t value = turn.backward ? Gradient(turn) : Input(turn.layer.value() + 1, turn);
    RelayStep step = StepOf(turn.backward ? Kind::kStoreGradient : Kind::kStoreBoundary, turn);
    step.output = SlotsOf(t).output;
    step.host = boundaries_.NewHostSlot(value, t);
    Add(step, {Of(ResourceKind::kBoundary, step.output)}, {Of(ResourceKind::kHostBoundary, step.host)});
  }
  int64_t NextUseOfOutput(size_t t) const {
    const Turn& turn = turns_[t];
    if (turn.backward) return pass_.forward_only ? SlotPool::kNever : turns_.NextUseOfGradient(turn);
    return turns_.NextUseOfInput(turn.layer.value() + 1, turn.item, static_cast<int64_t>(t));
  }

  int TakeOutput(size_t t) {
    const Turn& turn = turns_[t];
    const int64_t value = turn.backward ? Gradient(turn) : Input(turn.layer.value() + 1, turn);
    SlotsOf(t).output = boundaries_.slots.Take(value, NextUseOfOutput(t));
    boundaries_.slots.Pin(SlotsOf(t).output);
    return SlotsOf(t).output;
  }
  // What a turn makes may go where that lay which nobody needs behind it.
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
      Leave(boundaries_, Input(turn.layer.value(), turn), slots.input, next_use);
    }
    if (slots.output >= 0) {
      const int64_t value = turn.backward ? Gradient(turn) : Input(turn.layer.value() + 1, turn);
      Leave(boundaries_, value, slots.output, NextUseOfOutput(t));
    }
    if (slots.inner >= 0) ReleaseInner(t);
  }
  static void Leave(Stash& stash, int64_t value, int slot, int64_t next_use) {
    stash.slots.Unpin(slot);
    if (next_use != SlotPool::kNever) return stash.slots.SetNextUse(slot, next_use);
    stash.slots.Free(slot);
    stash.FreeHostSlot(value);
  }

  // ---- inner activations ----
  // On the way there; what is kept stays pinned until its backward has read it.
  int TakeInner(size_t t) {
    const Turn& turn = turns_[t];
    const int slot = inners_.slots.Take(Inner(turn), turns_.BackwardOf(turn.layer.value(), turn.item));
    inners_.slots.Pin(slot);
    return slot;
  }
  void ReleaseInner(size_t t) {
    const Turn& turn = turns_[t];
    const int slot = SlotsOf(t).inner;
    const InnerPlace place = PlaceOf(turn);
    if (turn.backward || place == InnerPlace::kRecompute) return Leave(inners_, Inner(turn), slot, SlotPool::kNever);
    if (place == InnerPlace::kKeep) return;
    if (inners_.Stores(t)) {
      RelayStep step = StepOf(Kind::kStoreInner, turn);
      step.inner = slot;
      step.host = inners_.NewHostSlot(Inner(turn), t);
      Add(step, {Of(ResourceKind::kInner, slot)}, {Of(ResourceKind::kHostInner, step.host)});
    }
    inners_.slots.Unpin(slot);
  }
  // Of a turn on the way back, and then, in the slots that are left, of those that follow.
  void ArrangeInner(size_t t) {
    if (turns_[t].kind == LayerKind::kBlock) {
      const bool recomputes = PlaceOf(turns_[t]) == InnerPlace::kRecompute;
      SlotsOf(t).inner = recomputes ? TakeInner(t) : BringInner(t);
    }
    next_inner_ = std::max(next_inner_, t + 1);
    // The next turn may have to recompute: this one leaves it its slot, if it has any.
    const int least_empty = SlotsOf(t).inner >= 0 ? 1 : 2;
    for (; next_inner_ < turns_.size(); ++next_inner_) {
      const Turn& turn = turns_[next_inner_];
      if (turn.kind != LayerKind::kBlock || PlaceOf(turn) != InnerPlace::kSwap) continue;
      if (inners_.slots.Find(Inner(turn)) != SlotPool::kNone) continue;
      if (inners_.slots.num_empty() < least_empty) return;
      LoadInner(next_inner_);
    }
  }
  int BringInner(size_t t) {
    const Turn& turn = turns_[t];
    int slot = inners_.slots.Find(Inner(turn));
    if (slot == SlotPool::kNone) slot = LoadInner(t);
    if (PlaceOf(turn) == InnerPlace::kSwap) inners_.slots.Pin(slot);
    return slot;
  }
  int LoadInner(size_t t) {
    RelayStep step = StepOf(Kind::kLoadInner, turns_[t]);
    step.inner = inners_.slots.Take(Inner(turns_[t]), static_cast<int64_t>(t));
    step.host = inners_.HostSlot(Inner(turns_[t]));
    Add(step, {Of(ResourceKind::kHostInner, step.host)}, {Of(ResourceKind::kInner, step.inner)});
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
    step.output = TakeOutput(t);
    Resources reads = {Parameters(turn)}, writes = {Of(ResourceKind::kBoundary, step.output)};
    if (turn.kind == LayerKind::kEmbedding) {
      step.tokens = TokenSlot(t);
      reads.push_back(Of(ResourceKind::kTokens, step.tokens));
    } else {
      step.input = SlotsOf(t).input;
      step.inner = SlotsOf(t).inner = TakeInner(t);
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
    step.input = SlotsOf(t).input;
    Add(step, {Parameters(turns_[t]), Of(ResourceKind::kBoundary, step.input)}, {});
  }

  void Loss(size_t t) {
    const Turn& turn = turns_[t];
    if (turn.micro_batch == 0) StartRecord(turn);
    RelayStep step = StepOf(Kind::kLoss, turn);
    step.weights = weights_;
    step.input = SlotsOf(t).input;
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
    step.input = SlotsOf(t).input;
    step.output = TakeOutput(t);
    step.tokens = TokenSlot(t);
    step.gradient = GradientSlot(turn);
    step.record = RecordSlot(turn);
    Add(step, {Parameters(turn), Of(ResourceKind::kBoundary, step.input), Of(ResourceKind::kTokens, step.tokens)},
        {Of(ResourceKind::kBoundary, step.output), Of(ResourceKind::kGradient, step.gradient),
         Of(ResourceKind::kRecord, step.record)});
  }

  void Backward(size_t t) {
    const Turn& turn = turns_[t];
    RelayStep step = StepOf(Kind::kBackward, turn);
    step.output = SlotsOf(t).output;
    step.gradient = GradientSlot(turn);
    Resources reads;
    if (turn.kind == LayerKind::kEmbedding) {
      step.tokens = TokenSlot(t);
      reads = {Of(ResourceKind::kTokens, step.tokens)};
    } else {
      step.weights = weights_;
      step.input = SlotsOf(t).input;
      step.inner = SlotsOf(t).inner;
      if (PlaceOf(turn) == InnerPlace::kRecompute) Recompute(t);
      reads = {Parameters(turn), Of(ResourceKind::kBoundary, step.input), Of(ResourceKind::kInner, step.inner)};
      AddDocuments(t, step, reads);
    }
    Add(step, reads, {Of(ResourceKind::kBoundary, step.output), Of(ResourceKind::kGradient, step.gradient)});
  }

  void Recompute(size_t t) {
    RelayStep step = StepOf(Kind::kRecompute, turns_[t]);
    step.weights = weights_;
    step.input = SlotsOf(t).input;
    step.inner = SlotsOf(t).inner;
    Resources reads = {Parameters(turns_[t]), Of(ResourceKind::kBoundary, step.input)};
    AddDocuments(t, step, reads);
    Add(step, reads, {Of(ResourceKind::kInner, step.inner)});
  }

  // ---- gradients ----
  // What a layer's visit has gathered of its gradient.
  struct Gathering {
    std::vector<TreeNode>
        sums;              // partial ones of the node under way, by gradient slot; the vnode in work has the next one
    size_t num_nodes = 0;  // that are complete: index into pushed_
    int push = -1;         // slot of the node under way, whose flags are set leaf by leaf
  };
  // The last block's visit is within the head's where it is back to back.
  static size_t GatheringIndex(const Turn& turn) { return turn.back_to_back ? 1 : 0; }
  Gathering& GatheringOf(const Turn& turn) { return gatherings_[GatheringIndex(turn)]; }
  int GradientSlot(const Turn& turn) {
    const size_t first = turn.back_to_back ? plan_.gradient_slots.size() : 0;
    return static_cast<int>(first + GatheringOf(turn).sums.size());
  }
  // Two gatherings side by side complete their nodes in turn, so that two slots do.
  int PushSlot(const Turn& turn) {
    int& push = GatheringOf(turn).push;
    if (push < 0) push = std::exchange(next_push_, (next_push_ + 1) % static_cast<int>(plan_.push_slots.size()));
    return push;
  }

  bool Trains(const Turn& turn) const { return model_.layer(turn.layer).trains(); }

  // In a frozen layer, too, where kernels add up what nobody reads: else it would grow without bounds.
  void StartVnode(const Turn& turn) {
    RelayStep zero = StepOf(Kind::kZeroGradient, turn);
    zero.micro_batch = -1;
    zero.gradient = GradientSlot(turn);
    Add(zero, {}, {Of(ResourceKind::kGradient, zero.gradient)});
    if (turn.kind == LayerKind::kHead) StartRecord(turn);
  }

  void EndVnode(const Turn& turn) {
    if (turn.kind == LayerKind::kHead) StoreRecord(turn);
    if (!Trains(turn)) return;
    Gathering& gathering = GatheringOf(turn);
    const TreeNode node = pushed_[gathering.num_nodes];
    RelayStep finish = GradientStep(Kind::kFinishLeaf, turn, node);
    Add(finish, {},
        {Of(ResourceKind::kGradient, finish.gradient),
         in_group() ? Of(ResourceKind::kGroupOwnFlags, flag_turn_) : Of(ResourceKind::kFlags, finish.push)});
    gathering.sums.push_back({pass_.vnodes[static_cast<size_t>(turn.vnode)], 1});
    while (TopTwoAreSiblings(gathering.sums)) AddTopTwo(turn, node);
    if (gathering.sums.back() != node) return;
    EPS_CHECK(gathering.sums.size() == 1);
    gathering.sums.clear();
    ++gathering.num_nodes;
    if (in_group()) {
      GiveNode(turn, node);
    } else {
      PushNode(turn, node);
    }
  }

  RelayStep GradientStep(Kind kind, const Turn& turn, TreeNode node) {
    RelayStep step = StepOf(kind, turn);
    step.micro_batch = -1;
    step.node = node;
    step.gradient = GradientSlot(turn);
    step.push = PushSlot(turn);
    step.flag_turn = in_group() ? flag_turn_ : -1;
    return step;
  }

  bool TopTwoAreSiblings(const std::vector<TreeNode>& sums) const {
    if (sums.size() < 2) return false;
    const TreeNode left = sums[sums.size() - 2], right = sums.back();
    const TreeNode parent{left.first, left.count + right.count};
    return IsTreeNode(parent, pass_.num_vnodes) && LeftLeaves(parent.count) == left.count;
  }
  void AddTopTwo(const Turn& turn, TreeNode node) {
    std::vector<TreeNode>& sums = GatheringOf(turn).sums;
    const TreeNode right = sums.back();
    sums.pop_back();
    sums.back().count += right.count;
    RelayStep step = GradientStep(Kind::kAddGradient, turn, node);
    step.push = -1;
    step.other_gradient = step.gradient;
    step.gradient = step.other_gradient - 1;
    Add(step, {Of(ResourceKind::kGradient, step.other_gradient)}, {Of(ResourceKind::kGradient, step.gradient)});
  }
  void PushNode(const Turn& turn, TreeNode node) {
    RelayStep emit = GradientStep(Kind::kEmitGradient, turn, node);
    Add(emit, {Of(ResourceKind::kGradient, emit.gradient)}, {Of(ResourceKind::kPush, emit.push)});
    RelayStep push = GradientStep(Kind::kPush, turn, node);
    push.gradient = -1;
    Add(push, {Of(ResourceKind::kPush, push.push), Of(ResourceKind::kFlags, push.push)}, {});
    GatheringOf(turn).push = -1;
  }

  // ---- gradients of a group ----
  // After this turn the group area is written again: what lies there has left by then if its sum was made a turn before.
  bool GivesFirstNode(const Turn& turn) const {
    return in_group() && EndsVnode(turn) && gatherings_[0].num_nodes == 0 &&
           pass_.vnodes[static_cast<size_t>(turn.vnode)] == pushed_.front().end() - 1;
  }
  // In a frozen layer, which gives none, the sums of the layer above leave at the same place.
  bool SumsGroupBefore(const Turn& turn) const { return GivesFirstNode(turn) && !turn.starts_visit; }
  void GiveNode(const Turn& turn, TreeNode node) {
    SumGroup();  // of the layer above, if this one has a single turn
    const size_t num_nodes = GatheringOf(turn).num_nodes;
    const int round = static_cast<int>(num_nodes) - 1;
    RelayStep emit = GradientStep(Kind::kEmitGradient, turn, node);
    emit.round = round;
    Add(emit, {Of(ResourceKind::kGradient, emit.gradient)},
        {Of(ResourceKind::kPush, emit.push), Of(ResourceKind::kGroupOwn, 0)});
    Exchange(turn, round);
    if (num_nodes < pushed_.size()) return;
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
      exchange.push = std::exchange(GatheringOf(turn).push, -1);
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
  const Turns turns_;
  const int lowest_;                    // layer that trains: the way back ends there
  const std::vector<TreeNode> pushed_;  // of every layer, in order
  const std::vector<InnerPlace> inner_places_;
  std::vector<int> visits_;  // turns that start one which needs weights

  std::vector<RelayStep> steps_;
  HazardTracker hazards_;
  SlotPool weights_pool_;   // by layer; moments are visits
  size_t visit_ = 0;        // the next one
  size_t open_visits_ = 0;  // before it, whose weights are in use
  int weights_ = -1;        // the slot of the present turn's
  int expanded_layer_ = -1;
  int num_loaded_ = 0;  // turns whose tokens are in the list
  std::vector<TurnSlots> turn_slots_;
  Stash boundaries_, inners_;
  size_t next_inner_ = 0;                // turn on the way back whose inner activations were not looked for yet
  std::array<Gathering, 2> gatherings_;  // by GatheringIndex
  int next_push_ = 0;
  int flag_turn_ = 0;             // of the present layer
  std::optional<Turn> unsummed_;  // whose rounds are in the list, and not their sum
  int flag_turn_of_unsummed_ = 0;
};

std::vector<RelayStep> BuildWhole(const ModelSpec& model, const RelayPlan& plan, const PassShape& pass) {
  ScheduleBuilder stores_all(model, plan, pass, nullptr, nullptr);
  stores_all.Build();
  return ScheduleBuilder(model, plan, pass, &stores_all.reloaded_boundaries(), &stores_all.reloaded_inners()).Build();
}

// The model of the layers that are left; their ids and their blobs stay what they were.
ModelSpec WithoutLayers(const ModelSpec& model, const std::vector<LayerId>& dropped) {
  ModelSpec left;
  left.config = model.config;
  for (const LayerSpec& layer : model.layers) {
    if (!std::binary_search(dropped.begin(), dropped.end(), layer.id)) left.layers.push_back(layer);
  }
  EPS_CHECK(left.layers.size() + dropped.size() == model.layers.size());
  return left;
}

}  // namespace

Turns TurnsOf(const ModelSpec& model, const RelayPlan& plan, const PassShape& pass) {
  return Turns(model, static_cast<int>(pass.vnodes.size()), pass.micro_batches, pass.forward_only,
               plan.last_block_is_back_to_back() && pass.group_rounds == 0);
}

std::vector<RelayStep> BuildSchedule(const ModelSpec& model, const RelayPlan& plan, const PassShape& pass) {
  EPS_CHECK(!pass.vnodes.empty() && static_cast<int>(pass.vnodes.size()) <= plan.max_pass_vnodes);
  if (pass.dropped.empty()) return BuildWhole(model, plan, pass);
  // In the order of what is left every layer has its place as its id; where its weights and its gradient go, and with what
  // random numbers, is told by its own.
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
