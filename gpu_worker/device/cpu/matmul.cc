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

// A tile of the output, and what it is the product of: c (m, n) = scale op(a) (m, K) op(b) (K, n) + beta c.
struct TileProblem {
  int64_t m, n, K;
  Operand a, b;
  float scale;
  float beta;
  float* c;
  int64_t c_row;
};

// In the calling thread.
void OneDnnCall(const TileProblem& p) {
  // The setting belongs to the calling thread: oneDNN then computes here, with no threads of its own.
  static thread_local const bool one_thread = (omp_set_num_threads(1), true);
  const auto form = [](const Operand& x) { return x.trans ? 'T' : 'N'; };
  const dnnl_status_t status =
      dnnl_sgemm(form(p.a), form(p.b), p.m, p.n, p.K, p.scale, p.a.x, p.a.row, p.b.x, p.b.row, p.beta, p.c, p.c_row);
  EPS_CHECK(one_thread && status == dnnl_success);
}

bool HasAvx512() {
  static const bool has = (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core) == dnnl_cpu_isa_avx512_core;
  return has;
}

// With AVX-512 oneDNN 2.6 has kernels that copy both operands and others that read them in place, and chooses for each call
// by its shape and by how far rows lie apart (nocopy_checker_avx512; NN and NT are there the other way round). An NN it
// copies if K is above 500 and rows of b lie a multiple of 4 KiB apart; it would copy such a TN too, where our copies are up
// to 5% faster. An NT, slow in place, it copies if rows lie a multiple of 1 KiB apart, or if the call is small enough.
bool LibraryCopies(const MatMulArgs& args) {
  if (!HasAvx512() || args.trans_a) return false;
  if (args.trans_b) return args.lda % 256 == 0 && args.ldb % 256 == 0;
  return args.ldb % 1024 == 0 && args.K > 500;
}
constexpr int64_t kMostRowsOfCopiedNt = 199, kMostKOfCopiedNt = 1199;

// How a tile is computed.
struct TileMethod {
  bool pack_a = false, pack_b = false;  // copied first
  int64_t piece_k = 0;                  // of K at a time
  int64_t block_rows = 0;               // in a call of oneDNN
  bool apart = false;                   // a block's sums are in scratch until the epilogue writes them
  bool past_caches = false;             // of the epilogue's outputs
};
constexpr int64_t kPieceK = 256;  // with a copied: both copies leave room in a second cache of 2 MiB
constexpr int64_t kPieceKOfBAlone = 384;
// How many rows of a tile read a copy of b, so that it is worth its while. Without AVX-512 reading it in place costs half of
// a Zen 3 core's speed; with it a tenth.
constexpr int64_t kRowsForB = 64, kRowsForBWithAvx512 = 256;
// An NT that oneDNN copies for being small; c apart. Of 384 columns the sums take 288 KiB of a second cache.
constexpr int64_t kBlockRows = 192;
static_assert(kBlockRows <= kMostRowsOfCopiedNt);
// Outputs that no cache holds until they are read: to write them past the caches does not fetch their lines first.
constexpr int64_t kManyOutputBytes = 4 << 20;

constexpr int64_t kDropoutFloats = kMatMulTileColumns + 128;  // the words for a row of a tile
static_assert(kDropoutFloats + kMaxTileM * PackedRow(kPieceK) + kPieceK * PackedRow(kMaxTileN) <= kTileScratchFloats);
static_assert(kDropoutFloats + (kPieceKOfBAlone + kBlockRows) * PackedRow(kMaxTileN) <= kTileScratchFloats);

