#ifndef EPS_GPU_WORKER_DEVICE_CPU_MATMUL_PACK_H_
#define EPS_GPU_WORKER_DEVICE_CPU_MATMUL_PACK_H_

#include <cstdint>

namespace eps::worker::cpu {

// The distance of rows of `columns` floats in a packed copy: an odd number of cache lines, so that the same columns of many
// rows fall on every set of a cache.
constexpr int64_t PackedRow(int64_t columns) { return ((columns + 15) / 16 | 1) * 16; }

// dst (rows, columns), PackedRow(columns) apart = src (rows, columns), src_row apart.
void Pack(const float* src, int64_t src_row, int64_t rows, int64_t columns, float* dst);

// dst (columns, rows), PackedRow(rows) apart = src (rows, columns), src_row apart, transposed.
void PackTransposed(const float* src, int64_t src_row, int64_t rows, int64_t columns, float* dst);

}  // namespace eps::worker::cpu

#endif  // EPS_GPU_WORKER_DEVICE_CPU_MATMUL_PACK_H_
