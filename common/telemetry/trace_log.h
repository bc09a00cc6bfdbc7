#ifndef EPS_COMMON_TELEMETRY_TRACE_LOG_H_
#define EPS_COMMON_TELEMETRY_TRACE_LOG_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/mutex.h"

namespace eps {

// What one process does and when, in a file of its own, written as it happens: the Chrome trace format as an array, a line
// an event (docs/formats.md). A process that is killed leaves a file without the last bracket, which Perfetto and
// ParseTraceLog (trace_file.h) take as well. Full after so many events, what follows is left out, and the log says so.
//
// Threads: safe; lines are written some hundred at a time, by whoever adds the last of them
class TraceLog {
 public:
  using Time = std::chrono::steady_clock::time_point;

  struct Options {
    std::string path;              // an old file is replaced
    int64_t max_events = 250'000;  // some 40 MB
  };
  // Errors: the system's, naming the file
  static absl::StatusOr<std::unique_ptr<TraceLog>> Create(Options options);
  ~TraceLog();
  TraceLog(const TraceLog&) = delete;
  TraceLog& operator=(const TraceLog&) = delete;

  // "daemon", "worker 2": what the file's tracks stand under.
  void NameProcess(absl::string_view name) ABSL_LOCKS_EXCLUDED(mu_);
  // Times of other hosts' traces are of another clock: what is added to ours to have theirs. 0 unless said.
  void SetClockOffset(std::chrono::nanoseconds offset);

  // A line of the picture, below those before it; where there is one of this name, that one. What a process does once more,
  // as a worker that attaches anew, goes on in its line.
  int AddTrack(absl::string_view name) ABSL_LOCKS_EXCLUDED(mu_);
  // One for each thread that asks: "NAME 1", "NAME 2".
  int TrackOfThisThread(absl::string_view name) ABSL_LOCKS_EXCLUDED(mu_);

  // Something took from `begin` to `end`. On one track they follow one another, or lie within each other. Where it copied
  // anything: how much, and how long the copies alone took.
  void Add(int track, absl::string_view name, Time begin, Time end, absl::string_view detail = "",
           int64_t copied_bytes = 0, double copy_seconds = 0) ABSL_LOCKS_EXCLUDED(mu_);

  // What has come so far is in the file.
  void Flush() ABSL_LOCKS_EXCLUDED(mu_);
  // Of the first write that failed; nothing is written after it.
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  TraceLog(Options options, std::FILE* file);
  void Name(absl::string_view what, int track, absl::string_view name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  int NewTrack(absl::string_view name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Write(const std::string& line) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Says so once.
  void Fail(int error_number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Options options_;
  // Atomic, because lines are made without the lock.
  std::atomic<int64_t> offset_nanos_ = 0;
  std::atomic<bool> is_full_ = false;

  mutable Mutex mu_;
  std::FILE* const file_ ABSL_PT_GUARDED_BY(mu_);
  std::map<std::string, int> named_tracks_ ABSL_GUARDED_BY(mu_);
  std::map<std::thread::id, int> thread_tracks_ ABSL_GUARDED_BY(mu_);
  int tracks_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t events_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace eps

#endif  // EPS_COMMON_TELEMETRY_TRACE_LOG_H_
