#ifndef EPS_GPU_WORKER_DEVICE_CUDA_ROW_PACKS_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_ROW_PACKS_H_

#include <algorithm>
#include <cstdint>

#include "gpu_worker/device/cuda/act_dispatch.h"
#include "gpu_worker/device/cuda/device_code.h"
#include "gpu_worker/device/cuda/simt.h"

// Rows that are held in registers: what the norms share.
namespace eps::worker::cuda {

inline constexpr int kMaxThreads = 1024;

// Of a block that computes a row of C elements.
inline int ThreadsOfRow(int64_t C) {
  return static_cast<int>(std::min<int64_t>(kMaxThreads, CeilDiv(CeilDiv(C, kPack), kWarpSize) * kWarpSize));
}

// Who computes a row together: a block, or a warp of one.
struct BlockTeam {
  static __device__ __forceinline__ int64_t Row() { return blockIdx.x; }
  static __device__ __forceinline__ unsigned Thread() { return threadIdx.x; }
  static __device__ __forceinline__ unsigned Threads() { return blockDim.x; }
  static __device__ __forceinline__ float Sum(float x) { return BlockSum(x); }
};
struct WarpTeam {
  static __device__ __forceinline__ int64_t Row() {
    return static_cast<int64_t>(blockIdx.x) * (blockDim.x / kWarpSize) + threadIdx.x / kWarpSize;
  }
  static __device__ __forceinline__ unsigned Thread() { return threadIdx.x % kWarpSize; }
  static __device__ __forceinline__ unsigned Threads() { return kWarpSize; }
  static __device__ __forceinline__ float Sum(float x) { return WarpSum(x); }
};

// How rows of one width, alignment and dtype are computed: thread t of a team holds packs t, t + Threads(), ... of the
// row, kPacks of them.
template <typename Act, bool kWhole, int kCount, typename RowTeam>
struct RowCode {
  using T = Act;
  using Team = RowTeam;
  static constexpr bool kVector = kWhole;
  static constexpr int kPacks = kCount;
  // Of loops over a thread's packs: EPS_UNROLL_PACKS. What registers cannot hold anyhow is rolled, and in local memory.
  static constexpr int kUnroll = kPacks <= 4 ? kPacks : 1;
};

template <int kPacks>
struct RowPacks {
  float value[kPacks][kPack];
};

// The first column of the calling thread's pack p.
template <typename Team>
__device__ __forceinline__ int64_t Column(int p) {
  return (Team::Thread() + static_cast<int64_t>(p) * Team::Threads()) * kPack;
}

template <typename Code, typename T = typename Code::T>
__device__ __forceinline__ RowPacks<Code::kPacks> LoadRow(const T* row, int64_t C) {
  RowPacks<Code::kPacks> packs;
  EPS_UNROLL_PACKS
  for (int p = 0; p < Code::kPacks; ++p) {
    LoadPack<Code::kVector>(row, Column<typename Code::Team>(p), C, packs.value[p]);
  }
  return packs;
}

// fn(RowCode) for rows of C elements, each computed by a block of ThreadsOfRow(C). Rows that are no multiple of a pack,
// and the widest, are rare: not worth kernels of their own.
template <typename T, bool kVector, typename Fn>
void ForBlockRow(int64_t C, const Fn& fn) {
  const int64_t packs = CeilDiv(CeilDiv(C, kPack), ThreadsOfRow(C));
  if (packs > 2) return fn(RowCode<T, false, 8, BlockTeam>());
  if constexpr (kVector) {
    if (packs <= 1) return fn(RowCode<T, true, 1, BlockTeam>());
  }
  fn(RowCode<T, kVector, 2, BlockTeam>());
}

}  // namespace eps::worker::cuda

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_ROW_PACKS_H_
