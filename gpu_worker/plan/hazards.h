#ifndef EPS_GPU_WORKER_PLAN_HAZARDS_H_
#define EPS_GPU_WORKER_PLAN_HAZARDS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "gpu_worker/device/stream_id.h"

namespace eps::worker {

// A thing that steps read and write: a slot of the arena or a buffer of the host.
enum class ResourceKind {
  kWeights,
  kExpanded,
  kGradient,
  kPush,
  kFlags,
  kBoundary,
  kTokens,
  kInner,
  kRecord,
  kHostBoundary,
  kHostInner,
  // Of a group: what this worker has put into its area, and what the others have; flags likewise, by turn.
  kGroupOwn,
  kGroupGot,
  kGroupOwnFlags,
  kGroupGotFlags
};
inline constexpr size_t kNumResourceKinds = static_cast<size_t>(ResourceKind::kGroupGotFlags) + 1;
// Indices are small and not negative: they count slots and buffers.
using Resource = std::pair<ResourceKind, int64_t>;
using Resources = std::vector<Resource>;
inline Resource ResourceOf(ResourceKind kind, int64_t index) { return {kind, index}; }

// Finds what each step of a list has to wait for, given that steps of one stream run in order.
//
// Each step is told in list order. The result leaves out what follows from earlier waits (vector clocks, one entry a
// stream), so a stream is not slowed down by waits that say nothing new.
//
// Threads: none of its own; one caller
class HazardTracker {
 public:
  // The steps, by index, that a step of `stream` must wait for explicitly.
  std::vector<int> Add(StreamId stream, const std::vector<Resource>& reads, const std::vector<Resource>& writes);

 private:
  using Clock = std::array<int, kNumStreams>;  // by stream: all its steps with an index below this are done
  struct Uses {
    int last_writer = -1;
    std::vector<int> readers;  // since then
  };
  struct Known {
    StreamId stream;
    Clock before;  // what is done when the step starts
  };

  std::vector<Known> steps_;
  std::array<Clock, kNumStreams> latest_ = {};  // of each stream's last step
  Uses& UsesOf(const Resource& resource);

  std::array<std::vector<Uses>, kNumResourceKinds> uses_;  // by index
  std::vector<int> after_;                                 // of the step being told
};

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_PLAN_HAZARDS_H_
