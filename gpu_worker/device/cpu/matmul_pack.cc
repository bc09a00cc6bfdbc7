#include "gpu_worker/device/cpu/matmul_pack.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "gpu_worker/device/cpu/vector_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu_worker/device/cpu/matmul_pack.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// After foreach_target.h: these are per target.
#include "gpu_worker/device/cpu/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace eps::worker::cpu {
namespace HWY_NAMESPACE {
namespace {

// Line by line, and the lines of the next rows asked for: where rows are kilobytes apart a processor foresees none.
void PackTransposedImpl(const float* src, int64_t src_row, int64_t rows, int64_t columns, float* dst) {
  const int64_t dst_row = PackedRow(rows);
  for (int64_t i = 0; i < rows; i += kLineFloats) {
    const int64_t num_rows = std::min(kLineFloats, rows - i);
    for (int64_t j = 0; j < columns; j += kLineFloats) {
      for (int64_t ahead = i + kLineFloats; ahead < std::min(i + 2 * kLineFloats, rows); ++ahead) {
        __builtin_prefetch(src + ahead * src_row + j);
      }
      TransposeTile(src + i * src_row + j, src_row, num_rows, std::min(kLineFloats, columns - j), dst + j * dst_row + i,
                    dst_row);
    }
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace eps::worker::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eps::worker::cpu {

HWY_EXPORT(PackTransposedImpl);

void Pack(const float* src, int64_t src_row, int64_t rows, int64_t columns, float* dst) {
  for (int64_t i = 0; i < rows; ++i) {
    std::memcpy(dst + i * PackedRow(columns), src + i * src_row, static_cast<size_t>(columns) * sizeof(float));
  }
}

void PackTransposed(const float* src, int64_t src_row, int64_t rows, int64_t columns, float* dst) {
  HWY_DYNAMIC_DISPATCH(PackTransposedImpl)(src, src_row, rows, columns, dst);
}

}  // namespace eps::worker::cpu
#endif  // HWY_ONCE
