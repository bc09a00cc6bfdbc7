#ifndef EPS_COMMON_BASE_LONG_WORK_H_
#define EPS_COMMON_BASE_LONG_WORK_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/base/mutex.h"

namespace eps {

// What a process does at its start that may take minutes, one thing after the other, and how far it is: for those who wait.
// Each begins with a line of the log, and while its bytes come in there is another one every ten seconds.
//
// Threads: safe
class LongWork {
 public:
  struct View {
    std::string what;         // "reading the checkpoint"; "": nothing was begun yet
    int64_t done_bytes = 0;   // of it
    int64_t total_bytes = 0;  // 0: not known
    double seconds = 0;       // since it began
  };

  // From now on it is `what`, of so many bytes; 0: not known.
  void Begin(std::string what, int64_t total_bytes = 0) ABSL_LOCKS_EXCLUDED(mu_);
  // So many more of its bytes are done. Errors: CANCELLED nobody waits for it any more: it is to be given up
  absl::Status Add(int64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);
  // So many are done, of so many. Errors: as above
  absl::Status Reach(int64_t done_bytes, int64_t total_bytes) ABSL_LOCKS_EXCLUDED(mu_);
  // From now on both say so, whatever was begun.
  void Cancel() { is_cancelled_ = true; }
  // Whether somebody said so: for who can ask, and has no bytes to tell of.
  const std::atomic<bool>& is_cancelled() const { return is_cancelled_; }

  View Look() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // After a change: logs it, without the lock, where that is due. Errors: Add's
  absl::Status GoOn() ABSL_LOCKS_EXCLUDED(mu_);

  mutable Mutex mu_;
  View view_ ABSL_GUARDED_BY(mu_);  // all but its seconds
  std::chrono::steady_clock::time_point begun_ ABSL_GUARDED_BY(mu_);
  std::chrono::steady_clock::time_point logged_ ABSL_GUARDED_BY(mu_);
  std::atomic<bool> is_cancelled_ = false;  // atomic, because a signal's thread must never wait
};

// Add, where somebody looks; null: nobody does.
inline absl::Status AddTo(LongWork* work, int64_t bytes) {
  return work == nullptr ? absl::OkStatus() : work->Add(bytes);
}

// "reading the checkpoint, 3.1 GiB of 12.0 GiB"; "nothing yet" where nothing was begun.
std::string ToText(const LongWork::View& view);

}  // namespace eps

#endif  // EPS_COMMON_BASE_LONG_WORK_H_
