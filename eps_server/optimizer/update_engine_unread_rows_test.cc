#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/ids.h"
#include "common/model/model_spec.h"
#include "common/schedule/reduction_tree.h"
#include "common/spec/moment_format.h"
#include "common/spec/run_config.h"
#include "common/tensor/dtype.h"
#include "common/testing/status_matchers.h"
#include "eps_server/optimizer/chunk_gradient.h"
#include "eps_server/optimizer/unread_rows.h"
#include "eps_server/optimizer/update_engine.h"
#include "eps_server/optimizer/update_engine_testing.h"
#include "gtest/gtest.h"

// The engine, where rows of the token table are updated before the embedding's gradient is there.
namespace eps::server {
namespace {

constexpr int64_t kVocab = 1500, kWidth = 256;  // two chunks, the second in part

RunConfig RunWith(bool tied, ClipMode clip = ClipMode::kNone) {
  RunConfig run = SmallRun(clip, 1e-3);
  run.model = tied ? ModelConfig{.num_layers = 1, .d_model = kWidth, .num_heads = 2, .context = 16, .vocab = kVocab}
                   : ModelConfig{.family = ModelFamily::kLlama,
                                 .num_layers = 1,
                                 .d_model = kWidth,
                                 .num_heads = 2,
                                 .context = 16,
                                 .vocab = kVocab,
                                 .max_positions = 16,
                                 .d_ff = 512,
                                 .num_kv_heads = 2,
                                 .d_head = 128,
                                 .tied_head = false};
  return run;
}

// A trainer whose table's gradient is that of a head, if it is tied, and of an embedding.
class TableTrainer : public Trainer {
 public:
  // nodes: that contributions to the table have; with many of them early updates do not pay
  explicit TableTrainer(const RunConfig& run, int threads = 2, std::vector<TreeNode> nodes = {{0, kVnodes}})
      : Trainer(run, threads), nodes_(std::move(nodes)) {}

  bool tied() const { return model().blob(kWte).uses.size() > 1; }
  bool IsRead(int64_t step, int64_t row) const { return (row * 7 + step * 3) % 10 < 4; }
  std::shared_ptr<const RowsRead> Rows(int64_t step) const {
    auto rows = std::make_shared<RowsRead>(kVocab);
    for (int32_t row = 0; row < kVocab; ++row) {
      if (IsRead(step, row)) rows->Add({row});
    }
    return rows;
  }
  int64_t NumUnread(int64_t step) const {
    int64_t num_elems = 0;
    for (int64_t row = 0; row < kVocab; ++row) num_elems += IsRead(step, row) ? 0 : kWidth;
    return num_elems;
  }

  // Zeros of either sign are among what the head gives, whose sum with the embedding's is +0.
  ChunkGradient OfHead(int64_t step, int64_t chunk) const {
    return OfUse(
        1,
        [&](int vnode, int64_t elem) {
          if (elem % 5 == 0) return elem % 10 == 0 ? -0.0f : 0.0f;
          return GradientAt(step, vnode, kWte, elem);
        },
        chunk);
  }
  ChunkGradient Whole(int64_t step, int64_t chunk) const {
    ChunkGradient gradient = OfUse(
        0,
        [&](int vnode, int64_t elem) {
          return IsRead(step, elem / kWidth) ? GradientAt(step, vnode + 10, kWte, elem) : 0.0f;
        },
        chunk);
    if (!tied()) return gradient;
    const ChunkGradient head = OfHead(step, chunk);
    const auto num_operands = static_cast<int>(gradient.operands.size());
    gradient.operands.insert(gradient.operands.end(), head.operands.begin(), head.operands.end());
    for (SumOp op : head.program) {
      if (op.kind == SumOp::Kind::kLoad) op.operand += num_operands;
      gradient.program.push_back(op);
    }
    gradient.program.push_back({SumOp::Kind::kAdd, 0});
    gradient.owner =
        std::make_shared<std::pair<std::shared_ptr<void>, std::shared_ptr<void>>>(gradient.owner, head.owner);
    return gradient;
  }

  int64_t num_chunks() const { return model().blob(kWte).num_chunks(); }
  void Open(int64_t step) { engine().OpenStep(StepId(step), Rows(step)); }
  void SubmitHead(int64_t step, int64_t chunk) {
    engine().SubmitLaterUses(StepId(step), kWte, chunk, OfHead(step, chunk));
  }
  void SubmitWhole(int64_t step, int64_t chunk) { engine().Submit(StepId(step), kWte, chunk, Whole(step, chunk)); }
  void SubmitOthers(int64_t step) {
    for (const ChunkId id : chunks()) {
      if (id.blob != kWte) Submit(step, id);
    }
  }
  void WaitForUpdated(int64_t num_elems) const {
    while (engine().counts().updated_elems < num_elems) std::this_thread::yield();
  }

