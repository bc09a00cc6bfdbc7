#include "gpu_worker/device/cuda/embedding.h"

#include <algorithm>
#include <cstdint>

#include "common/tensor/dtype.h"
#include "gpu_worker/device/cuda/act_dispatch.h"
#include "gpu_worker/device/cuda/cuda_kernel_sizes.h"
#include "gpu_worker/device/cuda/device_code.h"
#include "gpu_worker/device/cuda/device_dropout.h"
#include "gpu_worker/device/cuda/elementwise.h"
#include "gpu_worker/device/cuda/launch.h"
#include "gpu_worker/device/cuda/position_sort.h"
#include "gpu_worker/device/cuda/simt.h"
#include "gpu_worker/device/kernels.h"

namespace eps::worker::cuda {
namespace {

__device__ __forceinline__ int64_t PositionOf(int64_t row, int64_t tokens_of_sample, const int32_t* document_first) {
  return row % tokens_of_sample - (document_first == nullptr ? 0 : document_first[row]);
}

template <typename Wire>
struct EmbeddingTables {
  const Wire* wte;
  const Wire* wpe;  // or null
  const Wire* wtt;  // or null

  friend bool operator==(const EmbeddingTables&, const EmbeddingTables&) = default;
};

template <typename Wire, typename T, bool kVector>
__global__ void EmbeddingKernel(int64_t tokens_of_sample, int64_t C, const int32_t* tokens, const int32_t* types,
                                const int32_t* document_first, EmbeddingTables<Wire> tables, T* y,
                                DeviceDropout dropout) {
  const int64_t at = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * kPack;
  const int64_t row = blockIdx.x;
  float a[kPack], b[kPack], c[kPack], factors[kPack];
  LoadPack<kVector>(tables.wte + tokens[row] * C, at, C, a);
  EPS_UNROLL
  for (int i = 0; i < kPack; ++i) b[i] = c[i] = 0;
  if (tables.wpe != nullptr) {
    LoadPack<kVector>(tables.wpe + PositionOf(row, tokens_of_sample, document_first) * C, at, C, b);
  }
  if (tables.wtt != nullptr) LoadPack<kVector>(tables.wtt + types[row] * C, at, C, c);
  DropoutFactors(dropout, row * C + at, factors);
  EPS_UNROLL
  for (int i = 0; i < kPack; ++i) a[i] = factors[i] == 0 ? 0 : (a[i] + b[i] + c[i]) * factors[i];
  StorePack<kVector>(a, y + row * C, at, C);
}

// ---- Sums over the positions of a token ------------------------------------------------------------------------------
//
// The places of one token in the order are a run. Its first kGatherTile are added to the token's row of the table; later tiles
// of so many are summed by themselves, and these sums are added in order. Tiles are counted from the run's first place, so what
// a token's row gets depends on its own positions alone. Later tiles of a run begin kGatherTile apart, behind a tile of the
// same run: in each window of kGatherTile places begins one at most, and of the run that holds the window's first place.

struct Sorted {
  int64_t M;
  const int32_t* tokens;  // (M), by position
  const uint32_t* order;  // (M): positions by token

