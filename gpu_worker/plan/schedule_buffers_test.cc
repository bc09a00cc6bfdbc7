#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gpu_worker/plan/group_parts.h"
#include "gpu_worker/plan/schedule.h"
#include "gpu_worker/plan/schedule_testing.h"
#include "gtest/gtest.h"

// That every step of a schedule finds what it reads, whatever order its streams allow.

namespace eps::worker {
namespace {

using Kind = RelayStep::Kind;

// Runs a schedule on names instead of numbers: every buffer holds the name of its content. Steps run in list order;
// CheckOrder shows that any order the streams allow gives the same.
//
// Written from what steps mean, not from how the builder makes them.
class Simulator {
 public:
  Simulator(const MadeSchedule& made, const std::vector<RelayStep>& steps) : made_(made), steps_(steps) {}

  void Run() {
    for (const RelayStep& step : steps_) {
      accesses_.emplace_back();
      Do(step);
    }
    CheckOrder();
    CheckPushes();
    CheckRecords();
    CheckExchanges();
  }

  int num_pulls() const { return num_pulls_; }
  int num_recomputes() const { return num_recomputes_; }
  int num_inner_loads() const { return num_inner_loads_; }
  int num_boundary_loads() const { return num_boundary_loads_; }
  const std::map<int, std::vector<TreeNode>>& pushes() const { return pushes_; }

 private:
  struct Access {
    std::string buffer;
    bool write = false;
  };

  // ---- buffers ----
  std::string Read(const std::string& buffer, int index) {
    const std::string name = absl::StrCat(buffer, index);
    EXPECT_GE(index, 0) << buffer;
    accesses_.back().push_back({name, false});
    return buffers_[name];
  }
  void Write(const std::string& buffer, int index, const std::string& content) {
    const std::string name = absl::StrCat(buffer, index);
    EXPECT_GE(index, 0) << buffer;
    accesses_.back().push_back({name, true});
    buffers_[name] = content;
    const ArenaSpan written = SpanOf(buffer, index);
    if (written.num_bytes == 0) return;
    for (const char* other : {"push", "gradient", "inner"}) {
      for (int i = 0; i < NumSlots(other); ++i) {
        const ArenaSpan span = SpanOf(other, i);
        const bool shares = span.offset_bytes < written.end_bytes() && written.offset_bytes < span.end_bytes();
        if (!shares || absl::StrCat(other, i) == name) continue;
        accesses_.back().push_back({absl::StrCat(other, i), true});
        buffers_[absl::StrCat(other, i)] = "overwritten by " + content;
      }
    }
  }
  // Of those that share memory, in the order of their indices.
  std::vector<ArenaSpan> SpansOf(const std::string& buffer) const {
    const RelayPlan& plan = made_.plan;
    if (buffer == "push") return plan.push_slots;
    std::vector<ArenaSpan> spans = buffer == "inner" ? plan.inner_slots : plan.gradient_slots;
    const std::vector<ArenaSpan>& more = buffer == "inner" ? plan.leaving_inner_slots : plan.depth_first_gradient_slots;
    spans.insert(spans.end(), more.begin(), more.end());
    return spans;
  }
  ArenaSpan SpanOf(const std::string& buffer, int index) const {
    const bool shares = buffer == "push" || buffer == "gradient" || buffer == "inner";
    return shares ? SpansOf(buffer).at(static_cast<size_t>(index)) : ArenaSpan{};
  }
  int NumSlots(const std::string& buffer) const { return static_cast<int>(SpansOf(buffer).size()); }
  void Expect(const std::string& got, const std::string& want, const RelayStep& step) {
    EXPECT_EQ(got, want) << DebugString(step, made_.model);
  }

  // ---- names of contents ----
  static std::string Weights(int layer) { return absl::StrCat("weights of ", layer); }
  std::string Item(const RelayStep& step) const { return absl::StrCat(" item ", step.vnode, ".", step.micro_batch); }
  std::string InputOf(int layer, const RelayStep& step) const { return absl::StrCat("input of ", layer, Item(step)); }
  std::string GradientOf(int layer, const RelayStep& step) const {
    return absl::StrCat("gradient of input of ", layer, Item(step));
  }
  // The layer that takes what `layer` makes.
  int Next(int layer) const {
    do ++layer;
    while (made_.IsDropped(layer));
    return layer;
  }
  int VnodeOf(const RelayStep& step) const { return made_.pass.vnodes[static_cast<size_t>(step.vnode)]; }
  LayerKind KindOf(int layer) const { return made_.model.layers[static_cast<size_t>(layer)].kind; }

