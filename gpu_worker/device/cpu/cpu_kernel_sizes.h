#ifndef EPS_GPU_WORKER_DEVICE_CPU_CPU_KERNEL_SIZES_H_
#define EPS_GPU_WORKER_DEVICE_CPU_CPU_KERNEL_SIZES_H_

#include <cstdint>

#include "gpu_worker/device/kernels.h"

namespace eps::worker {

// Scratch of the cpu device's kernels, for the planner; see KernelSizes.
KernelSizes CpuKernelSizes();

// How a reduction over M rows is cut: each tile of rows leaves one partial sum, and the partial
// sums are added in tile order. A function of M alone, so the order of the sum is too. At most
// kMaxRowTiles tiles, so that the partial sums stay small beside the rows.
struct RowTiling {
  int64_t rows_per_tile = 0;
  int64_t num_tiles = 0;
};
inline constexpr int64_t kMinRowsPerTile = 32;
inline constexpr int64_t kMaxRowTiles = 64;
RowTiling ReductionTiling(int64_t M);

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_DEVICE_CPU_CPU_KERNEL_SIZES_H_
