#ifndef EPS_SERVER_BOUNDED_END_H_
#define EPS_SERVER_BOUNDED_END_H_

#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"

namespace eps::server {

// While it lives, the process has `patience` to end by itself; then it is ended with `exit_code`, whatever its threads
// wait for. For a run that has failed: what is still being written of it is of no use, and a disk that hangs beneath it
// would keep the memory and the folder's lock from whoever starts it again.
//
// Threads: one
class BoundedEnd {
 public:
  BoundedEnd(int exit_code, absl::Duration patience);
  ~BoundedEnd();

 private:
  void Loop(int exit_code, absl::Duration patience);

  Mutex mu_;
  CondVar changed_;
  bool is_over_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace eps::server

#endif  // EPS_SERVER_BOUNDED_END_H_
