#ifndef EPS_GPU_WORKER_RELAY_COMPUTE_WAITS_H_
#define EPS_GPU_WORKER_RELAY_COMPUTE_WAITS_H_

#include <array>

#include "absl/types/span.h"
#include "gpu_worker/device/stream.h"
#include "gpu_worker/device/stream_id.h"
#include "gpu_worker/relay/pull_clock.h"

namespace eps::worker {

// What compute waited for in a pass, seconds by cause: as its stream counted, with the waits for versions, and for room,
// told apart from those for pulls, and for what leaves.
// room_waits: of the out-stream, one after the other. after_compute: from when all was computed until the pass was over.
std::array<double, kNumWaitCauses> ComputeWaits(const StreamStats& compute, const PullClock& pulls,
                                                absl::Span<const TimeSpan> room_waits, TimeSpan after_compute);

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_RELAY_COMPUTE_WAITS_H_
