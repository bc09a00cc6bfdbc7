#include "gpu_worker/device/cuda/attention.h"

#include <array>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <tuple>

#include "common/tensor/dtype.h"
#include "gpu_worker/device/cuda/act_dispatch.h"
#include "gpu_worker/device/cuda/device_code.h"
#include "gpu_worker/device/cuda/device_dropout.h"
#include "gpu_worker/device/cuda/launch.h"
#include "gpu_worker/device/cuda/simt.h"
#include "gpu_worker/device/kernels.h"

namespace eps::worker::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarpSize;

// kDims columns of a head's D belong to each lane: lane, lane + 32, ... A tile is kRows positions, of which a warp owns
// every kWarps-th.
template <int kDims>
struct Tiling {
  static constexpr int kRows = kDims > 4 ? 16 : 32;  // four tiles of D columns fit the shared memory
  static constexpr int kRowsOfWarp = kRows / kWarps;
};

__device__ __forceinline__ int Lane() { return threadIdx.x % kWarpSize; }
__device__ __forceinline__ int WarpOfBlock() { return threadIdx.x / kWarpSize; }

// Beyond every position, and sums with positions do not overflow.
constexpr int64_t kNoWindow = int64_t{1} << 40;

// A head of queries of a sample.
struct Head {
  int64_t sample, head;
};

__device__ __forceinline__ int64_t Least(int64_t a, int64_t b) { return a < b ? a : b; }
__device__ __forceinline__ int64_t Most(int64_t a, int64_t b) { return a > b ? a : b; }

// A block works on one tile of one head of one sample. A head's arrays start at the sample's first position.
struct HeadShape {
  int64_t T, H, kv_heads, D;
  float scale;
  bool causal;
  int64_t window;  // kNoWindow where there is none
  Documents documents;
  int64_t tiles;  // of a head

  friend bool operator==(const HeadShape&, const HeadShape&) = default;

  __device__ int64_t head_of_batch() const { return blockIdx.x / tiles; }
  __device__ int64_t tile() const { return blockIdx.x % tiles; }
  __device__ Head HeadOfBlock() const { return {head_of_batch() / H, head_of_batch() % H}; }
  // The same where blocks are of heads of keys and values: the `of_group`-th head of queries that uses it.
  __device__ int64_t group() const { return H / kv_heads; }
  __device__ Head HeadOfGroup(int64_t of_group) const {
    return {head_of_batch() / kv_heads, head_of_batch() % kv_heads * group() + of_group};
  }

  __device__ int64_t qkv_row() const { return (H + 2 * kv_heads) * D; }
  __device__ int64_t o_row() const { return H * D; }
  __device__ int64_t q_start(Head at) const { return at.sample * T * qkv_row() + at.head * D; }
  __device__ int64_t k_start(Head at) const { return at.sample * T * qkv_row() + (H + at.head / group()) * D; }
  __device__ int64_t v_start(Head at) const { return k_start(at) + kv_heads * D; }
  __device__ int64_t o_start(Head at) const { return (at.sample * T * H + at.head) * D; }
  __device__ int64_t row_start(Head at) const { return (at.sample * H + at.head) * T; }  // of lse and probabilities

  // Of the document of a position; of the last one's beyond it.
  __device__ int64_t FirstOfDocument(Head at, int64_t position) const {
    return documents.first == nullptr ? 0 : documents.first[at.sample * T + Least(position, T - 1)];
  }
  __device__ int64_t EndOfDocument(Head at, int64_t position) const {
    return documents.first == nullptr ? T : documents.end[at.sample * T + Least(position, T - 1)];
  }

  // The columns that a row sees: [FirstColumn, EndOfColumns). The rows that see a column: [FirstRow, EndOfRows).
  __device__ int64_t FirstColumn(Head at, int64_t row) const {
    return Most(FirstOfDocument(at, row), row - window + 1);
  }
  __device__ int64_t EndOfColumns(Head at, int64_t row) const {
    return causal ? Least(row + 1, T) : EndOfDocument(at, row);
  }
  __device__ int64_t FirstRow(Head at, int64_t column) const { return causal ? column : FirstOfDocument(at, column); }
  __device__ int64_t EndOfRows(Head at, int64_t column) const {
    return Least(column + window, EndOfDocument(at, column));
  }
  __device__ bool Sees(Head at, int64_t row, int64_t column) const {
    return column >= FirstColumn(at, row) && column < EndOfColumns(at, row);
  }
};

