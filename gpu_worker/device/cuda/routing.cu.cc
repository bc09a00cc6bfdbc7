#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "common/tensor/dtype.h"
#include "gpu_worker/device/cuda/act_dispatch.h"
#include "gpu_worker/device/cuda/cuda_kernel_sizes.h"
#include "gpu_worker/device/cuda/device_code.h"
#include "gpu_worker/device/cuda/experts.h"
#include "gpu_worker/device/cuda/launch.h"
#include "gpu_worker/device/cuda/position_sort.h"
#include "gpu_worker/device/cuda/simt.h"
#include "gpu_worker/device/kernels.h"

// Which rows go where, and what goes with them. Limited by the latency of a few small kernels, and the rows' by the
// memory's bandwidth, as far as can be told without a GPU: none has run them yet.
namespace eps::worker::cuda {
namespace {

// ---- The experts of a token -----------------------------------------------------------------------------------------
//
// A token is a warp's, whose lane l has the logits of experts l, l + 32, ...: kCount of them.

constexpr int kTokensOfBlock = 8;
constexpr int kTokenThreads = kTokensOfBlock * kWarpSize;

__device__ __forceinline__ int Lane() { return static_cast<int>(threadIdx.x) % kWarpSize; }
__device__ __forceinline__ int64_t TokenOfWarp() {
  return static_cast<int64_t>(blockIdx.x) * kTokensOfBlock + threadIdx.x / kWarpSize;
}
__device__ __forceinline__ int ExpertOf(int i) { return Lane() + i * kWarpSize; }

// Sets v to a token's logits, -inf for those behind the last, and returns the largest that is not NaN.
template <int kCount, typename T>
__device__ __forceinline__ float LoadLogits(const T* logits, int E, float (&v)[kCount]) {
  float max = -INFINITY;
  EPS_UNROLL
  for (int i = 0; i < kCount; ++i) {
    v[i] = ExpertOf(i) < E ? ToFloat(logits[ExpertOf(i)]) : -INFINITY;
    max = fmaxf(max, v[i]);
  }
  return WarpMax(max);
}

// The sum over experts of exp(v - max).
template <int kCount>
__device__ __forceinline__ float SumOfExponentials(const float (&v)[kCount], float max, int E) {
  float sum = 0;
  EPS_UNROLL
  for (int i = 0; i < kCount; ++i) sum += ExpertOf(i) < E ? expf(v[i] - max) : 0.0f;
  return WarpSum(sum);
}

// NaN where a token's logits have one, else 0: what is over the sum of all of them is no number then.
template <int kCount>
__device__ __forceinline__ float NaNOf(const float (&v)[kCount]) {
  float sum = 0;
  EPS_UNROLL
  for (int i = 0; i < kCount; ++i) sum += v[i] != v[i] ? v[i] : 0.0f;
  return WarpSum(sum);
}

// Numbers in the order of logits, of which any two can be compared: a NaN is the least, and -0 is 0.
__device__ __forceinline__ uint32_t RankOf(float logit) {
  if (logit != logit) return 0;
  const uint32_t bits = std::bit_cast<uint32_t>(logit == 0 ? 0.0f : logit);
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float LogitOf(uint32_t rank) {
  return std::bit_cast<float>((rank >> 31) != 0 ? rank & 0x7FFFFFFFu : ~rank);
}

// expert, weight (M, K): as Routing's expert, and the weights of these. K times the largest of what is left is taken.
template <typename T, int kCount>
__global__ void __launch_bounds__(kTokenThreads)
    ChooseExpertsKernel(int64_t M, int E, int K, bool normalizes, const T* logits, int32_t* expert, float* weight) {
  static_assert(kCount <= 32, "a bit of `taken` for each");
  const int64_t token = TokenOfWarp();
  if (token >= M) return;
  expert += token * K;
  weight += token * K;
  float v[kCount];
  const float max = LoadLogits(logits + token * E, E, v);
  float sum = normalizes ? NaNOf(v) : SumOfExponentials(v, max, E);
  uint32_t ranks[kCount], taken = 0;
  EPS_UNROLL
  for (int i = 0; i < kCount; ++i) ranks[i] = RankOf(v[i]);
  for (int k = 0; k < K; ++k) {
    uint64_t best = 0;  // the rank, and below it what is more for a lower expert; 0 is less than any
    EPS_UNROLL
    for (int i = 0; i < kCount; ++i) {
      const uint64_t each = static_cast<uint64_t>(ranks[i]) << 32 | ~static_cast<uint32_t>(ExpertOf(i));
      if (ExpertOf(i) < E && (taken >> i & 1) == 0 && each > best) best = each;
    }
    EPS_UNROLL
    for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
      const uint64_t other = __shfl_xor_sync(kWarpMask, best, distance);
      if (other > best) best = other;
    }
    const int chosen = static_cast<int>(~static_cast<uint32_t>(best));
    if (chosen % kWarpSize == Lane()) taken |= uint32_t{1} << (chosen / kWarpSize);
    const float e = expf(LogitOf(static_cast<uint32_t>(best >> 32)) - max);
    if (normalizes) sum += e;
    if (k % kWarpSize == Lane()) {
      expert[k] = chosen;
      weight[k] = e;
    }
  }
  for (int k = Lane(); k < K; k += kWarpSize) weight[k] /= sum;  // those that the lane has stored
}

// order (R): indices of (M, K) by expert, those of one by rising token. weight (M, K) goes to where the rows are.
__global__ void __launch_bounds__(kElementThreads)
    RouteRowsKernel(int64_t R, int E, uint32_t K, const uint32_t* order, const float* weight, Routing routing) {
  const int64_t r = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (r >= R) return;
  const uint32_t i = order[r];
  routing.token[r] = static_cast<int32_t>(i / K);
  routing.row[i] = static_cast<int32_t>(r);
  routing.weight[r] = weight[i];
  const int expert = routing.expert[i];
  // Of experts that have none the first row is that of the next that has.
  for (int e = r == 0 ? 0 : routing.expert[order[r - 1]] + 1; e <= expert; ++e) {
    routing.first_row[e] = static_cast<int32_t>(r);
  }
  if (r != R - 1) return;
  for (int e = expert + 1; e <= E; ++e) routing.first_row[e] = static_cast<int32_t>(R);
}

// `balance`: what an expert's number of rows is multiplied by.
template <typename T, int kCount>
__global__ void __launch_bounds__(kTokenThreads)
    RouteBackwardKernel(int64_t M, int E, int K, bool normalizes, float balance, const T* logits, Routing routing,
                        const float* dweight, T* dlogits) {
  const int64_t token = TokenOfWarp();
  if (token >= M) return;
  const int32_t* expert = routing.expert + token * K;
  const int32_t* row = routing.row + token * K;
  float d[kCount] = {};
  if (!normalizes || balance != 0) {  // through all probabilities
    float p[kCount];
    const float max = LoadLogits(logits + token * E, E, p);
    const float factor = 1 / SumOfExponentials(p, max, E);
    EPS_UNROLL
    for (int i = 0; i < kCount; ++i) {
      const int e = ExpertOf(i);
      if (e >= E) continue;
      if (balance != 0) d[i] = balance * static_cast<float>(routing.first_row[e + 1] - routing.first_row[e]);
    }
    for (int k = 0; k < K && !normalizes; ++k) {
      const float g = dweight[row[k]];
      EPS_UNROLL
      for (int i = 0; i < kCount; ++i) d[i] += expert[k] == ExpertOf(i) ? g : 0.0f;
    }
    float dot = 0;
    EPS_UNROLL
    for (int i = 0; i < kCount; ++i) {
      p[i] = ExpertOf(i) < E ? expf(p[i] - max) * factor : 0.0f;
      dot += p[i] * d[i];
    }
    dot = WarpSum(dot);
    EPS_UNROLL
    for (int i = 0; i < kCount; ++i) d[i] = p[i] * (d[i] - dot);
  }
  if (normalizes) {  // and through the chosen ones' alone
    float dot = 0;
    for (int k = Lane(); k < K; k += kWarpSize) dot += routing.weight[row[k]] * dweight[row[k]];
    dot = WarpSum(dot);
    for (int k = 0; k < K; ++k) {
      const float g = routing.weight[row[k]] * (dweight[row[k]] - dot);
      EPS_UNROLL
      for (int i = 0; i < kCount; ++i) d[i] += expert[k] == ExpertOf(i) ? g : 0.0f;
    }
  }
  EPS_UNROLL
  for (int i = 0; i < kCount; ++i) {
    if (ExpertOf(i) < E) dlogits[token * E + ExpertOf(i)] = FromFloat<T>(d[i]);
  }
}

// ---- Rows that go to experts, and come back -------------------------------------------------------------------------

constexpr int kRowsAtOnce = 4;  // loaded before the first is added

__device__ __forceinline__ int64_t ColumnOfThread() {
  return (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * kPack;
}

template <typename T, bool kVector>
__global__ void __launch_bounds__(kElementThreads) GatherRowsKernel(int64_t C, const int32_t* token, const T* x, T* y) {
  const int64_t at = ColumnOfThread();
  const T* from = x + static_cast<int64_t>(token[blockIdx.x]) * C;
  T* to = y + static_cast<int64_t>(blockIdx.x) * C;
  if (kVector && at + kPack <= C) {
    *reinterpret_cast<Pack<T>*>(to + at) = *reinterpret_cast<const Pack<T>*>(from + at);
    return;
  }
  for (int64_t i = at; i < at + kPack && i < C; ++i) to[i] = from[i];
}

template <typename T, bool kVector>
__global__ void __launch_bounds__(kElementThreads)
    SumRowsKernel(int K, int64_t C, const int32_t* row, const T* x, const T* residual, T* y) {
  const int64_t at = ColumnOfThread(), token = blockIdx.x;
  row += token * K;
  float sum[kPack] = {};
  if (residual != nullptr) LoadPack<kVector>(residual + token * C, at, C, sum);
  for (int first = 0; first < K; first += kRowsAtOnce) {
    float v[kRowsAtOnce][kPack] = {};
    EPS_UNROLL
    for (int r = 0; r < kRowsAtOnce; ++r) {
      if (first + r < K) LoadPack<kVector>(x + static_cast<int64_t>(row[first + r]) * C, at, C, v[r]);
    }
    EPS_UNROLL
    for (int r = 0; r < kRowsAtOnce; ++r) {
      EPS_UNROLL
      for (int i = 0; i < kPack; ++i) {
        if (first + r < K) sum[i] += v[r][i];
      }
    }
  }
  StorePack<kVector>(sum, y + token * C, at, C);
}

// A block for each row, or several if it is wide: a thread for each pack.
LaunchShape PacksOfRows(int64_t rows, int64_t C) {
  const int64_t packs = CeilDiv(C, kPack);
  const int threads = static_cast<int>(std::min<int64_t>(kElementThreads, CeilDiv(packs, kWarpSize) * kWarpSize));
  return {.blocks_x = rows, .blocks_y = CeilDiv(packs, threads), .threads = threads};
}

LaunchShape TokenWarps(int64_t M) { return {.blocks_x = CeilDiv(M, kTokensOfBlock), .threads = kTokenThreads}; }

template <int kNumber>
struct Count {
  static constexpr int value = kNumber;
};

// fn(Type, Count<experts of a lane>).
template <typename Fn>
void ForExperts(Dtype act, int64_t E, const Fn& fn) {
  ForAct(act, [&](auto type) {
    if (E <= 2 * kWarpSize) return fn(type, Count<2>());
    if (E <= 4 * kWarpSize) return fn(type, Count<4>());
    if (E <= 8 * kWarpSize) return fn(type, Count<8>());
    static_assert(kMaxExperts <= int64_t{32} * kWarpSize);
    fn(type, Count<32>());
  });
}

}  // namespace

void Route(KernelQueue& queue, Dtype act, const RouteArgs& args) {
  const int64_t R = args.M * args.K;
  const RouteScratch at = RouteScratchOf(R);
  auto* const words = static_cast<uint32_t*>(args.scratch);
  auto* const weight = static_cast<float*>(args.scratch) + at.weights;
  ForExperts(act, args.E, [&](auto type, auto count) {
    using T = typename decltype(type)::type;
    Launch(queue, "ChooseExperts", TokenWarps(args.M), &ChooseExpertsKernel<T, decltype(count)::value>, args.M,
           static_cast<int>(args.E), static_cast<int>(args.K), args.normalizes, static_cast<const T*>(args.logits),
           args.routing.expert, weight);
  });
  const uint32_t* order =
      SortPositions(queue, R, args.E, args.routing.expert, words + at.orders, words + at.tile_counts);
  Launch(queue, "RouteRows", {.blocks_x = CeilDiv(R, kElementThreads), .threads = kElementThreads}, &RouteRowsKernel, R,
         static_cast<int>(args.E), static_cast<uint32_t>(args.K), order, weight, args.routing);
}

void RouteBackward(KernelQueue& queue, Dtype act, const RouteBackwardArgs& args) {
  const double rows = static_cast<double>(args.M * args.K), tokens = static_cast<double>(args.M);
  const double balance = static_cast<float>(args.balance) * static_cast<double>(args.E) / rows / tokens;
  ForExperts(act, args.E, [&](auto type, auto count) {
    using T = typename decltype(type)::type;
    Launch(queue, "RouteBackward", TokenWarps(args.M), &RouteBackwardKernel<T, decltype(count)::value>, args.M,
           static_cast<int>(args.E), static_cast<int>(args.K), args.normalizes, static_cast<float>(balance),
           static_cast<const T*>(args.logits), args.routing, args.dweight, static_cast<T*>(args.dlogits));
  });
}

void GatherRows(KernelQueue& queue, Dtype act, const GatherRowsArgs& args) {
  ForAct(act, [&](auto type) {
    using T = typename decltype(type)::type;
    ForVector(args.C, {args.x, args.y}, [&](auto vector) {
      Launch(queue, "GatherRows", PacksOfRows(args.R, args.C), &GatherRowsKernel<T, decltype(vector)::value>, args.C,
             args.token, static_cast<const T*>(args.x), static_cast<T*>(args.y));
    });
  });
}

void SumRows(KernelQueue& queue, Dtype act, const SumRowsArgs& args) {
  ForAct(act, [&](auto type) {
    using T = typename decltype(type)::type;
    ForVector(args.C, {args.x, args.residual, args.y}, [&](auto vector) {
      Launch(queue, "SumRows", PacksOfRows(args.M, args.C), &SumRowsKernel<T, decltype(vector)::value>,
             static_cast<int>(args.K), args.C, args.row, static_cast<const T*>(args.x),
             static_cast<const T*>(args.residual), static_cast<T*>(args.y));
    });
  });
}

}  // namespace eps::worker::cuda
