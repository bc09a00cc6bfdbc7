#ifndef EPS_GPU_WORKER_RELAY_PUSH_BUFFERS_H_
#define EPS_GPU_WORKER_RELAY_PUSH_BUFFERS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/transport/free_places.h"
#include "gpu_worker/transport/transport.h"

namespace eps::worker {

// Host memory for gradients on their way to the daemon: the transport's, where it has any, as it is sent without a
// copy; else one block of most_bytes. A piece of it comes back when the last Contribution that points into it is let
// go, which may be after the pool itself is gone.
//
// A gradient for which there is none waits, and with it the relay, which would otherwise run ahead of a daemon that
// takes gradients more slowly than they are made, until the host held the whole model's. It does not wait for ever:
// - What a pass has under way alone always gets memory, of its own where there is no other.
// - Pushes of a pass wait only where they come highest layer first (RelayStep::may_wait). The daemon always takes what
//   the highest incomplete layer needs (AdmissionWindow); if that is with another worker, all that this one has under
//   way lies above it, is complete by then, and is let go. So the workers that are furthest behind go on.
// - If these are lost, and it is this one that is to do their work, an order has come (`is_awaited`), and what the pass
//   has left to push gets memory of its own.
// - A pass does not count what those before it left under way, which may be waiting for just what this one makes. Where
//   a further pass of the same order follows, without which no layer is complete, nothing waits (BeginPass).
//
// Threads: Acquire from one; BeginPass and TakeWaits while nobody is in Acquire; owners are let go on any
class PushBuffers {
 public:
  struct Options {
    // Whose gradients they are, and who makes memory that it copies to fast.
    Device* device = nullptr;
    Transport* transport = nullptr;  // both outlive the pool
    int64_t most_bytes = 0;          // RelayPlan::host_push_bytes; of the transport's memory, if it has any, too
    // Whether an order waits for the one that is being carried out; null: never.
    std::function<bool()> is_awaited = nullptr;
  };
  explicit PushBuffers(Options options);

  // is_last: of the passes that carry an order out.
  void BeginPass(bool is_last);

  // may_wait: blocks until there is room for it; else it gets memory of its own where there is no other.
  // Errors: RESOURCE_EXHAUSTED the host has not so much memory
  absl::StatusOr<PushMemory> Acquire(int64_t num_bytes, bool may_wait);

  // When Acquire waited, since the last call: one after the other.
  std::vector<TimeSpan> TakeWaits() { return std::exchange(waits_, {}); }

 private:
  // What outlives the pool.
  struct State {
    explicit State(int64_t most_bytes) : free_places(0, most_bytes) {}

    Mutex mu;
    CondVar let_go;
    FreePlaces free_places ABSL_GUARDED_BY(mu);  // of the block
    int64_t times_let_go ABSL_GUARDED_BY(mu) = 0;
    int64_t pass ABSL_GUARDED_BY(mu) = 0;
    int64_t under_way ABSL_GUARDED_BY(mu) = 0;  // of this pass
  };

  // Memory that is there for this; empty: there is none now.
  absl::StatusOr<std::optional<PushMemory>> TryTake(int64_t num_bytes);
  absl::StatusOr<std::optional<PushMemory>> TakeOfBlock(int64_t num_bytes);
  // What this pass has under way, and how often anything was let go so far.
  struct UnderWay {
    int64_t gradients = 0, times_let_go = 0;
  };
  UnderWay LookUnderWay() const;
  // Until something was let go since then, or for a moment.
  void WaitForRoom(const UnderWay& since);
  PushMemory Counted(PushMemory memory);

  // Fixed after construction.
  const Options options_;
  const std::shared_ptr<State> state_;

  // Of who acquires, and of BeginPass and TakeWaits.
  HostMemory block_;                   // made when it is first needed
  bool transport_has_memory_ = false;  // it has given some: what it has no room for waits
  bool is_last_pass_ = true;
  std::vector<TimeSpan> waits_;
};

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_RELAY_PUSH_BUFFERS_H_