// For HashOfArgument: enough to tell shapes apart.
auto FieldsOf(const HeadShape& shape) {
  return std::tie(shape.T, shape.H, shape.kv_heads, shape.D, shape.window, shape.documents.first, shape.documents.end);
}

// Rows [first, first + kRows) of a head into shared memory, its rows D + 1 apart; 0 from T on.
template <int kRows, typename T>
__device__ void LoadTile(const T* from, int64_t row_elems, int64_t first, int64_t num_rows, int64_t D, float* to) {
  for (int row = WarpOfBlock(); row < kRows; row += kWarps) {
    const bool there = first + row < num_rows;
    for (int64_t d = Lane(); d < D; d += kWarpSize) {
      to[row * (D + 1) + d] = there ? ToFloat(from[(first + row) * row_elems + d]) : 0.0f;
    }
  }
}

// Where the tile of a position begins.
template <int kRows>
__device__ int64_t FirstTile(int64_t position) {
  return position / kRows * kRows;
}

// Not inlined, as each of a warp's rows has a copy of the code around it: that would be most of the program.
__device__ __noinline__ float Dot(const float* a, const float* b, int64_t D) {
  float sum = 0;
  for (int64_t d = 0; d < D; ++d) sum += a[d] * b[d];
  return sum;
}

// Of the probability in a row and column of the head.
__device__ __forceinline__ float ProbabilityFactor(const DeviceDropout& dropout, const HeadShape& shape, Head head,
                                                   int64_t row, int64_t column) {
  if (!dropout.on) return 1;
  const uint64_t element =
      static_cast<uint64_t>(dropout.first_element + (shape.row_start(head) + row) * shape.T + column);
  const std::array<uint32_t, 4> words = DropoutWords(dropout, element / 4);
  return DropoutFactor(dropout, WordAt(words, element % 4));
}

template <typename T, int kDims>
__global__ void __launch_bounds__(kThreads)
    AttentionKernel(HeadShape shape, const T* qkv, T* o, float* lse, DeviceDropout dropout) {
  using Tile = Tiling<kDims>;
  const int64_t D = shape.D, first_row = shape.tile() * Tile::kRows;
  float* q = DynamicShared<float>();
  float* k = q + Tile::kRows * (D + 1);
  float* v = k + Tile::kRows * (D + 1);
  __shared__ float probabilities[kWarps][kWarpSize];
  const Head head = shape.HeadOfBlock();
  LoadTile<Tile::kRows>(qkv + shape.q_start(head), shape.qkv_row(), first_row, shape.T, D, q);

  float sum[Tile::kRowsOfWarp][kDims] = {}, max[Tile::kRowsOfWarp], total[Tile::kRowsOfWarp] = {};
  EPS_UNROLL
  for (int i = 0; i < Tile::kRowsOfWarp; ++i) max[i] = -FLT_MAX;

  const int64_t end = shape.EndOfColumns(head, first_row + Tile::kRows - 1);
  for (int64_t first = FirstTile<Tile::kRows>(shape.FirstColumn(head, first_row)); first < end; first += Tile::kRows) {
    __syncthreads();  // the tile before has been read
    LoadTile<Tile::kRows>(qkv + shape.k_start(head), shape.qkv_row(), first, shape.T, D, k);
    LoadTile<Tile::kRows>(qkv + shape.v_start(head), shape.qkv_row(), first, shape.T, D, v);
    __syncthreads();
    EPS_UNROLL
    for (int i = 0; i < Tile::kRowsOfWarp; ++i) {
      const int in_tile = WarpOfBlock() + i * kWarps;
      const int64_t row = first_row + in_tile, column = first + Lane();
      const bool seen = Lane() < Tile::kRows && shape.Sees(head, row, column);
      const float score = seen ? Dot(q + in_tile * (D + 1), k + Lane() * (D + 1), D) * shape.scale : -FLT_MAX;
      const float new_max = fmaxf(max[i], WarpMax(score));
      const float probability = seen ? expf(score - new_max) : 0.0f;
      const float rescale = expf(max[i] - new_max);
      total[i] = total[i] * rescale + WarpSum(probability);
      max[i] = new_max;
      probabilities[WarpOfBlock()][Lane()] =
          seen ? probability * ProbabilityFactor(dropout, shape, head, row, column) : 0.0f;
      __syncwarp();
      EPS_UNROLL
      for (int c = 0; c < kDims; ++c) sum[i][c] *= rescale;
      // Only what the row may see: 0 times a NaN elsewhere would be one.
      const int64_t columns_end = Least(shape.EndOfColumns(head, row) - first, Tile::kRows);
      EPS_NO_UNROLL
      for (int64_t j = Most(0, shape.FirstColumn(head, row) - first); j < columns_end; ++j) {
        const float p = probabilities[WarpOfBlock()][j];
        EPS_UNROLL
        for (int c = 0; c < kDims; ++c) {
          const int64_t d = Lane() + c * kWarpSize;
          if (d < D) sum[i][c] += p * v[j * (D + 1) + d];
        }
      }
      __syncwarp();
    }
  }

  EPS_UNROLL
  for (int i = 0; i < Tile::kRowsOfWarp; ++i) {
    const int64_t row = first_row + WarpOfBlock() + i * kWarps;
    if (row >= shape.T) continue;
    EPS_UNROLL
    for (int c = 0; c < kDims; ++c) {
      const int64_t d = Lane() + c * kWarpSize;
      if (d < D) o[shape.o_start(head) + row * shape.o_row() + d] = FromFloat<T>(sum[i][c] / total[i]);
    }
    if (Lane() == 0) lse[shape.row_start(head) + row] = max[i] + logf(total[i]);
  }
}

