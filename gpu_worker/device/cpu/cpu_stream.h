#ifndef EPS_GPU_WORKER_DEVICE_CPU_CPU_STREAM_H_
#define EPS_GPU_WORKER_DEVICE_CPU_CPU_STREAM_H_

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/mutex.h"
#include "gpu_worker/device/device.h"

namespace eps::worker::cpu {

class CpuEvent : public Event {
 public:
  void Reset() override;
  // `status`: of the stream that records.
  void Record(const absl::Status& status);
  // Returns the recording stream's status, or CANCELLED once `closing`.
  absl::Status Wait(const std::atomic<bool>& closing);

 private:
  Mutex mu_;
  CondVar recorded_cv_;
  bool recorded_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

// A thread with a queue.
class CpuStream : public Stream {
 public:
  CpuStream();
  // What was not begun is skipped.
  ~CpuStream() override;

  void SetLabel(const WorkLabel* label) override { label_ = label; }
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

  // Runs `work` in stream order; skipped when the stream has failed.
  void Launch(std::function<void()> work);
  // Waits until nothing is queued, then clears the error.
  void Recover();
  // From now on queued work is skipped and waits return: the device goes away. Does not block.
  void Close();

 private:
  using Clock = std::chrono::steady_clock;
  struct Task {
    std::function<absl::Status()> run;  // skipped when the stream has failed ...
    CpuEvent* record = nullptr;         // ... but this is recorded in any case
    bool waits = false;                 // the time counts as waiting, for `cause`
    WaitCause cause = WaitCause::kNone;
    const WorkLabel* label = nullptr;  // in front of an error that `run` makes, and not of one that a wait passes on
  };
  struct Copied {
    int64_t num_bytes = 0;
    double seconds = 0;
  };
  void Enqueue(Task task);
  // On the stream's thread.
  void Copy(void* to, const void* from, size_t num_bytes);
  void Loop();
  void Finish(const Task& task, const absl::Status& status, TimeSpan span) ABSL_LOCKS_EXCLUDED(mu_);
  void KeepSpan(const Task& task, TimeSpan span, const Copied& copied) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const WorkLabel* label_ = nullptr;  // of who enqueues
  Copied copied_;                     // by the task that runs; the thread's

  std::atomic<bool> closing_{false};  // atomic, because events look at it without mu_

  Mutex mu_;
  CondVar work_, idle_;
  std::deque<Task> tasks_ ABSL_GUARDED_BY(mu_);
  bool running_ ABSL_GUARDED_BY(mu_) = false;  // a task has been taken and is not finished
  absl::Status status_ ABSL_GUARDED_BY(mu_);   // the first error
  StreamStats stats_ ABSL_GUARDED_BY(mu_);
  bool keeps_spans_ ABSL_GUARDED_BY(mu_) = false;

  std::thread thread_;  // last: it uses all of the above
};

// A device's three.
class CpuStreams {
 public:
  // As CpuStream, all at once, as one may be waiting for another. They are idle when it returns: what their work uses
  // may go.
  void Close();

  CpuStream& at(StreamId id) { return streams_[static_cast<size_t>(id)]; }
  // As Device::Recover.
  void Recover();

 private:
  std::array<CpuStream, kNumStreams> streams_;
};

}  // namespace eps::worker::cpu

#endif  // EPS_GPU_WORKER_DEVICE_CPU_CPU_STREAM_H_
