#include "gpu_worker/relay/compute_waits.h"

#include <algorithm>
#include <cstddef>

#include "gpu_worker/relay/overlap.h"

namespace eps::worker {

std::array<double, kNumWaitCauses> ComputeWaits(const StreamStats& compute, const PullClock& pulls,
                                                absl::Span<const TimeSpan> room_waits, TimeSpan after_compute) {
  std::array<double, kNumWaitCauses> waits = compute.wait_seconds;
  const auto tell_apart = [&waits](WaitCause whole, WaitCause part, double seconds) {
    double& of_whole = waits[static_cast<size_t>(whole)];
    seconds = std::min(of_whole, seconds);
    of_whole -= seconds;
    waits[static_cast<size_t>(part)] += seconds;
  };
  const auto waited = [&compute](WaitCause cause) {
    return absl::MakeConstSpan(compute.waits[static_cast<size_t>(cause)]);
  };
  tell_apart(WaitCause::kPull, WaitCause::kVersion, pulls.VersionWaitSeconds(waited(WaitCause::kPull)));
  // Activations that leave, or come, behind a gradient that waits for room wait for it too.
  for (const WaitCause cause : {WaitCause::kPush, WaitCause::kStash}) {
    tell_apart(cause, WaitCause::kRoom, OverlapSeconds(room_waits, waited(cause)));
  }
  // And the gradients that leave last, when all is computed.
  waits[static_cast<size_t>(WaitCause::kRoom)] += OverlapSeconds(room_waits, {after_compute});
  return waits;
}

}  // namespace eps::worker
