#ifndef EPS_SERVER_CHECKPOINT_PATIENT_THREAD_H_
#define EPS_SERVER_CHECKPOINT_PATIENT_THREAD_H_

#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"

namespace eps::server {

// Work in small pieces that nobody waits for, on a thread of low priority; as soon as somebody does wait, on the
// caller's own. So computing goes first where cores are few, and nothing ever waits for a thread that gets no core, but
// for the rest of one piece. What takes less than `allowance` of a core in all is done at once, on the caller's thread:
// it would disturb nobody.
//
// A thread of low priority may be stopped for long in the middle of a piece: a piece takes no lock that others need, and
// allocates little.
//
// Threads: Run from one at a time
class PatientThread {
 public:
  struct Options {
    std::function<bool()> is_awaited = nullptr;    // asked before each piece; unset: nobody ever waits
    std::function<bool()> is_cancelled = nullptr;  // asked before each piece; unset: never
    absl::Duration allowance = absl::ZeroDuration();
  };
  explicit PatientThread(Options options);
  ~PatientThread();

  bool is_awaited() const { return options_.is_awaited != nullptr && options_.is_awaited(); }
  // Runs `piece` and returns what it does. A piece should take some milliseconds.
  // Errors: CANCELLED, and the piece is not run
  absl::Status Run(const std::function<absl::Status()>& piece);

 private:
  void Loop();

  const Options options_;
  absl::Duration allowance_;  // what is left of it
  Mutex mu_;
  CondVar changed_;
  const std::function<absl::Status()>* piece_ ABSL_GUARDED_BY(mu_) = nullptr;  // null: none is to be run
  absl::Status result_ ABSL_GUARDED_BY(mu_);
  bool shutdown_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;  // last: it uses all of the above; none if the system allows no more: then nothing is patient
};

}  // namespace eps::server

#endif  // EPS_SERVER_CHECKPOINT_PATIENT_THREAD_H_
