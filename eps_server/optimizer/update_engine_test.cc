#include "eps_server/optimizer/update_engine.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <future>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/model/layer_drop.h"
#include "common/model/model_spec.h"
#include "common/numeric/bf16.h"
#include "common/schedule/loss_scale.h"
#include "common/schedule/reduction_tree.h"
#include "common/spec/moment_format.h"
#include "common/spec/run_config.h"
#include "common/tensor/dtype.h"
#include "common/testing/temp_dir.h"
#include "eps_server/optimizer/chunk_gradient.h"
#include "eps_server/optimizer/chunk_witness.h"
#include "eps_server/optimizer/moment_rounding.h"
#include "eps_server/optimizer/update_engine_testing.h"
#include "eps_server/store/store.h"
#include "eps_server/store/testing.h"
#include "gtest/gtest.h"

namespace eps::server {
namespace {

class UpdateEngineTest : public ::testing::TestWithParam<Mode> {};

TEST_P(UpdateEngineTest, BitsDoNotDependOnThreadsArrivalOrSplit) {
  for (const MomentFormat moments : {MomentFormat::kFp32, MomentFormat::kBf16, MomentFormat::kFp8}) {
    // LAMB's own part reads what the kernels make of either form.
    if (GetParam().rule == OptimizerRule::kLamb && moments != MomentFormat::kBf16) continue;
    RunConfig run = SmallRun(GetParam(), 0.01);
    run.precision.moments = moments;
    const std::string want = Train(run, 1, 3);
    for (const int threads : {2, 3, 4}) EXPECT_TRUE(Train(run, threads, 3) == want) << threads;

    const std::vector<std::vector<TreeNode>> splits = {{{0, 3}}, {{0, 2}, {2, 1}}, {{0, 1}, {1, 1}, {2, 1}}};
    std::mt19937 random(1);
    Trainer trainer(run, 2);
    for (int step = 0; step < 3; ++step) {
      std::vector<ChunkId> chunks = trainer.chunks();
      std::shuffle(chunks.begin(), chunks.end(), random);
      for (const ChunkId id : chunks) trainer.Submit(step, id, splits[random() % splits.size()]);
      trainer.WaitForStep(step);
    }
    EXPECT_TRUE(trainer.Bits(3) == want);
  }
}

TEST_P(UpdateEngineTest, Bf16MomentsAreRoundedByTheStepTheBlobAndTheElement) {
  RunConfig run = SmallRun(GetParam(), 1e9);
  run.model.init_seed = 11;
  Trainer exact(run, 2, 7, /*skipped=*/3);
  run.precision.moments = MomentFormat::kBf16;
  Trainer rounded(run, 2, 7, /*skipped=*/3);
  for (Trainer* trainer : {&exact, &rounded}) {
    trainer->SubmitAll(7);
    trainer->WaitForStep(7);
  }
  for (const BlobId blob : {kWte, kBlock}) {
    const int64_t num_elems = rounded.model().blob(blob).num_elems;
    const uint32_t key = MomentKey(11, StepId(7), blob);
    for (int which = 0; which < 2; ++which) {
      const std::vector<float> want = ReadMoment(exact.store(), exact.model().blob(blob), which, 0, num_elems);
      const std::vector<float> got = ReadMoment(rounded.store(), rounded.model().blob(blob), which, 0, num_elems);
      for (int64_t i = 0; i < num_elems; ++i) {
        ASSERT_EQ(got[i], ToFloat(RoundMoment(want[i], MomentNoise(key, i)))) << which << " " << i;
      }
    }
  }
}

TEST(UpdateEngineBytesTest, CountsWhatAnUpdateReadsAndWrites) {
  constexpr int64_t kContributionBytes = kVnodes * 4;
  struct Case {
    Dtype wire;
    MomentFormat moments;
    OptimizerRule rule;
    double bytes;  // an element: of the wire form and its successor, what the master has beside, each moment twice
  };
  for (const Case& c : {
           Case{Dtype::kBf16, MomentFormat::kFp32, OptimizerRule::kAdamW, 4 + 4 + 16},
           Case{Dtype::kBf16, MomentFormat::kBf16, OptimizerRule::kAdamW, 4 + 4 + 8},
           Case{Dtype::kBf16, MomentFormat::kFp8, OptimizerRule::kAdamW, 4 + 4 + 4 * 33 / 32.0},
           Case{Dtype::kBf16, MomentFormat::kBf16, OptimizerRule::kLion, 4 + 4 + 4},
           Case{Dtype::kF32, MomentFormat::kFp32, OptimizerRule::kLion, 8 + 8},
           Case{Dtype::kF32, MomentFormat::kFp32, OptimizerRule::kSgd, 8},
           Case{Dtype::kF16, MomentFormat::kBf16, OptimizerRule::kAdamW, 2 + 8 + 8},
           // Master and moments once more, and the contributions.
           Case{Dtype::kBf16, MomentFormat::kFp32, OptimizerRule::kLamb, 4 + 4 + 16 + 4 + 8 + kContributionBytes},
           Case{Dtype::kF32, MomentFormat::kBf16, OptimizerRule::kLamb, 8 + 8 + 4 + 4 + kContributionBytes},
           Case{Dtype::kF16, MomentFormat::kFp32, OptimizerRule::kLamb, 2 + 8 + 16 + 4 + 8 + kContributionBytes},
       }) {
    RunConfig run = SmallRun(ClipMode::kNone);
    run.precision.wire = c.wire;
    run.precision.moments = c.moments;
    run.optimizer.rule = c.rule;
    Trainer trainer(run);
    trainer.SubmitAll(0);
    trainer.WaitForStep(0);
    EXPECT_EQ(static_cast<double>(trainer.engine().counts().moved_bytes),
              (c.bytes + kContributionBytes) * static_cast<double>(trainer.model().num_elems()))
        << DtypeName(c.wire) << " " << MomentFormatName(c.moments) << " " << static_cast<int>(c.rule);
  }
}

// With more chunks than there are frames for what lies on a disk, of which some stay in memory.
TEST_P(UpdateEngineTest, WhereTheStateLiesChangesNoBit) {
  const TempDir dir;
  RunConfig run = SmallRun(GetParam(), 0.01);
  run.model = {.num_layers = 3, .d_model = 512, .num_heads = 2, .context = 16, .vocab = 100};
  const std::string want = Train(run, 2, 2);
  run.optimizer_offload = {.path = dir.path(), .memory_bytes = 6'000'000};
  Trainer trainer(run, 3);
  for (int step = 0; step < 2; ++step) {
    trainer.SubmitAll(step);
    trainer.WaitForStep(step);
  }
  EXPECT_GT(trainer.store().paging().read_bytes, 0);
  EXPECT_TRUE(trainer.Bits(2) == want);
}

// Keeps what it is shown.
class Witness : public ChunkWitness {
 public:
  using Key = std::tuple<StepId, BlobId, int64_t>;
  void OnSummed(StepId step, BlobId blob, int64_t chunk, absl::Span<const float> sum) override {
    MutexLock lock(mu_);
    EXPECT_TRUE(sums_.emplace(Key(step, blob, chunk), std::vector<float>(sum.begin(), sum.end())).second);
  }
  void OnUpdated(StepId step, BlobId blob, int64_t chunk) override {
    std::vector<float> master(static_cast<size_t>(trainer->model().blob(blob).chunk_elems(chunk)));
    EXPECT_OK(trainer->store().ReadMaster(blob, NextVersion(step), chunk * kChunkElems, absl::MakeSpan(master)));
    MutexLock lock(mu_);
    EXPECT_TRUE(masters_.emplace(Key(step, blob, chunk), std::move(master)).second);
  }
  std::map<Key, std::vector<float>> sums() {
    MutexLock lock(mu_);
    return sums_;
  }
  std::map<Key, std::vector<float>> masters() {
    MutexLock lock(mu_);
    return masters_;
  }
  Trainer* trainer = nullptr;

