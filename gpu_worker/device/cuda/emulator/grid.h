#ifndef EPS_GPU_WORKER_DEVICE_CUDA_EMULATOR_GRID_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_EMULATOR_GRID_H_

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>

#include "gpu_worker/device/cuda/launch.h"

// As much of CUDA's language as our kernels use, on the processor: their sources run in tests where there is no GPU.
// Each thread of a block has a fiber, and runs until it waits in a barrier or a warp's exchange: then the next of its warp
// does, as long as one of these may, and then the next warp's. Nothing is in lockstep, so a kernel that forgets a barrier
// gives other results in the other order of threads.
namespace eps::worker::cuda {

// Threads of a block, and blocks of a grid, one after another from the first, or from the last.
enum class GridOrder { kForward, kBackward };

// Threads: one, from the first Run to the end: the sanitizers hold what fibers have on their stacks for that thread's
class GridRunner {
 public:
  explicit GridRunner(GridOrder order);
  ~GridRunner();

  // Runs `body` for every thread of the grid, on the calling thread. Dynamic shared memory is full of NaN before each
  // block. A block in which threads wait for others that have returned, or that wait elsewhere, ends the program by
  // EPS_CHECK.
  void Run(const LaunchShape& shape, const std::function<void()>& body);

  class Block;  // in grid.cc

 private:
  const GridOrder order_;
  std::unique_ptr<Block> block_;
};

struct Index3 {
  unsigned x = 0, y = 0, z = 0;
};

namespace emulator {

void* DynamicSharedMemory();
void SyncThreads();
bool SyncThreadsOr(bool value);
// What lane `from` of the warp gave to this call, in which all of its lanes take part.
uint64_t Exchange(uint64_t value, unsigned from);
uint32_t Ballot(bool value);

template <typename T>
T ExchangeAs(T value, unsigned from) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = Exchange(bits, from);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

}  // namespace emulator

inline constexpr unsigned kWarpMask = 0xFFFFFFFF;  // of every exchange: warps are whole

}  // namespace eps::worker::cuda

// CUDA's own names, so that kernels read as any others.
// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming)
extern constinit thread_local eps::worker::cuda::Index3 threadIdx, blockIdx, blockDim, gridDim;

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __shared__ static thread_local  // blocks run one after another

inline void __syncthreads() { eps::worker::cuda::emulator::SyncThreads(); }
inline int __syncthreads_or(int value) { return eps::worker::cuda::emulator::SyncThreadsOr(value != 0); }
inline unsigned __ballot_sync(unsigned, int value) { return eps::worker::cuda::emulator::Ballot(value != 0); }
template <typename T>
T __shfl_sync(unsigned, T value, int from) {
  return eps::worker::cuda::emulator::ExchangeAs(value, static_cast<unsigned>(from) % 32);
}
template <typename T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  return eps::worker::cuda::emulator::ExchangeAs(value, (threadIdx.x % 32) ^ static_cast<unsigned>(mask));
}
inline void __syncwarp() { eps::worker::cuda::emulator::Ballot(false); }
inline int __ffs(int value) { return std::countr_zero(static_cast<unsigned>(value)) + (value == 0 ? -31 : 1); }
inline int __popc(unsigned value) { return std::popcount(value); }
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_EMULATOR_GRID_H_
