#ifndef EPS_SERVER_OPTIMIZER_TASK_QUEUE_H_
#define EPS_SERVER_OPTIMIZER_TASK_QUEUE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "common/base/mutex.h"

namespace eps::server {

// Runs tasks on oneTBB threads, denormals flushed. Tasks start in the order they were pushed, which
// oneTBB alone does not promise: what is pulled first is to be updated first.
//
// Threads: safe. Tasks may push.
class TaskQueue {
 public:
  explicit TaskQueue(int threads);
  // Drops what has not started and waits for the rest.
  ~TaskQueue();

  void Push(std::function<void()> task);
  // Drops what has not started, now and later.
  void Close();

 private:
  struct Arena;  // keeps oneTBB's headers out of this one
  struct Ticket;
  void RunFirst();

  Mutex mu_;
  CondVar idle_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mu_);
  int64_t tickets_ ABSL_GUARDED_BY(mu_) = 0;  // calls of RunFirst that oneTBB owes
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  std::unique_ptr<Arena> arena_;
};

}  // namespace eps::server

#endif  // EPS_SERVER_OPTIMIZER_TASK_QUEUE_H_
