#include "gpu_worker/device/cpu/matmul.h"

#include <dnnl.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "gpu_worker/device/cpu/matmul_epilogue.h"
#include "gpu_worker/device/cpu/matmul_pack.h"
#include "gpu_worker/device/cpu/thread_pool.h"

// Of the OpenMP runtime that oneDNN is linked with; <omp.h> is the compiler's and not every
// compiler has it.
extern "C" void omp_set_num_threads(int);

namespace eps::worker::cpu {
namespace {

constexpr int64_t kMaxTileM = kMatMulTileRows, kMinTileM = 64;
constexpr int64_t kMaxTileN = kMatMulTileColumns, kMinTileN = 192;
constexpr int64_t kKernelN = 48, kKernelM = 8;  // oneDNN's AVX-512 micro-kernel
constexpr int64_t kManyTiles = 32;              // from here on a tile more or less for a thread is nothing

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The size of `pieces` even pieces of `total`, a multiple of `step`.
int64_t PieceOf(int64_t total, int64_t pieces, int64_t step) { return CeilDiv(CeilDiv(total, pieces), step) * step; }

// Rows of so many floats, 2 KiB, or a multiple of it apart fall on few sets of a processor's first cache.
constexpr int64_t kClashingRow = 512;

// op(x) of x, `row` floats between its rows.
struct Operand {
  const float* x;
  int64_t row;
  bool trans;
  const float* at(int64_t i, int64_t j) const { return trans ? x + j * row + i : x + i * row + j; }
};

// A tile of the output, and what it is the product of: c (m, n) = op(a) (m, K) op(b) (K, n) + beta c.
struct TileProblem {
  int64_t m, n, K;
  Operand a, b;
  float beta;
  float* c;
  int64_t c_row;
};

// In the calling thread.
void OneDnnTile(const TileProblem& p) {
  // The setting belongs to the calling thread: oneDNN then computes here, with no threads of its own.
  static thread_local const bool one_thread = (omp_set_num_threads(1), true);
  const auto form = [](const Operand& x) { return x.trans ? 'T' : 'N'; };
  const dnnl_status_t status =
      dnnl_sgemm(form(p.a), form(p.b), p.m, p.n, p.K, 1.0f, p.a.x, p.a.row, p.b.x, p.b.row, p.beta, p.c, p.c_row);
  EPS_CHECK(one_thread && status == dnnl_success);
}

// Which operands of a tile are copied first.
struct Packing {
  bool a, b;
};
constexpr int64_t kPieceK = 256;  // of K, with a copied: both copies leave room in a second cache of 2 MiB
constexpr int64_t kPieceKOfBAlone = 384;
// How many rows of a tile read a copy of b, so that it is worth its while. Without AVX-512 reading it in place costs half of
// a Zen 3 core's speed; with it a tenth.
constexpr int64_t kRowsForB = 64, kRowsForBWithAvx512 = 256;
// With AVX-512 oneDNN 2.6 (nocopy_checker_avx512) copies both operands itself where rows of b lie a multiple of 4 KiB
// apart: of an NN with K above 500, which is left to it, and of any TN, where our copies are up to 5% faster.
constexpr int64_t kLibraryCopiesRow = 1024, kLibraryCopiesK = 500;

Packing PackingOf(const MatMulArgs& args, int64_t tile_m) {
  static const bool has_avx512 = (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core) == dnnl_cpu_isa_avx512_core;
  if (args.K == 0) return {.a = false, .b = false};
  const bool b_clashes = !args.trans_b && args.ldb % kClashingRow == 0;
  const bool library_copies =
      has_avx512 && !args.trans_a && args.ldb % kLibraryCopiesRow == 0 && args.K > kLibraryCopiesK;
  const int64_t rows_for_b = has_avx512 ? kRowsForBWithAvx512 : kRowsForB;
  return {.a = args.trans_a, .b = b_clashes && !library_copies && tile_m >= rows_for_b};
}

static_assert(kMaxTileM * PackedRow(kPieceK) + kPieceK * PackedRow(kMaxTileN) <= kTileScratchFloats);
static_assert(kPieceKOfBAlone * PackedRow(kMaxTileN) <= kTileScratchFloats);

void PackedTile(TileProblem p, Packing packing, float* scratch) {
  const int64_t K = p.K, pieces = CeilDiv(K, packing.a ? kPieceK : kPieceKOfBAlone);
  const int64_t piece = PieceOf(K, pieces, kKernelM);
  const Operand a = p.a, b = p.b;
  float* packed_a = scratch;
  float* packed_b = scratch + (packing.a ? p.m * PackedRow(piece) : 0);
  for (int64_t k = 0; k < K; k += piece) {
    p.K = std::min(piece, K - k);
    if (packing.a) {
      PackTransposed(a.at(0, k), a.row, p.K, p.m, packed_a);
      p.a = {.x = packed_a, .row = PackedRow(p.K), .trans = false};
    } else {
      p.a.x = a.at(0, k);
    }
    if (packing.b) {
      Pack(b.at(k, 0), b.row, p.K, p.n, packed_b);
      p.b = {.x = packed_b, .row = PackedRow(p.n), .trans = false};
    } else {
      p.b.x = b.at(k, 0);
    }
    OneDnnTile(p);
    p.beta = 1.0f;
  }
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
  EPS_CHECK(tiling.tile_m <= kMaxTileM && tiling.tile_n <= kMaxTileN);
  const int64_t i = tile / tiling.tiles_n * tiling.tile_m;
  const int64_t j = tile % tiling.tiles_n * tiling.tile_n;
  const int64_t m = std::min(tiling.tile_m, args.M - i);
  const int64_t n = std::min(tiling.tile_n, args.N - j);
  const Operand a = {static_cast<const float*>(args.a), args.lda, args.trans_a};
  const Operand b = {static_cast<const float*>(args.b), args.ldb, args.trans_b};
  // A residual in place is a sum onto c.
  const bool in_place = args.epilogue == MatMulArgs::Epilogue::kResidual && args.residual == args.c;
  const TileProblem problem = {.m = m,
                               .n = n,
                               .K = args.K,
                               .a = {a.at(i, 0), a.row, a.trans},
                               .b = {b.at(0, j), b.row, b.trans},
                               .beta = args.accumulate || in_place ? 1.0f : 0.0f,
                               .c = static_cast<float*>(args.c) + i * args.ldc + j,
                               .c_row = args.ldc};
  if (const Packing packing = PackingOf(args, tiling.tile_m); packing.a || packing.b) {
    PackedTile(problem, packing, scratch);
  } else {
    OneDnnTile(problem);
  }
  MatMulEpilogue(args, dropout, {.row = i, .column = j, .num_rows = m, .num_columns = n}, scratch);
}

std::string MatMulLibrary() {
  const dnnl_version_t* version = dnnl_version();
  return absl::StrCat("onednn-", version->major, ".", version->minor, ".", version->patch, "-",
                      IsaName(dnnl_get_effective_cpu_isa()));
}

}  // namespace eps::worker::cpu
