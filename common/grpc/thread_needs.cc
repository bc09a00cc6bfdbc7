#include "common/grpc/thread_needs.h"

#include <algorithm>
#include <thread>

#include "common/base/control_groups.h"

namespace eps {
namespace {

// Executors, timers and the resolver, and pollers by the number of cores: gRPC 1.51 has 8 of them on 2 cores.
int GrpcThreads() { return 8 + std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, 16); }

}  // namespace

int ClientThreads() { return GrpcThreads(); }

// Calls, coordinator, checkpoints, three files that grow, pages, signals, keys, and shared memory with a few workers of one
// copier. More copiers are counted for as many workers as a host has GPUs: where no more threads start, a worker has fewer.
int DaemonThreads(int optimizer_threads, int workers) {
  return GrpcThreads() + optimizer_threads + 16 + std::min(workers, 8) * (CopierThreads(optimizer_threads) - 1);
}

int CopierThreads(int optimizer_threads) { return std::clamp(optimizer_threads / 4, 1, 8); }

// Streams, control, transport, pages.
int WorkerThreads(int compute_threads) { return GrpcThreads() + compute_threads + 8; }

int RunThreads(int workers, int compute_threads) {
  const int cores = UsableCores();
  const int of_workers = workers * (1 + WorkerThreads(compute_threads));
  return std::min(1024, ClientThreads() + 1 + DaemonThreads(cores, workers) + of_workers);
}

}  // namespace eps
