#ifndef EPS_GPU_WORKER_DEVICE_DEVICE_H_
#define EPS_GPU_WORKER_DEVICE_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/choices/choices.h"
#include "common/tensor/dtype.h"
#include "gpu_worker/device/arena_span.h"
#include "gpu_worker/device/kernels.h"
#include "gpu_worker/device/stream.h"

namespace eps::worker {

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