  __device__ __forceinline__ int32_t Token(int64_t place) const { return tokens[order[place]]; }
  friend bool operator==(const Sorted&, const Sorted&) = default;
};

// The first place of `token` in [low, high]; `high` is one.
__device__ __forceinline__ int64_t RunStart(const Sorted& sorted, int32_t token, int64_t low, int64_t high) {
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (sorted.Token(middle) < token) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// Where the later tile begins that begins in `window`, of a run that begins at `low` or behind it; -1: none does.
__device__ __forceinline__ int64_t LaterTile(const Sorted& sorted, int64_t window, int64_t low) {
  const int64_t place = window * kGatherTile;
  if (place == 0) return -1;
  const int32_t token = sorted.Token(place);
  if (sorted.Token(place - 1) != token) return -1;
  const int64_t in_run = place - RunStart(sorted, token, low, place - 1);
  const int64_t first = place + (kGatherTile - in_run % kGatherTile) % kGatherTile;
  return first < sorted.M && sorted.Token(first) == token ? first : -1;
}

constexpr int kMaxColumnThreads = 128;  // a pack of columns each
constexpr int kRowsAtOnce = 4;          // loaded before the first is added

// sum += row_at(first), row_at(first + step), ..., in order, as far as these places are of `token` and before `end`.
template <bool kVector, typename RowAt>
__device__ __forceinline__ void AddRows(const Sorted& sorted, int32_t token, int64_t first, int64_t step, int64_t end,
                                        int64_t column, int64_t C, const RowAt& row_at, float (&sum)[kPack]) {
  bool more = true;
  for (int64_t at = first; more; at += kRowsAtOnce * step) {
    bool same[kRowsAtOnce];
    float v[kRowsAtOnce][kPack];
    EPS_UNROLL
    for (int r = 0; r < kRowsAtOnce; ++r) {
      const int64_t place = at + r * step;
      same[r] = place < end && sorted.Token(place) == token;
      if (same[r]) LoadPack<kVector>(row_at(place), column, C, v[r]);
    }
    EPS_UNROLL
    for (int r = 0; r < kRowsAtOnce; ++r) {
      EPS_UNROLL
      for (int i = 0; i < kPack; ++i) {
        if (same[r]) sum[i] += v[r][i];
      }
    }
    more = same[kRowsAtOnce - 1];
  }
}

__device__ __forceinline__ int64_t ColumnOfThread() {
  return (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * kPack;
}
__device__ __forceinline__ int64_t EndOfTile(const Sorted& sorted, int64_t first) {
  return first + kGatherTile < sorted.M ? first + kGatherTile : sorted.M;
}

// Block (place, columns): the first tile of the run that begins there, or nothing.
template <typename T, bool kVector>
__global__ void __launch_bounds__(kMaxColumnThreads)
    EmbeddingBackwardKernel(int64_t C, Sorted sorted, const T* dy, float* dwte) {
  const int64_t first = blockIdx.x;
  const int32_t token = sorted.Token(first);
  if (first > 0 && sorted.Token(first - 1) == token) return;
  const int64_t column = ColumnOfThread();
  float sum[kPack];
  LoadPack<kVector>(dwte + token * C, column, C, sum);
  AddRows<kVector>(
      sorted, token, first, 1, EndOfTile(sorted, first), column, C,
      [&](int64_t place) { return dy + sorted.order[place] * C; }, sum);
  StorePack<kVector>(sum, dwte + token * C, column, C);
}

// Block (window, columns): the later tile that begins there, or nothing. partials (windows, C).
template <typename T, bool kVector>
__global__ void __launch_bounds__(kMaxColumnThreads)
    EmbeddingTileKernel(int64_t C, Sorted sorted, const T* dy, float* partials) {
  const int64_t first = LaterTile(sorted, blockIdx.x, 0);
  if (first < 0) return;
  const int64_t column = ColumnOfThread();
  float sum[kPack] = {};
  AddRows<kVector>(
      sorted, sorted.Token(first), first, 1, EndOfTile(sorted, first), column, C,
      [&](int64_t place) { return dy + sorted.order[place] * C; }, sum);
  StorePack<kVector>(sum, partials + static_cast<int64_t>(blockIdx.x) * C, column, C);
}

// Block (window, columns): the sums of all later tiles of the run whose second tile begins there, or nothing.
template <bool kVector>
__global__ void __launch_bounds__(kMaxColumnThreads)
    EmbeddingAddTilesKernel(int64_t C, Sorted sorted, const float* partials, float* dwte) {
  const int64_t place = static_cast<int64_t>(blockIdx.x) * kGatherTile;
  // The run of a second tile begins in the window before.
  if (place > kGatherTile && sorted.Token(place - kGatherTile - 1) == sorted.Token(place)) return;
  const int64_t first = LaterTile(sorted, blockIdx.x, place - kGatherTile);
  if (first < 0) return;
  const int32_t token = sorted.Token(first);
  const int64_t column = ColumnOfThread();
  float sum[kPack];
  LoadPack<kVector>(dwte + token * C, column, C, sum);
  AddRows<kVector>(
      sorted, token, first, kGatherTile, sorted.M, column, C,
      [&](int64_t later) { return partials + later / kGatherTile * C; }, sum);
  StorePack<kVector>(sum, dwte + token * C, column, C);
}

// positions (M): each row's, counted from its document's first.
__global__ void PositionsKernel(int64_t M, int64_t tokens_of_sample, const int32_t* document_first,
                                int32_t* positions) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (row < M) positions[row] = static_cast<int32_t>(PositionOf(row, tokens_of_sample, document_first));
}

// Where every sample has each position once.
template <typename T, bool kVector>
__global__ void PositionBackwardKernel(int64_t B, int64_t n, const T* dy, float* dwpe) {
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kPack;
  float sum[kPack];
  LoadPack<kVector>(dwpe, at, n, sum);
  for (int64_t sample = 0; sample < B; ++sample) {
    float v[kPack];
    LoadPack<kVector>(dy + sample * n, at, n, v);
    EPS_UNROLL
    for (int i = 0; i < kPack; ++i) sum[i] += v[i];
  }
  StorePack<kVector>(sum, dwpe, at, n);
}

}  // namespace

void Embedding(KernelQueue& queue, Dtype act, const EmbeddingArgs& args, const DeviceDropout& dropout) {
  const int threads =
      static_cast<int>(std::min<int64_t>(kElementThreads, CeilDiv(args.C, kPack * kWarpSize) * kWarpSize));
  const LaunchShape shape = {
      .blocks_x = args.B * args.T, .blocks_y = CeilDiv(CeilDiv(args.C, kPack), threads), .threads = threads};
  ForAct(args.wire_dtype, [&](auto wire) {
    using Wire = typename decltype(wire)::type;
    ForAct(act, [&](auto type) {
      using T = typename decltype(type)::type;
      const EmbeddingTables<Wire> tables = {static_cast<const Wire*>(args.wte), static_cast<const Wire*>(args.wpe),
                                            static_cast<const Wire*>(args.wtt)};
      ForVector(args.C, {args.wte, args.wpe, args.wtt}, [&](auto vector) {
        Launch(queue, "Embedding", shape, &EmbeddingKernel<Wire, T, decltype(vector)::value>, args.T, args.C,
               args.tokens, args.types, args.documents.first, tables, static_cast<T*>(args.y), dropout);
      });
    });
  });
}

namespace {

// dtable (V, C) += the rows of dy (M, C) that gathered each of its rows. scratch: of GatherScratch, but for positions.
void GatherBackward(KernelQueue& queue, Dtype act, int64_t M, int64_t V, int64_t C, const int32_t* ids, const void* dy,
                    float* dtable, void* scratch) {
  const GatherScratch at = GatherScratchOf(M, C);
  auto* const partials = static_cast<float*>(scratch);
  auto* const words = static_cast<uint32_t*>(scratch);
  const Sorted sorted = {M, ids, SortPositions(queue, M, V, ids, words + at.orders, words + at.tile_counts)};
  const int64_t packs = CeilDiv(C, kPack);
  const int threads = static_cast<int>(std::min<int64_t>(kMaxColumnThreads, CeilDiv(packs, kWarpSize) * kWarpSize));
  const LaunchShape places = {.blocks_x = M, .blocks_y = CeilDiv(packs, threads), .threads = threads};
  LaunchShape windows = places;
  windows.blocks_x = CeilDiv(M, kGatherTile);
  ForAct(act, [&](auto type) {
    using T = typename decltype(type)::type;
    ForVector(C, {dy, dtable, partials}, [&](auto vector) {
      constexpr bool kVector = decltype(vector)::value;
      Launch(queue, "EmbeddingBackward", places, &EmbeddingBackwardKernel<T, kVector>, C, sorted,
             static_cast<const T*>(dy), dtable);
      if (M <= kGatherTile) return;  // no run is longer
      Launch(queue, "EmbeddingTile", windows, &EmbeddingTileKernel<T, kVector>, C, sorted, static_cast<const T*>(dy),
             partials);
      Launch(queue, "EmbeddingAddTiles", windows, &EmbeddingAddTilesKernel<kVector>, C, sorted, partials, dtable);
    });
  });
}

void PositionBackward(KernelQueue& queue, Dtype act, const EmbeddingBackwardArgs& args) {
  const int64_t M = args.B * args.T;
  if (args.documents.first != nullptr) {
    auto* const positions = static_cast<int32_t*>(args.scratch) + GatherScratchOf(M, args.C).positions;
    Launch(queue, "Positions", {.blocks_x = CeilDiv(M, kElementThreads), .threads = kElementThreads}, &PositionsKernel,
           M, args.T, args.documents.first, positions);
    return GatherBackward(queue, act, M, args.T, args.C, positions, args.dy, args.dwpe, args.scratch);
  }
  ForAct(act, [&](auto type) {
    using T = typename decltype(type)::type;
    ForVector(args.T * args.C, {args.dy, args.dwpe}, [&](auto vector) {
      Launch(queue, "PositionBackward", ElementShape(args.T * args.C),
             &PositionBackwardKernel<T, decltype(vector)::value>, args.B, args.T * args.C,
             static_cast<const T*>(args.dy), args.dwpe);
    });
  });
}

}  // namespace

void EmbeddingBackward(KernelQueue& queue, Dtype act, const EmbeddingBackwardArgs& args, const DeviceDropout& dropout) {
  const int64_t M = args.B * args.T;
  if (dropout.on) ApplyDropout(queue, act, M * args.C, args.dy, dropout, args.dy);
  GatherBackward(queue, act, M, args.V, args.C, args.tokens, args.dy, args.dwte, args.scratch);
  if (args.dwpe != nullptr) PositionBackward(queue, act, args);
  if (args.dwtt != nullptr) {
    GatherBackward(queue, act, M, args.num_types, args.C, args.types, args.dy, args.dwtt, args.scratch);
  }
}

}  // namespace eps::worker::cuda
