#include "gpu_worker/plan/weight_slots.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "common/model/model_spec.h"
#include "common/tensor/dtype.h"
#include "gpu_worker/plan/relay_plan.h"
#include "gpu_worker/plan/turns.h"
#include "gtest/gtest.h"

namespace eps::worker {
namespace {

// A pass of two micro-batches over a model whose tables are larger than its blocks, and what lies in each slot.
class Walk {
 public:
  Walk(int blocks, int slots, int depth_first, bool expands = false)
      : model_(BuildModel({.num_layers = blocks, .d_model = 4, .num_heads = 1, .context = 2, .vocab = 400}).value()),
        turns_(model_, /*num_vnodes=*/1, /*micro_batches=*/2, /*forward_only=*/false, depth_first),
        expands_(expands) {
    plan_.depth_first_blocks = depth_first;
    plan_.weight_slots.resize(static_cast<size_t>(slots + depth_first), {.num_bytes = 1});
    plan_.weight_slots.front().num_bytes = 2;
  }

  // Pulls in their order, as "LAYER into SLOT".
  std::vector<std::string> Run() {
    WeightSlots slots(model_, plan_, turns_, expands_);
    for (size_t t = 0; t < turns_.size(); ++t) {
      const Turn& turn = turns_[t];
      if (!turn.needs_weights()) continue;
      if (turn.starts_visit) {
        Pull(slots);
        slots.StartVisit(turn);
        in_use_.insert(turn.layer.value());
      }
      if (const int slot = slots.SlotOf(turn.layer.value()); slot == SlotPool::kNone) {
        EXPECT_TRUE(expands_ && turn.backward);  // and it is in no slot either
      } else {
        EXPECT_EQ(in_slot_.at(slot), turn.layer.value());
      }
      if (!turns_.EndsVisit(turn)) continue;
      in_use_.erase(turn.layer.value());
      slots.EndVisit(turn.layer.value());
      Pull(slots);
    }
    EXPECT_TRUE(in_use_.empty());
    return pulls_;
  }

 private:
  void Pull(WeightSlots& slots) {
    for (const WeightSlots::Pull& pull : slots.PullAhead()) {
      EXPECT_LT(pull.slot, static_cast<int>(plan_.weight_slots.size()));
      if (in_slot_.contains(pull.slot)) {
        EXPECT_FALSE(in_use_.contains(in_slot_.at(pull.slot)));
      }
      if (pull.visit.kind != LayerKind::kBlock) {
        EXPECT_EQ(pull.slot, 0);
      }
      EXPECT_FALSE(pull.visit.depth_first && pull.slot == 0);
      in_slot_[pull.slot] = pull.visit.layer.value();
      pulls_.push_back(std::to_string(pull.visit.layer.value()) + " into " + std::to_string(pull.slot));
    }
  }

