#ifndef EPS_SERVER_STEP_CHECKPOINT_WRITER_H_
#define EPS_SERVER_STEP_CHECKPOINT_WRITER_H_

#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "eps_server/checkpoint/checkpointer.h"
#include "eps_server/store/store.h"

namespace eps::server {

// A thread that writes checkpoints, one after the other, while training goes on.
//
// Threads: Push from any.
class CheckpointWriter {
 public:
  struct Job {
    RunState state;
    std::vector<BlobId> order;                              // in which blobs are captured: as they are updated next
    std::function<void(BlobId)> captured;                   // once per blob of `order`, whatever becomes of the write
    std::function<bool()> is_awaited;                       // Checkpointer::Capture's
    std::function<void(absl::StatusOr<std::string>)> done;  // the path, or CANCELLED; after every `captured`
  };

  // Both outlive the writer.
  CheckpointWriter(Checkpointer* checkpointer, const Store* store);
  // Cancels the write in progress, and waits for it; jobs behind it are dropped.
  ~CheckpointWriter();

  void Push(Job job);

 private:
  void Loop();
  bool is_shut_down();
  void Write(const Job& job);

  Checkpointer* const checkpointer_;
  const Store* const store_;
  Mutex mu_;
  CondVar wake_;
  std::deque<Job> jobs_ ABSL_GUARDED_BY(mu_);
  bool shutdown_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace eps::server

#endif  // EPS_SERVER_STEP_CHECKPOINT_WRITER_H_
