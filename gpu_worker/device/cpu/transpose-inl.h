// Transposition; included once per target.

#if defined(EPS_GPU_WORKER_DEVICE_CPU_TRANSPOSE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef EPS_GPU_WORKER_DEVICE_CPU_TRANSPOSE_INL_H_
#undef EPS_GPU_WORKER_DEVICE_CPU_TRANSPOSE_INL_H_
#else
#define EPS_GPU_WORKER_DEVICE_CPU_TRANSPOSE_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace eps::worker::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr int64_t kLineFloats = 16;  // of a cache line

// dst (columns, rows) = src (rows, columns) transposed: moves only.
HWY_INLINE void TransposeTile(const float* src, int64_t src_row, int64_t rows, int64_t columns, float* dst,
                              int64_t dst_row) {
  const hn::FixedTag<float, 4> d;
  const hn::Repartition<double, decltype(d)> d64;
  const int64_t rows4 = rows / 4 * 4, columns4 = columns / 4 * 4;
  for (int64_t i = 0; i < rows4; i += 4) {
    for (int64_t j = 0; j < columns4; j += 4) {
      const float* s = src + i * src_row + j;
      const auto r0 = hn::LoadU(d, s), r1 = hn::LoadU(d, s + src_row);
      const auto r2 = hn::LoadU(d, s + 2 * src_row), r3 = hn::LoadU(d, s + 3 * src_row);
      const auto l01 = hn::BitCast(d64, hn::InterleaveLower(d, r0, r1));
      const auto l23 = hn::BitCast(d64, hn::InterleaveLower(d, r2, r3));
      const auto u01 = hn::BitCast(d64, hn::InterleaveUpper(d, r0, r1));
      const auto u23 = hn::BitCast(d64, hn::InterleaveUpper(d, r2, r3));
      float* t = dst + j * dst_row + i;
      hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d64, l01, l23)), d, t);
      hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d64, l01, l23)), d, t + dst_row);
      hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d64, u01, u23)), d, t + 2 * dst_row);
      hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d64, u01, u23)), d, t + 3 * dst_row);
    }
    for (int64_t j = columns4; j < columns; ++j) {
      for (int64_t k = i; k < i + 4; ++k) dst[j * dst_row + k] = src[k * src_row + j];
    }
  }
  for (int64_t i = rows4; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) dst[j * dst_row + i] = src[i * src_row + j];
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace eps::worker::cpu
HWY_AFTER_NAMESPACE();

#endif  // EPS_GPU_WORKER_DEVICE_CPU_TRANSPOSE_INL_H_
