#include "gpu_worker/device/cuda/softmax.h"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstdint>

#include "common/tensor/dtype.h"
#include "gpu_worker/device/cuda/act_dispatch.h"
#include "gpu_worker/device/cuda/device_code.h"
#include "gpu_worker/device/cuda/launch.h"
#include "gpu_worker/device/cuda/row_packs.h"
#include "gpu_worker/device/cuda/simt.h"
#include "gpu_worker/device/kernels.h"

namespace eps::worker::cuda {
namespace {

constexpr int kRowThreads = 256;

// Of some logits, exp(logit - max) summed up: they are read once, and whoever has other ones need not be asked for the
// largest before. A NaN is no maximum, and shows up in the sum.
struct ExpSum {
  float max = -FLT_MAX, sum = 0;
};
// The same sum where the maximum is `max` or less.
__device__ __forceinline__ float SumAt(const ExpSum& of, float max) { return of.sum * ExpOf(of.max - max); }
__device__ __forceinline__ ExpSum WarpExpSum(const ExpSum& of_lane) {
  const float max = WarpMax(of_lane.max);
  return {max, WarpSum(SumAt(of_lane, max))};
}

constexpr int kMaxChunkThreads = 512;
// Of a row's block: so many that a chunk of usual size, 4096, is loaded at once; see kPacksAtOnce.
int ThreadsOfChunk(int64_t chunk) {
  return static_cast<int>(std::min<int64_t>(kMaxChunkThreads, CeilDiv(chunk, kWarpColumns) * kWarpSize));
}

// Elements of -inf, whose exp adds nothing.
template <typename T>
__device__ __forceinline__ PackWords<T> NothingWords() {
  uint32_t word = std::bit_cast<uint32_t>(-INFINITY);
  if constexpr (sizeof(T) < sizeof(word)) word = FromFloat<T>(-INFINITY).bits * 0x10001u;
  PackWords<T> words;
  for (uint32_t& each : words) each = word;
  return words;
}

// A thread's packs from column `start` on, each `step` behind the one before; behind the chunk's end nothing. With
// kVector of whole packs alone.
template <bool kVector, typename T>
__device__ __forceinline__ RawRow<T, kPacksAtOnce> LoadLogits(const T* x, int start, int step, int chunk) {
  RawRow<T, kPacksAtOnce> raw;
  EPS_UNROLL
  for (int p = 0; p < kPacksAtOnce; ++p) {
    const int at = start + p * step;
    raw.words[p] = NothingWords<T>();
    if constexpr (kVector) {
      if (at + kPack <= chunk) raw.words[p] = WholeWords(x + at);
    } else if (at < chunk) {
      Pack<T> pack;
      EPS_UNROLL
      for (int i = 0; i < kPack; ++i) pack.element[i] = at + i < chunk ? x[at + i] : FromFloat<T>(-INFINITY);
      raw.words[p] = std::bit_cast<PackWords<T>>(pack);
    }
  }
  return raw;
}

template <typename T, bool kVector>
__global__ void __launch_bounds__(kMaxChunkThreads, 1024 / kMaxChunkThreads)
    SoftmaxChunkKernel(int chunk, int64_t first, int64_t ld, const T* logits, const int32_t* labels, float* row_max,
                       float* row_sum, float* target) {
  const int64_t row = blockIdx.x;
  const T* x = logits + row * ld;
  const int64_t label = labels[row] - first;
  const bool has_label = label >= 0 && label < chunk;
  const int at_label = has_label ? static_cast<int>(label) : 0, label_pack = at_label / kPack * kPack;
  float rival = -INFINITY;  // the largest of this thread's columns before the label's
  ExpSum before;
  if (first != 0) before = {row_max[row], fabsf(row_sum[row])};
  ExpSum mine;
  const int thread = static_cast<int>(threadIdx.x);
  const int left = kVector ? chunk % kPack : 0;  // of the last pack, an element for each thread
  if (thread < left) {
    const float v = ToFloat(x[chunk - left + thread]);
    mine.max = fmaxf(mine.max, v);
    mine.sum = ExpOf(v - mine.max);
  }
  const int step = static_cast<int>(blockDim.x) * kPack;
  for (int start = thread * kPack; start < chunk; start += kPacksAtOnce * step) {
    const RawRow<T, kPacksAtOnce> raw = LoadLogits<kVector>(x, start, step, chunk);
    float max = mine.max;
    EPS_UNROLL
    for (int p = 0; p < kPacksAtOnce; ++p) {
      float pack_max = -INFINITY;
      EPS_UNROLL
      for (int i = 0; i < kPack; ++i) pack_max = fmaxf(pack_max, raw.At(p, i));
      max = fmaxf(max, pack_max);
      if (start + p * step < label_pack) rival = fmaxf(rival, pack_max);
    }
    mine = {max, SumAt(mine, max)};
    EPS_UNROLL
    for (int p = 0; p < kPacksAtOnce; ++p) {
      float sum = 0;
      EPS_UNROLL
      for (int i = 0; i < kPack; ++i) sum += ExpOf(raw.At(p, i) - max);
      mine.sum += sum;
    }
  }
  const float own = has_label ? ToFloat(x[at_label]) : INFINITY;
  if (thread < at_label - label_pack) rival = fmaxf(rival, ToFloat(x[label_pack + thread]));
  __shared__ float maxima[kMaxChunkThreads / kWarpSize], sums[kMaxChunkThreads / kWarpSize];
  mine = WarpExpSum(mine);
  if (thread % kWarpSize == 0) {
    maxima[thread / kWarpSize] = mine.max;
    sums[thread / kWarpSize] = mine.sum;
  }
  bool has_rival = __syncthreads_or(rival >= own) != 0;
  if (thread >= kWarpSize) return;
  ExpSum all;
  if (thread < static_cast<int>(blockDim.x) / kWarpSize) all = {maxima[thread], sums[thread]};
  all = WarpExpSum(all);
  if (thread != 0) return;
  const float max = fmaxf(before.max, all.max);
  const float sum = SumAt(before, max) + SumAt(all, max);
  if (first != 0) has_rival = has_label ? has_rival || before.max >= own : std::signbit(row_sum[row]);
  row_sum[row] = has_rival ? -sum : sum;
  row_max[row] = max;
  if (has_label) target[row] = own;
}

template <typename T, bool kVector>
__global__ void __launch_bounds__(kRowThreads)
    SoftmaxChunkBackwardKernel(int64_t chunk, int64_t first, int64_t V, int64_t ld, T* logits, const int32_t* labels,
                               const float* row_max, const float* row_sum, double scale, const float* sequence_scale,
                               int64_t sequence_rows) {
  const int64_t row = blockIdx.x;
  T* x = logits + row * ld;
  const int64_t label = labels[row];
  const bool counted = label >= 0 && label < V;
  if (sequence_scale != nullptr) scale = static_cast<double>(sequence_scale[row / sequence_rows]);
  const float max = row_max[row];
  const float factor = static_cast<float>(scale / static_cast<double>(fabsf(row_sum[row])));
  for (int64_t at = threadIdx.x * kPack; at < chunk; at += kRowThreads * kPack) {
    float v[kPack];
    LoadPack<kVector>(x, at, chunk, v);
    EPS_UNROLL
    for (int i = 0; i < kPack; ++i) {
      v[i] = ExpOf(v[i] - max) * factor - (first + at + i == label ? static_cast<float>(scale) : 0.0f);
      if (!counted) v[i] = 0;
    }
    StorePack<kVector>(v, x, at, chunk);
  }
}

constexpr int kLossLanes = 16;  // row i goes to lane i mod 16; then the lanes in order

// One block does it all, as rows have an order. So it must not wait for memory row by row: each thread has several under
// way, whose losses then lie in shared memory for the lanes.
constexpr int kLossThreads = 512, kRowsOfThread = 8, kRowsAtOnce = kLossThreads * kRowsOfThread;

__global__ void __launch_bounds__(kLossThreads) LossKernel(LossArgs args) {
  __shared__ double losses[kRowsAtOnce];
  int counted = 0, correct = 0;  // of this thread's rows
  bool finite = true;
  double lane = 0;
  for (int64_t first = 0; first < args.M; first += kRowsAtOnce) {
    const auto rows = static_cast<int>(args.M - first < kRowsAtOnce ? args.M - first : kRowsAtOnce);
    bool counts[kRowsOfThread];
    EPS_UNROLL
    for (int r = 0; r < kRowsOfThread; ++r) {
      const int row = r * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x);
      const int32_t label = row < rows ? args.labels[first + row] : -1;
      counts[r] = label >= 0 && label < args.V;
    }
    float sum[kRowsOfThread], max[kRowsOfThread], target[kRowsOfThread];
    EPS_UNROLL
    for (int r = 0; r < kRowsOfThread; ++r) {
      const int64_t row = first + r * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x);
      sum[r] = counts[r] ? args.row_sum[row] : 1.0f;
      max[r] = counts[r] ? args.row_max[row] : 0.0f;
      target[r] = counts[r] ? args.target[row] : 0.0f;
    }
    EPS_UNROLL
    for (int r = 0; r < kRowsOfThread; ++r) {
      const double loss =
          static_cast<double>(max[r]) + log(static_cast<double>(fabsf(sum[r]))) - static_cast<double>(target[r]);
      losses[r * blockDim.x + threadIdx.x] = loss;  // 0 where nothing counts
      const bool is_finite = std::isfinite(loss);
      counted += counts[r] ? 1 : 0;
      correct += counts[r] && is_finite && target[r] == max[r] && !std::signbit(sum[r]) ? 1 : 0;
      finite = finite && is_finite;
    }
    __syncthreads();
    if (threadIdx.x < kLossLanes) {
      for (int i = static_cast<int>(threadIdx.x); i < rows; i += kLossLanes) lane += losses[i];
    }
    __syncthreads();
  }
  __shared__ double lanes[kLossLanes];
  __shared__ int warps[2][kLossThreads / kWarpSize];
  if (threadIdx.x < kLossLanes) lanes[threadIdx.x] = lane;
  counted = WarpSum(counted);
  correct = WarpSum(correct);
  if (threadIdx.x % kWarpSize == 0) {
    warps[0][threadIdx.x / kWarpSize] = counted;
    warps[1][threadIdx.x / kWarpSize] = correct;
  }
  const bool all_finite = __syncthreads_or(!finite) == 0;
  if (threadIdx.x != 0) return;
  int64_t total = 0, total_correct = 0;
  for (int i = 0; i < static_cast<int>(blockDim.x) / kWarpSize; ++i) {
    total += warps[0][i];
    total_correct += warps[1][i];
  }
  double sum = 0;
  for (int i = 0; i < kLossLanes; ++i) sum += lanes[i];
  args.record->loss_sum += sum;
  args.record->counted += total;
  args.record->correct += total_correct;
  if (!all_finite) args.record->finite = 0;
}

}  // namespace

