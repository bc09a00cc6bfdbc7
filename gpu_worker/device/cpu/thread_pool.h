#ifndef EPS_GPU_WORKER_DEVICE_CPU_THREAD_POOL_H_
#define EPS_GPU_WORKER_DEVICE_CPU_THREAD_POOL_H_

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "common/base/mutex.h"
#include "gpu_worker/device/cpu/host_arena.h"

namespace eps::worker::cpu {

// What a thread may scribble on while it computes a tile: enough for a product's operands, packed, the largest user.
inline constexpr int64_t kTileScratchFloats = 256 * 1024;  // 1 MiB; see matmul.cc and attention.cc
// What all threads' scratch takes: whole huge pages.
int64_t TileScratchBytes(int threads);

// A fixed set of threads that computes the tiles of one kernel at a time. Thread i begins with the
// i-th part of the tiles, so that what it wrote in one kernel is still in its cache when it reads
// it in the next, and then takes over what others have left. So which thread computes a tile is
// left to chance; as tiles do not depend on each other nor on the number of threads, the bits do
// not either.
//
// Not oneTBB's: nothing here nests, the caller is one of the threads, and a late helper is not
// waited for, so that a small kernel costs no wake-up. After a job helpers look out for the next one
// for 0.3 ms before they sleep, and a caller as long for its helpers: their cores count as busy
// meanwhile. The helpers flush denormals; the caller, a stream's thread, does so itself.
//
// Threads: ParallelFor from one thread at a time
class ThreadPool {
 public:
  // `threads` >= 1, the caller of ParallelFor included. scratch: of TileScratchBytes(threads)
  ThreadPool(int threads, HostArena scratch);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // `scratch`: kTileScratchFloats of the computing thread, 64-byte aligned, of any content.
  using TileFn = absl::FunctionRef<void(int64_t tile, float* scratch)>;
  // Runs tile(0) ... tile(num_tiles - 1), each once, and returns when all are done.
  void ParallelFor(int64_t num_tiles, TileFn tile);

  int threads() const { return threads_; }

 private:
  struct Job;
  // A thread's part of the tiles. A cache line of its own, as all threads count here.
  struct alignas(64) Part {
    std::atomic<int64_t> next{0};  // the first that nobody took yet; atomic, because others take over
    int64_t end = 0;
  };
  void HelperLoop(int index);
  void RunParts(const Job& job, int index);
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);  // tiles that nobody took yet
  float* scratch(int index) { return reinterpret_cast<float*>(scratch_.start()) + index * kTileScratchFloats; }

  // Fixed after construction.
  const int threads_;
  const HostArena scratch_;
  // Set by ParallelFor while no helper works, then shared through mu_.
  std::vector<Part> parts_;

  Mutex mu_;
  CondVar work_, done_;
  Job* job_ ABSL_GUARDED_BY(mu_) = nullptr;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  // Of the helpers, to a job or to stop. Changes under mu_; atomic, as those that spin look without it.
  std::atomic<int64_t> num_calls_{0};

  std::vector<std::thread> helpers_;  // last: they use all of the above
};

}  // namespace eps::worker::cpu

#endif  // EPS_GPU_WORKER_DEVICE_CPU_THREAD_POOL_H_
