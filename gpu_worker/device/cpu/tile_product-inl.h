// Products of small tiles, for attention; included once per target.

#if defined(EPS_GPU_WORKER_DEVICE_CPU_TILE_PRODUCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef EPS_GPU_WORKER_DEVICE_CPU_TILE_PRODUCT_INL_H_
#undef EPS_GPU_WORKER_DEVICE_CPU_TILE_PRODUCT_INL_H_
#else
#define EPS_GPU_WORKER_DEVICE_CPU_TILE_PRODUCT_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "common/base/status_macros.h"
#include "gpu_worker/device/cpu/transpose-inl.h"
#include "gpu_worker/device/cpu/vector_math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace eps::worker::cpu {
namespace HWY_NAMESPACE {

// Rows that are read or written soon, asked for between the blocks of products: where rows are kilobytes apart a processor
// foresees none. Into its second cache, as the first is full of the tile.
class RowsAhead {
 public:
  // n rows of D elements, `row` elements apart
  HWY_INLINE void Add(const float* rows, int64_t row, int64_t n, int64_t D) {
    EPS_CHECK(num_parts_ < kMostParts && n > 0);
    parts_[num_parts_++] = {rows, row, n, D};
    num_rows_ += n;
  }
  // That many blocks will call Next.
  HWY_INLINE void SpreadOver(int64_t blocks) { rows_per_block_ = (num_rows_ + blocks - 1) / blocks; }
  HWY_INLINE void Next() {
    for (int64_t i = 0; i < rows_per_block_ && next_part_ < num_parts_; ++i) {
      Part& part = parts_[next_part_];
      for (int64_t d = 0; d < part.D; d += kLineFloats) __builtin_prefetch(part.rows + d, /*rw=*/0, /*locality=*/2);
      part.rows += part.row;
      if (--part.left == 0) ++next_part_;
    }
  }

