#ifndef EPS_SERVER_REPORT_LINE_QUEUE_H_
#define EPS_SERVER_REPORT_LINE_QUEUE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "common/base/mutex.h"

namespace eps::server {

// Lines that a thread of its own writes, in their order, so that who adds one never waits for a disk that hangs. Where
// the system allows no thread, who adds a line writes it.
//
// Threads: one at a time; `write` is called on the queue's thread
class LineQueue {
 public:
  // No more than `max_bytes` of lines wait.
  LineQueue(std::function<void(const std::string& line)> write, int64_t max_bytes);
  // Waits until all that was added is written.
  ~LineQueue();
  LineQueue(const LineQueue&) = delete;
  LineQueue& operator=(const LineQueue&) = delete;

  // Whether there was room for it.
  [[nodiscard]] bool Add(std::string line) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Loop() ABSL_LOCKS_EXCLUDED(mu_);

  const std::function<void(const std::string& line)> write_;
  const int64_t max_bytes_;

  Mutex mu_;
  CondVar changed_;
  std::deque<std::string> waiting_ ABSL_GUARDED_BY(mu_);  // the first of them may be being written
  int64_t waiting_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  bool shutdown_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;  // last: it uses all of the above; none where the system allows no more
};

}  // namespace eps::server

#endif  // EPS_SERVER_REPORT_LINE_QUEUE_H_
