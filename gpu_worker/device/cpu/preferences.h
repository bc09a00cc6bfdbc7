#ifndef EPS_GPU_WORKER_DEVICE_CPU_PREFERENCES_H_
#define EPS_GPU_WORKER_DEVICE_CPU_PREFERENCES_H_

#include <cstdint>

#include "gpu_worker/device/kernels.h"

namespace eps::worker::cpu {

// Of sequences [begin, end).
void ScoreSequencesRange(const ScoreSequencesArgs& args, int64_t begin, int64_t end);
void AddPreferenceLoss(const PreferenceLossArgs& args);

}  // namespace eps::worker::cpu

#endif  // EPS_GPU_WORKER_DEVICE_CPU_PREFERENCES_H_