  void ReadWeights(const RelayStep& step) {
    const int layer = step.layer.value();
    if (made_.pass.expands && KindOf(layer) == LayerKind::kBlock) {
      Expect(Read("expanded", 0), Weights(layer), step);
    } else {
      Expect(Read("weights", step.weights), Weights(layer), step);
    }
  }
  void ReadTokens(const RelayStep& step) { Expect(Read("tokens", step.tokens), "tokens" + Item(step), step); }
  void ReadDocuments(const RelayStep& step) {
    if (made_.pass.has_documents) Expect(Read("tokens", step.tokens), "documents" + Item(step), step);
  }
  void ReadInput(const RelayStep& step) {
    Expect(Read("boundary", step.input), InputOf(step.layer.value(), step), step);
  }
  std::string Inner(const RelayStep& step) const { return absl::StrCat("inner of ", step.layer.value(), Item(step)); }
  // A micro-batch adds to the gradient of its vnode: "gradient of 3 vnode 1: 0 1".
  void Accumulate(const RelayStep& step) {
    const std::string got = Read("gradient", step.gradient);
    std::string want = absl::StrCat("gradient of ", step.layer.value(), " vnode ", VnodeOf(step), ":");
    for (int m = 0; m < step.micro_batch; ++m) absl::StrAppend(&want, " ", m);
    Expect(got, want, step);
    EXPECT_EQ(step.starts_gradient, want.ends_with(":")) << DebugString(step, made_.model);
    Write("gradient", step.gradient, absl::StrCat(want, " ", step.micro_batch));
  }
  // One behind the push slots is a weight slot.
  int WeightSlotOf(int push) const { return push - static_cast<int>(made_.plan.push_slots.size()); }
  void WritePush(int push, const std::string& content) {
    if (WeightSlotOf(push) < 0) return Write("push", push, content);
    EXPECT_TRUE(made_.plan.pushes_from_weight_slots);
    Write("weights", WeightSlotOf(push), content);
  }
  std::string ReadPush(int push) {
    return WeightSlotOf(push) < 0 ? Read("push", push) : Read("weights", WeightSlotOf(push));
  }
  static std::string Sum(int layer, TreeNode node) { return absl::StrCat("sum of ", layer, " ", DebugString(node)); }

