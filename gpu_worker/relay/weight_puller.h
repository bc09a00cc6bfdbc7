#ifndef EPS_GPU_WORKER_RELAY_WEIGHT_PULLER_H_
#define EPS_GPU_WORKER_RELAY_WEIGHT_PULLER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/model/model_spec.h"
#include "common/schedule/chunk_range.h"
#include "common/tensor/dtype.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/group/group.h"
#include "gpu_worker/plan/schedule.h"
#include "gpu_worker/relay/arena_map.h"
#include "gpu_worker/relay/layer_runner.h"
#include "gpu_worker/relay/pass_weights.h"
#include "gpu_worker/relay/pull_clock.h"
#include "gpu_worker/transport/transport.h"

namespace eps::worker {

// Brings the weights of a layer to where its kernels read them: the kPull steps of a pass.
//
// Threads: one caller; pulls run on the device's in-stream
class WeightPuller {
 public:
  // All outlive the puller. `wire`: the run's. `clock` is told of every blob.
  WeightPuller(const ModelSpec& model, Device& device, Transport& transport, const ArenaMap& arena, Dtype wire,
               PullClock& clock);

  // Where a pass with `version` of every blob finds them. Where the transport has them in this host's memory, nothing
  // else copies them: kernels read them there, or one copy brings them into the arena.
  //
  // Errors: RESOURCE_EXHAUSTED they lie nowhere, and the host has no memory to pull them to
  absl::StatusOr<PassWeights> Find(Version version);

  // group: null where pass.group is; it ends where a pull fails. All must live until the in-stream is idle.
  //
  // Errors: (in the stream) the first of the transport's, with blob and version, the group's and the device's
  void Enqueue(const RelayStep& step, const PassContext& pass, Group* group);

 private:
  // Of a blob, in a layer.
  struct Part {
    BlobId blob;
    ChunkRange chunks;
    GroupParts::SlotBytes in_slot;
  };
  // What this worker pulls of a layer: all of it, or its part in a group.
  std::vector<Part> PartsOf(LayerId layer, const PassContext& pass) const;

  void EnqueueAwait(const RelayStep& step, const PassContext& pass, Group* group);
  // to: a slot's worth.
  void EnqueuePull(const RelayStep& step, const PassContext& pass, Group* group, std::byte* to);
  void EnqueueExchange(const RelayStep& step, const PassContext& pass, Group* group);

  // Gets a layer part by part.
  absl::Status GetEach(const RelayStep& step, const PassContext& pass,
                       const std::function<absl::StatusOr<PullTiming>(const Part&)>& get);
  // Where a part lies: with the daemon, and in a slot's worth of memory.
  absl::Span<const std::byte> WithDaemon(const PassContext& pass, const Part& part) const;
  absl::Span<std::byte> Within(std::byte* slot, const Part& part) const;
  std::vector<const std::byte*> InPlace(Version version) const;  // by blob; empty: not all are

  // Fixed after construction.
  const ModelSpec& model_;
  Device& device_;
  Transport& transport_;
  const ArenaMap& arena_;
  const Dtype wire_;
  PullClock& clock_;

  HostMemory staging_;  // a layer as it was pulled; empty until a pass needs it
};

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_RELAY_WEIGHT_PULLER_H_
