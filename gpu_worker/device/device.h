#ifndef EPS_GPU_WORKER_DEVICE_DEVICE_H_
#define EPS_GPU_WORKER_DEVICE_DEVICE_H_

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/choices/choices.h"
#include "common/tensor/dtype.h"
#include "gpu_worker/device/kernels.h"

namespace eps::worker {

// A place in the arena. The planner chose it; nobody else does.
struct ArenaSpan {
  int64_t offset_bytes = 0;
  int64_t num_bytes = 0;

  int64_t end_bytes() const { return offset_bytes + num_bytes; }
  bool Overlaps(const ArenaSpan& other) const {
    return offset_bytes < other.end_bytes() && other.offset_bytes < end_bytes();
  }
  friend bool operator==(const ArenaSpan&, const ArenaSpan&) = default;
};
inline constexpr int64_t kArenaAlignBytes = 256;  // every span starts at a multiple

// Of a relay, kIn has weights and swapped inner activations on their way to the device; kOut gradients and activations
// on their way from it, and boundaries and documents on theirs to it; kCompute tokens, too.
enum class StreamId { kCompute, kIn, kOut };
inline constexpr int kNumStreams = 3;
inline constexpr std::array kStreams = {StreamId::kCompute, StreamId::kIn, StreamId::kOut};
absl::string_view StreamName(StreamId id);  // "compute", "in", "out"

// Why a stream waits for an event: what StreamStats counts by. kVersion and kRoom are parts of the others, which the
// relay tells apart (RelayExecutor).
enum class WaitCause { kNone, kPull, kStash, kPush, kVersion, kRoom };
inline constexpr int kNumWaitCauses = 6;
absl::string_view WaitCauseName(WaitCause cause);  // "pull", "stash", ...

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

struct DeviceProperties {
  std::string name;  // "cpu", "cuda:0"
  // What results depend on to the bit, and nothing more: "cpu AVX3 onednn-2.6.3-avx512_core".
  std::string model;
  Dtype compute_dtype = Dtype::kF32;  // of weights and activations in kernels
  bool host_addressable = false;      // arena memory may be read and written by host code (the cpu device)
  int threads = 1;
  // What lengths of texts are best rounded up to, where each text has its own (serving): a GPU's library plans
  // attention for one length, which takes longer than a token.
  int64_t length_multiple = 1;
};

// Memory of the host, and who keeps it alive; it may outlive the device.
struct HostMemory {
  absl::Span<std::byte> bytes;
  std::shared_ptr<void> owner;
};

// One device: an arena, three streams, events and a table of kernels. Everything above this interface is
// the same for every device. No allocation of device memory happens after Create.
//
// Conformance: gpu_worker/device/device_conformance.h runs over every implementation, against fp64.
class Device {
 public:
  virtual ~Device() = default;
  virtual const DeviceProperties& properties() const = 0;

  virtual int64_t arena_bytes() const = 0;
  // The address of a span; raises the high-water mark to its end.
  // Errors: OUT_OF_RANGE beyond the arena · INVALID_ARGUMENT not aligned to kArenaAlignBytes
  virtual absl::StatusOr<void*> Address(ArenaSpan span) = 0;
  virtual int64_t arena_high_water_bytes() const = 0;
  // Memory that libraries are known to hold on the device outside the arena: packing buffers, workspaces.
  virtual int64_t outside_bytes() const = 0;

  // Memory of the host that copies to and from the device are fast with: pinned, where the device has that and the
  // system allows it; else the log says that it is not. Uninitialised; at least 64-byte aligned.
  // Errors: RESOURCE_EXHAUSTED there is not so much
  virtual absl::StatusOr<HostMemory> NewHostMemory(int64_t num_bytes);
  // Host memory that will be copied from (CopyIn), or to (CopyOut), again and again: a device may pin it for fast
  // copies, and says what it could not pin in the log alone. Asked again for the same memory it tries once more what it
  // could not pin, and after that does nothing. The memory stays mapped as long as the device lives. Its pages are of
  // one kind: those that are copied from are written by others alone, and nothing is copied to them; a device that pins
  // them, for which they must be mapped writable, leaves them mapped for reading. May block; on any thread, but no
  // other one enqueues copies of the memory meanwhile.
  virtual void ExpectCopiesFrom(absl::Span<const std::byte> /*host*/) {}
  virtual void ExpectCopiesTo(absl::Span<std::byte> /*host*/) {}

  virtual Stream& stream(StreamId id) = 0;
  virtual std::unique_ptr<Event> NewEvent() = 0;
  // Kernels run on the compute stream.
  virtual Kernels& kernels() = 0;

  // Choices that change bits. A device that has any is told first what it will be asked for, then it chooses or is told
  // what was chosen, and only then does it work: Choose is for the first worker of a run, Follow for every one. While
  // nothing was followed it takes what comes first, as it comes.
  //
  // Kernels that run nothing: each call on them is one that will come, with arrays of the same shape and alignment that
  // lie in the arena. Null: this device has nothing to choose.
  virtual Kernels* survey() { return nullptr; }
  // A choice for all that was surveyed. Streams are idle; kFastest runs it, so that the arena's content is lost.
  // Blocks.
  virtual absl::StatusOr<Choices> Choose(ChoiceRule /*rule*/) { return Choices(); }
  // From now on what was surveyed is computed as `choices` say, which any device of this model() made; what was not is
  // an error of the compute stream. Streams are idle.
  // Errors: FAILED_PRECONDITION naming a choice that is missing, or that this device cannot follow; the device is of no
  //         more use
  virtual absl::Status Follow(const Choices& /*choices*/) { return absl::OkStatus(); }

  // After an error: waits until the streams are idle and clears their errors.
  virtual void Recover() = 0;
};

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_DEVICE_DEVICE_H_
