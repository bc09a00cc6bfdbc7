#ifndef EPS_GPU_WORKER_DEVICE_CUDA_ROW_WALK_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_ROW_WALK_H_

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <initializer_list>

#include "common/tensor/dtype.h"
#include "gpu_worker/device/cuda/act_dispatch.h"
#include "gpu_worker/device/cuda/cuda_kernel_sizes.h"
#include "gpu_worker/device/cuda/device_code.h"
#include "gpu_worker/device/cuda/launch.h"
#include "gpu_worker/device/cuda/row_packs.h"
#include "gpu_worker/device/cuda/simt.h"
#include "gpu_worker/device/cuda/tile_sums.h"

// Blocks that walk over the rows of a tile (WalkTiling), compute something of each row, and sum something over the
// rows for each column: what the norms' backward does in one pass. A thread has the same columns of every row, so it
// keeps their sums in registers.
namespace eps::worker::cuda {

// What a block's teams are: itself, or its warps. Team t takes each Teams()-th row of the tile from its t-th on.
// kWide: rows of more than a pack for each thread, which are then kMaxThreads, or as many as have a first one.
template <bool kWide>
struct BlockWalk : BlockTeam {
  static constexpr int kMaxThreads = 512;  // so that each has 128 registers
  static LaunchShape Shape(int64_t C, int64_t num_tiles) {
    return {.blocks_x = num_tiles, .threads = std::min(kMaxThreads, ThreadsOfRow(C))};
  }
  static __device__ __forceinline__ unsigned Threads() { return kWide ? kMaxThreads : blockDim.x; }
  static __device__ __forceinline__ unsigned Team() { return 0; }
  static __device__ __forceinline__ unsigned Teams() { return 1; }
  // Both over the team: as Sum, for one wait.
  static __device__ __forceinline__ void SumBoth(float& a, float& b) {
    __shared__ float warp_sums[2][kWarpSize];
    a = WarpSum(a);
    b = WarpSum(b);
    __syncthreads();  // the last call's sums have been read
    if (threadIdx.x % kWarpSize == 0) {
      warp_sums[0][threadIdx.x / kWarpSize] = a;
      warp_sums[1][threadIdx.x / kWarpSize] = b;
    }
    __syncthreads();
    a = warp_sums[0][0];
    b = warp_sums[1][0];
    for (unsigned warp = 1; warp < blockDim.x / kWarpSize; ++warp) {
      a += warp_sums[0][warp];
      b += warp_sums[1][warp];
    }
  }
  // out (C) = the sum of the teams' sums, in order. Every thread of the block calls it.
  template <typename Code>
  static __device__ __forceinline__ void Store(const RowPacks<Code::kPacks>& sums, int64_t C, float* out) {
    EPS_UNROLL_PACKS
    for (int p = 0; p < Code::kPacks; ++p) StorePack<Code::kVector>(sums.value[p], out, Column<BlockWalk>(p), C);
  }
};
struct WarpWalk : WarpTeam {
  static constexpr int kMaxThreads = kTileWarps * kWarpSize;
  static LaunchShape Shape(int64_t, int64_t num_tiles) { return {.blocks_x = num_tiles, .threads = kMaxThreads}; }
  static __device__ __forceinline__ unsigned Team() { return threadIdx.x / kWarpSize; }
  static __device__ __forceinline__ unsigned Teams() { return kTileWarps; }
  static __device__ __forceinline__ void SumBoth(float& a, float& b) {
    a = WarpSum(a);
    b = WarpSum(b);
  }
  template <typename Code>
  static __device__ __forceinline__ void Store(const RowPacks<Code::kPacks>& sums, int64_t C, float* out) {
    EPS_UNROLL_PACKS
    for (int p = 0; p < Code::kPacks; ++p) {
      const int64_t first = int64_t{p} * kTileColumns;
      if (first < C) AddWarps(sums.value[p], C - first, out + first);
    }
  }
};

// A row as it lies in memory: in 16 bits it takes half of the registers. They are words, and Forget keeps what was
// made of them from staying in others until it is needed once more.
template <typename T, int kPacks>
struct RawRow {
  static constexpr int kWords = static_cast<int>(sizeof(Pack<T>) / sizeof(uint32_t));
  std::array<uint32_t, kWords> words[kPacks];

