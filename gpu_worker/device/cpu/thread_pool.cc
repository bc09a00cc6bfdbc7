#include "gpu_worker/device/cpu/thread_pool.h"

#include <atomic>
#include <cstdint>
#include <cstdlib>

#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "gpu_worker/device/cpu/float_mode.h"

namespace eps::worker::cpu {

struct ThreadPool::Job {
  const TileFn tile;
  int helpers = 0;  // that work on it; guarded by the pool's mu_
};

void ThreadPool::RunParts(const Job& job, int index) {
  for (int i = 0; i < threads_; ++i) {
    Part& part = parts_[(index + i) % threads_];
    for (;;) {
      const int64_t tile = part.next.fetch_add(1, std::memory_order_relaxed);
      if (tile >= part.end) break;
      job.tile(tile, scratch(index));
    }
  }
}

bool ThreadPool::TilesLeft() const {
  for (const Part& part : parts_) {
    if (part.next.load(std::memory_order_relaxed) < part.end) return true;
  }
  return false;
}

ThreadPool::ThreadPool(int threads)
    : threads_(threads),
      scratch_(static_cast<float*>(std::aligned_alloc(4096, threads * kTileScratchFloats * sizeof(float))),
               [](float* scratch) { std::free(scratch); }),
      parts_(static_cast<size_t>(threads)) {
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
  if (threads_ == 1 || num_tiles <= 1) {
    for (int64_t i = 0; i < num_tiles; ++i) tile(i, scratch(0));
    return;
  }
  Job job{.tile = tile};
  {
    MutexLock lock(mu_);
    for (int i = 0; i < threads_; ++i) {
      parts_[i].next.store(num_tiles * i / threads_, std::memory_order_relaxed);
      parts_[i].end = num_tiles * (i + 1) / threads_;
    }
    job_ = &job;
    work_.NotifyAll();
  }
  RunParts(job, 0);
  MutexLock lock(mu_);
  job_ = nullptr;  // a helper that wakes up from now on finds nothing to do
  while (job.helpers > 0) done_.Wait(mu_);
}

void ThreadPool::HelperLoop(int index) {
  FlushDenormals();
  mu_.Lock();
  for (;;) {
    // A job whose tiles are all taken is left alone, or its helpers would spin until the last one
    // is done.
    while (!stopping_ && (job_ == nullptr || !TilesLeft())) work_.Wait(mu_);
    if (stopping_) break;
    Job* job = job_;
    ++job->helpers;
    mu_.Unlock();
    RunParts(*job, index);
    mu_.Lock();
    if (--job->helpers == 0) done_.NotifyAll();
  }
  mu_.Unlock();
}

}  // namespace eps::worker::cpu