TileMethod MethodFor(const MatMulArgs& args, const MatMulTiling& tiling, bool adds) {
  TileMethod method = {.piece_k = args.K, .block_rows = tiling.tile_m};
  if (args.K == 0) return method;
  const bool library_copies = LibraryCopies(args);
  const bool b_clashes = !args.trans_b && args.ldb % kClashingRow == 0;
  method.pack_a = args.trans_a;
  method.pack_b = b_clashes && !library_copies && tiling.tile_m >= (HasAvx512() ? kRowsForBWithAvx512 : kRowsForB);
  if (method.pack_a || method.pack_b) {
    const int64_t most = method.pack_a ? kPieceK : kPieceKOfBAlone;
    method.piece_k = PieceOf(args.K, CeilDiv(args.K, most), kKernelM);
  }
  if (!HasAvx512() || args.trans_a) return method;
  const int64_t outputs = args.epilogue == MatMulArgs::Epilogue::kActivation ? 2 : 1;
  method.past_caches = !adds && outputs * args.M * args.N * int64_t{sizeof(float)} >= kManyOutputBytes;
  if (library_copies) return method;  // whole tiles, so that it copies seldom
  if (args.trans_b) method.piece_k = PieceOf(args.K, CeilDiv(args.K, kMostKOfCopiedNt - kKernelM), kKernelM);
  method.apart = method.past_caches && method.piece_k >= args.K;
  if (method.apart || args.trans_b) {
    method.block_rows = std::min(tiling.tile_m, PieceOf(tiling.tile_m, CeilDiv(tiling.tile_m, kBlockRows), kMinTileM));
  }
  return method;
}

// finish(row, rows, sums, sums_row) for each block of rows, when its sums are complete.
template <typename Finish>
void ComputeTile(const TileProblem& tile, const TileMethod& method, float* scratch, const Finish& finish) {
  float* packed_a = scratch;
  float* packed_b = packed_a + (method.pack_a ? method.block_rows * PackedRow(method.piece_k) : 0);
  float* apart = packed_b + (method.pack_b ? method.piece_k * PackedRow(tile.n) : 0);
  TileProblem p = tile;
  if (method.apart) p.c_row = PackedRow(tile.n);
  int64_t k = 0;
  do {
    p.K = std::min(method.piece_k, tile.K - k);
    if (method.pack_b) {
      Pack(tile.b.at(k, 0), tile.b.row, p.K, p.n, packed_b);
      p.b = {.x = packed_b, .row = PackedRow(p.n), .trans = false};
    } else {
      p.b.x = tile.b.at(k, 0);
    }
    for (int64_t row = 0; row < tile.m; row += method.block_rows) {
      p.m = std::min(method.block_rows, tile.m - row);
      if (method.pack_a) {
        PackTransposed(tile.a.at(row, k), tile.a.row, p.K, p.m, packed_a);
        p.a = {.x = packed_a, .row = PackedRow(p.K), .trans = false};
      } else {
        p.a.x = tile.a.at(row, k);
      }
      p.c = method.apart ? apart : tile.c + row * tile.c_row;
      OneDnnCall(p);
      if (k + p.K == tile.K) finish(row, p.m, p.c, p.c_row);
    }
    p.beta = 1.0f;
    k += p.K;
  } while (k < tile.K);
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
                               .scale = static_cast<float>(args.scale),
                               .beta = args.accumulate || in_place ? 1.0f : 0.0f,
                               .c = static_cast<float*>(args.c) + i * args.ldc + j,
                               .c_row = args.ldc};
  const TileMethod method = MethodFor(args, tiling, /*adds=*/problem.beta != 0.0f);
  ComputeTile(problem, method, scratch + kDropoutFloats,
              [&](int64_t row, int64_t rows, const float* sums, int64_t sums_row) {
                MatMulEpilogue(args, dropout,
                               {.row = i + row,
                                .column = j,
                                .num_rows = rows,
                                .num_columns = n,
                                .sums = sums,
                                .sums_row = sums_row,
                                .past_caches = method.past_caches},
                               scratch);
              });
}

std::string MatMulLibrary() {
  const dnnl_version_t* version = dnnl_version();
  return absl::StrCat("onednn-", version->major, ".", version->minor, ".", version->patch, "-",
                      IsaName(dnnl_get_effective_cpu_isa()));
}

}  // namespace eps::worker::cpu
