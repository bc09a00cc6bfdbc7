#ifndef EPS_GPU_WORKER_DEVICE_CUDA_ROW_WALK_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_ROW_WALK_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <initializer_list>

#include "common/tensor/dtype.h"
#include "gpu_worker/device/cuda/act_dispatch.h"
#include "gpu_worker/device/cuda/cuda_kernel_sizes.h"
#include "gpu_worker/device/cuda/device_code.h"
#include "gpu_worker/device/cuda/launch.h"
#include "gpu_worker/device/cuda/row_packs.h"
#include "gpu_worker/device/cuda/simt.h"

// Blocks that walk over the rows of a tile (WalkTiling), compute something of each row, and sum something over the
// rows for each column: what the norms' backward does in one pass. A thread has the same columns of every row, so it
// keeps their sums in registers; rows come ahead of their turn, into shared memory.
namespace eps::worker::cuda {

// Sums, of a thread's columns.
template <int kPacks>
struct RowPacks {
  float value[kPacks][kPack];
};

// A block's teams, each with a row at a time: its first thread has the row's first pack, and so on, again and again
// where a row has more packs than the team threads. Team t takes each teams()-th row of the tile from its t-th on, and
// all go from row to row together. kWide: teams of threads with more than a pack; such a row is all that a block has.
template <bool kWide>
class TeamWalk {
 public:
  static constexpr int kMaxThreads = kWide ? kMaxTeamThreads : kWalkThreads;
  static int Threads(int64_t C, int packs) {
    const int threads = static_cast<int>(CeilDiv(C, packs * kWarpSize * kPack) * kWarpSize);
    return kWide ? std::min(threads, kMaxThreads) : kMaxThreads / threads * threads;
  }

  explicit __device__ __forceinline__ TeamWalk(int64_t C)
      : warps_(kWide ? blockDim.x / kWarpSize
                     : (static_cast<unsigned>(C) + kWarpSize * kPack - 1) / (kWarpSize * kPack)),
        team_(kWide ? 0 : threadIdx.x / kWarpSize / warps_),
        teams_(kWide ? 1 : blockDim.x / kWarpSize / warps_) {}

  __device__ __forceinline__ int team() const { return static_cast<int>(team_); }
  __device__ __forceinline__ int teams() const { return static_cast<int>(teams_); }
  // The first column of the calling thread's pack p.
  __device__ __forceinline__ int64_t Column(int p) const {
    return static_cast<int64_t>(threadIdx.x - team_ * warps_ * kWarpSize + p * warps_ * kWarpSize) * kPack;
  }

  // The sum over the team. Every thread of the block calls it.
  __device__ __forceinline__ float Sum(float x) {
    x = WarpSum(x);
    if (warps_ == 1) return x;
    float(&sums)[kMaxWarps][2] = NextSums();
    if (threadIdx.x % kWarpSize == 0) sums[threadIdx.x / kWarpSize][0] = x;
    __syncthreads();
    return HalfWarpSum(LaneWarp() < warps_ ? sums[team_ * warps_ + LaneWarp()][0] : 0.0f);
  }
  // Of two at once, for one wait and the exchanges of one: half of a warp goes on with a, the other with b.
  __device__ __forceinline__ void SumBoth(float& a, float& b) {
    const unsigned half = threadIdx.x % kWarpSize / kHalfWarp;
    float mine = half == 0 ? a : b, other = half == 0 ? b : a;
    mine = HalfWarpSum(mine + __shfl_xor_sync(kWarpMask, other, kHalfWarp));
    if (warps_ > 1) {
      float(&sums)[kMaxWarps][2] = NextSums();
      if (LaneWarp() == 0) sums[threadIdx.x / kWarpSize][half] = mine;
      __syncthreads();
      mine = HalfWarpSum(LaneWarp() < warps_ ? sums[team_ * warps_ + LaneWarp()][half] : 0.0f);
    }
    other = __shfl_xor_sync(kWarpMask, mine, kHalfWarp);
    a = half == 0 ? mine : other;
    b = half == 0 ? other : mine;
  }