 private:
  struct Part {
    const float* rows;
    int64_t row, left, D;
  };
  static constexpr int kMostParts = 8;
  Part parts_[kMostParts];
  int num_parts_ = 0, next_part_ = 0;
  int64_t num_rows_ = 0, rows_per_block_ = 0;
};

// c (rows, columns) = a (rows, K) b (K, columns) [+ c [* column_scale]]. Each element is one chain
// of fused multiply-adds over k in order, whatever the width of a vector or the block it is in: so
// blocks may be skipped or cut differently on another target and the bits of finite values stay.
struct TileProduct {
  const float* a = nullptr;  // element (i, k) at a[i * a_row + k * a_k]: a transpose costs nothing
  int64_t a_row = 0, a_k = 0;
  const float* b = nullptr;  // rows of `columns` elements, ldb apart
  int64_t ldb = 0;
  float* c = nullptr;
  int64_t ldc = 0;
  bool add = false;                     // onto c
  const float* column_scale = nullptr;  // with add: c's columns are first multiplied by these
  RowsAhead* ahead = nullptr;           // asked for meanwhile, or null
};

// 8 rows by 2 vectors: 16 sums in registers hide the latency of two fused multiply-add units with
// AVX-512, whose 32 registers hold them; with 16 registers (AVX2), 4 rows.
inline constexpr int kBlockRows = kVecLanes == 16 ? 8 : 4;
inline constexpr int kBlockVecs = 2;
inline constexpr int64_t kBlockColumns = kBlockVecs * kVecLanes;
static_assert(kBlockVecs == 2);  // ProductRows has blocks of two vectors and of one
// As finely triangles are cut: by the vector with AVX-512; by the block where one vector's 4 sums hide no latency. 16 columns
// both ways.
inline constexpr int64_t kTriangleColumns = kVecLanes == 16 ? kVecLanes : kBlockColumns;
constexpr int64_t EndOfTriangle(int64_t column) {
  return column / kTriangleColumns * kTriangleColumns + kTriangleColumns;
}

template <int kRows, int kVecs>
HWY_INLINE void ProductBlock(const TileProduct& p, int64_t row, int64_t column, int64_t columns, int64_t k_begin,
                             int64_t k_end) {
  const DF d;
  const int64_t left = columns - column;  // of the last vector, some lanes may be behind the end
  const bool whole = left >= kVecs * kVecLanes;
  VF acc[kRows][kVecs];
  float* c = p.c + row * p.ldc + column;
  HWY_UNROLL(8)
  for (int i = 0; i < kRows; ++i) {
    HWY_UNROLL(2)
    for (int v = 0; v < kVecs; ++v) {
      const int64_t at = v * kVecLanes;
      acc[i][v] = !p.add  ? hn::Zero(d)
                  : whole ? hn::LoadU(d, c + i * p.ldc + at)
                          : LoadTail(d, c + i * p.ldc + at, left - at);
      if (p.column_scale != nullptr) acc[i][v] = hn::Mul(acc[i][v], hn::LoadU(d, p.column_scale + column + at));
    }
  }
  const float* a = p.a + row * p.a_row + k_begin * p.a_k;
  const float* b = p.b + k_begin * p.ldb + column;
  for (int64_t k = k_begin; k < k_end; ++k, a += p.a_k, b += p.ldb) {
    VF bv[kVecs];
    HWY_UNROLL(2)
    for (int v = 0; v < kVecs; ++v) {
      bv[v] = whole ? hn::LoadU(d, b + v * kVecLanes) : LoadTail(d, b + v * kVecLanes, left - v * kVecLanes);
    }
    HWY_UNROLL(8)
    for (int i = 0; i < kRows; ++i) {
      const VF av = hn::Set(d, a[i * p.a_row]);
      HWY_UNROLL(2)
      for (int v = 0; v < kVecs; ++v) acc[i][v] = hn::MulAdd(av, bv[v], acc[i][v]);
    }
  }
  HWY_UNROLL(8)
  for (int i = 0; i < kRows; ++i) {
    HWY_UNROLL(2)
    for (int v = 0; v < kVecs; ++v) {
      const int64_t at = v * kVecLanes;
      if (whole) {
        hn::StoreU(acc[i][v], d, c + i * p.ldc + at);
      } else {
        StoreTail(acc[i][v], d, c + i * p.ldc + at, left - at);
      }
    }
  }
}

// Which part of the product a triangular operand leaves.
//   kFull
//   kSkipColumnsBelowRow: element (i, j) is not needed where j < i; what lies before the row's
//                         kTriangleColumns is left as it was
//   kStartAtRow:          a (i, k) is zero where k < i
//   kEndAtRow:            a (i, k) is zero where k > i
//   kEndAtColumn:         b (k, j) is zero where k > j; it is not read below the kTriangleColumns that j is in
enum class Triangle { kFull, kSkipColumnsBelowRow, kStartAtRow, kEndAtRow, kEndAtColumn };

// kRows rows of the product, in blocks of kBlockVecs vectors; of one where a triangle begins, or the columns end, in the
// middle of a block. With kEndAtColumn a second vector that goes further does so alone.
template <int kRows>
HWY_INLINE void ProductRows(const TileProduct& p, int64_t row, int64_t columns, int64_t K, Triangle triangle) {
  const int64_t k_begin = triangle == Triangle::kStartAtRow ? std::min(row, K) : 0;
  const int64_t k_end = triangle == Triangle::kEndAtRow ? std::min(K, row + kRows) : K;
  const auto end_of = [&](int64_t column) {  // of the vector there
    return triangle == Triangle::kEndAtColumn ? std::min(K, EndOfTriangle(column)) : k_end;
  };
  int64_t column = triangle == Triangle::kSkipColumnsBelowRow ? row / kTriangleColumns * kTriangleColumns : 0;
  while (column < columns) {
    const int64_t next = column + kVecLanes, end = end_of(column);
    if (column % kBlockColumns != 0 || next >= columns) {
      ProductBlock<kRows, 1>(p, row, column, columns, k_begin, end);
      column = next;
    } else {
      ProductBlock<kRows, kBlockVecs>(p, row, column, columns, k_begin, end);
      if (end < end_of(next)) {  // the second vector goes on alone
        TileProduct rest = p;
        rest.add = true;
        rest.column_scale = nullptr;
        ProductBlock<kRows, 1>(rest, row, next, columns, end, end_of(next));
      }
      column += kBlockColumns;
    }
    if (p.ahead != nullptr) p.ahead->Next();
  }
}

HWY_INLINE void MultiplyTile(const TileProduct& p, int64_t rows, int64_t columns, int64_t K, Triangle triangle) {
  int64_t row = 0;
  for (; row + kBlockRows <= rows; row += kBlockRows) ProductRows<kBlockRows>(p, row, columns, K, triangle);
  for (; row < rows; ++row) ProductRows<1>(p, row, columns, K, triangle);
}

}  // namespace HWY_NAMESPACE
}  // namespace eps::worker::cpu
HWY_AFTER_NAMESPACE();

#endif  // EPS_GPU_WORKER_DEVICE_CPU_TILE_PRODUCT_INL_H_
