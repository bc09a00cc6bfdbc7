#ifndef EPS_GPU_WORKER_PROFILE_WORTH_MEASURING_H_
#define EPS_GPU_WORKER_PROFILE_WORTH_MEASURING_H_

#include "common/model/model_spec.h"
#include "common/spec/run_config.h"
#include "gpu_worker/device/kernels.h"
#include "gpu_worker/plan/profile.h"

namespace eps::worker {

// Whether a run should be measured before it is planned: `profile` has no times of its layers, and by what it says of others
// the run, whose steps so many workers share, takes a hundred times as long as MeasureProfile does.
bool IsWorthMeasuring(const Profile& profile, const ModelSpec& model, const RunConfig& run, const KernelSizes& kernels,
                      int workers);

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_PROFILE_WORTH_MEASURING_H_