  void Do(const RelayStep& step) {
    const int layer = step.layer.value();
    EXPECT_FALSE(made_.IsDropped(layer)) << DebugString(step, made_.model);
    if (made_.plan.resident && step.weights >= 0) {
      EXPECT_EQ(step.weights, layer) << DebugString(step, made_.model);
    }
    switch (step.kind) {
      case Kind::kPull:
        ++num_pulls_;
        return Write("weights", step.weights, Weights(layer));
      case Kind::kExpand:
        Expect(Read("weights", step.weights), Weights(layer), step);
        return Write("expanded", 0, Weights(layer));
      case Kind::kLoadTokens:
        return Write("tokens", step.tokens, "tokens" + Item(step));
      case Kind::kLoadDocuments:
        return Write("tokens", step.tokens, "documents" + Item(step));
      case Kind::kLoadBoundary:
        ++num_boundary_loads_;
        return Write("boundary", step.input, Read("host boundary ", step.host));
      case Kind::kLoadGradient:
        ++num_boundary_loads_;
        return Write("boundary", step.output, Read("host boundary ", step.host));
      case Kind::kStoreBoundary:
        Expect(Read("boundary", step.output), InputOf(Next(layer), step), step);
        EXPECT_LT(step.host, made_.plan.host_boundary_slots);
        return Write("host boundary ", step.host, InputOf(Next(layer), step));
      case Kind::kStoreGradient:
        Expect(Read("boundary", step.output), GradientOf(layer, step), step);
        EXPECT_LT(step.host, made_.plan.host_boundary_slots);
        return Write("host boundary ", step.host, GradientOf(layer, step));
      case Kind::kStoreInner:
        Expect(Read("inner", step.inner), Inner(step), step);
        EXPECT_LT(step.host, made_.plan.inner.swapped);
        return Write("host inner ", step.host, Inner(step));
      case Kind::kLoadInner:
        ++num_inner_loads_;
        return Write("inner", step.inner, Read("host inner ", step.host));
      case Kind::kForward:
        ReadWeights(step);
        if (KindOf(layer) == LayerKind::kEmbedding) {
          ReadTokens(step);
        } else {
          ReadInput(step);
          ReadDocuments(step);
          Write("inner", step.inner, Inner(step));
        }
        return Write("boundary", step.output, InputOf(Next(layer), step));
      case Kind::kRecompute:
        ++num_recomputes_;
        ReadWeights(step);
        ReadInput(step);
        ReadDocuments(step);
        return Write("inner", step.inner, Inner(step));
      case Kind::kHead:
        ReadWeights(step);
        ReadInput(step);
        ReadTokens(step);
        Accumulate(step);
        Expect(Read("record", step.record), Record(step, step.micro_batch), step);
        Write("record", step.record, Record(step, step.micro_batch + 1));
        return Write("boundary", step.output, GradientOf(layer, step));
      case Kind::kBackward:
        Expect(Read("boundary", step.output), GradientOf(Next(layer), step), step);
        if (KindOf(layer) == LayerKind::kEmbedding) {
          ReadTokens(step);
        } else {
          ReadWeights(step);
          ReadInput(step);
          ReadDocuments(step);
          Expect(Read("inner", step.inner), Inner(step), step);
        }
        Accumulate(step);
        return Write("boundary", step.output, GradientOf(layer, step));
      case Kind::kZeroGradient:
        return Write("gradient", step.gradient, absl::StrCat("gradient of ", layer, " vnode ", VnodeOf(step), ":"));
      case Kind::kFinishLeaf:
        return FinishLeaf(step);
      case Kind::kAddGradient:
        return AddGradient(step);
      case Kind::kEmitGradient:
        Expect(Read("gradient", step.gradient), Sum(layer, step.node), step);
        if (in_group()) Write("own", step.round, Sum(layer, step.node));
        return WritePush(step.push, Sum(layer, step.node));
      case Kind::kEmitLeaf:
        EXPECT_EQ(step.node, (TreeNode{VnodeOf(step), 1}));
        EXPECT_FALSE(in_group());
        ExpectWholeGradient(step);
        WriteFlag(step);
        return WritePush(step.push, Sum(layer, step.node));
      case Kind::kExchange:
        return Exchange(step);
      case Kind::kSumGroup:
        return SumGroup(step);
      case Kind::kPushPart:
        return PushPart(step);
      case Kind::kPush:
        return Push(step);
      case Kind::kStartRecord:
        return Write("record", step.record, Record(step, 0));
      case Kind::kStoreRecord:
        Expect(Read("record", step.record), Record(step, made_.pass.micro_batches), step);
        records_.push_back(VnodeOf(step));
        return;
      case Kind::kLogits:
        ReadWeights(step);
        return ReadInput(step);
      case Kind::kLoss:
        ReadWeights(step);
        ReadInput(step);
        ReadTokens(step);
        Expect(Read("record", step.record), Record(step, step.micro_batch), step);
        return Write("record", step.record, Record(step, step.micro_batch + 1));
    }
  }
  std::string Record(const RelayStep& step, int micro_batches) const {
    return absl::StrCat("record of ", VnodeOf(step), " with ", micro_batches);
  }
  static int Flag(int slot, int leaf) { return slot * 100 + leaf; }

  void ExpectWholeGradient(const RelayStep& step) {
    const int layer = step.layer.value(), vnode = VnodeOf(step);
    std::string want = absl::StrCat("gradient of ", layer, " vnode ", vnode, ":");
    for (int m = 0; m < made_.pass.micro_batches; ++m) absl::StrAppend(&want, " ", m);
    Expect(Read("gradient", step.gradient), want, step);
  }
  void FinishLeaf(const RelayStep& step) {
    const int vnode = VnodeOf(step);
    ExpectWholeGradient(step);
    EXPECT_TRUE(step.node.Contains({vnode, 1}));
    EXPECT_TRUE(in_group() || step.node.count > 1) << "a leaf that is pushed alone is emitted at once";
    EXPECT_LE(step.node.count, made_.plan.max_subtree_leaves());
    Write("gradient", step.gradient, Sum(step.layer.value(), {vnode, 1}));
    sums_[step.gradient] = {vnode, 1};
    WriteFlag(step);
  }
  void WriteFlag(const RelayStep& step) {
    const int vnode = VnodeOf(step);
    const std::string flag = absl::StrCat("flag of ", step.layer.value(), " vnode ", vnode);
    if (in_group()) return Write("group flag", Flag(step.flag_turn, vnode), flag);
    EXPECT_LT(step.flags, made_.plan.num_flag_slots());
    Write("flag", Flag(step.flags, vnode - step.node.first), flag);
  }

