#ifndef EPS_GPU_WORKER_DEVICE_CUDA_ROW_PACKS_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_ROW_PACKS_H_

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

#include "gpu_worker/device/cuda/act_dispatch.h"
#include "gpu_worker/device/cuda/device_code.h"
#include "gpu_worker/device/cuda/launch.h"
#include "gpu_worker/device/cuda/simt.h"

// Rows that are held in registers: what the norms share, and the softmax in part.
namespace eps::worker::cuda {

// What a thread loads of a row before it computes anything: 64 bytes of 16-bit elements. So a multiprocessor's 1024
// threads, as many as have 64 registers each, wait for 64 KiB at once. An H200 wants some 25 KiB on their way to each:
// 4.2 TB/s for 0.8 us, by 132.
inline constexpr int kPacksAtOnce = 4;
inline constexpr int kWarpColumns = kPacksAtOnce * kWarpSize * kPack;  // of a row, by a warp at once

// Of those who have a row together.
inline constexpr int kMaxTeamThreads = 512;

// Of a block that computes a row of C elements.
inline int ThreadsOfRow(int64_t C) {
  return static_cast<int>(std::min<int64_t>(kMaxTeamThreads, CeilDiv(C, kWarpColumns) * kWarpSize));
}

// Who computes a row together: a block, or a warp of one.
struct BlockTeam {
  static constexpr int kMaxThreads = kMaxTeamThreads;
  static LaunchShape Shape(int64_t rows, int64_t C) { return {.blocks_x = rows, .threads = ThreadsOfRow(C)}; }
  static __device__ __forceinline__ int64_t Row() { return blockIdx.x; }
  static __device__ __forceinline__ unsigned Thread() { return threadIdx.x; }
  static __device__ __forceinline__ unsigned Threads() { return blockDim.x; }
  // A kernel's sums have numbers, and each is called for once: with memory of its own it is one wait.
  template <int kNumber>
  static __device__ __forceinline__ float Sum(float x) {
    __shared__ float warp_sums[kWarpSize];
    const unsigned lane = threadIdx.x % kWarpSize;
    x = WarpSum(x);
    if (lane == 0) warp_sums[threadIdx.x / kWarpSize] = x;
    __syncthreads();
    return WarpSum(lane < blockDim.x / kWarpSize ? warp_sums[lane] : 0.0f);
  }
};
struct WarpTeam {
  static constexpr int kRowsOfBlock = 8;
  static constexpr int kMaxThreads = kRowsOfBlock * kWarpSize;
  static LaunchShape Shape(int64_t rows, int64_t) {
    return {.blocks_x = CeilDiv(rows, kRowsOfBlock), .threads = kMaxThreads};
  }
  static __device__ __forceinline__ int64_t Row() {
    return static_cast<int64_t>(blockIdx.x) * kRowsOfBlock + threadIdx.x / kWarpSize;
  }
  static __device__ __forceinline__ unsigned Thread() { return threadIdx.x % kWarpSize; }
  static __device__ __forceinline__ unsigned Threads() { return kWarpSize; }
  template <int kNumber>
  static __device__ __forceinline__ float Sum(float x) {
    return WarpSum(x);
  }
};

// A pack as it lies in memory.
template <typename T>
using PackWords = std::array<uint32_t, sizeof(Pack<T>) / sizeof(uint32_t)>;

// Loaded as words, 16 bytes at once: what is made of a 16-bit element would wait for it there and then.
template <typename T>
__device__ __forceinline__ PackWords<T> WholeWords(const T* pack) {
  PackWords<T> words;
#ifdef __CUDACC__
  EPS_UNROLL
  for (int i = 0; i < static_cast<int>(words.size() / 4); ++i) {
    const uint4 four = reinterpret_cast<const uint4*>(pack)[i];
    words[4 * i] = four.x;
    words[4 * i + 1] = four.y;
    words[4 * i + 2] = four.z;
    words[4 * i + 3] = four.w;
  }
#else
  std::memcpy(words.data(), pack, sizeof(words));
#endif
  return words;
}

// Of elements [at, at + 8) of a row of C, 0 for those behind its end. With kVector rows are whole packs, and there
// is no branch, behind which they would have to be waited for.
template <bool kVector, typename T>
__device__ __forceinline__ PackWords<T> LoadWords(const T* row, int64_t at, int64_t C) {
  PackWords<T> words = {};
  if constexpr (kVector) {
    if (at < C) words = WholeWords(row + at);
  } else {
    Pack<T> pack = {};
    EPS_UNROLL
    for (int i = 0; i < kPack; ++i) {
      if (at + i < C) pack.element[i] = row[at + i];
    }
    words = std::bit_cast<PackWords<T>>(pack);
  }
  return words;
}

// The same way back.
template <bool kVector, typename T>
__device__ __forceinline__ void StoreWords(const float (&values)[kPack], T* row, int64_t at, int64_t C) {
  if constexpr (kVector) {
    Pack<T> pack;
    EPS_UNROLL
    for (int i = 0; i < kPack; i += 2) {
      const Pair<T> pair = PairFromFloats<T>(values[i], values[i + 1]);
      pack.element[i] = pair.first;
      pack.element[i + 1] = pair.second;
    }
    if (at < C) *reinterpret_cast<Pack<T>*>(row + at) = pack;
  } else {
    StorePack<false>(values, row, at, C);
  }
}

// Packs of a row as they lie in memory: in 16 bits they take half of the registers. They are words, and Forget keeps
// what was made of them from staying in others until it is needed once more.
template <typename T, int kPacks>
struct RawRow {
  PackWords<T> words[kPacks];

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
      for (int i = 0; i < static_cast<int>(sizeof(words[p]) / sizeof(uint32_t)); ++i) {
        asm volatile("" : "+r"(words[p][i]));
      }
    }
#endif
  }
};

