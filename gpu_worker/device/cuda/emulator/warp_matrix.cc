#include "gpu_worker/device/cuda/emulator/warp_matrix.h"

#include <cstdint>
#include <cstring>

#include "common/base/status_macros.h"
#include "gpu_worker/device/cuda/emulator/grid.h"

namespace eps::worker::cuda::emulator {
namespace {

constexpr int kLanes = 32, kMaxWarps = 32, kSide = 8;

// What a block's lanes show each other, from a barrier of their warp to the next.
thread_local const uint16_t* rows[kMaxWarps][kLanes];
thread_local struct { uint32_t a[4], b[2]; } registers[kMaxWarps][kLanes];

int Lane() { return static_cast<int>(threadIdx.x) % kLanes; }
int Warp() { return static_cast<int>(threadIdx.x) / kLanes; }

uint16_t Half(uint32_t word, int i) { return static_cast<uint16_t>(word >> (16 * i)); }

}  // namespace

void LoadMatrices(const void* row, bool transposes, uint32_t (&matrices)[4]) {
  EPS_CHECK(reinterpret_cast<uintptr_t>(row) % 16 == 0);
  rows[Warp()][Lane()] = static_cast<const uint16_t*>(row);
  __syncwarp();
  for (int i = 0; i < 4; ++i) {
    const uint16_t* const* matrix = rows[Warp()] + i * kSide;
    const int row_of_lane = Lane() / 4, column = Lane() % 4 * 2;
    const uint16_t first = transposes ? matrix[column][row_of_lane] : matrix[row_of_lane][column];
    const uint16_t second = transposes ? matrix[column + 1][row_of_lane] : matrix[row_of_lane][column + 1];
    matrices[i] = first | uint32_t{second} << 16;
  }
  __syncwarp();
}

void MultiplyAdd(const uint32_t (&a)[4], const uint32_t (&b)[2], float (*to_float)(uint16_t bits), float (&c)[4]) {
  auto& lanes = registers[Warp()];
  std::memcpy(lanes[Lane()].a, a, sizeof(a));
  std::memcpy(lanes[Lane()].b, b, sizeof(b));
  __syncwarp();
  for (int i = 0; i < 4; ++i) {
    const int row = Lane() / 4, lower = i / 2, column = Lane() % 4 * 2 + i % 2;  // lower: of row + 8
    for (int k = 0; k < 2 * kSide; ++k) {
      const int quarter = k % kSide / 2;  // which of four lanes has it
      const uint32_t from_a = lanes[row * 4 + quarter].a[lower + k / kSide * 2];
      const uint32_t from_b = lanes[column * 4 + quarter].b[k / kSide];
      c[i] += to_float(Half(from_a, k % 2)) * to_float(Half(from_b, k % 2));
    }
  }
  __syncwarp();
}

}  // namespace eps::worker::cuda::emulator
