#include "common/base/parallel_for.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/control_groups.h"
#include "common/base/mutex.h"
#include "common/base/thread.h"

namespace eps {

void ParallelFor(size_t count, const std::function<void(size_t)>& work, const std::function<void(size_t)>& on_done) {
  std::atomic<size_t> next = 0;
  Mutex mu;
  size_t done = 0;
  const auto run = [&] {
    for (size_t i = next++; i < count; i = next++) {
      work(i);
      MutexLock lock(mu);  // held across the call, so that the numbers come in their order
      ++done;
      if (on_done) on_done(done);
    }
  };
  const size_t most = std::min(count, static_cast<size_t>(UsableCores()));
  std::vector<std::thread> others;
  while (others.size() + 1 < most) {
    absl::StatusOr<std::thread> thread = StartThread(run);
    if (!thread.ok()) break;
    others.push_back(*std::move(thread));
  }
  run();
  for (std::thread& thread : others) thread.join();
}

}  // namespace eps
