#include "gpu_worker/device/cpu/thread_pool.h"

#include <atomic>
#include <cstdint>
#include <cstdlib>

#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "gpu_worker/device/cpu/float_mode.h"

namespace eps::worker::cpu {

struct ThreadPool::Job {
  Job(int64_t num_tiles_in, TileFn tile_in) : num_tiles(num_tiles_in), tile(tile_in) {}

  void Run(float* scratch) {
    for (;;) {
      const int64_t index = next.fetch_add(1, std::memory_order_relaxed);
      if (index >= num_tiles) return;
      tile(index, scratch);
    }
  }

  const int64_t num_tiles;
  const TileFn tile;
  std::atomic<int64_t> next{0};  // the first tile that nobody took yet
  int helpers = 0;               // that work on it; guarded by the pool's mu_
};

ThreadPool::ThreadPool(int threads)
    : threads_(threads),
      scratch_(static_cast<float*>(std::aligned_alloc(4096, threads * kTileScratchFloats * sizeof(float))),
               [](float* scratch) { std::free(scratch); }) {
  EPS_CHECK(threads >= 1 && scratch_ != nullptr);
  for (int i = 1; i < threads; ++i) helpers_.emplace_back([this, i] { HelperLoop(i); });
}

ThreadPool::~ThreadPool() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
    work_.NotifyAll();
  }
  for (std::thread& helper : helpers_) helper.join();
}

void ThreadPool::ParallelFor(int64_t num_tiles, TileFn tile) {
  Job job(num_tiles, tile);
  const bool shared = threads_ > 1 && num_tiles > 1;
  if (shared) {
    MutexLock lock(mu_);
    job_ = &job;
    work_.NotifyAll();
  }
  job.Run(scratch(0));
  if (shared) {
    MutexLock lock(mu_);
    job_ = nullptr;  // a helper that wakes up from now on finds nothing to do
    while (job.helpers > 0) done_.Wait(mu_);
  }
}

void ThreadPool::HelperLoop(int index) {
  FlushDenormals();
  mu_.Lock();
  for (;;) {
    // A job whose tiles are all taken is left alone, or its helpers would spin until the last one is done.
    while (!stopping_ && (job_ == nullptr || job_->next.load(std::memory_order_relaxed) >= job_->num_tiles)) {
      work_.Wait(mu_);
    }
    if (stopping_) break;
    Job* job = job_;
    ++job->helpers;
    mu_.Unlock();
    job->Run(scratch(index));
    mu_.Lock();
    if (--job->helpers == 0) done_.NotifyAll();
  }
  mu_.Unlock();
}

}  // namespace eps::worker::cpu