// delta (B, H, T): of each row the sum of o * d_o, which is that of its probabilities times their gradients.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    AttentionDeltaKernel(HeadShape shape, const T* o, const T* d_o, float* delta) {
  const int64_t row = shape.tile() * kWarps + WarpOfBlock();
  if (row >= shape.T) return;
  const Head head = shape.HeadOfBlock();
  const int64_t start = shape.o_start(head) + row * shape.o_row();
  float sum = 0;
  for (int64_t d = Lane(); d < shape.D; d += kWarpSize) sum += ToFloat(o[start + d]) * ToFloat(d_o[start + d]);
  sum = WarpSum(sum);
  if (Lane() == 0) delta[shape.row_start(head) + row] = sum;
}

// Of one probability, whose row has `lse` and `delta`: what its value's row is multiplied by, and the gradient of its
// score. The arrays are the D elements of its query, key, value and output gradient.
struct ProbabilityParts {
  float dropped = 0, d_score = 0;
};
__device__ __forceinline__ ProbabilityParts PartsOfProbability(const HeadShape& shape, const float* q, const float* k,
                                                               const float* v, const float* d_o, float lse, float delta,
                                                               float factor) {
  const float probability = expf(Dot(q, k, shape.D) * shape.scale - lse);
  const float d_probability = Dot(d_o, v, shape.D) * factor;
  return {probability * factor, probability * (d_probability - delta) * shape.scale};
}

// A tile of queries: d_q, over the keys that they see.
template <typename T, int kDims>
__global__ void __launch_bounds__(kThreads)
    AttentionBackwardQueriesKernel(HeadShape shape, const T* qkv, const T* d_o, const float* lse, const float* delta,
                                   T* dqkv, DeviceDropout dropout) {
  using Tile = Tiling<kDims>;
  const int64_t D = shape.D, first_row = shape.tile() * Tile::kRows;
  const int64_t tile_elems = Tile::kRows * (D + 1);
  float* q = DynamicShared<float>();
  float* k = q + tile_elems;
  float* v = k + tile_elems;
  float* g = v + tile_elems;
  __shared__ float d_scores[kWarps][kWarpSize];
  const Head head = shape.HeadOfBlock();
  LoadTile<Tile::kRows>(qkv + shape.q_start(head), shape.qkv_row(), first_row, shape.T, D, q);
  LoadTile<Tile::kRows>(d_o + shape.o_start(head), shape.o_row(), first_row, shape.T, D, g);

  float sum[Tile::kRowsOfWarp][kDims] = {};
  const int64_t end = shape.EndOfColumns(head, first_row + Tile::kRows - 1);
  for (int64_t first = FirstTile<Tile::kRows>(shape.FirstColumn(head, first_row)); first < end; first += Tile::kRows) {
    __syncthreads();
    LoadTile<Tile::kRows>(qkv + shape.k_start(head), shape.qkv_row(), first, shape.T, D, k);
    LoadTile<Tile::kRows>(qkv + shape.v_start(head), shape.qkv_row(), first, shape.T, D, v);
    __syncthreads();
    EPS_UNROLL
    for (int i = 0; i < Tile::kRowsOfWarp; ++i) {
      const int in_tile = WarpOfBlock() + i * kWarps;
      const int64_t row = first_row + in_tile, column = first + Lane();
      ProbabilityParts parts;
      if (Lane() < Tile::kRows && row < shape.T && shape.Sees(head, row, column)) {
        const int64_t at = shape.row_start(head) + row;
        parts = PartsOfProbability(shape, q + in_tile * (D + 1), k + Lane() * (D + 1), v + Lane() * (D + 1),
                                   g + in_tile * (D + 1), lse[at], delta[at],
                                   ProbabilityFactor(dropout, shape, head, row, column));
      }
      d_scores[WarpOfBlock()][Lane()] = parts.d_score;
      __syncwarp();
      const int64_t columns_end = Least(shape.EndOfColumns(head, row) - first, Tile::kRows);
      EPS_NO_UNROLL
      for (int64_t j = Most(0, shape.FirstColumn(head, row) - first); j < columns_end; ++j) {
        const float d_score = d_scores[WarpOfBlock()][j];
        EPS_UNROLL
        for (int c = 0; c < kDims; ++c) {
          const int64_t d = Lane() + c * kWarpSize;
          if (d < D) sum[i][c] += d_score * k[j * (D + 1) + d];
        }
      }
      __syncwarp();
    }
  }

  EPS_UNROLL
  for (int i = 0; i < Tile::kRowsOfWarp; ++i) {
    const int64_t row = first_row + WarpOfBlock() + i * kWarps;
    if (row >= shape.T) continue;
    EPS_UNROLL
    for (int c = 0; c < kDims; ++c) {
      const int64_t d = Lane() + c * kWarpSize;
      if (d < D) dqkv[shape.q_start(head) + row * shape.qkv_row() + d] = FromFloat<T>(sum[i][c]);
    }
  }
}

