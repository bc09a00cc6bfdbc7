#ifndef EPS_GPU_WORKER_DEVICE_CUDA_CUDA_STREAM_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_CUDA_STREAM_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/numeric/philox.h"
#include "common/spec/graph_use.h"
#include "gpu_worker/device/cpu/cpu_stream.h"
#include "gpu_worker/device/cuda/compute_graphs.h"
#include "gpu_worker/device/cuda/compute_work.h"
#include "gpu_worker/device/cuda/device_dropout.h"
#include "gpu_worker/device/cuda/gpu_runtime.h"
#include "gpu_worker/device/cuda/host_pins.h"
#include "gpu_worker/device/device.h"

namespace eps::worker::cuda {

// An event of the runtime, which goes when this does. It may outlive the device.
class OwnedGpuEvent {
 public:
  static absl::StatusOr<OwnedGpuEvent> New(std::shared_ptr<GpuRuntime> runtime, GpuEventUse use);
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
//
// What the GPU spends waiting is measured by events for timing around each wait. The host's clock is read once, when the
// GPU has come to the end of a burst, and everything before is counted from there.
//
// No lock: the state below, but for what is not issued yet, is the issuing thread's while it has work, and else that of who
// enqueues, who waits for the thread to be idle first.
class CudaStream : public Stream {
 public:
  // `pins`: what of the host's memory is pinned.
  // Errors: the runtime's
  static absl::StatusOr<std::unique_ptr<CudaStream>> New(std::shared_ptr<GpuRuntime> runtime,
                                                         std::shared_ptr<const HostPins> pins, const char* name,
                                                         GraphUse graphs, GpuStreamUse use);
  // The same for a stream that is asked for DropoutKey.
  static absl::StatusOr<std::unique_ptr<CudaStream>> NewWithKeys(std::shared_ptr<GpuRuntime> runtime,
                                                                 std::shared_ptr<const HostPins> pins, const char* name,
                                                                 GraphUse graphs);
  ~CudaStream() override;

  void SetLabel(const WorkLabel* label) override;
  void Wait(Event& event, WaitCause cause) override;
  void Record(Event& event) override;
  void CopyIn(void* device, absl::Span<const std::byte> host) override;
  void CopyOut(absl::Span<std::byte> host, const void* device) override;
  void CopyOutTo(std::function<absl::StatusOr<absl::Span<std::byte>>()> destination, const void* device,
                 std::function<absl::Status()> then) override;
  void HostCall(std::function<absl::Status()> call) override;
  void IssueNative(std::function<absl::Status(void* stream)> issue) override;
  absl::Status Synchronize() override;
  StreamStats TakeStats() override;
  void KeepSpans(bool keep) override;

  // Enqueues work of the compute stream. It is held back until anything else is enqueued, a label is set, or Synchronize
  // is called; what has come until then is issued together (ComputeGraphs). An error becomes the stream's, with label and
  // stream in front.
  void Launch(ComputeWork work) { segment_.push_back(std::move(work)); }
  // ComputeQueue's. The keys of work that is issued together are set right before it, by one launch that is in no graph;
  // one more than fits a DropoutKeyPack has what came until then issued.
  const PhiloxKey* DropoutKey(PhiloxKey key);
  // The same of any call of the runtime.
  void Issue(std::function<absl::Status(GpuStream)> work);
  void Recover();
  // As CpuStream.
  void Close();

 private:
  // Known once both marks are reached.
  struct TimedWait {
    WaitCause cause = WaitCause::kNone;
    OwnedGpuEvent start;
    std::optional<OwnedGpuEvent> end;  // none yet, or the stream failed before it was issued
  };
  CudaStream(std::shared_ptr<GpuRuntime> runtime, std::shared_ptr<const HostPins> pins, const char* name,
             GraphUse graphs, GpuStream stream)
      : runtime_(std::move(runtime)), pins_(std::move(pins)), name_(name), stream_(stream), graphs_(runtime_, graphs) {}
  // Without what its stream did before, and what the host did.
  struct TimedCopy {
    size_t num_bytes = 0;
    OwnedGpuEvent start, end;
  };
  // Of CopyOutTo.
  struct Arrival {
    OwnedGpuEvent copied;
    std::function<absl::Status()> then;
  };
  // Where a label's work begins.
  struct LabelMark {
    const WorkLabel* label = nullptr;  // null: the work before is over
    size_t waits = 0, copies = 0;      // that were issued before
    OwnedGpuEvent begin;
  };
  void EndSegment();
  // Waits for the copy, if there is one, and calls what is to come then.
  absl::Status Arrive(std::optional<Arrival> arrival);
  absl::StatusOr<OwnedGpuEvent> RecordArrival();
  absl::Status IssueCopyOut(absl::Span<std::byte> host, const void* device);
  // `issue` issues a copy of so many bytes, and nothing else.
  absl::Status IssueTimed(size_t num_bytes, absl::FunctionRef<absl::Status()> issue);
  // A timing event, recorded here.
  absl::StatusOr<OwnedGpuEvent> Mark();
  // Waits for the GPU; then takes the burst's figures. The issuing thread is idle.
  absl::Status EndBurst();
  absl::Status TakeFigures(OwnedGpuEvent end, std::chrono::steady_clock::time_point end_time);
  using TimeOfMark = std::function<absl::StatusOr<std::chrono::steady_clock::time_point>(const OwnedGpuEvent& mark)>;
  absl::Status TakeSpans(const TimeOfMark& time_of, std::chrono::steady_clock::time_point end_time);
  // Adds copies_ from those of the label on, up to `end`, to its span.
  absl::Status TakeCopies(const LabelMark& mark, size_t end);

  const std::shared_ptr<GpuRuntime> runtime_;
  const std::shared_ptr<const HostPins> pins_;
  const char* const name_;
  const GpuStream stream_;

  ComputeGraphs graphs_;

  // A burst is what is issued between two calls of Synchronize.
  std::vector<OwnedGpuEvent> spare_marks_;
  bool in_burst_ = false;  // something was issued
  std::vector<TimedWait> waits_;
  bool keeps_spans_ = false;
  std::vector<LabelMark> labels_;  // of a burst whose spans are kept
  std::vector<TimedCopy> copies_;  // of the same

  std::optional<Arrival> arrival_;  // of a copy that is issued
  std::vector<OwnedGpuEvent> spare_arrivals_;

  // Not issued yet; these belong to who enqueues, also while the issuing thread is busy.
  bool leaves_arrival_ = false;  // what was enqueued last will have left one in arrival_
  std::vector<ComputeWork> segment_;
  DropoutKeyPack keys_;  // of segment_, as they are to lie in key_memory_

  PhiloxKey* key_memory_ = nullptr;  // the device's, of a pack; null without keys

  const WorkLabel* label_ = nullptr;  // the last one since Synchronize
  absl::Status status_;               // the first error that Synchronize returned
  StreamStats stats_;

  cpu::CpuStream thread_;  // last: it uses all of the above
};

}  // namespace eps::worker::cuda

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_CUDA_STREAM_H_
