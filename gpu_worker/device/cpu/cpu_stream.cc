#include "gpu_worker/device/cpu/cpu_stream.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "gpu_worker/device/cpu/float_mode.h"
#include "gpu_worker/device/device.h"

namespace eps::worker::cpu {

void CpuEvent::Reset() {
  MutexLock lock(mu_);
  recorded_ = false;
  status_ = absl::OkStatus();
}

void CpuEvent::Record(const absl::Status& status) {
  MutexLock lock(mu_);
  EPS_CHECK(!recorded_);  // once between two Resets
  recorded_ = true;
  status_ = status;
  recorded_cv_.NotifyAll();  // under the lock: a waiter may free the event as soon as it sees it
}

absl::Status CpuEvent::Wait(const std::atomic<bool>& closing) {
  MutexLock lock(mu_);
  while (!recorded_) {
    if (closing.load(std::memory_order_relaxed)) return absl::CancelledError("the device is closing");
    // Looks up now and then, so that closing a device needs no list of who waits for what.
    recorded_cv_.WaitFor(mu_, std::chrono::milliseconds(50));
  }
  return status_;
}

CpuStream::CpuStream() : thread_([this] { Loop(); }) {}

CpuStream::~CpuStream() {
  Close();
  thread_.join();
}

void CpuStream::Wait(Event& event, WaitCause cause) {
  auto* cpu_event = static_cast<CpuEvent*>(&event);
  Enqueue({.run = [this, cpu_event] { return cpu_event->Wait(closing_); }, .waits = true, .cause = cause});
}

void CpuStream::Record(Event& event) { Enqueue({.record = static_cast<CpuEvent*>(&event)}); }

void CpuStream::CopyIn(void* device, absl::Span<const std::byte> host) {
  if (host.empty()) return;
  Launch([this, device, host] { Copy(device, host.data(), host.size()); });
}

void CpuStream::CopyOut(absl::Span<std::byte> host, const void* device) {
  if (host.empty()) return;
  Launch([this, device, host] { Copy(host.data(), device, host.size()); });
}

void CpuStream::CopyOutTo(std::function<absl::StatusOr<absl::Span<std::byte>>()> destination, const void* device,
                          std::function<absl::Status()> then) {
  HostCall([this, destination = std::move(destination), device]() -> absl::Status {
    EPS_ASSIGN_OR_RETURN(const absl::Span<std::byte> host, destination());
    if (!host.empty()) Copy(host.data(), device, host.size());
    return absl::OkStatus();
  });
  HostCall(std::move(then));
}

void CpuStream::HostCall(std::function<absl::Status()> call) { Enqueue({.run = std::move(call)}); }

void CpuStream::IssueNative(std::function<absl::Status(void* stream)> issue) {
  HostCall([issue = std::move(issue)] { return issue(nullptr); });
}

void CpuStream::Launch(std::function<void()> work) {
  Enqueue({.run = [work = std::move(work)] {
    work();
    return absl::OkStatus();
  }});
}

void CpuStream::Copy(void* to, const void* from, size_t num_bytes) {
  const Clock::time_point begin = Clock::now();
  std::memcpy(to, from, num_bytes);
  copied_.num_bytes += static_cast<int64_t>(num_bytes);
  copied_.seconds += std::chrono::duration<double>(Clock::now() - begin).count();
}

void CpuStream::Enqueue(Task task) {
  task.label = label_;
  MutexLock lock(mu_);
  tasks_.push_back(std::move(task));
  work_.NotifyOne();
}

absl::Status CpuStream::Synchronize() {
  label_ = nullptr;
  MutexLock lock(mu_);
  while (running_ || !tasks_.empty()) idle_.Wait(mu_);
  return status_;
}

void CpuStream::Recover() {
  MutexLock lock(mu_);
  while (running_ || !tasks_.empty()) idle_.Wait(mu_);
  status_ = absl::OkStatus();
}

void CpuStream::Close() {
  MutexLock lock(mu_);
  closing_.store(true, std::memory_order_relaxed);
  if (status_.ok()) status_ = absl::CancelledError("the device is closing");
  work_.NotifyAll();
}

StreamStats CpuStream::TakeStats() {
  MutexLock lock(mu_);
  return std::exchange(stats_, StreamStats());
}

void CpuStream::KeepSpans(bool keep) {
  MutexLock lock(mu_);
  keeps_spans_ = keep;
}

// What follows under one label is one span.
void CpuStream::KeepSpan(const Task& task, TimeSpan time, const Copied& copied) {
  if (task.label == nullptr || task.run == nullptr) return;
  const auto waited_for = task.waits ? std::optional(task.cause) : std::nullopt;
  std::vector<StreamSpan>& spans = stats_.spans;
  if (!spans.empty() && spans.back().label == task.label && spans.back().waited_for == waited_for) {
    spans.back().time.end = time.end;
  } else {
    spans.push_back({task.label, waited_for, time});
  }
  spans.back().copied_bytes += copied.num_bytes;
  spans.back().copy_seconds += copied.seconds;
}

void CpuStream::Finish(const Task& task, const absl::Status& status, TimeSpan span) {
  MutexLock lock(mu_);
  if (status_.ok()) status_ = status;
  if (task.record != nullptr) task.record->Record(status_);
  if (task.waits) {
    const double seconds = std::chrono::duration<double>(span.end - span.begin).count();
    stats_.wait_seconds[static_cast<size_t>(task.cause)] += seconds;
    if (task.cause != WaitCause::kNone) stats_.waits[static_cast<size_t>(task.cause)].push_back(span);
  }
  const Copied copied = std::exchange(copied_, {});
  if (keeps_spans_) KeepSpan(task, span, copied);
}

void CpuStream::Loop() {
  FlushDenormals();
  mu_.Lock();
  for (;;) {
    while (tasks_.empty() && !closing_.load(std::memory_order_relaxed)) work_.Wait(mu_);
    if (tasks_.empty()) break;
    {
      const Task task = std::move(tasks_.front());
      tasks_.pop_front();
      running_ = true;
      const bool skip = !status_.ok() || task.run == nullptr;
      mu_.Unlock();
      const Clock::time_point start = Clock::now();
      absl::Status status = skip ? absl::OkStatus() : task.run();
      if (!status.ok() && !task.waits && task.label != nullptr) status = Annotate(status, task.label->ToString());
      Finish(task, status, {start, Clock::now()});
    }  // what the task captured is gone before the stream counts as idle
    mu_.Lock();
    running_ = false;
    if (tasks_.empty()) idle_.NotifyAll();
  }
  mu_.Unlock();
}

void CpuStreams::Close() {
  for (CpuStream& stream : streams_) stream.Close();
  for (CpuStream& stream : streams_) stream.Synchronize().IgnoreError();
}

void CpuStreams::Recover() {
  // Idle first, all of them: work still queued on one could pass its error on to another.
  for (CpuStream& stream : streams_) stream.Synchronize().IgnoreError();
  for (CpuStream& stream : streams_) stream.Recover();
}

}  // namespace eps::worker::cpu
