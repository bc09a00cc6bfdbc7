#include "eps_server/checkpoint/load_on_threads.h"

#include <atomic>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/base/thread.h"
#include "common/model/model_spec.h"

namespace eps::server {

absl::Status LoadOnThreads(size_t count, int threads,
                           const std::function<absl::Status(size_t i, absl::Span<float> buffer)>& load) {
  std::atomic<size_t> next = 0;
  Mutex mu;
  absl::Status status;  // under mu
  const auto load_some = [&] {
    std::vector<float> buffer(kChunkElems);
    for (size_t i = next++; i < count; i = next++) {
      if (absl::Status loaded = load(i, absl::MakeSpan(buffer)); !loaded.ok()) {
        MutexLock lock(mu);
        if (status.ok()) status = std::move(loaded);
        next = count;
        return;
      }
    }
  };
  std::vector<std::thread> helpers;
  for (int t = 1; t < threads && static_cast<size_t>(t) < count; ++t) {
    absl::StatusOr<std::thread> helper = StartThread(load_some);
    if (!helper.ok()) break;  // those that there are do it all
    helpers.push_back(*std::move(helper));
  }
  load_some();
  for (std::thread& helper : helpers) helper.join();
  return status;
}

}  // namespace eps::server