void SoftmaxChunk(KernelQueue& queue, Dtype act, const SoftmaxChunkArgs& args) {
  ForAct(act, [&](auto type) {
    using T = typename decltype(type)::type;
    ForVector(args.ld, {args.logits}, [&](auto vector) {
      Launch(queue, "SoftmaxChunk", {.blocks_x = args.M, .threads = ThreadsOfChunk(args.chunk)},
             &SoftmaxChunkKernel<T, decltype(vector)::value>, static_cast<int>(args.chunk), args.first, args.ld,
             static_cast<const T*>(args.logits), args.labels, args.row_max, args.row_sum, args.target);
    });
  });
}

void SoftmaxChunkBackward(KernelQueue& queue, Dtype act, const SoftmaxChunkBackwardArgs& args) {
  ForAct(act, [&](auto type) {
    using T = typename decltype(type)::type;
    ForVector(args.ld, {args.logits}, [&](auto vector) {
      Launch(queue, "SoftmaxChunkBackward", {.blocks_x = args.M, .threads = kRowThreads},
             &SoftmaxChunkBackwardKernel<T, decltype(vector)::value>, args.chunk, args.first, args.V, args.ld,
             static_cast<T*>(args.logits), args.labels, args.row_max, args.row_sum, args.scale, args.sequence_scale,
             args.T);
    });
  });
}

void Loss(KernelQueue& queue, const LossArgs& args) {
  const int64_t threads = std::clamp<int64_t>(CeilDiv(args.M, kWarpSize) * kWarpSize, kWarpSize, kLossThreads);
  Launch(queue, "Loss", {.blocks_x = 1, .threads = static_cast<int>(threads)}, &LossKernel, args);
}

}  // namespace eps::worker::cuda
