#ifndef EPS_GPU_WORKER_LINK_H_
#define EPS_GPU_WORKER_LINK_H_

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "gpu_worker/transport/control.h"
#include "gpu_worker/transport/transport.h"

namespace eps::worker {

// Of an error on the way to the daemon: the same again later may work, as the daemon is away, was restarted, or has given
// up this worker's lease. Not so where the run has failed (FAILED_PRECONDITION), or what came makes no sense.
bool MayAttachAnew(const absl::Status& status);

// The two connections of a session fail together: what breaks one cancels the other, so that nobody waits for a daemon
// that is gone. Keeps the first error.
//
// Threads: safe
class Link {
 public:
  // What is watched from now on; of a link that has failed, what was not watched before is cancelled at once.
  void Watch(Transport* transport, Control* control) ABSL_LOCKS_EXCLUDED(mu_);
  // Before what is watched is destroyed.
  void Unwatch() ABSL_LOCKS_EXCLUDED(mu_) { Watch(nullptr, nullptr); }

  void ControlFailed(absl::Status why) ABSL_LOCKS_EXCLUDED(mu_);
  // A daemon that this worker will not attach to anew is told why, as long as the control stream stands: it sees nothing
  // of it but a stream that ends.
  void TransportFailed(absl::Status why) ABSL_LOCKS_EXCLUDED(mu_);

  absl::Status failure() const ABSL_LOCKS_EXCLUDED(mu_);
  // The same, and waits for it for at most `timeout`: what breaks a connection may be seen elsewhere first.
  absl::Status AwaitFailure(absl::Duration timeout) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Fail(absl::Status why, bool say) ABSL_LOCKS_EXCLUDED(mu_);

  mutable Mutex mu_;
  mutable CondVar failed_;
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
  Transport* transport_ ABSL_GUARDED_BY(mu_) = nullptr;
  Control* control_ ABSL_GUARDED_BY(mu_) = nullptr;
};

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_LINK_H_