 private:
  Mutex mu_;
  std::map<Key, std::vector<float>> sums_ ABSL_GUARDED_BY(mu_), masters_ ABSL_GUARDED_BY(mu_);
};

TEST_P(UpdateEngineTest, AWitnessSeesEachSumUnclippedAndEachMasterOnceAndChangesNoBit) {
  const RunConfig run = SmallRun(GetParam(), 0.01);
  Witness witness;
  Trainer trainer(run, 3, 0, 0, 0, {}, &witness);
  witness.trainer = &trainer;
  for (int step = 0; step < 2; ++step) {
    trainer.SubmitAll(step);
    trainer.WaitForStep(step);
    for (const ChunkId id : trainer.chunks()) {
      const Witness::Key key(StepId(step), id.blob, id.chunk);
      EXPECT_TRUE(witness.sums().at(key) == trainer.Sum(step, id)) << id.blob.value() << "/" << id.chunk;
      std::vector<float> master(static_cast<size_t>(trainer.model().blob(id.blob).chunk_elems(id.chunk)));
      EXPECT_OK(trainer.store().ReadMaster(id.blob, Version(step + 1), id.chunk * kChunkElems, absl::MakeSpan(master)));
      EXPECT_TRUE(witness.masters().at(key) == master) << id.blob.value() << "/" << id.chunk;
    }
  }
  EXPECT_EQ(witness.sums().size(), 2 * trainer.chunks().size());
  EXPECT_EQ(witness.masters().size(), 2 * trainer.chunks().size());
  EXPECT_TRUE(trainer.Bits(2) == Train(run, 1, 2));
}

TEST(UpdateEngineWitnessTest, SeesTheMastersOfASkippedStepToo) {
  Witness witness;
  Trainer trainer(SmallRun(ClipMode::kExact), 2, 0, 0, 0, {}, &witness);
  witness.trainer = &trainer;
  for (const ChunkId id : trainer.chunks()) {
    ChunkGradient gradient = trainer.Gradient(0, id, Trainer::Leaves());
    gradient.nonfinite_vnode = 1;
    trainer.engine().Submit(StepId(0), id.blob, id.chunk, std::move(gradient));
  }
  EXPECT_TRUE(trainer.WaitForStep(0).skipped);
  EXPECT_EQ(witness.masters().size(), trainer.chunks().size());
}

TEST_P(UpdateEngineTest, ClippingThatNeverBitesChangesNoBit) {
  EXPECT_TRUE(Train(SmallRun(GetParam(), 1e9), 2, 2) == Train(SmallRun(Mode{ClipMode::kNone, GetParam().rule}), 2, 2));
}

TEST_P(UpdateEngineTest, ReportsTheNorm) {
  Trainer trainer(SmallRun(GetParam(), 1));
  for (int step = 0; step < 2; ++step) {
    trainer.SubmitAll(step);
    const StepUpdate update = trainer.WaitForStep(step);
    EXPECT_EQ(update.step, StepId(step));
    EXPECT_NEAR(update.gradient_norm, trainer.Norm(step), 1e-9 * trainer.Norm(step));
    EXPECT_EQ(update.learning_rate, 1e-2);
    EXPECT_FALSE(update.skipped);
  }
}

TEST_P(UpdateEngineTest, HeldBlobsWaitForTheirRelease) {
  Trainer trainer(SmallRun(GetParam(), 0.01));
  trainer.SubmitAll(0);
  trainer.WaitForStep(0);
  const size_t num_blobs = trainer.model().blobs.size();
  trainer.engine().HoldUpdates(Version(1));
  trainer.engine().ReleaseUpdate(kBlock, Version(1));
  trainer.SubmitAll(1);
  EXPECT_EQ(trainer.WaitForBlobs(num_blobs + 1), num_blobs + 1);
  EXPECT_EQ(trainer.made().back(), kBlock);
  EXPECT_TRUE(trainer.engine().update_is_held());
  EXPECT_EQ(trainer.engine().counts().held_seconds, 0);
  for (const BlobSpec& blob : trainer.model().blobs) {
    EXPECT_EQ(trainer.store().published(blob.id), Version(blob.id == kBlock ? 2 : 1));
  }
  // Of another version: no effect.
  trainer.engine().ReleaseUpdate(kWte, Version(2));
  EXPECT_EQ(trainer.store().published(kWte), Version(1));
  for (const BlobSpec& blob : trainer.model().blobs) trainer.engine().ReleaseUpdate(blob.id, Version(1));
  EXPECT_FALSE(trainer.engine().update_is_held());
  const StepUpdate update = trainer.WaitForStep(1);
  EXPECT_GT(update.held_seconds, 0);
  EXPECT_EQ(trainer.engine().counts().held_seconds, update.held_seconds);
  EXPECT_TRUE(trainer.Bits(2) == Train(SmallRun(GetParam(), 0.01), 1, 2));
}

TEST_P(UpdateEngineTest, ChunksOfALaterStepWait) {
  Trainer trainer(SmallRun(GetParam(), 0.01));
  trainer.SubmitAll(1);
  EXPECT_TRUE(trainer.made().empty());
  trainer.SubmitAll(0);
  trainer.WaitForStep(1);
  EXPECT_TRUE(trainer.Bits(2) == Train(SmallRun(GetParam(), 0.01), 1, 2));
}

// The first chunk is not summed before it may be.
class FirstSumWaits : public ChunkWitness {
 public:
  void OnSummed(StepId step, BlobId, int64_t, absl::Span<const float>) override {
    if (num_summed++ == 0) may_go_on.get_future().wait();
    of_step_1 = of_step_1 || step.value() == 1;
  }
  void OnUpdated(StepId step, BlobId, int64_t) override { of_step_1 = of_step_1 || step.value() == 1; }
  std::promise<void> may_go_on;
  int num_summed = 0;      // by the engine's only thread, as the next one
  bool of_step_1 = false;  // whether anything was done of it
};

TEST_P(UpdateEngineTest, DestructionDropsWhatIsQueued) {
  FirstSumWaits witness;
  auto trainer = std::make_unique<Trainer>(SmallRun(GetParam()), 1, 0, 0, 0, LossScale(), &witness);
  std::vector<std::weak_ptr<void>> owners;
  for (const int64_t step : {0, 1}) {
    for (const ChunkId id : trainer->chunks()) {
      ChunkGradient gradient = trainer->Gradient(step, id, Trainer::Leaves());
      owners.push_back(gradient.owner);
      trainer->engine().Submit(StepId(step), id.blob, id.chunk, std::move(gradient));
    }
  }
  // Destruction waits for the sum that runs, which goes on once destruction has begun: that drops what is queued first.
  const auto opener = std::async(std::launch::async, [&] {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    const auto is_dropped = [](const std::weak_ptr<void>& owner) { return owner.expired(); };
    while (std::none_of(owners.begin(), owners.end(), is_dropped) && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::yield();
    }
    witness.may_go_on.set_value();
  });
  trainer.reset();
  EXPECT_LT(witness.num_summed, static_cast<int>(owners.size()));
  EXPECT_FALSE(witness.of_step_1);
  for (const std::weak_ptr<void>& owner : owners) EXPECT_TRUE(owner.expired());
}

INSTANTIATE_TEST_SUITE_P(Modes, UpdateEngineTest,
                         ::testing::Values(Mode{ClipMode::kNone}, Mode{ClipMode::kExact}, Mode{ClipMode::kPerBlob},
                                           Mode{ClipMode::kLagged}, Mode{ClipMode::kNone, OptimizerRule::kLamb},
                                           Mode{ClipMode::kExact, OptimizerRule::kLamb},
                                           Mode{ClipMode::kPerBlob, OptimizerRule::kLamb},
                                           Mode{ClipMode::kLagged, OptimizerRule::kLamb}));

// In which order blobs' chunks are updated. The first one is not over before it may be.
class OrderOfUpdates : public ChunkWitness {
 public:
  void OnSummed(StepId, BlobId, int64_t, absl::Span<const float>) override {}
  void OnUpdated(StepId, BlobId blob, int64_t) override {
    blobs.push_back(blob);
    if (blobs.size() > 1) return;
    first_is_under_way.set_value();
    first_may_end.get_future().wait();
  }
  std::promise<void> first_is_under_way, first_may_end;
  std::vector<BlobId> blobs;
};

// Gradients come the other way round. Where updates are behind, the next forward need not wait for all of them.
TEST(UpdateEngineTest, OfWhatWaitsTheBlobThatIsPulledFirstIsUpdatedFirst) {
  OrderOfUpdates order;
  Trainer trainer(SmallRun(ClipMode::kNone), 1, 0, 0, 0, {}, &order);
  std::vector<ChunkId> chunks = trainer.chunks();
  std::reverse(chunks.begin(), chunks.end());
  trainer.Submit(0, chunks.front());
  order.first_is_under_way.get_future().wait();
  std::vector<BlobId> want;
  for (size_t c = 1; c < chunks.size(); ++c) {
    trainer.Submit(0, chunks[c]);
    want.push_back(chunks[c].blob);
  }
  order.first_may_end.set_value();
  trainer.WaitForStep(0);
  std::sort(want.begin(), want.end());
  want.insert(want.begin(), chunks.front().blob);
  EXPECT_EQ(order.blobs, want);
  EXPECT_TRUE(trainer.Bits(1) == Train(SmallRun(ClipMode::kNone), 2, 1));
}

// Three small blocks, of which some rest in each step.
RunConfig DroppingRun(Mode mode) {
  RunConfig run = SmallRun(mode, 0.01);
  run.model = {.num_layers = 3, .d_model = 64, .num_heads = 2, .context = 16, .vocab = 100, .init_seed = 5};
  run.layer_drop.share = 0.5;
  return run;
}

std::vector<float> StateOf(const Trainer& trainer, Store& store, BlobId blob, int64_t version) {
  std::vector<float> state, values(static_cast<size_t>(trainer.model().blob(blob).num_elems));
  EXPECT_OK(store.ReadMaster(blob, Version(version), 0, absl::MakeSpan(values)));
  state = values;
  for (int which = 0; which < store.num_moments(); ++which) {
    values = ReadMoment(store, trainer.model().blob(blob), which, 0, static_cast<int64_t>(values.size()));
    state.insert(state.end(), values.begin(), values.end());
  }
  return state;
}

TEST_P(UpdateEngineTest, WhatAStepDropsAdvancesUnchangedAndItsCountOfUpdatesStands) {
  Trainer trainer(DroppingRun(GetParam()));
  std::vector<int64_t> want(trainer.model().blobs.size());
  int num_dropped = 0;
  for (int64_t step = 0; step < 8; ++step) {
    const std::vector<bool> dropped = trainer.Dropped(step);
    std::vector<std::vector<float>> before;
    for (const BlobSpec& blob : trainer.model().blobs) {
      before.push_back(StateOf(trainer, trainer.store(), blob.id, step));
      want[static_cast<size_t>(blob.id.value())] += dropped[static_cast<size_t>(blob.id.value())] ? 0 : 1;
    }
    trainer.engine().OpenStep(StepId(step));
    trainer.SubmitAll(step);
    const StepUpdate update = trainer.WaitForStep(step);
    EXPECT_EQ(update.updates, want);
    double squares = 0;
    for (const BlobSpec& blob : trainer.model().blobs) {
      const auto b = static_cast<size_t>(blob.id.value());
      EXPECT_EQ(trainer.store().published(blob.id), Version(step + 1));
      EXPECT_EQ(StateOf(trainer, trainer.store(), blob.id, step + 1) == before[b], dropped[b]) << blob.name;
      if (!dropped[b]) squares += std::pow(trainer.Norm(step, blob.id), 2);
      num_dropped += dropped[b] ? 1 : 0;
    }
    EXPECT_NEAR(update.gradient_norm / std::sqrt(squares), 1, 1e-9);
  }
  EXPECT_GT(num_dropped, 4);
}

// The count is what bias correction goes by: two engines, the second of which goes on, are one.
TEST_P(UpdateEngineTest, WithTheCountsOfACheckpointItGoesOnExactly) {
  const RunConfig run = DroppingRun(GetParam());
  Trainer whole(run), first(run);
  std::vector<int64_t> updates;
  double last_norm = 0;
  for (int64_t step = 0; step < 8; ++step) {
    whole.engine().OpenStep(StepId(step));
    whole.SubmitAll(step);
    const StepUpdate update = whole.WaitForStep(step);
    if (step == 3) updates = update.updates, last_norm = update.gradient_norm;
    if (step > 3) continue;
    first.engine().OpenStep(StepId(step));
    first.SubmitAll(step);
    first.WaitForStep(step);
  }
  for (const bool has_counts : {true, false}) {
    Trainer second(run, 2, 4, 0, last_norm, {}, nullptr, has_counts ? updates : std::vector<int64_t>(), &first);
    for (int64_t step = 4; step < 8; ++step) {
      second.engine().OpenStep(StepId(step));
      second.SubmitAll(step);
      second.WaitForStep(step);
    }
    EXPECT_EQ(second.Bits(8) == whole.Bits(8), has_counts);
  }
}

// A checkpoint of the version before goes on reading it: the blob may not be updated in the next step either.
TEST_P(UpdateEngineTest, ADroppedBlobWaitsForItsReleaseAndForNothingElse) {
  const RunConfig run = DroppingRun(GetParam());
  const ModelSpec model = *BuildModel(run.model);
  int64_t at = 1;  // a step that drops something
  while (LayerDrop(model, run.layer_drop).DroppedIn(StepId(at)).empty()) ++at;
  Trainer trainer(run);
  for (int64_t step = 0; step < at; ++step) {
    trainer.engine().OpenStep(StepId(step));
    trainer.SubmitAll(step);
    trainer.WaitForStep(step);
  }
  const std::vector<bool> dropped = trainer.Dropped(at);
  const size_t before = trainer.made().size();
  const auto num_dropped = static_cast<size_t>(std::count(dropped.begin(), dropped.end(), true));
  trainer.engine().HoldUpdates(Version(at));
  trainer.engine().OpenStep(StepId(at));
  for (const BlobSpec& blob : model.blobs) {
    if (!dropped[static_cast<size_t>(blob.id.value())]) trainer.engine().ReleaseUpdate(blob.id, Version(at));
  }
  EXPECT_FALSE(trainer.engine().update_is_held());  // the step has other things to wait for
  trainer.SubmitAll(at);
  trainer.WaitForBlobs(before + model.blobs.size() - num_dropped);
  for (int i = 0; i < 1000 && !trainer.engine().update_is_held(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_TRUE(trainer.engine().update_is_held());
  for (const BlobSpec& blob : model.blobs) {
    const bool rests = dropped[static_cast<size_t>(blob.id.value())];
    EXPECT_EQ(trainer.store().published(blob.id), Version(rests ? at : at + 1));
    trainer.engine().ReleaseUpdate(blob.id, Version(at));
  }
  trainer.WaitForStep(at);
  EXPECT_FALSE(trainer.engine().update_is_held());
}

TEST(UpdateEngineTest, AStepThatHasBegunToUpdateOrIsMadeIsHeldNoMore) {
  for (const Mode mode : {Mode{ClipMode::kNone}, Mode{ClipMode::kExact}, Mode{ClipMode::kNone, OptimizerRule::kLamb},
                          Mode{ClipMode::kExact, OptimizerRule::kLamb}}) {
    Trainer trainer(SmallRun(mode));
    EXPECT_TRUE(trainer.engine().TryHoldUpdates(Version(0)));
    for (const BlobSpec& blob : trainer.model().blobs) trainer.engine().ReleaseUpdate(blob.id, Version(0));
    trainer.SubmitAll(0);
    trainer.WaitForBlobs(1);
    EXPECT_FALSE(trainer.engine().TryHoldUpdates(Version(0)));  // nor is what is left of it
    trainer.WaitForStep(0);
    EXPECT_FALSE(trainer.engine().TryHoldUpdates(Version(0)));
    EXPECT_TRUE(trainer.engine().TryHoldUpdates(Version(1)));
    trainer.SubmitAll(1);
    for (const BlobSpec& blob : trainer.model().blobs) {
      EXPECT_EQ(trainer.store().published(blob.id), Version(1));
      trainer.engine().ReleaseUpdate(blob.id, Version(1));
    }
    trainer.WaitForStep(1);
  }
}

TEST(UpdateEngineTest, WhatOverwritesTheStepsWeightsWaitsForTheEndOfItsReads) {
  for (const OptimizerRule rule : {OptimizerRule::kAdamW, OptimizerRule::kLamb}) {
    RunConfig run = SmallRun(Mode{ClipMode::kExact, rule});
    const std::string want = Train(run, 2, 2);
    run.precision.wire_versions = 1;
    Trainer trainer(run);
    for (int64_t step = 0; step < 2; ++step) {
      trainer.SubmitAll(step);
      while (trainer.decided() <= step) std::this_thread::yield();
      EXPECT_TRUE(trainer.engine().loss_scale(StepId(step + 1)).has_value());  // who waits for that alone goes on
      std::this_thread::sleep_for(std::chrono::milliseconds(20));              // in which it would be updated
      for (const BlobSpec& blob : trainer.model().blobs) EXPECT_EQ(trainer.store().published(blob.id), Version(step));
      trainer.engine().EndReads(StepId(step));
      trainer.WaitForStep(step);
    }
    EXPECT_TRUE(trainer.Bits(2) == want);
  }
  // Eager updates wait for nothing: of a blob whose gradient is in nobody needs the weights, unless somebody is lost.
  RunConfig eager = SmallRun(Mode{ClipMode::kNone});
  eager.precision.wire_versions = 1;
  Trainer trainer(eager);
  trainer.SubmitAll(0);
  trainer.WaitForStep(0);
}

TEST(FrozenUpdateTest, StepsAreMadeOfWhatIsTrainedAloneWithItsNormInEveryMode) {
  for (const Mode mode :
       {Mode{ClipMode::kNone}, Mode{ClipMode::kExact}, Mode{ClipMode::kPerBlob}, Mode{ClipMode::kLagged},
        Mode{ClipMode::kNone, OptimizerRule::kLamb}, Mode{ClipMode::kExact, OptimizerRule::kLamb}}) {
    RunConfig run = SmallRun(mode, 0.01);
    run.model.freeze = {"transformer.wte.weight", "*.attn.*"};
    Trainer trainer(run);
    ASSERT_TRUE(trainer.model().blob(kWte).frozen);
    trainer.engine().HoldUpdates(Version(0));
    for (const BlobSpec& blob : trainer.model().blobs) trainer.engine().ReleaseUpdate(blob.id, Version(0));
    for (const int64_t step : {0, 1}) {
      trainer.SubmitAll(step);
      EXPECT_NEAR(trainer.WaitForStep(step).gradient_norm / trainer.Norm(step), 1, 1e-9);
    }
    int64_t trained = 0;
    for (const BlobSpec& blob : trainer.model().blobs) {
      trained += blob.frozen ? 0 : 1;
      EXPECT_EQ(trainer.store().published(blob.id), Version(blob.frozen ? 0 : 2)) << blob.name;
    }
    EXPECT_EQ(trainer.made().size(), static_cast<size_t>(2 * trained));
    EXPECT_EQ(trainer.engine().counts().updated_elems, 2 * trainer.model().num_trainable_elems());
  }
}

}  // namespace
}  // namespace eps::server
