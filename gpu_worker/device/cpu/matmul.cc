#include "gpu_worker/device/cpu/matmul.h"

#include <dnnl.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "gpu_worker/device/cpu/matmul_epilogue.h"
#include "gpu_worker/device/cpu/thread_pool.h"

// Of the OpenMP runtime that oneDNN is linked with; <omp.h> is the compiler's and not every
// compiler has it.
extern "C" void omp_set_num_threads(int);

namespace eps::worker::cpu {
namespace {

constexpr int64_t kMaxTileM = 256, kMinTileM = 64;
constexpr int64_t kMaxTileN = 384, kMinTileN = 192;
constexpr int64_t kKernelN = 48, kKernelM = 8;  // oneDNN's AVX-512 micro-kernel
constexpr int64_t kManyTiles = 32;              // from here on a tile more or less for a thread is nothing
constexpr int64_t kMaxCopiedTile = 1024;        // either way: its epilogue still finds it in the last cache

// Rows of this many floats, or a multiple, fall into two sets of a first-level cache (64 sets of 64 bytes).
constexpr int64_t kClashingFloats = 512;
constexpr int64_t kPackedK = 256;       // rows of an operand that are packed at once
constexpr int64_t kPackedPadding = 16;  // floats between packed rows, so that these fall into all sets
static_assert((kMaxTileM + kMaxTileN + 2 * kPackedPadding) * kPackedK <= kTileScratchFloats);

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The size of `pieces` even pieces of `total`, a multiple of `step`.
int64_t PieceOf(int64_t total, int64_t pieces, int64_t step) { return CeilDiv(CeilDiv(total, pieces), step) * step; }

MatMulTiling TilesOf(int64_t M, int64_t N, int64_t pieces_m, int64_t pieces_n) {
  MatMulTiling tiling;
  tiling.tile_m = PieceOf(M, pieces_m, kKernelM);
  tiling.tile_n = PieceOf(N, pieces_n, kKernelN);
  tiling.tiles_m = CeilDiv(M, tiling.tile_m);
  tiling.tiles_n = CeilDiv(N, tiling.tile_n);
  return tiling;
}

// oneDNN 2.6's rule without AVX-512: larger products have their operands copied first, into the order in which they are
// read; smaller ones read them in place.
bool IsCopied(int64_t m, int64_t n) { return 1.0 / static_cast<double>(m) + 1.0 / static_cast<double>(n) < 0.0038; }

// Tiles that are copied, as small as 8 of them, or 4, are.
std::optional<MatMulTiling> CopiedTiles(int64_t M, int64_t N) {
  for (const int64_t enough : {8, 4}) {
    std::optional<MatMulTiling> best;
    for (int64_t pieces_m = CeilDiv(M, kMaxCopiedTile); pieces_m <= CeilDiv(M, kMinTileM); ++pieces_m) {
      for (int64_t pieces_n = CeilDiv(N, kMaxCopiedTile); pieces_n <= CeilDiv(N, kMinTileN); ++pieces_n) {
        const MatMulTiling tiling = TilesOf(M, N, pieces_m, pieces_n);
        const int64_t tiles = tiling.num_tiles();
        if (!IsCopied(tiling.tile_m, tiling.tile_n)) break;  // nor are narrower ones
        if (tiles < kManyTiles && (tiles < enough || tiles % 4 != 0)) continue;
        if (!best.has_value() || tiles < best->num_tiles()) best = tiling;
      }
    }
    if (best.has_value()) return best;
  }
  return std::nullopt;
}

struct Operand {
  const float* at;
  int64_t ld;
};

// A copy of `rows` x `columns`, row by row.
Operand Pack(const Operand& from, int64_t rows, int64_t columns, float* to) {
  const int64_t ld = columns + kPackedPadding;
  for (int64_t row = 0; row < rows; ++row) {
    std::memcpy(to + row * ld, from.at + row * from.ld, static_cast<size_t>(columns) * sizeof(float));
  }
  return {to, ld};
}

// c = op(a) op(b) [+ c], (m, k) by (k, n).
void Product(const MatMulArgs& args, int64_t m, int64_t n, int64_t k, const Operand& a, const Operand& b, bool adds,
             float* c) {
  // The setting belongs to the calling thread: oneDNN then computes here, with no threads of its
  // own.
  static thread_local const bool one_thread = (omp_set_num_threads(1), true);
  const dnnl_status_t status = dnnl_sgemm(args.trans_a ? 'T' : 'N', args.trans_b ? 'T' : 'N', m, n, k, 1.0f, a.at, a.ld,
                                          b.at, b.ld, adds ? 1.0f : 0.0f, c, args.ldc);
  EPS_CHECK(one_thread && status == dnnl_success);
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
    default:
      return absl::StrCat("isa", static_cast<int>(isa));
  }
}

}  // namespace

bool CopiesLargeTiles() {
  static const bool copies = [] {
    const dnnl_cpu_isa_t isa = dnnl_get_effective_cpu_isa();
    return isa == dnnl_cpu_isa_avx || isa == dnnl_cpu_isa_avx2 || isa == dnnl_cpu_isa_avx2_vnni;
  }();
  return copies;
}

MatMulTiling TileMatMul(int64_t M, int64_t N, bool copies) {
  if (copies) {
    if (const std::optional<MatMulTiling> tiling = CopiedTiles(M, N); tiling.has_value()) return *tiling;
  }
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
  const bool adds = args.accumulate || in_place;
  const bool packs = CopiesLargeTiles() && !IsCopied(m, n);
  const bool packs_a = packs && args.trans_a && args.lda % kClashingFloats == 0 && m <= kMaxTileM;
  const bool packs_b = packs && !args.trans_b && args.ldb % kClashingFloats == 0 && n <= kMaxTileN;
  if (!packs_a && !packs_b) {
    Product(args, m, n, args.K, {a, args.lda}, {b, args.ldb}, adds, c);
  } else {
    float* const packed_b = scratch;
    float* const packed_a = scratch + (n + kPackedPadding) * kPackedK;
    for (int64_t k = 0; k < args.K; k += kPackedK) {
      const int64_t rows = std::min(kPackedK, args.K - k);
      Operand part_a = {args.trans_a ? a + k * args.lda : a + k, args.lda};
      Operand part_b = {args.trans_b ? b + k : b + k * args.ldb, args.ldb};
      if (packs_a) part_a = Pack(part_a, rows, m, packed_a);
      if (packs_b) part_b = Pack(part_b, rows, n, packed_b);
      Product(args, m, n, rows, part_a, part_b, adds || k > 0, c);
    }
  }
  MatMulEpilogue(args, dropout, {.row = i, .column = j, .num_rows = m, .num_columns = n}, scratch);
}

std::string MatMulLibrary() {
  const dnnl_version_t* version = dnnl_version();
  return absl::StrCat("onednn-", version->major, ".", version->minor, ".", version->patch, "-",
                      IsaName(dnnl_get_effective_cpu_isa()));
}

}  // namespace eps::worker::cpu