 private:
  template <typename At>
  ChunkGradient OfUse(int use, const At& at, int64_t chunk) const {
    const int64_t count = model().blob(kWte).chunk_elems(chunk);
    auto values = std::make_shared<std::vector<std::vector<float>>>();
    ChunkGradient gradient;
    const std::function<float(TreeNode, int64_t)> sum = [&](TreeNode node, int64_t elem) {
      if (node.is_leaf()) return at(node.first, elem);
      const int left = LeftLeaves(node.count);
      return sum({node.first, left}, elem) + sum({node.first + left, node.count - left}, elem);
    };
    for (const TreeNode node : nodes_) {
      std::vector<float>& of_node = values->emplace_back(static_cast<size_t>(count));
      for (int64_t i = 0; i < count; ++i) of_node[i] = sum(node, chunk * kChunkElems + i);
      gradient.operands.push_back({Dtype::kF32, reinterpret_cast<const std::byte*>(of_node.data()), node, use});
    }
    gradient.program = SumProgram(nodes_, kVnodes);
    gradient.owner = values;
    return gradient;
  }

  const std::vector<TreeNode> nodes_;
};

struct Outcome {
  std::string bits;
  std::vector<double> norms;
  int64_t updated_elems = 0;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

constexpr int kSteps = 3;

Outcome OutcomeOf(const TableTrainer& trainer, std::vector<double> norms) {
  return {trainer.Bits(kSteps), std::move(norms), trainer.engine().counts().updated_elems};
}

Outcome WithNothingEarly(const RunConfig& run) {
  TableTrainer trainer(run, 1);
  std::vector<double> norms;
  for (int64_t step = 0; step < kSteps; ++step) {
    trainer.SubmitOthers(step);
    for (int64_t chunk = 0; chunk < trainer.num_chunks(); ++chunk) trainer.SubmitWhole(step, chunk);
    norms.push_back(trainer.WaitForStep(step).gradient_norm);
  }
  return OutcomeOf(trainer, norms);
}

class UpdateEngineUnreadRowsTest : public ::testing::TestWithParam<std::tuple<bool, ClipMode>> {
 protected:
  bool tied() const { return std::get<0>(GetParam()); }
  RunConfig Run() const { return RunWith(tied(), std::get<1>(GetParam())); }
};

TEST_P(UpdateEngineUnreadRowsTest, RowsThatNoTokenReadsAreUpdatedFirstToTheSameBits) {
  for (const MomentFormat moments : {MomentFormat::kFp32, MomentFormat::kFp8}) {
    for (const Dtype wire : {Dtype::kBf16, Dtype::kF32}) {
      RunConfig run = Run();
      run.precision.moments = moments;
      run.precision.wire = wire;
      const Outcome want = WithNothingEarly(run);
      TableTrainer trainer(run, 3);
      std::vector<double> norms;
      for (int64_t step = 0; step < kSteps; ++step) {
        const int64_t before = trainer.engine().counts().updated_elems;
        const ChunkId first = trainer.chunks().back();
        trainer.Open(step);
        trainer.Submit(step, first);
        for (int64_t chunk = 0; tied() && chunk < trainer.num_chunks(); ++chunk) trainer.SubmitHead(step, chunk);
        trainer.WaitForUpdated(before + trainer.model().blob(first.blob).chunk_elems(first.chunk) +
                               trainer.NumUnread(step));
        EXPECT_EQ(trainer.store().published(kWte), Version(step));  // the rest is not there
        EXPECT_FALSE(trainer.engine().TryHoldUpdates(Version(step)));
        for (const ChunkId id : trainer.chunks()) {
          const bool is_in = id.blob == first.blob && id.chunk == first.chunk;
          if (id.blob != kWte && !is_in) trainer.Submit(step, id);
        }
        for (int64_t chunk = 0; chunk < trainer.num_chunks(); ++chunk) trainer.SubmitWhole(step, chunk);
        norms.push_back(trainer.WaitForStep(step).gradient_norm);
      }
      EXPECT_TRUE(OutcomeOf(trainer, norms) == want) << static_cast<int>(moments) << DtypeName(wire);
    }
  }
}

// The whole gradient comes while they are queued, updated, or before; of a step that waits for the one before, too.
TEST_P(UpdateEngineUnreadRowsTest, BitsDoNotDependOnWhatComesWhen) {
  const Outcome want = WithNothingEarly(Run());
  std::mt19937 random(3);
  for (int round = 0; round < 12; ++round) {
    TableTrainer trainer(Run(), 1 + round % 4);
    std::vector<double> norms(kSteps);
    const auto wait = [&](int64_t step) { norms[step] = trainer.WaitForStep(step).gradient_norm; };
    trainer.Open(0);
    for (int64_t step = 0; step < kSteps; ++step) {
      // In an order of its own each time.
      std::vector<std::pair<bool, int64_t>> events;
      for (int64_t chunk = 0; chunk < trainer.num_chunks(); ++chunk) {
        if (tied()) events.push_back({false, chunk});
        events.push_back({true, chunk});
      }
      std::shuffle(events.begin(), events.end(), random);
      if (round % 2 == 0) trainer.SubmitOthers(step);
      for (const auto& [whole, chunk] : events) {
        whole ? trainer.SubmitWhole(step, chunk) : trainer.SubmitHead(step, chunk);
      }
      if (round % 2 == 1) trainer.SubmitOthers(step);
      // In some rounds the next step is open before this one is made.
      if (round % 3 != 0) wait(step);
      if (step + 1 < kSteps) trainer.Open(step + 1);
      if (round % 3 == 0 && step > 0) wait(step - 1);
    }
    wait(kSteps - 1);
    EXPECT_TRUE(OutcomeOf(trainer, norms) == want) << round;
  }
}

TEST_P(UpdateEngineUnreadRowsTest, WhatIsHeldForACheckpointIsNotUpdatedEarly) {
  const Outcome want = WithNothingEarly(Run());
  TableTrainer trainer(Run());
  std::vector<double> norms;
  for (int64_t step = 0; step < kSteps; ++step) {
    trainer.engine().HoldUpdates(Version(step));
    const int64_t before = trainer.engine().counts().updated_elems;
    trainer.Open(step);
    for (int64_t chunk = 0; tied() && chunk < trainer.num_chunks(); ++chunk) trainer.SubmitHead(step, chunk);
    trainer.SubmitOthers(step);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // in which they would be updated
    for (int64_t chunk = 0; chunk < trainer.num_chunks(); ++chunk) trainer.SubmitWhole(step, chunk);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_EQ(trainer.engine().counts().updated_elems, before);
    for (const BlobSpec& blob : trainer.model().blobs) trainer.engine().ReleaseUpdate(blob.id, Version(step));
    norms.push_back(trainer.WaitForStep(step).gradient_norm);
  }
  EXPECT_TRUE(OutcomeOf(trainer, norms) == want);
}

// Under a sanitizer also: no task reads what is gone.
TEST_P(UpdateEngineUnreadRowsTest, DestructionDropsWhatIsQueued) {
  for (int round = 0; round < 20; ++round) {
    std::vector<std::weak_ptr<void>> owners;
    {
      TableTrainer trainer(Run(), 2);
      const auto noted = [&](ChunkGradient gradient) {
        owners.push_back(gradient.owner);
        return gradient;
      };
      trainer.Open(0);
      for (int64_t chunk = 0; tied() && chunk < trainer.num_chunks(); ++chunk) {
        trainer.engine().SubmitLaterUses(StepId(0), kWte, chunk, noted(trainer.OfHead(0, chunk)));
      }
      trainer.SubmitOthers(0);
      if (round % 2 == 0) trainer.engine().Submit(StepId(0), kWte, 1, noted(trainer.Whole(0, 1)));
    }
    for (const std::weak_ptr<void>& owner : owners) EXPECT_TRUE(owner.expired());
  }
}

// Under asan, an early update that runs when the engine is stopped reads nothing that the whole gradient has freed;
// without it, this says only that the gradient is gone with the engine.
TEST_P(UpdateEngineUnreadRowsTest, UnderAsanAStopFreesNothingThatIsRead) {
  for (int round = 0; round < 40; ++round) {
    auto owned = std::make_unique<TableTrainer>(Run(), 2);
    TableTrainer& trainer = *owned;
    trainer.Open(0);
    ChunkGradient whole = trainer.Whole(0, 1);
    if (tied()) {
      // As the aggregator's: what it points to is the whole gradient's.
      ChunkGradient head = trainer.OfHead(0, 1);
      whole.owner = std::make_shared<std::pair<std::shared_ptr<void>, std::shared_ptr<void>>>(whole.owner, head.owner);
      head.owner = nullptr;
      trainer.engine().SubmitLaterUses(StepId(0), kWte, 1, std::move(head));
    } else {
      trainer.SubmitOthers(0);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(20 * (round % 10)));
    trainer.engine().Stop();
    const std::weak_ptr<void> owner = whole.owner;
    trainer.engine().Submit(StepId(0), kWte, 1, std::move(whole));
    owned.reset();
    EXPECT_TRUE(owner.expired());
  }
}

INSTANTIATE_TEST_SUITE_P(TiedAndNot, UpdateEngineUnreadRowsTest,
                         ::testing::Combine(::testing::Bool(), ::testing::Values(ClipMode::kNone, ClipMode::kLagged)));

TEST(UpdateEngineUnreadRowsModesTest, NothingIsEarlyWhereReadingContributionsOnceMoreCostsMore) {
  int64_t moved_bytes = -1;
  for (const bool knows_rows : {false, true}) {
    TableTrainer trainer(RunWith(true), 2, Trainer::Leaves());
    if (knows_rows) trainer.Open(0);
    for (int64_t chunk = 0; chunk < trainer.num_chunks(); ++chunk) trainer.SubmitHead(0, chunk);
    trainer.SubmitOthers(0);
    for (int64_t chunk = 0; chunk < trainer.num_chunks(); ++chunk) trainer.SubmitWhole(0, chunk);
    trainer.WaitForStep(0);
    if (!knows_rows) moved_bytes = trainer.engine().counts().moved_bytes;
    EXPECT_EQ(trainer.engine().counts().moved_bytes, moved_bytes);
  }
}

TEST(UpdateEngineUnreadRowsModesTest, NothingIsEarlyWhereTheWholeGradientDecidesOrOverwrites) {
  RunConfig lamb = RunWith(true);
  lamb.optimizer.rule = OptimizerRule::kLamb;
  RunConfig one_version = RunWith(true);
  one_version.precision.wire_versions = 1;
  for (const RunConfig& run : {RunWith(true, ClipMode::kExact), RunWith(true, ClipMode::kPerBlob), lamb, one_version}) {
    TableTrainer trainer(run);
    trainer.Open(0);
    for (int64_t chunk = 0; chunk < trainer.num_chunks(); ++chunk) trainer.SubmitHead(0, chunk);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // in which they would be updated
    EXPECT_EQ(trainer.engine().counts().moved_bytes, 0);
    trainer.SubmitOthers(0);
    for (int64_t chunk = 0; chunk < trainer.num_chunks(); ++chunk) trainer.SubmitWhole(0, chunk);
    if (run.defers_updates()) trainer.engine().EndReads(StepId(0));
    trainer.WaitForStep(0);
  }
}

TEST(UpdateEngineUnreadRowsModesTest, AnEmbeddingGradientInUnreadRowsEndsTheRun) {
  TableTrainer trainer(RunWith(true));
  trainer.Open(0);
  trainer.SubmitHead(0, 1);
  trainer.WaitForUpdated(1);
  ChunkGradient whole = trainer.Whole(0, 1);
  int64_t unread = 0;
  while (trainer.IsRead(0, (kChunkElems + unread) / kWidth)) unread += kWidth;
  reinterpret_cast<float*>(const_cast<std::byte*>(whole.operands[0].values))[unread + kWidth - 1] = 1e-30f;
  trainer.engine().Submit(StepId(0), kWte, 1, std::move(whole));
  EXPECT_THAT(
      trainer.WaitForFailure(),
      StatusIs(absl::StatusCode::kInternal,
               "transformer.wte.weight, row 1024: not zero, though no token of the step reads it; from vnodes {0..2}"));
}

TEST(UpdateEngineUnreadRowsModesTest, AGradientThatIsNotFiniteEndsTheRunAllTheSame) {
  for (const bool is_told : {true, false}) {
    TableTrainer trainer(RunWith(true), 2, Trainer::Leaves());
    trainer.Open(0);
    ChunkGradient head = trainer.OfHead(0, 1), whole = trainer.Whole(0, 1);
    if (is_told) {
      head.nonfinite_vnode = whole.nonfinite_vnode = 1;
    } else {
      int64_t unread = 0;
      while (trainer.IsRead(0, (kChunkElems + unread) / kWidth)) unread += kWidth;
      const size_t head_of_vnode1 = kVnodes + 1;
      const float infinite = std::numeric_limits<float>::infinity();
      for (const GradientOperand& operand : {head.operands[1], whole.operands[head_of_vnode1]}) {
        reinterpret_cast<float*>(const_cast<std::byte*>(operand.values))[unread] = infinite;
      }
    }
    trainer.engine().SubmitLaterUses(StepId(0), kWte, 1, head);
    trainer.engine().Submit(StepId(0), kWte, 1, std::move(whole));
    EXPECT_THAT(trainer.WaitForFailure(), StatusIs(absl::StatusCode::kOutOfRange, "vnode 1"));
  }
}

}  // namespace
}  // namespace eps::server