  __device__ __forceinline__ float At(int p, int i) const {
    if constexpr (sizeof(T) == sizeof(uint32_t)) return std::bit_cast<float>(words[p][i]);
    if constexpr (sizeof(T) < sizeof(uint32_t)) {
      return ToFloat(T{static_cast<uint16_t>(words[p][i / 2] >> (16 * (i % 2)))});
    }
  }
  __device__ __forceinline__ void Forget() {
#ifdef __CUDACC__
    EPS_UNROLL
    for (int p = 0; p < kPacks; ++p) {
      EPS_UNROLL
      for (int i = 0; i < kWords; ++i) asm volatile("" : "+r"(words[p][i]));
    }
#endif
  }
};

// How rows of one width, alignment and dtype are walked over.
template <typename Act, bool kWhole, int kCount, typename RowWalk>
struct WalkCode : RowCode<Act, kWhole, kCount, RowWalk> {
  using T = Act;
  using Walk = RowWalk;
  using Raw = RawRow<T, kCount>;
  // Whether there are registers for three rows beside the sums. Where not, what is needed again is loaded again, from
  // the multiprocessor's cache.
  static constexpr bool kHoldsRows = kCount < 3;

  static __device__ __forceinline__ void LoadPart(const T* row, int p, int64_t C, Raw& raw) {
    const int64_t at = Column<Walk>(p);
    Pack<T> pack = {};
    if (kWhole) {
      if (at < C) pack = *reinterpret_cast<const Pack<T>*>(row + at);
    } else {
      EPS_UNROLL
      for (int i = 0; i < kPack; ++i) {
        if (at + i < C) pack.element[i] = row[at + i];
      }
    }
    raw.words[p] = std::bit_cast<std::array<uint32_t, Raw::kWords>>(pack);
  }
  static __device__ __forceinline__ Raw Load(const T* row, int64_t C) {
    Raw raw;
    EPS_UNROLL
    for (int p = 0; p < kCount; ++p) LoadPart(row, p, C, raw);
    return raw;
  }
};

// fn(WalkCode) for rows that a block's warps, or the block, hold in so many packs a thread.
template <typename T, bool kVector, int kPacks, typename Fn>
void ForTeam(bool by_warps, const Fn& fn) {
  by_warps ? fn(WalkCode<T, kVector, kPacks, WarpWalk>()) : fn(WalkCode<T, kVector, kPacks, BlockWalk<(kPacks > 1)>>());
}

// fn(WalkCode) for rows of C elements. Which team takes a row depends on C alone: so do the bits. Rows that are no
// multiple of a pack, and the widest, are rare: not worth kernels of their own.
template <typename T, bool kVector, typename Fn>
void ForWidth(int64_t C, const Fn& fn) {
  const bool by_warps = C <= kMaxWarpRowColumns;
  const int64_t packs = CeilDiv(C, by_warps ? kTileColumns : BlockWalk<true>::kMaxThreads * kPack);
  if (packs > 4) return fn(WalkCode<T, false, 16, BlockWalk<true>>());
  if constexpr (kVector) {
    if (packs <= 1) return ForTeam<T, true, 1>(by_warps, fn);
    if (packs <= 2) return ForTeam<T, true, 2>(by_warps, fn);
    if (packs <= 3) return ForTeam<T, true, 3>(by_warps, fn);
  }
  ForTeam<T, kVector, 4>(by_warps, fn);
}

// The same, for rows that begin `step` elements apart or a multiple of that.
template <typename Fn>
void ForWalk(Dtype act, int64_t C, int64_t step, std::initializer_list<const void*> arrays, const Fn& fn) {
  ForAct(act, [&](auto type) {
    using T = typename decltype(type)::type;
    ForVector(step, arrays, [&](auto vector) { ForWidth<T, decltype(vector)::value>(C, fn); });
  });
}

}  // namespace eps::worker::cuda

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_ROW_WALK_H_