// How rows of one width, alignment and dtype are computed: thread t of a team holds packs t, t + Threads(), ... of the
// row, kPacks of them.
template <typename Act, bool kWhole, int kCount, typename RowTeam>
struct RowCode {
  using T = Act;
  using Team = RowTeam;
  using Raw = RawRow<T, kCount>;
  static constexpr bool kVector = kWhole;
  static constexpr int kPacks = kCount;
  // Of the largest, on a multiprocessor: with 64 registers a thread, 128 in fp32 or where it loads single elements.
  static constexpr int kBlocks = (kVector && sizeof(T) == sizeof(uint16_t) ? 1024 : 512) / Team::kMaxThreads;
  // Of loops over a thread's packs: EPS_UNROLL_PACKS. What registers cannot hold anyhow is rolled, and in local memory.
  static constexpr int kUnroll = kPacks <= 4 ? kPacks : 1;
};

// The first column of the calling thread's pack p.
template <typename Team>
__device__ __forceinline__ int64_t Column(int p) {
  return (Team::Thread() + static_cast<int64_t>(p) * Team::Threads()) * kPack;
}

// Whether element `at` + i of a row of C is one, for a pack's first column `at`.
template <typename Code>
__device__ __forceinline__ bool InRow(int64_t at, int i, int64_t C) {
  return (Code::kVector ? at : at + i) < C;
}

template <typename Code, typename T = typename Code::T>
__device__ __forceinline__ typename Code::Raw LoadRow(const T* row, int64_t C) {
  typename Code::Raw raw;
  EPS_UNROLL_PACKS
  for (int p = 0; p < Code::kPacks; ++p) {
    raw.words[p] = LoadWords<Code::kVector>(row, Column<typename Code::Team>(p), C);
  }
  return raw;
}

// fn(RowCode) for rows of C elements: a warp's, if it can hold it, as it waits for no other; else a block's. Which one
// depends on C alone: so do the bits. Rows that are no multiple of a pack, and the widest, are rare: not worth kernels
// of their own.
template <typename T, bool kVector, typename Fn>
void ForTeamRow(int64_t C, const Fn& fn) {
  const int64_t packs = CeilDiv(C, int64_t{kPack} * (C <= kWarpColumns ? kWarpSize : ThreadsOfRow(C)));
  if (packs > kPacksAtOnce) return fn(RowCode<T, false, 16, BlockTeam>());
  if (C > kWarpColumns) return fn(RowCode<T, kVector, kPacksAtOnce, BlockTeam>());
  if (packs <= 1) return fn(RowCode<T, kVector, 1, WarpTeam>());
  if constexpr (kVector) {
    if (packs <= 2) return fn(RowCode<T, true, 2, WarpTeam>());
    if (packs <= 3) return fn(RowCode<T, true, 3, WarpTeam>());
  }
  fn(RowCode<T, kVector, kPacksAtOnce, WarpTeam>());
}

}  // namespace eps::worker::cuda

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_ROW_PACKS_H_
