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
#include "gpu_worker/transport/transport.h"

namespace eps::worker {

// Host memory for gradients on their way to the daemon, and its bound: the transport's own, where it has any, as it is sent
// without a copy; else memory that is kept for the next step. A buffer comes back when the last Contribution that points
// into it is let go, which may be after the pool itself is gone.
//
// What a pass has under way takes at most `most_bytes`: further gradients wait, and with them the relay, which would
// otherwise run ahead of a daemon that takes them more slowly, until it held the whole model's. That costs no time, as
// the next step cannot begin before the daemon has them all. Nobody waits for ever:
// - a gradient that is under way alone always has memory. The daemon takes what it needs for the highest layer that is
//   incomplete, so that what waits here waits for other workers alone, none of whom waits for this one: what they have not
//   pushed lies above what is under way here, and this one has pushed it;
// - unless these other workers are lost, and this one is to do their work. Then an order has come (`is_awaited`), and what
//   the pass has left to push takes what memory it needs;
// - nor does a pass count what one before it left under way, as its own gradients may be what that waits for.
//
// Threads: one that calls BeginPass and TakeWaits, while no other one is in Acquire; the rest is safe
class PushBuffers {
 public:
  struct Options {
    Device* device =
        nullptr;  // whose gradients they are, and who makes memory that it copies to fast; both outlive the
    Transport* transport = nullptr;              // pool
    int64_t most_bytes = 0;                      // RelayPlan::host_push_bytes
    std::function<bool()> is_awaited = nullptr;  // from any thread; null: never
  };
  explicit PushBuffers(Options options) : options_(std::move(options)), state_(std::make_shared<State>()) {}

  // is_bounded: this pass's gradients wait for memory; not where a further pass of the same step follows, without which
  // no layer is complete.
  void BeginPass(bool is_bounded);

  // Blocks until there is room for it. One that is larger than most_bytes is under way alone.
  // Errors: RESOURCE_EXHAUSTED the host has not so much memory
  absl::StatusOr<PushMemory> Acquire(int64_t num_bytes);

  // When Acquire waited for room, since the last call: one after the other.
  std::vector<TimeSpan> TakeWaits() { return std::exchange(waits_, {}); }

  // Allocated and not freed, in use or not, in bytes; without the transport's.
  int64_t held_bytes() const;

 private:
  struct State {
    Mutex mu;
    CondVar returned;
    std::vector<HostMemory> blocks ABSL_GUARDED_BY(mu);  // free ones
    int64_t held_bytes ABSL_GUARDED_BY(mu) = 0;
    int64_t returns ABSL_GUARDED_BY(mu) = 0;  // so far, of whatever
    int64_t pass ABSL_GUARDED_BY(mu) = 0;
    int64_t used_bytes ABSL_GUARDED_BY(mu) = 0;       // under way, of this pass
    int64_t transport_bytes ABSL_GUARDED_BY(mu) = 0;  // of that, in the transport's memory
  };
  // What a pass has under way.
  struct Share {
    int64_t pass = 0, num_bytes = 0;
    bool is_transports = false;
  };
  static void Return(State& state, const Share& share);

  // The transport's, or room for some that is not; empty: neither, and it has waited for a moment.
  struct Room {
    Share share;
    std::optional<PushMemory> memory;
  };
  std::optional<Room> LookForRoom(int64_t num_bytes);
  absl::StatusOr<HostMemory> Take(int64_t num_bytes);
  // A free block of the size. Without one, counts a new block as held, and returns what has to be freed for it.
  std::optional<HostMemory> TakeFree(int64_t num_bytes, std::vector<HostMemory>& freed);

  const Options options_;
  const std::shared_ptr<State> state_;
  bool is_bounded_ = true;       // of the pass
  std::vector<TimeSpan> waits_;  // Acquire's
};

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_RELAY_PUSH_BUFFERS_H_
