#include "gpu_worker/device/cuda/cuda_stream.h"

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
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/status_macros.h"
#include "common/numeric/philox.h"
#include "common/spec/graph_use.h"
#include "gpu_worker/device/cuda/device_dropout.h"
#include "gpu_worker/device/cuda/elementwise.h"
#include "gpu_worker/device/cuda/gpu_runtime.h"
#include "gpu_worker/device/device.h"

namespace eps::worker::cuda {

absl::StatusOr<OwnedGpuEvent> OwnedGpuEvent::New(std::shared_ptr<GpuRuntime> runtime, GpuEventUse use) {
  EPS_ASSIGN_OR_RETURN(const GpuEvent event, runtime->NewEvent(use));
  return OwnedGpuEvent(std::move(runtime), event);
}

OwnedGpuEvent::OwnedGpuEvent(OwnedGpuEvent&& other) noexcept
    : runtime_(std::move(other.runtime_)), event_(other.event_) {}

OwnedGpuEvent& OwnedGpuEvent::operator=(OwnedGpuEvent&& other) noexcept {
  std::swap(runtime_, other.runtime_);
  std::swap(event_, other.event_);
  return *this;
}

OwnedGpuEvent::~OwnedGpuEvent() {
  if (runtime_ != nullptr) runtime_->DestroyEvent(event_);
}

absl::StatusOr<std::unique_ptr<CudaStream>> CudaStream::New(std::shared_ptr<GpuRuntime> runtime,
                                                            std::shared_ptr<const HostPins> pins, const char* name,
                                                            GraphUse graphs, GpuStreamUse use) {
  EPS_ASSIGN_OR_RETURN(const GpuStream stream, runtime->NewStream(use));
  return std::unique_ptr<CudaStream>(new CudaStream(std::move(runtime), std::move(pins), name, graphs, stream));
}

absl::StatusOr<std::unique_ptr<CudaStream>> CudaStream::NewWithKeys(std::shared_ptr<GpuRuntime> runtime,
                                                                    std::shared_ptr<const HostPins> pins,
                                                                    const char* name, GraphUse graphs) {
  EPS_ASSIGN_OR_RETURN(std::unique_ptr<CudaStream> stream,
                       New(runtime, std::move(pins), name, graphs, GpuStreamUse::kCompute));
  EPS_ASSIGN_OR_RETURN(void* memory, runtime->Allocate(sizeof(DropoutKeyPack::keys)));
  stream->key_memory_ = static_cast<PhiloxKey*>(memory);
  return stream;
}

CudaStream::~CudaStream() {
  thread_.Close();
  thread_.Synchronize().IgnoreError();
  runtime_->Synchronize(stream_).IgnoreError();
  runtime_->DestroyStream(stream_);
  if (key_memory_ != nullptr) runtime_->Free(key_memory_);
}

void CudaStream::Issue(std::function<absl::Status(GpuStream)> work) {
  EndSegment();
  thread_.HostCall([this, work = std::move(work)] {
    in_burst_ = true;
    return Annotate(work(stream_), name_);
  });
}

void CudaStream::EndSegment() {
  if (std::exchange(leaves_arrival_, false)) {
    thread_.HostCall([this] { return Arrive(std::exchange(arrival_, std::nullopt)); });
  }
  const DropoutKeyPack keys = std::exchange(keys_, {});  // of a launch that was left out, too
  if (segment_.empty()) return;
  Issue([this, segment = std::exchange(segment_, {}), keys](GpuStream stream) {
    if (keys.count > 0) {
      EPS_RETURN_IF_ERROR_WITH(runtime_->Launch(stream, SetDropoutKeys(keys, key_memory_)), "dropout's keys");
    }
    return graphs_.Enqueue(stream, segment);
  });
}

const PhiloxKey* CudaStream::DropoutKey(PhiloxKey key) {
  EPS_CHECK(key_memory_ != nullptr);
  for (int i = 0; i < keys_.count; ++i) {
    if (keys_.keys[i] == key) return key_memory_ + i;
  }
  if (keys_.count == kDropoutKeysOfPack) EndSegment();
  keys_.keys[keys_.count] = key;
  return key_memory_ + keys_.count++;
}

void CudaStream::SetLabel(const WorkLabel* label) {
  EndSegment();
  if (label != nullptr) label_ = label;
  thread_.SetLabel(label);
  if (!keeps_spans_) return;
  Issue([this, label](GpuStream) {
    EPS_ASSIGN_OR_RETURN(OwnedGpuEvent begin, Mark());
    labels_.push_back({.label = label, .waits = waits_.size(), .copies = copies_.size(), .begin = std::move(begin)});
    return absl::OkStatus();
  });
}

void CudaStream::KeepSpans(bool keep) { keeps_spans_ = keep; }

void CudaStream::Wait(Event& event, WaitCause cause) {
  auto* cuda_event = static_cast<CudaEvent*>(&event);
  const bool timed = cause != WaitCause::kNone || keeps_spans_;
  EndSegment();
  if (timed) {
    Issue([this, cause](GpuStream) {
      EPS_ASSIGN_OR_RETURN(OwnedGpuEvent start, Mark());
      waits_.push_back({.cause = cause, .start = std::move(start), .end = std::nullopt});
      return absl::OkStatus();
    });
  }
  thread_.Wait(cuda_event->issued_, WaitCause::kNone);
  Issue([this, cuda_event, timed](GpuStream stream) {
    EPS_RETURN_IF_ERROR(cuda_event->gpu_.status());
    EPS_RETURN_IF_ERROR(runtime_->Wait(stream, cuda_event->gpu_->get()));
    if (!timed) return absl::OkStatus();
    EPS_ASSIGN_OR_RETURN(waits_.back().end, Mark());
    return absl::OkStatus();
  });
}

void CudaStream::Record(Event& event) {
  auto* cuda_event = static_cast<CudaEvent*>(&event);
  Issue([this, cuda_event](GpuStream stream) {
    EPS_RETURN_IF_ERROR(cuda_event->gpu_.status());
    return runtime_->Record(stream, cuda_event->gpu_->get());
  });
  thread_.Record(cuda_event->issued_);  // in any case, with the stream's error if it has one
}

void CudaStream::CopyIn(void* device, absl::Span<const std::byte> host) {
  if (host.empty()) return;
  Issue([this, device, host](GpuStream stream) {
    return IssueTimed(host.size(), [&]() -> absl::Status {
      auto* to = static_cast<std::byte*>(device);
      for (const absl::Span<const std::byte> part : pins_->Parts(host)) {
        EPS_RETURN_IF_ERROR(runtime_->CopyIn(stream, to, part));
        to += part.size();
      }
      return absl::OkStatus();
    });
  });
}

void CudaStream::CopyOut(absl::Span<std::byte> host, const void* device) {
  if (host.empty()) return;
  Issue([this, device, host](GpuStream) { return IssueCopyOut(host, device); });
}

// The issuing thread asks, and goes on at once: the GPU may still be busy with what comes before the copy. For the copy
// before this one it waits when this one is issued.
void CudaStream::CopyOutTo(std::function<absl::StatusOr<absl::Span<std::byte>>()> destination, const void* device,
                           std::function<absl::Status()> then) {
  if (segment_.empty()) leaves_arrival_ = false;  // nothing lies between the two copies
  Issue([this, destination = std::move(destination), device, then = std::move(then)](GpuStream) -> absl::Status {
    EPS_ASSIGN_OR_RETURN(const absl::Span<std::byte> host, destination());
    EPS_RETURN_IF_ERROR(IssueCopyOut(host, device));
    EPS_ASSIGN_OR_RETURN(OwnedGpuEvent copied, RecordArrival());
    return Arrive(std::exchange(arrival_, Arrival{.copied = std::move(copied), .then = then}));
  });
  leaves_arrival_ = true;
}

absl::Status CudaStream::Arrive(std::optional<Arrival> arrival) {
  if (!arrival.has_value()) return absl::OkStatus();
  EPS_RETURN_IF_ERROR(runtime_->Await(arrival->copied.get()));
  spare_arrivals_.push_back(std::move(arrival->copied));
  return arrival->then();
}

absl::StatusOr<OwnedGpuEvent> CudaStream::RecordArrival() {
  if (spare_arrivals_.empty()) {
    EPS_ASSIGN_OR_RETURN(OwnedGpuEvent made, OwnedGpuEvent::New(runtime_, GpuEventUse::kArrival));
    spare_arrivals_.push_back(std::move(made));
  }
  EPS_RETURN_IF_ERROR(runtime_->Record(stream_, spare_arrivals_.back().get()));
  OwnedGpuEvent arrival = std::move(spare_arrivals_.back());
  spare_arrivals_.pop_back();
  return arrival;
}

absl::Status CudaStream::IssueCopyOut(absl::Span<std::byte> host, const void* device) {
  return IssueTimed(host.size(), [&]() -> absl::Status {
    const auto* from = static_cast<const std::byte*>(device);
    std::byte* to = host.data();
    for (const absl::Span<const std::byte> part : pins_->Parts(host)) {
      EPS_RETURN_IF_ERROR(runtime_->CopyOut(stream_, absl::MakeSpan(to, part.size()), from));
      from += part.size();
      to += part.size();
    }
    return absl::OkStatus();
  });
}

absl::Status CudaStream::IssueTimed(size_t num_bytes, absl::FunctionRef<absl::Status()> issue) {
  if (!keeps_spans_) return issue();
  EPS_ASSIGN_OR_RETURN(OwnedGpuEvent start, Mark());
  EPS_RETURN_IF_ERROR(issue());
  EPS_ASSIGN_OR_RETURN(OwnedGpuEvent end, Mark());
  copies_.push_back({.num_bytes = num_bytes, .start = std::move(start), .end = std::move(end)});
  return absl::OkStatus();
}

void CudaStream::HostCall(std::function<absl::Status()> call) {
  EndSegment();
  thread_.HostCall([this, call = std::move(call)] {
    EPS_RETURN_IF_ERROR_WITH(runtime_->Synchronize(stream_), name_);
    return call();
  });
}

void CudaStream::IssueNative(std::function<absl::Status(void* stream)> issue) {
  Issue([issue = std::move(issue)](GpuStream stream) { return issue(stream.handle); });
}

absl::Status CudaStream::Synchronize() {
  EndSegment();
  absl::Status status = thread_.Synchronize();
  absl::Status ended = EndBurst();
  arrival_.reset();  // of a stream that failed: its copy is over by now
  if (label_ != nullptr) ended = Annotate(ended, absl::StrCat("up to ", label_->ToString()));
  label_ = nullptr;
  if (status.ok()) status = std::move(ended);
  if (status_.ok()) status_ = std::move(status);
  return status_;
}

StreamStats CudaStream::TakeStats() { return std::exchange(stats_, StreamStats()); }

void CudaStream::Recover() {
  thread_.Recover();
  runtime_->Synchronize(stream_).IgnoreError();
  status_ = absl::OkStatus();
}

void CudaStream::Close() { thread_.Close(); }

absl::StatusOr<OwnedGpuEvent> CudaStream::Mark() {
  if (spare_marks_.empty()) {
    EPS_ASSIGN_OR_RETURN(OwnedGpuEvent made, OwnedGpuEvent::New(runtime_, GpuEventUse::kTiming));
    spare_marks_.push_back(std::move(made));
  }
  EPS_RETURN_IF_ERROR(runtime_->Record(stream_, spare_marks_.back().get()));
  OwnedGpuEvent mark = std::move(spare_marks_.back());
  spare_marks_.pop_back();
  return mark;
}

absl::Status CudaStream::EndBurst() {
  if (!in_burst_) return Annotate(runtime_->Synchronize(stream_), name_);
  absl::StatusOr<OwnedGpuEvent> end = Mark();
  absl::Status status =
      runtime_->Synchronize(stream_);  // whatever became of the mark: what is copied may be freed next
  const auto end_time = std::chrono::steady_clock::now();
  if (status.ok()) status = end.status();
  if (status.ok()) status = TakeFigures(*std::move(end), end_time);
  // A stream that failed has waits without an end, and marks that may never be reached: they are not used again.
  waits_.clear();
  labels_.clear();
  copies_.clear();
  in_burst_ = false;
  return Annotate(status, name_);
}

// The time of a label is that between its waits, up to where the next label begins.
absl::Status CudaStream::TakeSpans(const TimeOfMark& time_of, std::chrono::steady_clock::time_point end_time) {
  for (size_t l = 0; l < labels_.size(); ++l) {
    if (labels_[l].label == nullptr) continue;
    const bool is_last = l + 1 == labels_.size();
    const size_t waits_end = is_last ? waits_.size() : labels_[l + 1].waits;
    const size_t copies_end = is_last ? copies_.size() : labels_[l + 1].copies;
    TimeSpan time;
    EPS_ASSIGN_OR_RETURN(time.begin, time_of(labels_[l].begin));
    const auto work_until = [&](std::chrono::steady_clock::time_point until) {
      time.end = until;
      if (time.end > time.begin) stats_.spans.push_back({labels_[l].label, std::nullopt, time});
    };
    for (size_t w = labels_[l].waits; w < waits_end; ++w) {
      if (!waits_[w].end.has_value()) continue;
      TimeSpan waited;
      EPS_ASSIGN_OR_RETURN(waited.begin, time_of(waits_[w].start));
      EPS_ASSIGN_OR_RETURN(waited.end, time_of(*waits_[w].end));
      // What the events themselves take is no work.
      if (w > labels_[l].waits) work_until(waited.begin);
      stats_.spans.push_back({labels_[l].label, waits_[w].cause, waited});
      time.begin = waited.end;
    }
    if (is_last) {
      work_until(end_time);
    } else {
      EPS_ASSIGN_OR_RETURN(const auto next, time_of(labels_[l + 1].begin));
      work_until(next);
    }
    EPS_RETURN_IF_ERROR(TakeCopies(labels_[l], copies_end));
  }
  for (TimedCopy& copy : copies_) {
    spare_marks_.push_back(std::move(copy.start));
    spare_marks_.push_back(std::move(copy.end));
  }
  copies_.clear();
  for (LabelMark& mark : labels_) spare_marks_.push_back(std::move(mark.begin));
  labels_.clear();
  return absl::OkStatus();
}

// A label's waits stand before its copies, so that these are of its last span; there is none where all of it was shorter
// than the clock tells.
absl::Status CudaStream::TakeCopies(const LabelMark& mark, size_t end) {
  if (stats_.spans.empty()) return absl::OkStatus();
  StreamSpan& span = stats_.spans.back();
  if (span.label != mark.label || span.waited_for.has_value()) return absl::OkStatus();
  for (size_t c = mark.copies; c < end; ++c) {
    EPS_ASSIGN_OR_RETURN(const double seconds, runtime_->SecondsBetween(copies_[c].start.get(), copies_[c].end.get()));
    span.copied_bytes += static_cast<int64_t>(copies_[c].num_bytes);
    span.copy_seconds += seconds;
  }
  return absl::OkStatus();
}

absl::Status CudaStream::TakeFigures(OwnedGpuEvent end, std::chrono::steady_clock::time_point end_time) {
  const auto before_end = [&](const OwnedGpuEvent& mark) -> absl::StatusOr<std::chrono::steady_clock::time_point> {
    EPS_ASSIGN_OR_RETURN(const double seconds, runtime_->SecondsBetween(mark.get(), end.get()));
    return end_time -
           std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(seconds));
  };
  EPS_RETURN_IF_ERROR(TakeSpans(before_end, end_time));
  for (TimedWait& wait : waits_) {
    if (!wait.end.has_value()) continue;
    EPS_ASSIGN_OR_RETURN(const double seconds, runtime_->SecondsBetween(wait.start.get(), wait.end->get()));
    stats_.wait_seconds[static_cast<size_t>(wait.cause)] += seconds;
    if (wait.cause != WaitCause::kNone) {
      TimeSpan span;
      EPS_ASSIGN_OR_RETURN(span.begin, before_end(wait.start));
      EPS_ASSIGN_OR_RETURN(span.end, before_end(*wait.end));
      stats_.waits[static_cast<size_t>(wait.cause)].push_back(span);
    }
    spare_marks_.push_back(std::move(wait.start));
    spare_marks_.push_back(*std::move(wait.end));
  }
  spare_marks_.push_back(std::move(end));
  return absl::OkStatus();
}

}  // namespace eps::worker::cuda
