#include "gpu_worker/device/cpu/thread_pool.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <utility>

#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "gpu_worker/device/cpu/float_mode.h"
#include "gpu_worker/device/cpu/host_arena.h"

namespace eps::worker::cpu {

namespace {

// A thread that sleeps takes some 30 us to be back where the machine is virtual, and a step has hundreds of kernels of a
// millisecond. Two tiles of 100 us each, on two cores of a virtual Xeon, 23 Nov 2026: 166 us without, 101 us with it; steps
// are 1 to 5% shorter, the less the longer their kernels are, with 30 us as with 3 ms.
constexpr std::chrono::microseconds kSpin{300};

// Until it happens, or for as long as it is worth it. The core is offered to others all the while.
template <typename Happened>
void Spin(const Happened& happened) {
  const auto end = std::chrono::steady_clock::now() + kSpin;
  while (!happened() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
}

}  // namespace

struct ThreadPool::Job {
  const TileFn tile;
  std::atomic<int> helpers{0};  // that work on it; counted under the pool's mu_
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

bool ThreadPool::HasWork() const {
  if (job_ == nullptr) return false;
  for (const Part& part : parts_) {
    if (part.next.load(std::memory_order_relaxed) < part.end) return true;
  }
  return false;
}

int64_t TileScratchBytes(int threads) {
  EPS_CHECK(threads >= 1);
  const int64_t num_bytes = threads * kTileScratchFloats * int64_t{sizeof(float)};
  return (num_bytes + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
}

ThreadPool::ThreadPool(int threads, HostArena scratch)
    : threads_(threads), scratch_(std::move(scratch)), parts_(static_cast<size_t>(threads)) {
  for (int i = 1; i < threads; ++i) helpers_.emplace_back([this, i] { HelperLoop(i); });
}

ThreadPool::~ThreadPool() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
    ++num_calls_;
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
    ++num_calls_;
    work_.NotifyAll();
  }
  RunParts(job, 0);
  {
    MutexLock lock(mu_);
    job_ = nullptr;  // a helper that wakes up from now on finds nothing to do
  }
  Spin([&] { return job.helpers == 0; });
  MutexLock lock(mu_);
  while (job.helpers > 0) done_.Wait(mu_);
}

void ThreadPool::HelperLoop(int index) {
  FlushDenormals();
  mu_.Lock();
  for (;;) {
    // A job whose tiles are all taken is left alone.
    while (!stopping_ && !HasWork()) {
      const int64_t seen = num_calls_;
      mu_.Unlock();
      Spin([&] { return num_calls_ != seen; });
      mu_.Lock();
      while (num_calls_ == seen) work_.Wait(mu_);
    }
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
