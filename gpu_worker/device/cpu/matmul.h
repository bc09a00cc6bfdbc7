#ifndef EPS_GPU_WORKER_DEVICE_CPU_MATMUL_H_
#define EPS_GPU_WORKER_DEVICE_CPU_MATMUL_H_

#include <cstdint>
#include <string>

#include "gpu_worker/device/dropout_plan.h"
#include "gpu_worker/device/kernels.h"

namespace eps::worker::cpu {

// How the output (M, N) is cut; a function of the shape alone. K is never split: each element's sum
// is one thread's.
//
// A tile is one call of a library by the thread that took it, single-threaded. oneDNN's sgemm reads
// operands in place where OpenBLAS copies each tile's first, so a tile may be flat; only NT (b
// transposed, copied by both) gains from height. So: 384 columns (8 of its 48-wide kernels) and as
// many rows, up to 256, as leave at least 8 tiles, or 4; and a multiple of 4, as 9 tiles for 2
// threads lose a tenth. bench/gemm_bench on two AMD EPYC (Zen 4) cores, AVX-512, 21 Nov 2026,
// GFLOP/s with 2 threads, OpenBLAS 0.3.21 against oneDNN 2.6.3, for C = 384, M = 4096 (peak 236):
//
//     tile                       64x256   64x384  128x384  192x384  256x256  256x384
//     NN 4096 x 1536 x 384      131|200  140|207  148|209  152|206  146|203  153|210
//     NT 4096 x 384 x 1536      157|159  167|163  182|179  187|190  176|186  190|188
//     TN 384 x 1536 x 4096      141|192  147|204  161|205  164|206  157|197  165|208
//
// Over all its shapes oneDNN is 1.13 times as fast there with 1 thread and 1.17 with 2. Without
// AVX-512 it is not where what it reads in place has a row for each k, and these lie a multiple of
// 2 KiB apart, as in every NN and TN of a model 512, 1024 or 4096 wide: two Zen 3 cores, AVX2, 23 Nov
// 2026, the same two with 2 threads:
//
//     NN 4096 x 3072 x 768  120| 63    TN 3072 x 768 x 4096  132| 70    TN 384 x 1536 x 4096  135|121
//     NN 4096 x 2304 x 768  127|125    NT 4096 x 768 x 3072  133|125    NN 4096 x 384 x 384   129|148
//
// Those are OpenBLAS's. Both libraries give the same bits whoever computes a tile.
struct MatMulTiling {
  int64_t tile_m = 0, tile_n = 0;
  int64_t tiles_m = 0, tiles_n = 0;
  int64_t num_tiles() const { return tiles_m * tiles_n; }
};
MatMulTiling TileMatMul(int64_t M, int64_t N);

// c tile = op(a) op(b) [+ c], then the epilogue while the tile is in cache. Tiles are numbered row
// by row, as those of other kernels are, so that a thread meets its own rows again.
void MatMulTile(const MatMulArgs& args, const DropoutPlan& dropout, const MatMulTiling& tiling, int64_t tile,
                float* scratch);

// The libraries' versions and the instructions that they use: "onednn-2.6.3-avx2 openblas-0.3.21-Zen".
std::string MatMulLibrary();

}  // namespace eps::worker::cpu

#endif  // EPS_GPU_WORKER_DEVICE_CPU_MATMUL_H_