  // ---- a group ----
  bool in_group() const { return made_.pass.group_rounds > 0; }
  void ExpectGroupFlags(const RelayStep& step, TreeNode node) {
    for (int vnode = node.first; vnode < node.end(); ++vnode) {
      Expect(Read("group flag", Flag(step.flag_turn, vnode)),
             absl::StrCat("flag of ", step.layer.value(), " vnode ", vnode), step);
    }
  }
  static std::string Got(int layer, int round) { return absl::StrCat("round ", round, " of ", layer); }
  void Exchange(const RelayStep& step) {
    const int layer = step.layer.value();
    const std::vector<TreeNode> nodes = made_.group_nodes();
    EXPECT_EQ(step.push >= 0, step.round < static_cast<int>(nodes.size()));
    if (step.push >= 0) {
      EXPECT_EQ(step.node, nodes[static_cast<size_t>(step.round)]);
      Expect(ReadPush(step.push), Sum(layer, step.node), step);
      ExpectGroupFlags(step, step.node);
    }
    Write("got", step.round, Got(layer, step.round));
    Write("got flags", Flag(step.flag_turn, step.round), Got(layer, step.round));
    exchanges_.emplace_back(layer, step.round);
  }
  void SumGroup(const RelayStep& step) {
    const int layer = step.layer.value();
    const std::vector<TreeNode> nodes = made_.group_nodes();
    for (int round = 0; round < made_.pass.group_rounds; ++round) {
      Expect(Read("got", round), Got(layer, round), step);
      Write("got", round, absl::StrCat("summed of ", layer));
      if (round >= static_cast<int>(nodes.size())) continue;
      Expect(Read("own", round), Sum(layer, nodes[static_cast<size_t>(round)]), step);
      Write("own", round, absl::StrCat("summed of ", layer));
    }
  }
  void PushPart(const RelayStep& step) {
    const int layer = step.layer.value();
    for (int round = 0; round < made_.pass.group_rounds; ++round) {
      Expect(Read("got", round), absl::StrCat("summed of ", layer), step);
      Expect(Read("got flags", Flag(step.flag_turn, round)), Got(layer, round), step);
    }
    int round = 0;
    for (const TreeNode node : made_.group_nodes()) {
      Expect(Read("own", round++), absl::StrCat("summed of ", layer), step);
      ExpectGroupFlags(step, node);
      pushes_[layer].push_back(node);
    }
  }
  // The other members have the same, whatever they hold.
  void CheckExchanges() {
    std::vector<std::pair<int, int>> want;
    for (int layer = static_cast<int>(made_.model.layers.size()) - 1; layer >= 0; --layer) {
      if (!made_.model.layers[static_cast<size_t>(layer)].trains() || made_.IsDropped(layer)) continue;
      for (int round = 0; round < made_.pass.group_rounds; ++round) want.emplace_back(layer, round);
    }
    EXPECT_EQ(exchanges_, want);
  }
  void AddGradient(const RelayStep& step) {
    const int layer = step.layer.value();
    const TreeNode left = sums_[step.gradient], right = sums_[step.other_gradient];
    Expect(Read("gradient", step.gradient), Sum(layer, left), step);
    Expect(Read("gradient", step.other_gradient), Sum(layer, right), step);
    const TreeNode parent{left.first, left.count + right.count};
    EXPECT_EQ(left.end(), right.first);
    EXPECT_TRUE(IsTreeNode(parent, made_.pass.num_vnodes)) << DebugString(parent);
    EXPECT_EQ(LeftLeaves(parent.count), left.count);
    sums_[step.gradient] = parent;
    Write("gradient", step.gradient, Sum(layer, parent));
  }
  void Push(const RelayStep& step) {
    const int layer = step.layer.value();
    Expect(ReadPush(step.push), Sum(layer, step.node), step);
    for (int leaf = 0; leaf < step.node.count; ++leaf) {
      Expect(Read("flag", Flag(step.flags, leaf)), absl::StrCat("flag of ", layer, " vnode ", step.node.first + leaf),
             step);
    }
    pushes_[layer].push_back(step.node);
  }

