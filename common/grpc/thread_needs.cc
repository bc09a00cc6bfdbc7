#include "common/grpc/thread_needs.h"

#include <algorithm>
#include <thread>

namespace eps {
namespace {

// Executors, timers and the resolver, and pollers by the number of cores: gRPC 1.51 has 8 of them on 2 cores.
int GrpcThreads() { return 8 + static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1u, 16u)); }

}  // namespace

int ClientThreads() { return GrpcThreads(); }

// Calls, coordinator, checkpoints, pages, signals, and shared memory with a few workers.
int DaemonThreads(int optimizer_threads) { return GrpcThreads() + optimizer_threads + 12; }

// Streams, control, transport, pages.
int WorkerThreads(int compute_threads) { return GrpcThreads() + compute_threads + 8; }

}  // namespace eps