  // out (C) = the sum of the teams' sums, in order. Every thread of the block calls it, behind its last row.
  template <typename Code>
  __device__ __forceinline__ void Store(const RowPacks<Code::kPacks>& sums, int64_t C, float* out) const {
    // Rows behind the tile's end are 0, but on their way into the memory that is used here.
    WaitForCopies<0>();
    if (kWide || teams_ == 1) {
      EPS_UNROLL_PACKS
      for (int p = 0; p < Code::kPacks; ++p) StorePack<Code::kVector>(sums.value[p], out, Column(p), C);
      return;
    }
    float* team_sums = DynamicShared<float>();  // a pack for each thread
    __syncthreads();                            // what has been there has been read
    EPS_UNROLL
    for (int i = 0; i < kPack; ++i) team_sums[threadIdx.x * kPack + i] = sums.value[0][i];
    __syncthreads();
    for (int64_t c = threadIdx.x; c < C; c += blockDim.x) {
      float total = 0;
      for (unsigned team = 0; team < teams_; ++team) total += team_sums[team * warps_ * kWarpSize * kPack + c];
      out[c] = total;
    }
  }

 private:
  static constexpr int kMaxWarps = kMaxThreads / kWarpSize;
  static constexpr unsigned kHalfWarp = kWarpSize / 2;
  static_assert(kMaxWarps <= static_cast<int>(kHalfWarp), "half of a warp adds up a team's warps");

  // In two turns: who writes for this row knows, by the wait of the row before, that all have read the one before it.
  __device__ __forceinline__ float (&NextSums())[kMaxWarps][2] {
    __shared__ float sums[2][kMaxWarps][2];
    turn_ ^= 1;
    return sums[turn_];
  }
  static __device__ __forceinline__ unsigned LaneWarp() { return threadIdx.x % kHalfWarp; }
  static __device__ __forceinline__ float HalfWarpSum(float x) {
    EPS_UNROLL
    for (int distance = kHalfWarp / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(kWarpMask, x, distance);
    return x;
  }

  const unsigned warps_;  // of a team
  const unsigned team_;
  const unsigned teams_;
  unsigned turn_ = 0;
};

// How rows of one width, alignment and dtype are walked over.
template <typename Act, bool kWhole, int kCount>
struct WalkCode : RowCode<Act, kWhole, kCount, BlockTeam> {
  using T = Act;
  using Walk = TeamWalk<(kCount > 1)>;
  // Of the largest, on a multiprocessor: in 16 bits, the sums of one pack leave a thread enough of 64 registers; else
  // it has 128.
  static constexpr int kBlocks = kCount > 1 ? 1 : sizeof(T) == sizeof(uint16_t) ? 4 : 2;
  // So many rows of each of three arrays a team has in shared memory, the one that it computes among them: of narrow
  // rows in 16 bits three, 144 KiB on a multiprocessor, of which up to 96 are on their way. 0: there is no room for
  // one, and what is needed is loaded then and there, twice.
  static constexpr int kArrays = 3;
  static constexpr int kSlotBytes = Walk::kMaxThreads * kCount * kArrays * static_cast<int>(sizeof(Pack<T>));
  static constexpr int kSlots = std::min(3, kMaxSharedBytes / kSlotBytes);

  static LaunchShape Shape(int64_t C, int64_t num_tiles) {
    return {.blocks_x = num_tiles, .threads = Walk::Threads(C, kCount), .shared_bytes = kSlots * kSlotBytes};
  }
};

// The rows that the block's teams compute, and those behind them that are on their way. A thread copies its own packs,
// so it waits for no other. In a loop over rows: Begin for each array and each number of a row, End; then Wait, and
// Words and Number of the row that was begun kAhead rows before, for which they get the same arguments again.
template <typename Code>
class RowsAhead {
 public:
  using T = typename Code::T;
  static constexpr int kAhead = std::max(0, Code::kSlots - 1);

  __device__ __forceinline__ RowsAhead(const typename Code::Walk& walk, int64_t C) : walk_(walk), C_(C) {}

