#ifndef EPS_GPU_WORKER_DEVICE_CPU_MATMUL_H_
#define EPS_GPU_WORKER_DEVICE_CPU_MATMUL_H_

#include <cstdint>
#include <string>

#include "gpu_worker/device/dropout_plan.h"
#include "gpu_worker/device/kernels.h"

namespace eps::worker::cpu {

// A tile has at most so many; its copies of operands then fit the thread's scratch.
inline constexpr int64_t kMatMulTileRows = 512, kMatMulTileColumns = 384;

// How the output (M, N) is cut; a function of the shape alone. K is never shared between threads: each element's sum is
// one thread's.
//
// A tile is computed by the thread that took it: one call of oneDNN's sgemm, or one for each block of rows and each piece of
// K, in order. 384 columns are 8 of its 48-wide kernels; of rows there are as many, up to 512, as leave at least 8 tiles, or
// 4; and a multiple of 4, as 9 tiles for 2 threads lose a tenth. A taller tile reads b less often.
//
// oneDNN reads most operands in place. Three kinds are slow to read so:
//   a transposed (TN, gradients of weights): copied first, a piece of K at a time, into rows along k that lie an odd number
//   of cache lines apart, so that the call is NN's;
//   b not transposed whose rows lie a multiple of 2 KiB apart, and so fall on few sets of the first cache: copied as well
//   where a tile's rows read the copy often enough;
//   b transposed (NT, gradients of inputs): with AVX-512 in blocks so small that oneDNN copies both.
// With AVX-512 the sums of a large output are made in scratch, a block of rows at a time, from where the epilogue writes them
// past the caches.
// bench/gemm_bench has both sides; docs/decisions/0004-tiles-by-shape.md what was seen.
struct MatMulTiling {
  int64_t tile_m = 0, tile_n = 0;
  int64_t tiles_m = 0, tiles_n = 0;
  int64_t num_tiles() const { return tiles_m * tiles_n; }
};
MatMulTiling TileMatMul(int64_t M, int64_t N);

// c tile = op(a) op(b) [+ c], then the epilogue while the tile is in cache. Tiles are numbered row
// by row, as those of other kernels are, so that a thread meets its own rows again. Of `tiling` a tile has no more rows and
// columns than the constants above; scratch: the thread's, kTileScratchFloats.
void MatMulTile(const MatMulArgs& args, const DropoutPlan& dropout, const MatMulTiling& tiling, int64_t tile,
                float* scratch);

// The library's version and the instructions that it uses: "onednn-2.6.3-avx2".
std::string MatMulLibrary();

}  // namespace eps::worker::cpu

#endif  // EPS_GPU_WORKER_DEVICE_CPU_MATMUL_H_
