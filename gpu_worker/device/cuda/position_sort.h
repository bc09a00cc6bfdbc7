#ifndef EPS_GPU_WORKER_DEVICE_CUDA_POSITION_SORT_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_POSITION_SORT_H_

#include <cstdint>

#include "gpu_worker/device/cuda/launch.h"

namespace eps::worker::cuda {

// The positions of ids (M), each in [0, num_ids), by their id, and by position within an id: tokens of an embedding,
// experts of routed rows. Returns where the order lies: (M), one of `orders` (2, M). tile_counts (kSortDigits, tiles of
// kSortTile).
// Cost: a pass over ids and order for each kSortDigitBits of an id, of three kernels
const uint32_t* SortPositions(KernelQueue& queue, int64_t M, int64_t num_ids, const int32_t* ids, uint32_t* orders,
                              uint32_t* tile_counts);

}  // namespace eps::worker::cuda

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_POSITION_SORT_H_