// A tile of keys and values: d_k and d_v, over the queries that see them, of each head that uses them in turn. A lane
// computes the probability of a query and the warp's key.
template <typename T, int kDims>
__global__ void __launch_bounds__(kThreads)
    AttentionBackwardKeysKernel(HeadShape shape, const T* qkv, const T* d_o, const float* lse, const float* delta,
                                T* dqkv, DeviceDropout dropout) {
  using Tile = Tiling<kDims>;
  const int64_t D = shape.D, first_column = shape.tile() * Tile::kRows;
  const int64_t tile_elems = Tile::kRows * (D + 1);
  float* q = DynamicShared<float>();
  float* k = q + tile_elems;
  float* v = k + tile_elems;
  float* g = v + tile_elems;
  __shared__ ProbabilityParts of_rows[kWarps][kWarpSize];
  const Head first_head = shape.HeadOfGroup(0);
  LoadTile<Tile::kRows>(qkv + shape.k_start(first_head), shape.qkv_row(), first_column, shape.T, D, k);
  LoadTile<Tile::kRows>(qkv + shape.v_start(first_head), shape.qkv_row(), first_column, shape.T, D, v);

  float d_k[Tile::kRowsOfWarp][kDims] = {}, d_v[Tile::kRowsOfWarp][kDims] = {};
  const int64_t begin = FirstTile<Tile::kRows>(shape.FirstRow(first_head, first_column));
  const int64_t end = shape.EndOfRows(first_head, first_column + Tile::kRows - 1);
  for (int64_t of_group = 0; of_group < shape.group(); ++of_group) {
    const Head head = shape.HeadOfGroup(of_group);
    for (int64_t first = begin; first < end; first += Tile::kRows) {
      __syncthreads();
      LoadTile<Tile::kRows>(qkv + shape.q_start(head), shape.qkv_row(), first, shape.T, D, q);
      LoadTile<Tile::kRows>(d_o + shape.o_start(head), shape.o_row(), first, shape.T, D, g);
      __syncthreads();
      EPS_UNROLL
      for (int i = 0; i < Tile::kRowsOfWarp; ++i) {
        const int in_tile = WarpOfBlock() + i * kWarps;
        const int64_t row = first + Lane(), column = first_column + in_tile;
        ProbabilityParts parts;
        if (Lane() < Tile::kRows && row < shape.T && shape.Sees(head, row, column)) {
          const int64_t at = shape.row_start(head) + row;
          parts = PartsOfProbability(shape, q + Lane() * (D + 1), k + in_tile * (D + 1), v + in_tile * (D + 1),
                                     g + Lane() * (D + 1), lse[at], delta[at],
                                     ProbabilityFactor(dropout, shape, head, row, column));
        }
        of_rows[WarpOfBlock()][Lane()] = parts;
        __syncwarp();
        const int64_t rows_end = Least(shape.EndOfRows(head, column) - first, Tile::kRows);
        EPS_NO_UNROLL
        for (int64_t j = Most(0, shape.FirstRow(head, column) - first); j < rows_end; ++j) {
          const ProbabilityParts of_row = of_rows[WarpOfBlock()][j];
          EPS_UNROLL
          for (int c = 0; c < kDims; ++c) {
            const int64_t d = Lane() + c * kWarpSize;
            if (d < D) {
              d_k[i][c] += of_row.d_score * q[j * (D + 1) + d];
              d_v[i][c] += of_row.dropped * g[j * (D + 1) + d];
            }
          }
        }
        __syncwarp();
      }
    }
  }

  EPS_UNROLL
  for (int i = 0; i < Tile::kRowsOfWarp; ++i) {
    const int64_t row = first_column + WarpOfBlock() + i * kWarps;
    if (row >= shape.T) continue;
    EPS_UNROLL
    for (int c = 0; c < kDims; ++c) {
      const int64_t d = Lane() + c * kWarpSize;
      if (d >= D) continue;
      dqkv[shape.k_start(first_head) + row * shape.qkv_row() + d] = FromFloat<T>(d_k[i][c]);
      dqkv[shape.v_start(first_head) + row * shape.qkv_row() + d] = FromFloat<T>(d_v[i][c]);
    }
  }
}