  // Of the row at x + start, which is 0 where it is not `there`.
  __device__ __forceinline__ void Begin(int array, const T* x, int64_t start, bool there) {
    if constexpr (Code::kSlots > 0) {
      EPS_UNROLL
      for (int p = 0; p < Code::kPacks; ++p) {
        const int64_t at = walk_.Column(p);
        if constexpr (Code::kVector) {
          const bool in_row = there && at < C_;
          const T* from = x + (in_row ? start + at : 0);
          EPS_UNROLL
          for (int i = 0; i < kParts; ++i) {
            BeginCopy<kPartBytes>(Part(begins_, array, p, i), from + i * kPack / kParts, in_row);
          }
        } else {
          const PackWords<T> words = LoadWords<false>(x + (there ? start : 0), at, there ? C_ : 0);
          EPS_UNROLL
          for (int i = 0; i < kParts; ++i) std::memcpy(Part(begins_, array, p, i), &words[kPartWords * i], kPartBytes);
        }
      }
    }
  }
  __device__ __forceinline__ void BeginNumber(int number, const float* x, int64_t row, bool there) {
    if constexpr (Code::kSlots > 0) {
      if (threadIdx.x % kWarpSize == 0) {
        BeginCopy<sizeof(float)>(Number(begins_, number), x + (there ? row : 0), there);
      }
    }
  }
  __device__ __forceinline__ void End() {
    EndCopyGroup();
    begins_ = Next(begins_);
  }
  __device__ __forceinline__ void Wait() {
    WaitForCopies<kAhead>();
    __syncwarp();  // the numbers are the first lane's copies
    computes_ = Next(computes_);
  }

  // Of the calling thread's pack p.
  __device__ __forceinline__ PackWords<T> Words(int array, int p, const T* x, int64_t start, bool there) const {
    PackWords<T> words;
    if constexpr (Code::kSlots > 0) {
      EPS_UNROLL
      for (int i = 0; i < kParts; ++i) {
        std::memcpy(&words[kPartWords * i], __builtin_assume_aligned(Part(computes_, array, p, i), kPartBytes),
                    kPartBytes);
      }
    } else {
      words = LoadWords<Code::kVector>(x + (there ? start : 0), walk_.Column(p), there ? C_ : 0);
    }
    return words;
  }
  __device__ __forceinline__ float Number(int number, const float* x, int64_t row, bool there) const {
    if constexpr (Code::kSlots > 0) return *Number(computes_, number);
    return there ? x[row] : 0;
  }

 private:
  static constexpr int kPartBytes = 16;  // what one instruction copies
  static constexpr int kPartWords = kPartBytes / static_cast<int>(sizeof(uint32_t));
  static constexpr int kParts = static_cast<int>(sizeof(Pack<T>)) / kPartBytes;
  static constexpr int kThreads = Code::Walk::kMaxThreads;
  static constexpr int kNumbers = 2;

  static __device__ __forceinline__ int Next(int slot) { return slot >= Code::kSlots - 1 ? 0 : slot + 1; }
  static __device__ __forceinline__ unsigned char* Part(int slot, int array, int p, int i) {
    return DynamicShared<unsigned char>() + slot * Code::kSlotBytes +
           (((array * Code::kPacks + p) * kParts + i) * kThreads + static_cast<int>(threadIdx.x)) * kPartBytes;
  }
  // A warp's: its lanes have the same row.
  static __device__ __forceinline__ float* Number(int slot, int number) {
    __shared__ float numbers[std::max(1, Code::kSlots)][kThreads / kWarpSize][kNumbers];
    return &numbers[slot][threadIdx.x / kWarpSize][number];
  }

  const typename Code::Walk& walk_;
  const int64_t C_;
  int begins_ = 0;
  int computes_ = -1;
};

// fn(WalkCode) for rows of C elements. The shape of teams depends on C alone: so do the bits. Rows that are no multiple
// of a pack, and the widest, are rare: not worth kernels of their own.
template <typename T, bool kVector, typename Fn>
void ForWidth(int64_t C, const Fn& fn) {
  if (C <= kMaxNarrowColumns) return fn(WalkCode<T, kVector, 1>());
  if (C <= 2 * kMaxTeamThreads * kPack) return fn(WalkCode<T, kVector, 2>());
  if (C <= 4 * kMaxTeamThreads * kPack) return fn(WalkCode<T, kVector, 4>());
  fn(WalkCode<T, false, 16>());
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
