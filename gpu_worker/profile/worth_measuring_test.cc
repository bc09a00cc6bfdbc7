#include "gpu_worker/profile/worth_measuring.h"

#include "common/model/model_spec.h"
#include "common/spec/run_config.h"
#include "gpu_worker/device/cpu/cpu_kernel_sizes.h"
#include "gpu_worker/layers/layer_shape.h"
#include "gpu_worker/plan/profile.h"
#include "gtest/gtest.h"

namespace eps::worker {
namespace {

// A run whose blocks take a second there and one back, by a profile that was measured with half its micro-batch.
class WorthMeasuringTest : public ::testing::Test {
 protected:
  WorthMeasuringTest() {
    run_.model = {.num_layers = 10, .d_model = 64, .num_heads = 4, .context = 32, .vocab = 256};
    run_.batch = {.virtual_nodes = 2, .micro_batches = 5, .micro_batch = 2};
    model_ = BuildModel(run_.model).value();
    profile_.layers.clear();
    for (const LayerKind kind : kLayerKinds) {
      const double seconds = kind == LayerKind::kBlock ? 0.5 : 1e-9;
      profile_.layers.push_back({.kind = kind,
                                 .shape = Shape(1),
                                 .forward_seconds = seconds,
                                 .recompute_seconds = seconds,
                                 .backward_seconds = seconds});
    }
  }
  LayerShape Shape(int64_t micro_batch) const {
    return MakeLayerShape(BuildModel(run_.model).value(), {.micro_batch = micro_batch}, run_.precision.wire,
                          CpuKernelSizes().compute_dtype);
  }
  bool IsWorth(int64_t steps, int workers = 1) {
    run_.steps = steps;
    return IsWorthMeasuring(profile_, model_, run_, CpuKernelSizes(), workers);
  }

  RunConfig run_;
  ModelSpec model_;
  Profile profile_ = NominalProfile("cpu");
};

// Measuring takes 15 s, and 40 times 2 s; a step takes ten layers' ten micro-batches of 2 s.
TEST_F(WorthMeasuringTest, ARunIsWorthItWhereItTakesAHundredTimesAsLong) {
  EXPECT_FALSE(IsWorth(47));
  EXPECT_TRUE(IsWorth(48));
  EXPECT_FALSE(IsWorth(94, /*workers=*/2));
  EXPECT_TRUE(IsWorth(96, /*workers=*/2));
}

TEST_F(WorthMeasuringTest, ARunWhoseLayersWereMeasuredIsNot) {
  for (LayerTimes& times : profile_.layers) times.shape = Shape(2);
  EXPECT_FALSE(IsWorth(1'000'000));
}

}  // namespace
}  // namespace eps::worker