template <int kCount>
struct Dims {
  static constexpr int value = kCount;
};

// fn(Type, Dims) for heads of D elements.
template <typename Fn>
void ForHead(Dtype act, int64_t D, const Fn& fn) {
  ForAct(act, [&](auto type) {
    if (D <= 128) {
      fn(type, Dims<4>());
    } else {
      fn(type, Dims<8>());
    }
  });
}

// A block for each tile of `rows` positions of each head.
template <typename Args>
HeadShape ShapeOf(const Args& args, int rows) {
  return {.T = args.T,
          .H = args.H,
          .kv_heads = args.kv_heads,
          .D = args.D,
          .scale = static_cast<float>(args.scale),
          .causal = args.causal,
          .window = args.window == 0 ? kNoWindow : args.window,
          .documents = args.documents,
          .tiles = CeilDiv(args.T, rows)};
}

// Of `heads` in a sample, with `arrays` tiles of `rows` positions in shared memory.
template <typename Args>
LaunchShape GridOf(const Args& args, int64_t heads, int rows, int arrays) {
  return {.blocks_x = args.B * heads * CeilDiv(args.T, rows),
          .threads = kThreads,
          .shared_bytes = static_cast<int>(arrays * rows * (args.D + 1) * sizeof(float))};
}

}  // namespace

void PlainAttention(KernelQueue& queue, Dtype act, const AttentionArgs& args, const DeviceDropout& dropout) {
  ForHead(act, args.D, [&](auto type, auto dims) {
    using T = typename decltype(type)::type;
    constexpr int kDims = decltype(dims)::value;
    constexpr int kRows = Tiling<kDims>::kRows;
    Launch(queue, "PlainAttention", GridOf(args, args.H, kRows, 3), &AttentionKernel<T, kDims>, ShapeOf(args, kRows),
           static_cast<const T*>(args.qkv), static_cast<T*>(args.o), args.lse, dropout);
  });
}

void PlainAttentionBackward(KernelQueue& queue, Dtype act, const AttentionBackwardArgs& args,
                            const DeviceDropout& dropout) {
  float* delta = static_cast<float*>(args.scratch);
  ForHead(act, args.D, [&](auto type, auto dims) {
    using T = typename decltype(type)::type;
    constexpr int kDims = decltype(dims)::value;
    const T* qkv = static_cast<const T*>(args.qkv);
    const T* d_o = static_cast<const T*>(args.d_o);
    T* dqkv = static_cast<T*>(args.dqkv);
    Launch(queue, "AttentionDelta", GridOf(args, args.H, kWarps, 0), &AttentionDeltaKernel<T>, ShapeOf(args, kWarps),
           static_cast<const T*>(args.o), d_o, delta);
    constexpr int kRows = Tiling<kDims>::kRows;
    const HeadShape shape = ShapeOf(args, kRows);
    Launch(queue, "AttentionBackwardQueries", GridOf(args, args.H, kRows, 4), &AttentionBackwardQueriesKernel<T, kDims>,
           shape, qkv, d_o, args.lse, delta, dqkv, dropout);
    Launch(queue, "AttentionBackwardKeys", GridOf(args, args.kv_heads, kRows, 4),
           &AttentionBackwardKeysKernel<T, kDims>, shape, qkv, d_o, args.lse, delta, dqkv, dropout);
  });
}

}  // namespace eps::worker::cuda
