#include "eps_server/report/line_queue.h"

#include <utility>

#include "absl/status/statusor.h"
#include "common/base/thread.h"

namespace eps::server {

LineQueue::LineQueue(std::function<void(const std::string& line)> write, int64_t max_bytes)
    : write_(std::move(write)), max_bytes_(max_bytes) {
  if (absl::StatusOr<std::thread> thread = StartThread([this] { Loop(); }); thread.ok()) thread_ = *std::move(thread);
}

LineQueue::~LineQueue() {
  {
    MutexLock lock(mu_);
    shutdown_ = true;
  }
  changed_.NotifyAll();
  if (thread_.joinable()) thread_.join();
}

bool LineQueue::Add(std::string line) {
  if (!thread_.joinable()) {
    write_(line);
    return true;
  }
  const auto bytes = static_cast<int64_t>(line.size());
  {
    MutexLock lock(mu_);
    if (waiting_bytes_ + bytes > max_bytes_) return false;
    waiting_.push_back(std::move(line));
    waiting_bytes_ += bytes;
  }
  changed_.NotifyAll();
  return true;
}

void LineQueue::Loop() {
  for (;;) {
    const std::string* line = nullptr;
    {
      MutexLock lock(mu_);
      while (waiting_.empty() && !shutdown_) changed_.Wait(mu_);
      if (waiting_.empty()) return;
      line = &waiting_.front();  // stays where it is while others are added behind it
    }
    write_(*line);
    MutexLock lock(mu_);
    waiting_bytes_ -= static_cast<int64_t>(line->size());
    waiting_.pop_front();
  }
}

}  // namespace eps::server
