#ifndef EPS_GPU_WORKER_RELAY_OVERLAP_H_
#define EPS_GPU_WORKER_RELAY_OVERLAP_H_

#include "absl/types/span.h"
#include "gpu_worker/device/device.h"

namespace eps::worker {

// How long both `some` and `others` lasted at once, in seconds. Each are one after the other.
double OverlapSeconds(absl::Span<const TimeSpan> some, absl::Span<const TimeSpan> others);

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_RELAY_OVERLAP_H_
