#ifndef EPS_GPU_WORKER_DEVICE_STREAM_H_
#define EPS_GPU_WORKER_DEVICE_STREAM_H_

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "gpu_worker/device/stream_id.h"

namespace eps::worker {

// From one moment to another, on the host's clock.
struct TimeSpan {
  std::chrono::steady_clock::time_point begin, end;
};

// What work is for, in words: "step 41, layer h.3, backward".
class WorkLabel {
 public:
  virtual ~WorkLabel() = default;
  virtual std::string ToString() const = 0;  // asked for errors alone; on any thread
};

// When a stream did what was enqueued under one label, or waited before it.
struct StreamSpan {
  const WorkLabel* label = nullptr;
  std::optional<WaitCause> waited_for;  // nothing: it worked
  TimeSpan time;
  // Of what it copied between host and device, and how long these copies took alone: without what came between them, as
  // a call of the host that waits.
  int64_t copied_bytes = 0;
  double copy_seconds = 0;
};

struct StreamStats {
  std::array<double, kNumWaitCauses> wait_seconds = {};  // blocked in Wait, by cause
  // When it waited, by cause (not kNone), one after the other. Of a device with a clock of its own, up to a millisecond
  // off.
  std::array<std::vector<TimeSpan>, kNumWaitCauses> waits = {};
  // With KeepSpans, of what had a label: one after the other, in stream order; as exact as `waits`. A stream that
  // failed may lack some.
  std::vector<StreamSpan> spans;
};

// A point in a stream's work that another stream, or the host, can wait for. Made by Device::NewEvent,
// recorded once between two Resets. Threads: safe.
class Event {
 public:
  virtual ~Event() = default;
  // Makes it unrecorded again. No stream may be waiting for it.
  virtual void Reset() = 0;
};

// A queue of work that runs in order, beside the other streams. Enqueueing never blocks.
//
// Errors:  the first failure (of a host call, or an aborted wait) makes the stream fail: what is queued
//          behind it is skipped, but events are still recorded, so that nothing waits for ever; every
//          later Synchronize returns that first error, until Device::Recover. In front stands the label of the
//          work that failed; where a device finds out later, of the work that found it, and the message says so.
// Threads: one at a time
class Stream {
 public:
  virtual ~Stream() = default;
  // What the work that is enqueued from now on is for; null: nothing that has a name. Forgotten by Synchronize, until
  // when `label` is there.
  virtual void SetLabel(const WorkLabel* label) = 0;
  // Work enqueued after this starts once `event` is recorded. The time it blocks is counted under `cause`.
  // A failed stream's error travels with its events: waiting for one fails this stream as well.
  virtual void Wait(Event& event, WaitCause cause) = 0;
  virtual void Record(Event& event) = 0;
  // Copies; `host` stays valid until an event recorded behind the copy is reached. Sizes are equal.
  virtual void CopyIn(void* device, absl::Span<const std::byte> host) = 0;
  virtual void CopyOut(absl::Span<std::byte> host, const void* device) = 0;
  // As CopyOut, to memory that is chosen when the copy's turn comes. `destination` is called on the host once all that
  // was enqueued before is done or on its way, and keeps it waiting while it runs; its error becomes the stream's.
  // `then` is a HostCall behind the copy, but for one thing: of such copies that are enqueued one right behind the
  // other the next may be under way when it runs, so that a device need not stand still between them. It may wait for
  // something else to be enqueued, or for Synchronize.
  virtual void CopyOutTo(std::function<absl::StatusOr<absl::Span<std::byte>>()> destination, const void* device,
                         std::function<absl::Status()> then) = 0;
  // Runs `call` on the host in stream order. It may block, e.g. for a pull. Not for kernels.
  virtual void HostCall(std::function<absl::Status()> call) = 0;
  // Calls `issue` where this stream's work is issued, in its turn, for libraries that enqueue by themselves: with the
  // stream's own handle (of the cuda device: cudaStream_t, and the device is current; of the cpu device: null). It does
  // not wait for the device to have done what was enqueued before.
  virtual void IssueNative(std::function<absl::Status(void* stream)> issue) = 0;
  // Blocks the caller until all that was enqueued is done; returns the stream's first error.
  virtual absl::Status Synchronize() = 0;
  // Since the last call, which resets them. Labels in them must still be there.
  virtual StreamStats TakeStats() = 0;
  // From now on spans are kept, or not, as at first: on a GPU they take a timing event a label, and two a
  // wait or copy. The stream is idle.
  virtual void KeepSpans(bool keep) = 0;
};

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_DEVICE_STREAM_H_
