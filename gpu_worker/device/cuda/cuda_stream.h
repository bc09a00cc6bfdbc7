#ifndef EPS_GPU_WORKER_DEVICE_CUDA_CUDA_STREAM_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_CUDA_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/mutex.h"
#include "gpu_worker/device/cpu/cpu_stream.h"
#include "gpu_worker/device/cuda/gpu_runtime.h"
#include "gpu_worker/device/cuda/host_pins.h"
#include "gpu_worker/device/device.h"

namespace eps::worker::cuda {

// An event of the runtime, which goes when this does. It may outlive the device.
class OwnedGpuEvent {
 public:
  static absl::StatusOr<OwnedGpuEvent> New(std::shared_ptr<GpuRuntime> runtime);
  OwnedGpuEvent(OwnedGpuEvent&& other) noexcept;
  OwnedGpuEvent& operator=(OwnedGpuEvent&& other) noexcept;
  ~OwnedGpuEvent();

  GpuEvent get() const { return event_; }

 private:
  OwnedGpuEvent(std::shared_ptr<GpuRuntime> runtime, GpuEvent event) : runtime_(std::move(runtime)), event_(event) {}

  std::shared_ptr<GpuRuntime> runtime_;  // null: moved from
  GpuEvent event_;
};

// Recorded twice: by the thread that issues a stream's work, once it has issued all that was before, and by the GPU,
// once that is done.
class CudaEvent : public Event {
 public:
  // `gpu`: or the error of making it, which becomes that of the stream that records it.
  explicit CudaEvent(absl::StatusOr<OwnedGpuEvent> gpu) : gpu_(std::move(gpu)) {}
  void Reset() override { issued_.Reset(); }

 private:
  friend class CudaStream;
  cpu::CpuEvent issued_;
  absl::StatusOr<OwnedGpuEvent> gpu_;
};

// A stream of the GPU, and a thread that issues its work: calls of the host run on that thread, in their turn, and an
// event can be waited for before it is recorded, without the one who enqueues ever waiting. The GPU itself waits for
// the events of its streams; the thread does for host calls and for events that were not issued.
class CudaStream : public Stream {
 public:
  // `pins`: what of the host's memory is pinned.
  // Errors: the runtime's
  static absl::StatusOr<std::unique_ptr<CudaStream>> New(std::shared_ptr<GpuRuntime> runtime,
                                                         std::shared_ptr<const HostPins> pins, const char* name);
  ~CudaStream() override;

  void Wait(Event& event, WaitCause cause) override;
  void Record(Event& event) override;
  void CopyIn(void* device, absl::Span<const std::byte> host) override;
  void CopyOut(absl::Span<std::byte> host, const void* device) override;
  void CopyOutTo(std::function<absl::StatusOr<absl::Span<std::byte>>()> destination, const void* device) override;
  void HostCall(std::function<absl::Status()> call) override;
  absl::Status Synchronize() override;
  StreamStats TakeStats() override;

  // Issues work of the GPU in stream order; an error becomes the stream's, with its name in front.
  void Issue(std::function<absl::Status(GpuStream)> work);
  void Recover();
  // As CpuStream.
  void Close();

 private:
  // The GPU's time between two events; known once both are reached.
  struct WaitInterval {
    WaitCause cause = WaitCause::kNone;
    OwnedGpuEvent start;
    std::optional<OwnedGpuEvent> end;  // none yet, or the stream failed before it was issued
  };
  CudaStream(std::shared_ptr<GpuRuntime> runtime, std::shared_ptr<const HostPins> pins, const char* name,
             GpuStream stream)
      : runtime_(std::move(runtime)), pins_(std::move(pins)), name_(name), stream_(stream) {}
  absl::Status IssueCopyOut(absl::Span<std::byte> host, const void* device);
  // A timing event, recorded here.
  absl::StatusOr<OwnedGpuEvent> Mark() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status BeginBurst() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status EndBurst() ABSL_LOCKS_EXCLUDED(mu_);

  const std::shared_ptr<GpuRuntime> runtime_;
  const std::shared_ptr<const HostPins> pins_;
  const char* const name_;
  const GpuStream stream_;

  Mutex mu_;
  std::vector<OwnedGpuEvent> spare_marks_ ABSL_GUARDED_BY(mu_);
  // A burst is what is issued between two calls of Synchronize.
  std::optional<OwnedGpuEvent> burst_start_ ABSL_GUARDED_BY(mu_);
  std::vector<WaitInterval> waits_ ABSL_GUARDED_BY(mu_);
  absl::Status status_ ABSL_GUARDED_BY(mu_);  // the first error that Synchronize returned
  StreamStats stats_ ABSL_GUARDED_BY(mu_);

  cpu::CpuStream thread_;  // last: it uses all of the above
};

}  // namespace eps::worker::cuda

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_CUDA_STREAM_H_
