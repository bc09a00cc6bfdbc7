#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "common/model/model_spec.h"
#include "common/spec/run_config.h"
#include "gpu_worker/device/cpu/cpu_kernel_sizes.h"
#include "gpu_worker/plan/planner.h"
#include "gpu_worker/plan/predict_step.h"
#include "gpu_worker/profile/profile_file.h"

// A profile is refused, or it reads back as it was written and a plan can be made from it, whatever its figures.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  using namespace eps;
  const auto profile = worker::ProfileFromJson(std::string(reinterpret_cast<const char*>(data), num_bytes));
  if (!profile.ok()) return 0;
  const std::string written = worker::ProfileToJson(*profile);
  const auto again = worker::ProfileFromJson(written);
  if (!again.ok() || worker::ProfileToJson(*again) != written) abort();
  RunConfig run;
  run.model = {.num_layers = 1, .d_model = 8, .num_heads = 1, .context = 4, .vocab = 8};
  run.batch = {.virtual_nodes = 1, .micro_batches = 1, .micro_batch = 1};
  run.steps = 1;
  const ModelSpec model = BuildModel(run.model).value();
  const worker::PlanRequest request = {
      .model = &model, .run = &run, .kernels = worker::CpuKernelSizes(), .profile = &*profile};
  const auto plan = worker::MakeRelayPlan(request);
  if (!plan.ok() || !(worker::PredictStep(request, *plan).timeline.step_seconds >= 0)) abort();
  return 0;
}
