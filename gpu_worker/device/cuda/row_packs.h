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

// Thread t of a team holds packs t, t + Threads(), ... of the row: kPacks of them.
template <int kPacks>
struct RowPacks {
  float value[kPacks][kPack];
};

// The first column of the calling thread's pack p.
template <typename Team = BlockTeam>
__device__ __forceinline__ int64_t Column(int p) {
  return (Team::Thread() + static_cast<int64_t>(p) * Team::Threads()) * kPack;
}

template <bool kVector, int kPacks, typename Team = BlockTeam, typename T>
__device__ __forceinline__ RowPacks<kPacks> LoadRow(const T* row, int64_t C) {
  RowPacks<kPacks> packs;
  EPS_UNROLL
  for (int p = 0; p < kPacks; ++p) LoadPack<kVector>(row, Column<Team>(p), C, packs.value[p]);
  return packs;
}

template <int kCount>
struct Packs {
  static constexpr int value = kCount;
};

// fn(Packs<what each thread of a block of ThreadsOfRow(C) holds at most>); `vector` is ForVector's flag.
template <typename Vector, typename Fn>
void ForPacks(int64_t C, Vector, const Fn& fn) {
  const int64_t packs = CeilDiv(CeilDiv(C, kPack), ThreadsOfRow(C));
  // Rows that are no multiple of a pack, and the widest, are rare: not worth kernels of their own.
  if constexpr (!Vector::value) {
    fn(Packs<8>());
  } else if (packs <= 1) {
    fn(Packs<1>());
  } else if (packs <= 2) {
    fn(Packs<2>());
  } else {
    fn(Packs<8>());
  }
}

}  // namespace eps::worker::cuda

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_ROW_PACKS_H_
