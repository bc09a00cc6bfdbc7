#include <cstdint>

#include "common/tensor/dtype.h"
#include "gpu_worker/device/cuda/act_dispatch.h"
#include "gpu_worker/device/cuda/device_code.h"
#include "gpu_worker/device/cuda/experts.h"
#include "gpu_worker/device/cuda/launch.h"
#include "gpu_worker/device/cuda/simt.h"
#include "gpu_worker/device/cuda/tile_product.h"
#include "gpu_worker/device/kernels.h"

// Products of which each expert has one, all in one launch. Limited by tensor cores where experts have hundreds of
// rows, and by reading b, or writing the gradient, where they have few; no GPU has run them yet.
namespace eps::worker::cuda {
namespace {

// All of it numbers of 8 bytes, so that calls are hashed by them.
struct ProductShape {
  int64_t E, N, K;
  int64_t lda, ldb, b_stride, ldc;
  int64_t accumulate;
  int64_t column_tiles;

  friend bool operator==(const ProductShape&, const ProductShape&) = default;
};

struct ExpertRows {
  int64_t expert, first, end;
};

// The rows of an expert from the tile-th tile's first on, counted so that e's begin at tile first_row[e] / kTile + e:
// that is room for all of its tiles, and R / kTile + E for all of them. A tile without rows begins at `end` or behind
// it. Every thread of the block calls it.
__device__ __forceinline__ ExpertRows RowsOfTile(const int32_t* first_row, int64_t E, int64_t tile) {
  __shared__ ExpertRows found;
  for (int64_t e = threadIdx.x; e < E; e += blockDim.x) {
    const int64_t first = first_row[e], end = first_row[e + 1], first_tile = first / kTile + e;
    if (first_tile <= tile && tile <= end / kTile + e) found = {e, first + (tile - first_tile) * kTile, end};
  }
  __syncthreads();
  return found;
}

// values [+ c] -> c (.., end), a row's elements [at, at + 8).
template <bool kWhole, typename T>
__device__ __forceinline__ void StoreSums(float (&values)[kPack], bool accumulate, T* row, int64_t at, int64_t end) {
  if (accumulate) {
    float before[kPack];
    LoadPack<kWhole>(row, at, end, before);
    EPS_UNROLL
    for (int i = 0; i < kPack; ++i) values[i] += before[i];
  }
  StorePack<kWhole>(values, row, at, end);
}

template <typename T, bool kTransB, bool kWhole>
using MatMulTile = TileProduct<T, true, kTransB, kWhole>;

// Block: a tile of columns, of a tile of rows. Those that run at once have the same rows or the same expert, and what
// they share is in the second-level cache.
template <typename T, bool kTransB, bool kWhole>
__global__ void __launch_bounds__(MatMulTile<T, kTransB, kWhole>::kThreads, MatMulTile<T, kTransB, kWhole>::kBlocks)
    ExpertMatMulKernel(ProductShape shape, const int32_t* first_row, const T* a, const T* b, T* c) {
  const ExpertRows rows = RowsOfTile(first_row, shape.E, blockIdx.x / shape.column_tiles);
  if (rows.first >= rows.end) return;
  const int64_t first_column = blockIdx.x % shape.column_tiles * kTile;
  b += rows.expert * shape.b_stride + first_column * (kTransB ? shape.ldb : 1);
  const int64_t num_rows = rows.end - rows.first;
  MultiplyTile<MatMulTile<T, kTransB, kWhole>>(
      Lines<T>{a + rows.first * shape.lda, shape.lda, num_rows, shape.K},
      Lines<T>{b, shape.ldb, shape.N - first_column, shape.K}, [&](int row, int column, float(&values)[kPack]) {
        if (row >= num_rows) return;
        StoreSums<kWhole>(values, shape.accumulate != 0, c + (rows.first + row) * shape.ldc, first_column + column,
                          shape.N);
      });
}

struct GradientShape {
  int64_t M, N;
  int64_t lda, ldb, c_stride;
  int64_t accumulate;
  int64_t row_tiles, column_tiles;

