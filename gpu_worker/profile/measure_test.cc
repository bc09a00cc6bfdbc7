#include "gpu_worker/profile/measure.h"

#include <string>

#include "common/testing/status_matchers.h"
#include "gpu_worker/device/cpu/cpu_kernel_sizes.h"
#include "gpu_worker/device_registry.h"
#include "gpu_worker/plan/planner.h"
#include "gpu_worker/plan/step_costs.h"

namespace eps::worker {
namespace {

RunConfig Small(ModelFamily family) {
  RunConfig run;
  run.model = {.family = family, .num_layers = 2, .d_model = 64, .num_heads = 4, .context = 32, .vocab = 256};
  if (family == ModelFamily::kLlama) {
    run.model.d_ff = 96;
    run.model.num_kv_heads = 4;
    run.model.d_head = 16;
    run.model.max_positions = 32;
  }
  run.batch = {.virtual_nodes = 2, .micro_batches = 2, .micro_batch = 2};
  run.steps = 1;
  return run;
}

// Figures are a machine's; what is tested is that there is one for everything a plan asks for.
TEST(MeasureTest, EveryFigureOfARunIsMeasured) {
  ASSERT_OK_AND_ASSIGN(const DeviceBackend backend, FindDevice("cpu"));
  for (const ModelFamily family : {ModelFamily::kGpt2, ModelFamily::kLlama}) {
    for (const Dtype wire : {Dtype::kF32, Dtype::kBf16}) {
      RunConfig run = Small(family);
      run.precision = {.wire = wire, .gradients = wire};
      ASSERT_OK_AND_ASSIGN(
          const Profile profile,
          MeasureProfile({.run = &run, .backend = &backend, .device = "cpu", .threads = 2, .seconds = 0.001}));
      ASSERT_OK_AND_ASSIGN(const ModelSpec model, BuildModel(run.model));
      EXPECT_TRUE(HasExactTimes(profile, model, run, CpuKernelSizes()));
      EXPECT_FALSE(HasExactTimes(NominalProfile("cpu"), model, run, CpuKernelSizes()));
      ASSERT_EQ(profile.layers.size(), 3u);
      for (const LayerTimes& times : profile.layers) {
        EXPECT_GT(times.forward_seconds, 0);
        EXPECT_GT(times.backward_seconds, 0);
        EXPECT_EQ(times.recompute_seconds > 0, times.kind == LayerKind::kBlock);
        EXPECT_EQ(times.expand_seconds > 0, times.kind == LayerKind::kBlock && wire == Dtype::kBf16);
      }
      for (const double figure :
           {profile.gradient_bytes_per_second, profile.in_bytes_per_second, profile.out_bytes_per_second,
            profile.update_bytes_per_second, profile.handover_seconds}) {
        EXPECT_GT(figure, 0);
      }
      for (const auto& row : profile.sharing) {
        for (const double part : row) EXPECT_TRUE(part > 0 && part <= 1) << part;
      }
      const PlanRequest request = {.model = &model, .run = &run, .kernels = CpuKernelSizes(), .profile = &profile};
      ASSERT_OK_AND_ASSIGN(const RelayPlan plan, MakeRelayPlan(request));
      EXPECT_GT(PredictStep(request, plan).timeline.step_seconds, 0);
    }
  }
}

// Below the lowest layer that trains there is no backward to measure: a run that trains all is not taken to be free there.
TEST(MeasureTest, AProfileOfAFrozenRunIsNotExactForOneThatTrains) {
  ASSERT_OK_AND_ASSIGN(const DeviceBackend backend, FindDevice("cpu"));
  RunConfig run = Small(ModelFamily::kGpt2);
  run.model.freeze = {"transformer.w*"};
  ASSERT_OK_AND_ASSIGN(
      const Profile profile,
      MeasureProfile({.run = &run, .backend = &backend, .device = "cpu", .threads = 2, .seconds = 0.001}));
  ASSERT_OK_AND_ASSIGN(const ModelSpec frozen, BuildModel(run.model));
  EXPECT_TRUE(HasExactTimes(profile, frozen, run, CpuKernelSizes()));
  run.model.freeze = {};
  ASSERT_OK_AND_ASSIGN(const ModelSpec whole, BuildModel(run.model));
  EXPECT_FALSE(HasExactTimes(profile, whole, run, CpuKernelSizes()));
}

}  // namespace
}  // namespace eps::worker
