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
// Threads: Run from one at a time
class PatientThread {
 public:
  // `is_awaited` is asked before each piece. With it unset, nobody ever waits.
  PatientThread(std::function<bool()> is_awaited, absl::Duration allowance);
  ~PatientThread();

  bool is_awaited() const { return is_awaited_ != nullptr && is_awaited_(); }
  // Runs `piece` and returns what it does. A piece should take some milliseconds.
  absl::Status Run(const std::function<absl::Status()>& piece);

 private:
  void Loop();

  const std::function<bool()> is_awaited_;
  absl::Duration allowance_;  // what is left of it
  Mutex mu_;
  CondVar changed_;
  const std::function<absl::Status()>* piece_ ABSL_GUARDED_BY(mu_) = nullptr;  // null: none is to be run
  absl::Status result_ ABSL_GUARDED_BY(mu_);
  bool shutdown_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace eps::server

#endif  // EPS_SERVER_CHECKPOINT_PATIENT_THREAD_H_