  friend bool operator==(const GradientShape&, const GradientShape&) = default;
};

template <typename T, bool kWhole>
using GradientTile = TileProduct<T, false, false, kWhole>;

// Block: a tile of an expert's matrix.
template <typename T, bool kWhole>
__global__ void __launch_bounds__(GradientTile<T, kWhole>::kThreads, GradientTile<T, kWhole>::kBlocks)
    ExpertGradientKernel(GradientShape shape, const int32_t* first_row, const T* a, const T* b, float* c) {
  const int64_t tiles = shape.row_tiles * shape.column_tiles, expert = blockIdx.x / tiles, tile = blockIdx.x % tiles;
  const int64_t first = first_row[expert], num_rows = first_row[expert + 1] - first;
  if (num_rows == 0 && shape.accumulate != 0) return;
  const int64_t c_row = tile / shape.column_tiles * kTile, c_column = tile % shape.column_tiles * kTile;
  c += expert * shape.c_stride + c_row * shape.N;
  MultiplyTile<GradientTile<T, kWhole>>(
      Lines<T>{a + first * shape.lda + c_row, shape.lda, shape.M - c_row, num_rows},
      Lines<T>{b + first * shape.ldb + c_column, shape.ldb, shape.N - c_column, num_rows},
      [&](int row, int column, float(&values)[kPack]) {
        if (c_row + row >= shape.M) return;
        StoreSums<kWhole>(values, shape.accumulate != 0, c + row * shape.N, c_column + column, shape.N);
      });
}

template <typename Product, typename T>
LaunchShape TileBlocks(int64_t tiles) {
  static_assert(SharedBytesOf<Product, T>() <= kMaxSharedBytes);
  return {.blocks_x = tiles, .threads = Product::kThreads, .shared_bytes = SharedBytesOf<Product, T>()};
}

}  // namespace

void ExpertMatMul(KernelQueue& queue, Dtype act, const ExpertMatMulArgs& args) {
  const ProductShape shape = {.E = args.E,
                              .N = args.N,
                              .K = args.K,
                              .lda = args.lda,
                              .ldb = args.ldb,
                              .b_stride = args.b_stride,
                              .ldc = args.ldc,
                              .accumulate = args.accumulate ? 1 : 0,
                              .column_tiles = CeilDiv(args.N, kTile)};
  const int64_t tiles = (args.R / kTile + args.E) * shape.column_tiles;
  const int64_t all = args.N | args.K | args.lda | args.ldb | args.b_stride | args.ldc;  // packs, if each of them is
  ForAct(act, [&](auto type) {
    using T = typename decltype(type)::type;
    ForVector(all, {args.a, args.b, args.c}, [&](auto whole) {
      constexpr bool kWhole = decltype(whole)::value;
      const auto launch = [&](auto trans_b) {
        constexpr bool kTransB = decltype(trans_b)::value;
        Launch(queue, "ExpertMatMul", TileBlocks<MatMulTile<T, kTransB, kWhole>, T>(tiles),
               &ExpertMatMulKernel<T, kTransB, kWhole>, shape, args.first_row, static_cast<const T*>(args.a),
               static_cast<const T*>(args.b), static_cast<T*>(args.c));
      };
      args.trans_b ? launch(Flag<true>()) : launch(Flag<false>());
    });
  });
}

void ExpertGradient(KernelQueue& queue, Dtype act, const ExpertGradientArgs& args) {
  const GradientShape shape = {.M = args.M,
                               .N = args.N,
                               .lda = args.lda,
                               .ldb = args.ldb,
                               .c_stride = args.c_stride,
                               .accumulate = args.accumulate ? 1 : 0,
                               .row_tiles = CeilDiv(args.M, kTile),
                               .column_tiles = CeilDiv(args.N, kTile)};
  const int64_t tiles = args.E * shape.row_tiles * shape.column_tiles;
  const int64_t all = args.M | args.N | args.lda | args.ldb | args.c_stride;
  ForAct(act, [&](auto type) {
    using T = typename decltype(type)::type;
    ForVector(all, {args.a, args.b, args.c}, [&](auto whole) {
      constexpr bool kWhole = decltype(whole)::value;
      Launch(queue, "ExpertGradient", TileBlocks<GradientTile<T, kWhole>, T>(tiles), &ExpertGradientKernel<T, kWhole>,
             shape, args.first_row, static_cast<const T*>(args.a), static_cast<const T*>(args.b), args.c);
    });
  });
}

}  // namespace eps::worker::cuda