  // Every two accesses of a buffer, one of them a write, are ordered by the streams and the waits, the way they are in
  // the list. Waits point backwards in the list, so in-order streams cannot deadlock.
  void CheckOrder() {
    std::vector<std::array<int, kNumStreams>> done(steps_.size());  // by stream: last step known done when i is done
    std::array<int, kNumStreams> last_of = {-1, -1, -1};
    std::vector<bool> signalled(steps_.size(), false);
    std::map<std::string, std::vector<std::pair<int, bool>>> history;
    for (size_t i = 0; i < steps_.size(); ++i) {
      const auto stream = static_cast<size_t>(steps_[i].stream());
      std::array<int, kNumStreams> before = {-1, -1, -1};
      if (last_of[stream] >= 0) before = done[static_cast<size_t>(last_of[stream])];
      for (const int other : steps_[i].waits_for) {
        ASSERT_LT(other, static_cast<int>(i));
        EXPECT_NE(steps_[static_cast<size_t>(other)].stream(), steps_[i].stream());
        EXPECT_TRUE(steps_[static_cast<size_t>(other)].signals);
        for (size_t s = 0; s < before.size(); ++s) {
          before[s] = std::max(before[s], done[static_cast<size_t>(other)][s]);
        }
      }
      for (const Access& access : accesses_[i]) {
        for (const auto& [other, wrote] : history[access.buffer]) {
          if (!wrote && !access.write) continue;
          if (other == static_cast<int>(i)) continue;
          const auto other_stream = static_cast<size_t>(steps_[static_cast<size_t>(other)].stream());
          EXPECT_LE(other, before[other_stream])
              << access.buffer << ": " << DebugString(steps_[static_cast<size_t>(other)], made_.model) << " and "
              << DebugString(steps_[i], made_.model);
        }
      }
      for (const Access& access : accesses_[i]) {
        auto& uses = history[access.buffer];
        // What came before a write is ordered before it, and so before all that comes later.
        if (access.write) std::erase_if(uses, [&](const auto& use) { return use.first != static_cast<int>(i); });
        uses.emplace_back(static_cast<int>(i), access.write);
      }
      done[i] = before;
      done[i][stream] = static_cast<int>(i);
      last_of[stream] = static_cast<int>(i);
    }
  }

  void CheckPushes() {
    const std::vector<LayerSpec>& layers = made_.model.layers;
    const auto training = std::count_if(layers.begin(), layers.end(), [this](const LayerSpec& layer) {
      return layer.trains() && !made_.IsDropped(layer.id.value());
    });
    EXPECT_EQ(static_cast<int64_t>(pushes_.size()), made_.pass.evaluates ? 0 : training);
    for (const auto& [layer, nodes] : pushes_) {
      EXPECT_TRUE(layers[static_cast<size_t>(layer)].trains()) << "layer " << layer;
      std::vector<int> covered;
      for (const TreeNode& node : nodes) {
        EXPECT_TRUE(IsTreeNode(node, made_.pass.num_vnodes));
        EXPECT_FALSE(made_.shape.bf16 && !in_group() && node.count == 2) << "two leaves go as leaves";
        for (int v = node.first; v < node.end(); ++v) covered.push_back(v);
      }
      EXPECT_EQ(covered, made_.pass.vnodes) << "layer " << layer;
    }
  }
  void CheckRecords() { EXPECT_EQ(records_, made_.pass.vnodes); }

