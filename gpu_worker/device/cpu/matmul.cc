#include "gpu_worker/device/cpu/matmul.h"

#include <cblas.h>
#include <dnnl.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "gpu_worker/device/cpu/matmul_epilogue.h"

// Of the OpenMP runtime that oneDNN is linked with; <omp.h> is the compiler's and not every
// compiler has it.
extern "C" void omp_set_num_threads(int);

namespace eps::worker::cpu {
namespace {

constexpr int64_t kMaxTileM = 256, kMinTileM = 64;
constexpr int64_t kMaxTileN = 384, kMinTileN = 192;
constexpr int64_t kKernelN = 48, kKernelM = 8;  // oneDNN's AVX-512 micro-kernel
constexpr int64_t kManyTiles = 32;              // from here on a tile more or less for a thread is nothing

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The size of `pieces` even pieces of `total`, a multiple of `step`.
int64_t PieceOf(int64_t total, int64_t pieces, int64_t step) { return CeilDiv(CeilDiv(total, pieces), step) * step; }

// Rows of so many floats, 2 KiB, or a multiple of it apart fall on few sets of a processor's first cache.
constexpr int64_t kClashingRow = 512;

// oneDNN reads a tile's operands in place; without AVX-512, one whose rows are the k's is slow where they clash.
bool Clashes(const MatMulArgs& args) {
  static const bool has_avx512 = (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core) == dnnl_cpu_isa_avx512_core;
  const bool a_clashes = args.trans_a && args.lda % kClashingRow == 0;
  const bool b_clashes = !args.trans_b && args.ldb % kClashingRow == 0;
  return !has_avx512 && (a_clashes || b_clashes);
}

// c (m, n) = op(a) op(b) + beta c, in the calling thread.
void OpenBlasTile(const MatMulArgs& args, int64_t m, int64_t n, const float* a, const float* b, float beta, float* c) {
  static const bool one_thread = (openblas_set_num_threads(1), true);  // of every caller
  EPS_CHECK(one_thread);
  const auto blas_int = [](int64_t x) { return static_cast<blasint>(x); };
  cblas_sgemm(CblasRowMajor, args.trans_a ? CblasTrans : CblasNoTrans, args.trans_b ? CblasTrans : CblasNoTrans,
              blas_int(m), blas_int(n), blas_int(args.K), 1.0f, a, blas_int(args.lda), b, blas_int(args.ldb), beta, c,
              blas_int(args.ldc));
}

void OneDnnTile(const MatMulArgs& args, int64_t m, int64_t n, const float* a, const float* b, float beta, float* c) {
  // The setting belongs to the calling thread: oneDNN then computes here, with no threads of its own.
  static thread_local const bool one_thread = (omp_set_num_threads(1), true);
  const dnnl_status_t status = dnnl_sgemm(args.trans_a ? 'T' : 'N', args.trans_b ? 'T' : 'N', m, n, args.K, 1.0f, a,
                                          args.lda, b, args.ldb, beta, c, args.ldc);
  EPS_CHECK(one_thread && status == dnnl_success);
}

MatMulTiling TilesOf(int64_t M, int64_t N, int64_t pieces_m, int64_t pieces_n) {
  MatMulTiling tiling;
  tiling.tile_m = PieceOf(M, pieces_m, kKernelM);
  tiling.tile_n = PieceOf(N, pieces_n, kKernelN);
  tiling.tiles_m = CeilDiv(M, tiling.tile_m);
  tiling.tiles_n = CeilDiv(N, tiling.tile_n);
  return tiling;
}

std::string IsaName(dnnl_cpu_isa_t isa) {
  switch (isa) {
    case dnnl_cpu_isa_sse41:
      return "sse41";
    case dnnl_cpu_isa_avx:
      return "avx";
    case dnnl_cpu_isa_avx2:
      return "avx2";
    case dnnl_cpu_isa_avx512_core:
      return "avx512_core";
    case dnnl_cpu_isa_avx512_core_vnni:
      return "avx512_core_vnni";
    case dnnl_cpu_isa_avx512_core_bf16:
      return "avx512_core_bf16";
    case dnnl_cpu_isa_avx512_core_amx:
      return "avx512_core_amx";
    default:
      return absl::StrCat("isa", static_cast<int>(isa));
  }
}

}  // namespace

MatMulTiling TileMatMul(int64_t M, int64_t N) {
  const int64_t most_m = CeilDiv(M, kMinTileM);
  const int64_t pieces_n = CeilDiv(N, kMaxTileN);
  for (const int64_t enough : {8, 4}) {
    for (int64_t pieces_m = CeilDiv(M, kMaxTileM); pieces_m <= most_m; ++pieces_m) {
      const MatMulTiling tiling = TilesOf(M, N, pieces_m, pieces_n);
      const int64_t tiles = tiling.num_tiles();
      if (tiles >= kManyTiles || (tiles >= enough && tiles % 4 == 0)) return tiling;
    }
  }
  return TilesOf(M, N, most_m, CeilDiv(N, kMinTileN));
}

void MatMulTile(const MatMulArgs& args, const DropoutPlan& dropout, const MatMulTiling& tiling, int64_t tile,
                float* scratch) {
  const int64_t i = tile / tiling.tiles_n * tiling.tile_m;
  const int64_t j = tile % tiling.tiles_n * tiling.tile_n;
  const int64_t m = std::min(tiling.tile_m, args.M - i);
  const int64_t n = std::min(tiling.tile_n, args.N - j);
  const float* a = static_cast<const float*>(args.a) + (args.trans_a ? i : i * args.lda);
  const float* b = static_cast<const float*>(args.b) + (args.trans_b ? j * args.ldb : j);
  float* c = static_cast<float*>(args.c) + i * args.ldc + j;
  // A residual in place is a sum onto c.
  const bool in_place = args.epilogue == MatMulArgs::Epilogue::kResidual && args.residual == args.c;
  (Clashes(args) ? OpenBlasTile : OneDnnTile)(args, m, n, a, b, args.accumulate || in_place ? 1.0f : 0.0f, c);
  MatMulEpilogue(args, dropout, {.row = i, .column = j, .num_rows = m, .num_columns = n}, scratch);
}

std::string MatMulLibrary() {
  const dnnl_version_t* version = dnnl_version();
  const std::vector<std::string> openblas = absl::StrSplit(openblas_get_config(), ' ');  // "OpenBLAS 0.3.21 ..."
  EPS_CHECK(openblas.size() > 1);
  return absl::StrCat("onednn-", version->major, ".", version->minor, ".", version->patch, "-",
                      IsaName(dnnl_get_effective_cpu_isa()), " openblas-", openblas[1], "-", openblas_get_corename());
}

}  // namespace eps::worker::cpu
