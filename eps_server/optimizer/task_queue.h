#ifndef EPS_SERVER_OPTIMIZER_TASK_QUEUE_H_
#define EPS_SERVER_OPTIMIZER_TASK_QUEUE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "common/base/mutex.h"

namespace eps::server {

// Runs tasks on oneTBB threads, denormals flushed. Of those that wait the one with the lowest rank starts first, of
// equal ones the one that was pushed first; neither of which oneTBB alone promises.
//
// Threads: safe. Tasks may push.
class TaskQueue {
 public:
  explicit TaskQueue(int threads);
  ~TaskQueue();

  void Push(int64_t rank, std::function<void()> task);
  // Drops what has not started, now and later.
  void Close();
  // The same, and waits for what runs.
  void Finish();

 private:
  struct Arena;  // keeps oneTBB's headers out of this one
  struct Ticket;
  void RunFirst();

  Mutex mu_;
  CondVar idle_;
  std::multimap<int64_t, std::function<void()>> tasks_ ABSL_GUARDED_BY(mu_);  // by rank; equal ones as they came
  int64_t tickets_ ABSL_GUARDED_BY(mu_) = 0;                                  // calls of RunFirst that oneTBB owes
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  std::unique_ptr<Arena> arena_;
};

}  // namespace eps::server

#endif  // EPS_SERVER_OPTIMIZER_TASK_QUEUE_H_
