// UpdateEngine: what a step decides for all of its updates: clipping, whether it is skipped, the loss scale.
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/model/model_spec.h"
#include "common/schedule/loss_scale.h"
#include "common/spec/run_config.h"
#include "common/tensor/dtype.h"
#include "common/testing/status_matchers.h"
#include "eps_server/optimizer/chunk_gradient.h"
#include "eps_server/optimizer/chunk_witness.h"
#include "eps_server/optimizer/hold_bytes.h"
#include "eps_server/optimizer/update_engine.h"
#include "eps_server/optimizer/update_engine_testing.h"
#include "eps_server/store/testing.h"
#include "gtest/gtest.h"

namespace eps::server {
namespace {

TEST(UpdateEngineClipTest, ExactIsTorchsAndBlobsComeInPullOrder) {
  Trainer trainer(SmallRun(ClipMode::kExact, 0.01), 1);
  trainer.SubmitAll(0);
  trainer.WaitForStep(0);
  const std::vector<BlobId> made = trainer.made();
  for (size_t b = 0; b < made.size(); ++b) EXPECT_EQ(made[b], BlobId(static_cast<int32_t>(b)));
  // m = (1 - beta1) * scale * g
  const double scale = 0.01 / (trainer.Norm(0) + 1e-6);
  const float m = ReadMoment(trainer.store(), trainer.model().blob(kBlock), 0, 5, 1)[0];
  double g = 0;
  for (int v = 0; v < kVnodes; ++v) g += Trainer::GradientAt(0, v, kBlock, 5);
  EXPECT_NEAR(m, 0.1 * scale * g, 1e-5 * std::abs(0.1 * scale * g));
}

// What was moved when the first chunk had been updated.
class FirstUpdate : public ChunkWitness {
 public:
  void OnSummed(StepId, BlobId, int64_t, absl::Span<const float>) override {}
  void OnUpdated(StepId, BlobId, int64_t) override {
    if (moved_bytes < 0) moved_bytes = trainer->engine().counts().moved_bytes;
  }
  const Trainer* trainer = nullptr;
  int64_t moved_bytes = -1;
};

// The first layer's next version is pulled first: it waits for its own norms alone.
TEST(UpdateEngineClipTest, ExactLambUpdatesTheFirstBlobBeforeTheSecondIsMeasured) {
  FirstUpdate witness;
  Trainer trainer(SmallRun(Mode{ClipMode::kExact, OptimizerRule::kLamb}), 1, 0, 0, 0, {}, &witness);
  witness.trainer = &trainer;
  trainer.SubmitAll(0);
  trainer.WaitForStep(0);
  const ModelSpec& model = trainer.model();
  const int64_t summed = (4 * kVnodes + 4) * model.num_elems();     // read, and held
  const int64_t measured = (4 + 4 + 8) * model.blobs[0].num_elems;  // sum, master, moments
  const int64_t updated = (4 + 8 + 16) * model.blobs[0].chunk_elems(0);
  EXPECT_EQ(witness.moved_bytes, summed + measured + updated);
  const std::vector<BlobId> made = trainer.made();
  for (size_t b = 0; b < made.size(); ++b) EXPECT_EQ(made[b], BlobId(static_cast<int32_t>(b)));
}

TEST(UpdateEngineClipTest, PerBlobScalesEachByItsOwnNorm) {
  Trainer trainer(SmallRun(ClipMode::kPerBlob, 0.01));
  trainer.SubmitAll(0);
  trainer.WaitForStep(0);
  for (const BlobId blob : {kWte, kBlock}) {
    const float m = ReadMoment(trainer.store(), trainer.model().blob(blob), 0, 5, 1)[0];
    double g = 0;
    for (int v = 0; v < kVnodes; ++v) g += Trainer::GradientAt(0, v, blob, 5);
    const double want = 0.1 * g * 0.01 / (trainer.Norm(0, blob) + 1e-6);
    EXPECT_NEAR(m, want, 1e-5 * std::abs(want));
  }
}

TEST(UpdateEngineClipTest, LaggedUsesTheNormOfTheStepBeforeAndOneAtStepZero) {
  // m = beta1 * m + (1 - beta1) * scale * g
  const auto moment = [](const Trainer& trainer) {
    return ReadMoment(trainer.store(), trainer.model().blob(kBlock), 0, 5, 1)[0];
  };
  const auto share = [](int64_t step) { return 0.1 * Trainer::SumAt(step, {0, kVnodes}, kBlock, 5); };
  Trainer trainer(SmallRun(ClipMode::kLagged, 0.01));
  trainer.SubmitAll(0);
  trainer.WaitForStep(0);
  EXPECT_NEAR(moment(trainer), share(0), 1e-6 * std::abs(share(0)));
  trainer.SubmitAll(1);
  trainer.WaitForStep(1);
  const double scale = 0.01 / (trainer.Norm(0) + 1e-6);
  EXPECT_NEAR(moment(trainer), 0.9 * share(0) + scale * share(1), 1e-6 * std::abs(share(0)));
  // A resumed run knows that norm. (This one's moments begin at zero.)
  Trainer resumed(SmallRun(ClipMode::kLagged, 0.01), 2, 1, 0, trainer.Norm(0));
  resumed.SubmitAll(1);
  resumed.WaitForStep(1);
  EXPECT_NEAR(moment(resumed), scale * share(1), 1e-6 * std::abs(scale * share(1)));
  // Of a run with EXACT, whose last step was skipped, the norm is not known.
  Trainer behind_skipped(SmallRun(ClipMode::kLagged, 0.01), 2, 1, 1, -1);
  behind_skipped.SubmitAll(1);
  behind_skipped.WaitForStep(1);
  EXPECT_NEAR(moment(behind_skipped), share(1), 1e-6 * std::abs(share(1)));
}

// Makes one element of vnode 2's gradient infinite.
ChunkGradient Infinite(const Trainer& trainer, ChunkId id) {
  ChunkGradient gradient = trainer.Gradient(0, id, Trainer::Leaves());
  const_cast<float*>(reinterpret_cast<const float*>(gradient.operands[2].values))[300] =
      std::numeric_limits<float>::infinity();
  return gradient;
}

TEST(UpdateEngineNonfiniteTest, EndsAnEagerRunNamingLayerTensorAndVnode) {
  for (const Mode mode :
       {Mode{ClipMode::kNone}, Mode{ClipMode::kLagged}, Mode{ClipMode::kPerBlob},
        Mode{ClipMode::kNone, OptimizerRule::kLamb}, Mode{ClipMode::kPerBlob, OptimizerRule::kLamb}}) {
    Trainer trainer(SmallRun(mode));
    trainer.engine().Submit(StepId(0), kBlock, 0, Infinite(trainer, {kBlock, 0}));
    EXPECT_THAT(trainer.WaitForFailure(),
                StatusIs(absl::StatusCode::kOutOfRange,
                         "step 0: the gradient of layer h.0, transformer.h.0.ln_1.bias, vnode 2 is not finite"));
    trainer.SubmitAll(0);  // quietly dropped
    EXPECT_EQ(trainer.store().published(kBlock), Version(0));
  }
}

TEST(UpdateEngineNonfiniteTest, AWorkersReportIsEnough) {
  for (const OptimizerRule rule : {OptimizerRule::kAdamW, OptimizerRule::kLamb}) {
    Trainer trainer(SmallRun(Mode{ClipMode::kNone, rule}));
    ChunkGradient gradient = trainer.Gradient(0, {kBlock, 1}, Trainer::Leaves());
    gradient.nonfinite_vnode = 1;
    trainer.engine().Submit(StepId(0), kBlock, 1, std::move(gradient));
    EXPECT_THAT(trainer.WaitForFailure(), StatusIs(absl::StatusCode::kOutOfRange, "layer h.0, vnode 1"));
  }
}

class UpdateEngineSkipTest : public ::testing::TestWithParam<OptimizerRule> {};
INSTANTIATE_TEST_SUITE_P(Rules, UpdateEngineSkipTest, ::testing::Values(OptimizerRule::kAdamW, OptimizerRule::kLamb));

TEST_P(UpdateEngineSkipTest, ExactSkipsTheStepWhole) {
  const RunConfig run = SmallRun(Mode{ClipMode::kExact, GetParam()});
  Trainer trainer(run);
  const std::string before = trainer.Bits(0);
  for (const ChunkId id : trainer.chunks()) {
    if (id.blob == kBlock && id.chunk == 0) {
      trainer.engine().Submit(StepId(0), id.blob, id.chunk, Infinite(trainer, id));
    } else {
      trainer.Submit(0, id);
    }
  }
  const StepUpdate update = trainer.WaitForStep(0);
  EXPECT_TRUE(update.skipped);
  EXPECT_EQ(update.why_skipped, "layer h.0, transformer.h.0.ln_1.bias, vnode 2");
  EXPECT_TRUE(trainer.Bits(1) == before);
  EXPECT_EQ(trainer.store().published(kWte), Version(1));

  // The next update is the optimizer's first: as in a run that was resumed behind the skipped step.
  trainer.SubmitAll(1);
  trainer.WaitForStep(1);
  Trainer resumed(run, 1, 1, 1);
  resumed.SubmitAll(1);
  resumed.WaitForStep(1);
  EXPECT_TRUE(trainer.Bits(2) == resumed.Bits(2));
  Trainer counted(run, 1, 1, 0);
  counted.SubmitAll(1);
  counted.WaitForStep(1);
  EXPECT_FALSE(trainer.Bits(2) == counted.Bits(2));
}

// ---- loss scaling ----

RunConfig Fp16Run(ClipMode clip, double first, int64_t growth_interval) {
  RunConfig run = SmallRun(clip, 0.01);
  run.precision = {.wire = Dtype::kF16,
                   .gradients = Dtype::kF16,
                   .loss_scale = LossScaleRule{.first = first, .growth_interval = growth_interval}};
  return run;
}

// As workers push it: times the scale, which is a power of two and rounds nothing.
void SubmitScaled(Trainer& trainer, int64_t step, double scale) {
  for (const ChunkId id : trainer.chunks()) {
    ChunkGradient gradient = trainer.Gradient(step, id, Trainer::Leaves());
    const int64_t count = trainer.model().blob(id.blob).chunk_elems(id.chunk);
    for (const GradientOperand& operand : gradient.operands) {
      float* values = const_cast<float*>(reinterpret_cast<const float*>(operand.values));
      for (int64_t i = 0; i < count; ++i) values[i] *= static_cast<float>(scale);
    }
    trainer.engine().Submit(StepId(step), id.blob, id.chunk, std::move(gradient));
  }
}

TEST(UpdateEngineLossScaleTest, AnyScaleGivesTheSameBitsAndTheSameNorm) {
  for (const Mode mode : {Mode{ClipMode::kNone}, Mode{ClipMode::kExact}, Mode{ClipMode::kNone, OptimizerRule::kLamb},
                          Mode{ClipMode::kExact, OptimizerRule::kLamb}}) {
    std::string want;
    for (const double scale : {1.0, 0x1p12, 0x1p-3}) {
      RunConfig run = Fp16Run(mode.clip, scale, 0);
      run.optimizer.rule = mode.rule;
      Trainer trainer(run, 2, 0, 0, 0, {scale});
      for (int step = 0; step < 2; ++step) {
        SubmitScaled(trainer, step, scale);
        const StepUpdate update = trainer.WaitForStep(step);
        EXPECT_EQ(update.loss_scale, scale);
        EXPECT_NEAR(update.gradient_norm, trainer.Norm(step), 1e-9 * trainer.Norm(step));
      }
      if (want.empty()) want = trainer.Bits(2);
      EXPECT_TRUE(trainer.Bits(2) == want) << scale;
    }
  }
}

TEST(UpdateEngineLossScaleTest, HalvesWithASkippedStepAndDoublesAfterGoodOnes) {
  Trainer trainer(Fp16Run(ClipMode::kNone, 0x1p10, 2), 2, 0, 0, 0, {0x1p10});
  EXPECT_EQ(trainer.engine().loss_scale(StepId(0)), 0x1p10);
  EXPECT_EQ(trainer.engine().loss_scale(StepId(1)), std::nullopt) << "step 0 may still be skipped";
  for (const ChunkId id : trainer.chunks()) {
    if (id.blob == kBlock && id.chunk == 0) {
      trainer.engine().Submit(StepId(0), id.blob, id.chunk, Infinite(trainer, id));
    } else {
      trainer.Submit(0, id);
    }
  }
  const StepUpdate skipped = trainer.WaitForStep(0);
  EXPECT_TRUE(skipped.skipped);
  EXPECT_EQ(skipped.loss_scale, 0x1p10);
  EXPECT_EQ(skipped.next_loss_scale, (LossScale{0x1p9, 0}));
  EXPECT_EQ(trainer.decided(), 1);
  EXPECT_EQ(trainer.engine().loss_scale(StepId(1)), 0x1p9);
  SubmitScaled(trainer, 1, 0x1p9);
  EXPECT_EQ(trainer.WaitForStep(1).next_loss_scale, (LossScale{0x1p9, 1}));
  SubmitScaled(trainer, 2, 0x1p9);
  EXPECT_EQ(trainer.WaitForStep(2).next_loss_scale, (LossScale{0x1p10, 0}));
  EXPECT_EQ(trainer.engine().loss_scale(StepId(3)), 0x1p10);
  EXPECT_EQ(trainer.engine().loss_scale(StepId(2)), 0x1p9);  // of one that was made before it was given out

  // Resumed behind the skipped step: the same.
  Trainer resumed(Fp16Run(ClipMode::kNone, 0x1p10, 2), 1, 1, 1, 0, {0x1p9, 0});
  SubmitScaled(resumed, 1, 0x1p9);
  SubmitScaled(resumed, 2, 0x1p9);
  EXPECT_EQ(resumed.WaitForStep(2).next_loss_scale, (LossScale{0x1p10, 0}));
  EXPECT_TRUE(resumed.Bits(3) == trainer.Bits(3));
}

TEST(UpdateEngineLossScaleTest, WithoutFp16ItIsOneAndKnownAtOnce) {
  Trainer trainer(SmallRun(ClipMode::kNone));
  EXPECT_EQ(trainer.engine().loss_scale(StepId(0)), 1);
  EXPECT_EQ(trainer.engine().loss_scale(StepId(1)), 1);
}

TEST(HoldBytesTest, ExactAndFp16Hold) {
  const ModelSpec model = *BuildModel(SmallRun(ClipMode::kNone).model);
  EXPECT_EQ(HoldBytes(model, Fp16Run(ClipMode::kNone, 1, 0)), 4 * model.num_elems());
  EXPECT_EQ(HoldBytes(model, SmallRun(ClipMode::kExact)), 4 * model.num_elems());
  EXPECT_EQ(HoldBytes(model, SmallRun(ClipMode::kLagged)), 0);
}

}  // namespace
}  // namespace eps::server
