#include "eps_server/optimizer/task_queue.h"

#include <utility>

#include "eps_server/optimizer/float_mode.h"
#include "oneapi/tbb/global_control.h"
#include "oneapi/tbb/task_arena.h"

namespace eps::server {

struct TaskQueue::Arena {
  explicit Arena(int threads)
      // Nobody waits inside the arena, so it needs `threads` workers of oneTBB's, one more than it
      // would start for that many threads; more than the machine has cores, if asked.
      : parallelism(tbb::global_control::max_allowed_parallelism, static_cast<size_t>(threads) + 1),
        arena(threads, /*reserved_for_masters=*/0) {}
  tbb::global_control parallelism;
  tbb::task_arena arena;
};

// What oneTBB runs: takes the first task from the queue. ThreadSanitizer cannot see what orders
// oneTBB's task object, in which `queue` lies, and would report its reading; the tasks themselves
// go through mu_ and are looked at.
struct TaskQueue::Ticket {
  TaskQueue* queue;
  __attribute__((no_sanitize("thread"))) void operator()() const { queue->RunFirst(); }
};

TaskQueue::TaskQueue(int threads) : arena_(std::make_unique<Arena>(threads)) {}

TaskQueue::~TaskQueue() { Finish(); }

void TaskQueue::Finish() {
  Close();
  MutexLock lock(mu_);
  while (tickets_ > 0) idle_.Wait(mu_);
}

void TaskQueue::Push(int64_t rank, std::function<void()> task) {
  {
    MutexLock lock(mu_);
    if (closed_) return;
    tasks_.emplace(rank, std::move(task));
    ++tickets_;
  }
  arena_->arena.enqueue(Ticket{this});
}

void TaskQueue::Close() {
  std::multimap<int64_t, std::function<void()>> dropped;  // destroyed without the lock
  MutexLock lock(mu_);
  closed_ = true;
  dropped.swap(tasks_);
}

void TaskQueue::RunFirst() {
  std::function<void()> task;
  {
    MutexLock lock(mu_);
    if (!tasks_.empty()) {
      task = std::move(tasks_.begin()->second);
      tasks_.erase(tasks_.begin());
    }
  }
  if (task) {
    const ScopedFlushDenormals flush;
    task();
    task = nullptr;
  }
  MutexLock lock(mu_);
  if (--tickets_ == 0) idle_.NotifyAll();
}

}  // namespace eps::server