  const ModelSpec model_;
  const Turns turns_;
  const bool expands_;
  RelayPlan plan_;
  std::map<int, int> in_slot_;  // layers
  std::set<int> in_use_;
  std::vector<std::string> pulls_;
};

using Pulls = std::vector<std::string>;

TEST(WeightSlotsTest, BlocksTakeTurnsInTheFirstSlotWhileNoTableNeedsIt) {
  // The last block leaves it to the head, and stays where it is.
  EXPECT_EQ(Walk(4, 2, 0).Run(), (Pulls{"0 into 0", "1 into 1", "2 into 0", "3 into 1", "4 into 1", "5 into 0",
                                        "3 into 0", "2 into 1", "1 into 0"}));
  EXPECT_EQ(Walk(3, 2, 0).Run(),
            (Pulls{"0 into 0", "1 into 1", "2 into 0", "3 into 1", "4 into 0", "2 into 0", "1 into 1"}));
}

TEST(WeightSlotsTest, WithOneSlotEverythingGoesThere) {
  EXPECT_EQ(Walk(2, 1, 0).Run(), (Pulls{"0 into 0", "1 into 0", "2 into 0", "3 into 0", "2 into 0", "1 into 0"}));
}

TEST(WeightSlotsTest, ABlockWhoseExpandedFormOutlastsTheHeadIsNotBroughtAgainForNobody) {
  EXPECT_EQ(Walk(2, 1, 0, /*expands=*/true).Run(), (Pulls{"0 into 0", "1 into 0", "2 into 0", "3 into 0", "1 into 0"}));
  EXPECT_EQ(Walk(1, 1, 0, /*expands=*/true).Run(), (Pulls{"0 into 0", "1 into 0", "2 into 0"}));
  // Where it stays in a slot nothing is otherwise.
  EXPECT_EQ(Walk(4, 2, 0, /*expands=*/true).Run(), Walk(4, 2, 0).Run());
  EXPECT_EQ(Walk(4, 2, 2, /*expands=*/true).Run(), Walk(4, 2, 2).Run());
}

TEST(WeightSlotsTest, DepthFirstBlocksStayAndLeaveTheirSlotsOneByOne) {
  // 3 and 4 are depth first. 4 is over before 3 is, and 2 is there still.
  EXPECT_EQ(Walk(4, 2, 2).Run(),
            (Pulls{"0 into 0", "1 into 1", "2 into 2", "3 into 3", "4 into 1", "5 into 0", "1 into 0"}));
}

TEST(WeightSlotsTest, NothingInUseIsOverwrittenAndNoLayerIsPulledMoreOftenThanNeeded) {
  for (int blocks = 1; blocks <= 7; ++blocks) {
    for (int slots = 1; slots <= 4; ++slots) {
      for (int depth_first = 0; depth_first <= blocks; ++depth_first) {
        const Pulls pulls = Walk(blocks, slots, depth_first).Run();
        const int back = blocks - depth_first;
        EXPECT_EQ(pulls.size(), static_cast<size_t>(blocks + 2 + std::max(0, back - (slots - 1))))
            << blocks << " blocks, " << slots << " slots, " << depth_first << " depth first";
      }
    }
  }
}

// Slots are as large as what they hold has bytes: a table of fewer elements than a block is the larger one where the
// block is quantized.
TEST(WeightSlotsTest, ATableThatIsLongerThanAQuantizedBlockHasTheFirstSlotAlone) {
  const ModelSpec model = BuildModel({.num_layers = 4,
                                      .d_model = 64,
                                      .num_heads = 1,
                                      .context = 2,
                                      .vocab = 300,
                                      .freeze = {"transformer.h.*"},
                                      .frozen_format = QuantizedFormat::kMxInt8})
                              .value();
  ASSERT_LT(model.layers[0].num_elems, model.layers[1].num_elems);
  ASSERT_GT(model.wire_bytes(model.layers[0], Dtype::kF32), model.wire_bytes(model.layers[1], Dtype::kF32));
  const Turns turns(model, /*num_vnodes=*/1, /*micro_batches=*/1, /*forward_only=*/false, /*depth_first=*/0);
  RelayPlan plan;
  plan.wire = Dtype::kF32;
  plan.weight_slots.resize(3, {.num_bytes = 1});
  plan.weight_slots.front().num_bytes = 2;
  WeightSlots slots(model, plan, turns, /*expands=*/false);
  int of_tables = 0;
  for (size_t t = 0; t < turns.size(); ++t) {
    if (!turns[t].starts_visit || !turns[t].needs_weights()) continue;
    for (const WeightSlots::Pull& pull : slots.PullAhead()) {
      if (pull.visit.kind == LayerKind::kBlock) continue;
      EXPECT_EQ(pull.slot, 0);
      ++of_tables;
    }
    slots.StartVisit(turns[t]);
    slots.EndVisit(turns[t].layer.value());
  }
  EXPECT_GE(of_tables, 2);
}

}  // namespace
}  // namespace eps::worker