  const MadeSchedule& made_;
  const std::vector<RelayStep>& steps_;
  std::map<std::string, std::string> buffers_;
  std::vector<std::vector<Access>> accesses_;
  std::map<int, TreeNode> sums_;  // by gradient slot
  std::map<int, std::vector<TreeNode>> pushes_;
  std::vector<int> records_;
  std::vector<std::pair<int, int>> exchanges_;  // layer, round
  int num_pulls_ = 0, num_recomputes_ = 0, num_inner_loads_ = 0, num_boundary_loads_ = 0;
};

// A push may wait where nothing that is under way can be waiting for it, or for what comes behind it: for a higher
// layer's.
void CheckWhatMayWait(const std::vector<RelayStep>& steps, bool depth_first) {
  std::vector<const RelayStep*> pushes;
  for (const RelayStep& step : steps) {
    if (step.kind == Kind::kPush) pushes.push_back(&step);
  }
  for (size_t i = 0; i < pushes.size(); ++i) {
    bool could_wait_for_it = false;
    for (size_t before = 0; before < i; ++before) {
      for (size_t later = i; later < pushes.size(); ++later) {
        could_wait_for_it |= pushes[before]->layer < pushes[later]->layer;
      }
    }
    EXPECT_EQ(pushes[i]->may_wait, !could_wait_for_it) << "push " << i;
    EXPECT_TRUE(pushes[i]->may_wait || depth_first) << "push " << i;
  }
}

void CheckAlone(const ScheduleShape& shape) {
  SCOPED_TRACE(Print(shape));
  const MadeSchedule made(shape);
  const std::vector<RelayStep> steps = made.Build();
  CheckWhatMayWait(steps, shape.depth_first > 0);
  Simulator simulator(made, steps);
  simulator.Run();

  const int blocks = shape.layers - static_cast<int>(shape.dropped.size());
  const int items = static_cast<int>(made.pass.vnodes.size()) * shape.micro_batches;
  // The way back ends with the lowest layer that trains.
  int lowest = 0;
  const auto is_frozen = [&](int layer) {
    return std::find(shape.frozen.begin(), shape.frozen.end(), layer) != shape.frozen.end();
  };
  while (is_frozen(lowest) || made.IsDropped(lowest)) ++lowest;
  int back = 0;
  for (int layer = std::max(1, lowest); layer <= shape.layers; ++layer) back += made.IsDropped(layer) ? 0 : 1;
  const int stashed = back - std::min(back, made.plan.depth_first_blocks);
  const std::vector<InnerPlace> places = made.plan.PlacesOf(stashed, items);
  EXPECT_EQ(simulator.num_recomputes(), std::count(places.begin(), places.end(), InnerPlace::kRecompute));
  EXPECT_LE(simulator.num_inner_loads(), std::count(places.begin(), places.end(), InnerPlace::kSwap));
  if (shape.resident) {
    EXPECT_EQ(simulator.num_boundary_loads(), 0);
  }
  for (const RelayStep& step : steps) EXPECT_TRUE(!step.backward || step.layer.value() >= lowest);
  for (const RelayStep& step : steps) {
    const LayerSpec& layer = made.model.layer(step.layer);
    if (shape.large_tables && step.kind == Kind::kPull &&
        made.model.wire_bytes(layer, made.plan.wire) > made.model.max_block_bytes(made.plan.wire)) {
      EXPECT_EQ(step.weights, 0) << DebugString(step, made.model);
    }
    if (shape.large_tables && layer.trainable_elems > made.model.max_trainable_block_elems() && step.push >= 0) {
      const bool from_weights = shape.pushes_from_weight_slots && step.push == shape.push_slots;
      EXPECT_TRUE(from_weights || (step.push == 0 && (shape.vnodes > 1 || !shape.pushes_from_weight_slots)))
          << DebugString(step, made.model);
    }
  }
  const int slots = static_cast<int>(made.plan.weight_slots_in_turn());
  // There: N. Back: every block that is no longer in a slot; one slot holds the head. With no other slot the last block is
  // there in its compute dtype all the same, where none is depth first.
  const int there = std::max(slots - 1, shape.expands && made.plan.depth_first_blocks == 0 ? 1 : 0);
  EXPECT_EQ(simulator.num_pulls(), blocks + 2 + std::max(0, stashed - there));
}

// And whatever else it is, with more of its blocks depth first, and in slots of several sizes.
void Check(const ScheduleShape& shape) {
  CheckAlone(shape);
  ScheduleShape changed = shape;
  const bool is_told = shape.depth_first > 0 || shape.group_rounds > 0;
  for (int blocks = 0; blocks <= (is_told ? 0 : shape.layers); ++blocks) {
    if (!is_told) changed.depth_first = blocks;
    changed.large_tables = !shape.resident && (blocks + shape.vnodes + shape.weight_slots) % 3 != 0;
    changed.documents = (blocks + shape.layers + shape.micro_batches) % 2 != 0;
    changed.pushes_from_weight_slots =
        !shape.resident && shape.group_rounds == 0 && (blocks + shape.micro_batches + shape.inner_slots) % 3 != 0;
    CheckAlone(changed);
  }
}

TEST(ScheduleBuffersTest, FrozenLayersPushNothingAndTheWayBackEndsWithTheLowestThatTrains) {
  const std::vector<std::vector<int>> of_layers = {{1},          {2, 3},    {0},    {0, 1},
                                                   {0, 1, 2, 3}, {0, 1, 3}, {0, 4}, {0, 2, 4}};
  for (size_t i = 0; i < of_layers.size(); ++i) {
    for (int weight_slots = 1; weight_slots <= 3; ++weight_slots) {
      for (const int inner_slots : {1, 3, 12}) {
        const int turn = static_cast<int>(i) + weight_slots + inner_slots;
        ScheduleShape shape{.layers = 3, .vnodes = 4, .micro_batches = 1 + turn % 2, .weight_slots = weight_slots};
        shape.inner_slots = inner_slots;
        shape.keeps_all = inner_slots == 12 && shape.micro_batches == 1;
        shape.gradient_slots = 1 + turn % 3;
        shape.push_slots = 1 + turn % 2;
        shape.bf16 = turn % 3 != 0;
        shape.resident = turn % 5 == 0;
        shape.frozen = of_layers[i];
        Check(shape);
        shape.held = {1, 2};
        shape.group_rounds = 4;
        Check(shape);
      }
    }
  }
}

// In the slots of the whole model, whatever the plan does with them.
TEST(ScheduleBuffersTest, AnyBlocksMayBeDroppedFromThePlanOfAll) {
  constexpr int kLayers = 5;
  for (int set = 1; set < (1 << kLayers) - 1; ++set) {
    std::vector<int> dropped;
    for (int layer = 1; layer <= kLayers; ++layer) {
      if ((set >> (layer - 1)) & 1) dropped.push_back(layer);
    }
    for (int turn = set; turn < set + 24; ++turn) {
      const int items = 1 + turn % 3 + turn % 2;
      ScheduleShape shape{.layers = kLayers, .vnodes = 1 + turn % 3, .micro_batches = 1 + turn % 2};
      shape.weight_slots = 1 + turn % 4;
      shape.inner_slots = 1 + turn % (kLayers * items);
      shape.gradient_slots = 1 + turn % 3;
      shape.swapped = turn % 5 * items;
      shape.boundary_slots = 4 + turn % 7;
      shape.resident = turn % 6 == 0;
      shape.expands = turn % 2 == 0;
      shape.bf16 = turn % 5 < 3;
      shape.dropped = dropped;
      if (turn % 4 == 1) shape.frozen = {0, 6, 1 + turn % 3};
      if (turn % 8 == 3) shape.group_rounds = static_cast<int>(MadeSchedule(shape).group_nodes().size()) + turn % 2;
      if (turn % 4 == 1 && std::all_of(shape.frozen.begin(), shape.frozen.end(), [&](int layer) {
            return layer == 0 || layer == 6 || kLayers - static_cast<int>(dropped.size()) == 1;
          })) {
        continue;  // nothing trains
      }
      Check(shape);
    }
  }
}

TEST(ScheduleBuffersTest, NoBufferIsOverwrittenWhileNeededForManyShapes) {
  for (int layers = 1; layers <= 5; ++layers) {
    for (int vnodes = 1; vnodes <= 5; ++vnodes) {
      for (int micro_batches = 1; micro_batches <= 3; ++micro_batches) {
        const int total = layers * vnodes * micro_batches;
        for (int weight_slots = 1; weight_slots <= 3; ++weight_slots) {
          for (const int inner_slots : {1, 2, total / 2 + 1, total}) {
            // The remaining choices do not interact with these; they take turns.
            const int turn = layers + vnodes + micro_batches + weight_slots + inner_slots;
            ScheduleShape shape{.layers = layers,
                                .vnodes = vnodes,
                                .micro_batches = micro_batches,
                                .weight_slots = weight_slots,
                                .inner_slots = std::min(inner_slots, total),
                                .gradient_slots = 1 + turn % 4,
                                .push_slots = 1 + turn % 2};
            shape.keeps_all = shape.inner_slots == total && turn % 3 != 0;
            shape.expands = turn % 2 == 0;
            shape.bf16 = turn % 5 < 3;
            shape.resident = turn % 7 == 0;
            Check(shape);
          }
        }
      }
    }
  }
}

TEST(ScheduleBuffersTest, WhatIsSwappedComesBackWhereItIsNeeded) {
  for (int layers = 1; layers <= 5; ++layers) {
    for (const auto& [vnodes, micro_batches] : std::vector<std::pair<int, int>>{{1, 1}, {2, 1}, {1, 3}, {3, 2}}) {
      const int items = vnodes * micro_batches, total = layers * items;
      for (const int inner_slots : {1, 2, 3, total / 2 + 1, total}) {
        for (const int swapped : {1, total / 2, total}) {
          for (const int boundary_slots : {4, 5, 4 + total / 2, 4 + total}) {
            const int turn = layers + vnodes + inner_slots + swapped + boundary_slots;
            ScheduleShape shape{.layers = layers, .vnodes = vnodes, .micro_batches = micro_batches};
            shape.weight_slots = 1 + turn % 4;
            shape.inner_slots = inner_slots;
            shape.swapped = swapped;
            shape.spare = turn % 3;
            shape.boundary_slots = boundary_slots;
            shape.expands = turn % 2 == 0;
            if (turn % 5 == 0) shape.frozen = {0, 1};
            Check(shape);
            if (vnodes == 3) shape.held = {0, 2};
            Check(shape);
          }
        }
      }
    }
  }
}

TEST(ScheduleBuffersTest, MoreBoundarySlotsNeverLoadMore) {
  int loads = 1000;
  for (int slots = 4; slots <= 4 * 5 + 1; ++slots) {
    const MadeSchedule made({.layers = 4, .vnodes = 2, .micro_batches = 2, .boundary_slots = slots});
    const std::vector<RelayStep> steps = made.Build();
    Simulator simulator(made, steps);
    simulator.Run();
    EXPECT_LE(simulator.num_boundary_loads(), loads);
    loads = simulator.num_boundary_loads();
  }
  EXPECT_EQ(loads, 0);
}

TEST(ScheduleBuffersTest, EveryNumberOfGradientSlotsSumsInTheTreesOrder) {
  for (int vnodes = 1; vnodes <= 9; ++vnodes) {
    for (int gradient_slots = 1; gradient_slots <= 5; ++gradient_slots) {
      for (const bool bf16 : {false, true}) {
        for (int push_slots = 1; push_slots <= 2; ++push_slots) {
          Check({.layers = 1,
                 .vnodes = vnodes,
                 .micro_batches = 1,
                 .gradient_slots = gradient_slots,
                 .push_slots = push_slots,
                 .bf16 = bf16});
        }
      }
    }
  }
}

TEST(ScheduleBuffersTest, AnyVnodesOfTheRunMakeAPass) {
  for (const std::vector<int>& held :
       std::vector<std::vector<int>>{{0}, {3}, {1, 2}, {0, 2, 4}, {0, 1, 2}, {2, 3, 4, 5, 6}, {6}}) {
    for (const bool resident : {false, true}) {
      Check({.layers = 3,
             .vnodes = 7,
             .micro_batches = 2,
             .inner_slots = 5,
             .gradient_slots = 3,
             .resident = resident,
             .held = held});
    }
  }
}

// One that gives fewer nodes than another member only gets in the rounds that are left.
TEST(ScheduleBuffersTest, MembersOfAGroupExchangeTheSameWhateverTheyHold) {
  for (const std::vector<int>& held :
       std::vector<std::vector<int>>{{0}, {3}, {0, 1}, {1, 2}, {4, 5, 6}, {0, 1, 2, 3}}) {
    for (int more_rounds = 0; more_rounds <= 2; ++more_rounds) {
      for (int layers = 1; layers <= 4; ++layers) {
        for (int gradient_slots = 1; gradient_slots <= 3; ++gradient_slots) {
          ScheduleShape shape{.layers = layers,
                              .vnodes = 7,
                              .micro_batches = 1 + layers % 3,
                              .gradient_slots = gradient_slots,
                              .push_slots = 1 + (layers + gradient_slots) % 2,
                              .bf16 = more_rounds % 2 == 0,
                              .held = held};
          shape.resident = (layers + more_rounds) % 4 == 0;
          shape.group_rounds = static_cast<int>(MadeSchedule(shape).group_nodes().size()) + more_rounds;
          Check(shape);
        }
      }
    }
  }
}

TEST(ScheduleBuffersTest, SubtreesOfTheLargestSizeArePushed) {
  const MadeSchedule made({.layers = 1, .vnodes = 7, .gradient_slots = 3});
  const std::vector<RelayStep> steps = made.Build();
  Simulator simulator(made, steps);
  simulator.Run();
  EXPECT_EQ(simulator.pushes().at(1), (std::vector<TreeNode>{{0, 4}, {4, 3}}));
}

TEST(ScheduleBuffersTest, APassThatEvaluatesMakesARecordOfEachVnodeAndNoGradient) {
  for (const bool resident : {false, true}) {
    // In the slots of a plan with all blocks depth first.
    for (const int layers : {1, 2}) {
      MadeSchedule small({.layers = layers,
                          .vnodes = 3,
                          .micro_batches = 2,
                          .push_slots = 2,
                          .resident = resident,
                          .depth_first = layers});
      small.pass.forward_only = small.pass.evaluates = true;
      Simulator(small, small.Build()).Run();
    }
    MadeSchedule made({.layers = 2, .vnodes = 3, .micro_batches = 2, .resident = resident, .held = {0, 2}});
    made.pass.forward_only = made.pass.evaluates = true;
    std::map<Kind, int> count;
    const std::vector<RelayStep> steps = made.Build();
    Simulator(made, steps).Run();
    for (const RelayStep& step : steps) {
      ++count[step.kind];
      EXPECT_FALSE(step.gradient >= 0 || step.push >= 0) << DebugString(step, made.model);
    }
    EXPECT_EQ(count[Kind::kPull], 4);
    EXPECT_EQ(count[Kind::kForward], 3 * 4);
    EXPECT_EQ(count[Kind::kLoss], 4);
    EXPECT_EQ(count[Kind::kStartRecord], 2);
    EXPECT_EQ(count[Kind::kStoreRecord], 2);
    EXPECT_EQ(count[Kind::kBackward] + count[Kind::kRecompute] + count[Kind::kLogits], 0);
    EXPECT_EQ(steps.back().kind, Kind::kStoreRecord);
  }
}

}  // namespace
}  // namespace eps::worker
