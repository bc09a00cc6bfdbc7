#include "gpu_worker/device/cuda/position_sort.h"

#include <algorithm>
#include <cstdint>

#include "gpu_worker/device/cuda/act_dispatch.h"
#include "gpu_worker/device/cuda/cuda_kernel_sizes.h"
#include "gpu_worker/device/cuda/launch.h"
#include "gpu_worker/device/cuda/simt.h"

namespace eps::worker::cuda {
namespace {

// A radix sort, the lowest digit of the id first: each pass keeps the order of equal digits, and the first begins with
// the order of positions. Ranks come from counts alone, in a fixed order, so that every launch gives the same.

// A block takes a tile: each of its warps a stretch, 32 positions at a time.
constexpr int kSortWarps = 8;
constexpr int kSortGroups = kSortTile / (kSortWarps * kWarpSize);
constexpr int kSortThreads = kSortWarps * kWarpSize;
constexpr int kScanThreads = 1024;
static_assert(kSortDigits == kSortThreads, "a thread for each digit");

struct SortItem {
  bool valid = false;  // false: behind the end
  uint32_t position = 0;
  uint32_t digit = 0;
};

// `in`: the order so far; null: that of positions.
__device__ __forceinline__ SortItem LoadItem(int64_t M, int group, int shift, const int32_t* ids, const uint32_t* in) {
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kSortTile + (warp * kSortGroups + group) * kWarpSize + lane;
  if (at >= M) return {};
  const uint32_t position = in == nullptr ? static_cast<uint32_t>(at) : in[at];
  return {true, position, (static_cast<uint32_t>(ids[position]) >> shift) % kSortDigits};
}

// The lanes of the warp whose item has the same digit. Every lane calls it.
__device__ __forceinline__ uint32_t LanesLike(const SortItem& item) {
  uint32_t lanes = __ballot_sync(kWarpMask, item.valid);
  EPS_UNROLL
  for (uint32_t bit = 1; bit < kSortDigits; bit *= 2) {
    const bool is_set = (item.digit & bit) != 0;
    const uint32_t set = __ballot_sync(kWarpMask, is_set);
    lanes &= is_set ? set : ~set;
  }
  return lanes;
}

__device__ __forceinline__ uint32_t LanesBelow() { return (uint32_t{1} << (threadIdx.x % kWarpSize)) - 1; }

// counts (kSortWarps, kSortDigits): of each warp's stretch.
__device__ __forceinline__ void CountDigits(int64_t M, int shift, const int32_t* ids, const uint32_t* in,
                                            uint32_t (*counts)[kSortDigits]) {
  const int warp = threadIdx.x / kWarpSize;
  for (int w = 0; w < kSortWarps; ++w) counts[w][threadIdx.x] = 0;
  __syncthreads();
  for (int group = 0; group < kSortGroups; ++group) {
    const SortItem item = LoadItem(M, group, shift, ids, in);
    const uint32_t like = LanesLike(item);
    if (item.valid && (like & LanesBelow()) == 0) counts[warp][item.digit] += __popc(like);
    __syncwarp();
  }
  __syncthreads();
}

// tile_counts (kSortDigits, gridDim.x).
__global__ void __launch_bounds__(kSortThreads)
    SortCountKernel(int64_t M, int shift, const int32_t* ids, const uint32_t* in, uint32_t* tile_counts) {
  __shared__ uint32_t counts[kSortWarps][kSortDigits];
  CountDigits(M, shift, ids, in, counts);
  uint32_t sum = 0;
  for (int w = 0; w < kSortWarps; ++w) sum += counts[w][threadIdx.x];
  tile_counts[static_cast<int64_t>(threadIdx.x) * gridDim.x + blockIdx.x] = sum;
}

// Each count becomes the sum of those before it. One block.
__global__ void __launch_bounds__(kScanThreads) SortScanKernel(int64_t n, uint32_t* counts) {
  __shared__ uint32_t sums[kScanThreads];
  const int64_t stretch = (n + kScanThreads - 1) / kScanThreads;
  const int64_t begin = threadIdx.x * stretch, end = begin + stretch < n ? begin + stretch : n;
  uint32_t sum = 0;
  for (int64_t i = begin; i < end; ++i) sum += counts[i];
  sums[threadIdx.x] = sum;
  __syncthreads();
  for (unsigned distance = 1; distance < kScanThreads; distance *= 2) {
    const uint32_t before = threadIdx.x >= distance ? sums[threadIdx.x - distance] : 0;
    __syncthreads();
    sums[threadIdx.x] += before;
    __syncthreads();
  }
  uint32_t start = sums[threadIdx.x] - sum;
  for (int64_t i = begin; i < end; ++i) {
    const uint32_t count = counts[i];
    counts[i] = start;
    start += count;
  }
}

// tile_starts (kSortDigits, gridDim.x): where each digit of each tile begins in `out`.
__global__ void __launch_bounds__(kSortThreads)
    SortScatterKernel(int64_t M, int shift, const int32_t* ids, const uint32_t* in, const uint32_t* tile_starts,
                      uint32_t* out) {
  __shared__ uint32_t starts[kSortWarps][kSortDigits];  // first counts
  CountDigits(M, shift, ids, in, starts);
  uint32_t next = tile_starts[static_cast<int64_t>(threadIdx.x) * gridDim.x + blockIdx.x];
  for (int w = 0; w < kSortWarps; ++w) {
    const uint32_t count = starts[w][threadIdx.x];
    starts[w][threadIdx.x] = next;
    next += count;
  }
  __syncthreads();
  const int warp = threadIdx.x / kWarpSize;
  for (int group = 0; group < kSortGroups; ++group) {
    const SortItem item = LoadItem(M, group, shift, ids, in);
    const uint32_t like = LanesLike(item);
    const uint32_t before = like & LanesBelow();
    if (item.valid) out[starts[warp][item.digit] + __popc(before)] = item.position;
    __syncwarp();
    if (item.valid && before == 0) starts[warp][item.digit] += __popc(like);
    __syncwarp();
  }
}

}  // namespace

const uint32_t* SortPositions(KernelQueue& queue, int64_t M, int64_t num_ids, const int32_t* ids, uint32_t* orders,
                              uint32_t* tile_counts) {
  const int64_t num_tiles = CeilDiv(M, kSortTile);
  const uint32_t* in = nullptr;
  int pass = 0;
  for (int shift = 0; pass == 0 || (num_ids - 1) >> shift > 0; shift += kSortDigitBits, ++pass) {
    uint32_t* const out = orders + pass % 2 * M;
    const LaunchShape tiles = {.blocks_x = num_tiles, .threads = kSortThreads};
    Launch(queue, "SortCount", tiles, &SortCountKernel, M, shift, ids, in, tile_counts);
    const int64_t digits = std::min<int64_t>(kSortDigits, ((num_ids - 1) >> shift) + 1);  // of more there is none
    Launch(queue, "SortScan", {.threads = kScanThreads}, &SortScanKernel, num_tiles * digits, tile_counts);
    Launch(queue, "SortScatter", tiles, &SortScatterKernel, M, shift, ids, in, tile_counts, out);
    in = out;
  }
  return in;
}

}  // namespace eps::worker::cuda
