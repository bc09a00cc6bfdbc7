#include "gpu_worker/device/cpu/cpu_kernels.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>

#include "common/base/status_macros.h"
#include "common/model/families.h"
#include "common/numeric/quantized.h"
#include "gpu_worker/device/cpu/attention.h"
#include "gpu_worker/device/cpu/cpu_kernel_sizes.h"
#include "gpu_worker/device/cpu/elementwise.h"
#include "gpu_worker/device/cpu/experts.h"
#include "gpu_worker/device/cpu/layer_norm.h"
#include "gpu_worker/device/cpu/matmul.h"
#include "gpu_worker/device/cpu/preferences.h"
#include "gpu_worker/device/cpu/rms_norm.h"
#include "gpu_worker/device/cpu/rotary.h"
#include "gpu_worker/device/cpu/softmax.h"
#include "gpu_worker/device/cpu/swiglu.h"
#include "gpu_worker/device/dropout_plan.h"

namespace eps::worker::cpu {
namespace {

// Tiles of kernels that pass once over memory: 64 KiB of fp32 and more, so that handing one out
// costs nothing beside it.
static_assert(kMaxHeadDim == eps::kMaxHeadDim && worker::kMaxExperts == eps::kMaxExperts, "what RunSpecs may ask for");
constexpr int64_t kTileElems = 16384;  // with a transcendental function per element
constexpr int64_t kLongTileElems = 65536;
constexpr int64_t kTileRows = 32;
constexpr int64_t kTileColumns = 64;  // 4 cache lines of a row

// Whole rows of C in a tile.
int64_t RowsOfTile(int64_t C) { return std::max<int64_t>(1, kTileElems / C); }

// A row reduction's second half: partial sums (num_tiles, stride) onto out, which takes its columns
// [0, n) of them.
void ReducePartials(ThreadPool& pool, const float* partial, int64_t num_tiles, int64_t stride, int64_t n, float* out) {
  pool.ParallelFor((n + kTileColumns - 1) / kTileColumns, [&](int64_t tile, float*) {
    AddPartials(partial, num_tiles, stride, tile * kTileColumns, std::min((tile + 1) * kTileColumns, n), out);
  });
}

}  // namespace

template <typename Fn>
void CpuKernels::ForRanges(int64_t n, int64_t tile, const Fn& fn) {
  pool_.ParallelFor((n + tile - 1) / tile,
                    [&](int64_t index, float* scratch) { fn(index * tile, std::min((index + 1) * tile, n), scratch); });
}

void CpuKernels::SumColumns(const ColumnSumArgs& args) {
  const RowTiling tiling = ReductionTiling(args.M);
  float* partials = static_cast<float*>(args.scratch);
  ForRanges(args.M, tiling.rows_per_tile, [&](int64_t begin, int64_t end, float*) {
    ColumnSumRows(args, begin, end, partials + begin / tiling.rows_per_tile * args.N);
  });
  ReducePartials(pool_, partials, tiling.num_tiles, args.N, args.N, args.out);
}

void CpuKernels::MatMul(const MatMulArgs& args) {
  EPS_CHECK(!(args.accumulate && args.epilogue == MatMulArgs::Epilogue::kResidual && args.residual == args.c));
  compute_.Launch([this, args] {
    const MatMulTiling tiling = TileMatMul(args.M, args.N);
    const DropoutPlan dropout = PlanDropout(args.dropout);
    pool_.ParallelFor(tiling.num_tiles(),
                      [&](int64_t tile, float* scratch) { MatMulTile(args, dropout, tiling, tile, scratch); });
  });
}

void CpuKernels::Embedding(const EmbeddingArgs& args) {
  EPS_CHECK(args.C + 64 <= kTileScratchFloats);
  compute_.Launch([this, args] {
    const DropoutPlan dropout = PlanDropout(args.dropout);
    ForRanges(args.B * args.T, kTileRows,
              [&](int64_t begin, int64_t end, float* scratch) { EmbeddingRows(args, dropout, begin, end, scratch); });
  });
}

void CpuKernels::EmbeddingBackward(const EmbeddingBackwardArgs& args) {
  compute_.Launch([this, args] {
    const DropoutPlan dropout = PlanDropout(args.dropout);
    float* dy = static_cast<float*>(args.dy);
    if (dropout.on) {
      ForRanges(args.B * args.T * args.C, kTileElems, [&](int64_t begin, int64_t end, float* scratch) {
        DropoutElems(dropout, dy, dy, begin, end, scratch);
      });
    }
    ForRanges(args.C, kTileColumns,
              [&](int64_t begin, int64_t end, float*) { EmbeddingBackwardColumns(args, begin, end); });
  });
}

void CpuKernels::LayerNorm(const LayerNormArgs& args) {
  compute_.Launch([this, args] {
    ForRanges(args.M, kTileRows, [&](int64_t begin, int64_t end, float*) { LayerNormRows(args, begin, end); });
  });
}

void CpuKernels::LayerNormApply(const LayerNormApplyArgs& args) {
  compute_.Launch([this, args] {
    ForRanges(args.M, kTileRows, [&](int64_t begin, int64_t end, float*) { LayerNormApplyRows(args, begin, end); });
  });
}

void CpuKernels::LayerNormBackward(const LayerNormBackwardArgs& args) {
  compute_.Launch([this, args] {
    const RowTiling tiling = ReductionTiling(args.M);
    float* partials = static_cast<float*>(args.scratch);
    const int64_t stride = 2 * args.C;
    ForRanges(args.M, tiling.rows_per_tile, [&](int64_t begin, int64_t end, float*) {
      LayerNormBackwardRows(args, begin, end, partials + begin / tiling.rows_per_tile * stride);
    });
    ReducePartials(pool_, partials, tiling.num_tiles, stride, args.C, args.dgamma);
    ReducePartials(pool_, partials + args.C, tiling.num_tiles, stride, args.C, args.dbeta);
  });
}

void CpuKernels::RmsNorm(const RmsNormArgs& args) {
  compute_.Launch([this, args] {
    ForRanges(args.M * args.heads, kTileRows,
              [&](int64_t begin, int64_t end, float*) { RmsNormRows(args, begin, end); });
  });
}

void CpuKernels::RmsNormApply(const RmsNormApplyArgs& args) {
  compute_.Launch([this, args] {
    ForRanges(args.M * args.heads, kTileRows,
              [&](int64_t begin, int64_t end, float*) { RmsNormApplyRows(args, begin, end); });
  });
}

void CpuKernels::RmsNormBackward(const RmsNormBackwardArgs& args) {
  compute_.Launch([this, args] {
    const int64_t rows = args.M * args.heads;
    const RowTiling tiling = ReductionTiling(rows);
    float* partials = static_cast<float*>(args.scratch);
    ForRanges(rows, tiling.rows_per_tile, [&](int64_t begin, int64_t end, float*) {
      RmsNormBackwardRows(args, begin, end, partials + begin / tiling.rows_per_tile * args.C);
    });
    ReducePartials(pool_, partials, tiling.num_tiles, args.C, args.C, args.dgamma);
  });
}

void CpuKernels::Attention(const AttentionArgs& args) {
  EPS_CHECK(args.D <= kMaxHeadDim && args.kv_heads > 0 && args.H % args.kv_heads == 0);
  EPS_CHECK(args.window == 0 || (args.window > 0 && args.causal));
  compute_.Launch([this, args] {
    const DropoutPlan dropout = PlanDropout(args.dropout);
    pool_.ParallelFor(AttentionForwardTasks(args),
                      [&](int64_t task, float* scratch) { AttentionForwardTask(args, dropout, task, scratch); });
  });
}

void CpuKernels::AttentionBackward(const AttentionBackwardArgs& args) {
  EPS_CHECK(args.D <= kMaxHeadDim && args.kv_heads > 0 && args.H % args.kv_heads == 0);
  EPS_CHECK(args.window == 0 || (args.window > 0 && args.causal));
  compute_.Launch([this, args] {
    const DropoutPlan dropout = PlanDropout(args.dropout);
    pool_.ParallelFor(AttentionBackwardTasks(args),
                      [&](int64_t task, float* scratch) { AttentionBackwardTask(args, dropout, task, scratch); });
  });
}

void CpuKernels::ActivationBackward(const ActivationBackwardArgs& args) {
  compute_.Launch([this, args] {
    ForRanges(args.M * args.N, kTileElems,
              [&](int64_t begin, int64_t end, float*) { ActivationBackwardElems(args, begin, end); });
    if (args.dbias == nullptr) return;
    SumColumns({.M = args.M, .N = args.N, .ld = args.N, .x = args.dy, .out = args.dbias, .scratch = args.scratch});
  });
}

void CpuKernels::Swiglu(const SwigluArgs& args) {
  compute_.Launch([this, args] {
    ForRanges(args.M * args.F, kTileElems, [&](int64_t begin, int64_t end, float*) { SwigluElems(args, begin, end); });
  });
}

void CpuKernels::SwigluBackward(const SwigluBackwardArgs& args) {
  compute_.Launch([this, args] {
    const int64_t tile = args.dweight == nullptr ? kTileElems : RowsOfTile(args.F) * args.F;
    ForRanges(args.M * args.F, tile,
              [&](int64_t begin, int64_t end, float*) { SwigluBackwardElems(args, begin, end); });
  });
}

void CpuKernels::Route(const RouteArgs& args) {
  EPS_CHECK(args.K > 0 && args.K <= args.E && args.E <= kMaxExperts && args.M * args.K <= INT32_MAX);
  compute_.Launch([this, args] {
    ForRanges(args.M, kTileRows, [&](int64_t begin, int64_t end, float*) { ChooseExperts(args, begin, end); });
    GroupRows(args);
  });
}

void CpuKernels::RouteBackward(const RouteBackwardArgs& args) {
  compute_.Launch([this, args] {
    ForRanges(args.M, kTileRows, [&](int64_t begin, int64_t end, float*) { RouteBackwardRows(args, begin, end); });
  });
}

void CpuKernels::GatherRows(const GatherRowsArgs& args) {
  compute_.Launch([this, args] {
    ForRanges(args.R, RowsOfTile(args.C),
              [&](int64_t begin, int64_t end, float*) { GatherRowsRange(args, begin, end); });
  });
}

void CpuKernels::SumRows(const SumRowsArgs& args) {
  compute_.Launch([this, args] {
    ForRanges(args.M, RowsOfTile(args.C), [&](int64_t begin, int64_t end, float*) { SumRowsRange(args, begin, end); });
  });
}

void CpuKernels::ExpertMatMul(const ExpertMatMulArgs& args) {
  compute_.Launch([this, args] { Multiply(ExpertProducts(args)); });
}

void CpuKernels::ExpertGradient(const ExpertGradientArgs& args) {
  compute_.Launch([this, args] { Multiply(ExpertProducts(args)); });
}

void CpuKernels::Multiply(const ExpertProducts& products) {
  pool_.ParallelFor(products.num_tiles(), [&](int64_t tile, float* scratch) { products.Tile(tile, scratch); });
}

void CpuKernels::Rotary(const RotaryArgs& args) {
  compute_.Launch([this, args] {
    ForRanges(args.M, kTileRows, [&](int64_t begin, int64_t end, float*) { RotaryRows(args, begin, end); });
  });
}

void CpuKernels::ApplyDropout(const DropoutArgs& args) {
  compute_.Launch([this, args] {
    const DropoutPlan dropout = PlanDropout(args.dropout);
    ForRanges(args.n, kTileElems, [&](int64_t begin, int64_t end, float* scratch) {
      DropoutElems(dropout, static_cast<const float*>(args.x), static_cast<float*>(args.y), begin, end, scratch);
    });
  });
}

void CpuKernels::ColumnSum(const ColumnSumArgs& args) {
  EPS_CHECK(args.ld >= args.N);
  compute_.Launch([this, args] { SumColumns(args); });
}

void CpuKernels::SoftmaxChunk(const SoftmaxChunkArgs& args) {
  compute_.Launch([this, args] {
    ForRanges(args.M, kTileRows, [&](int64_t begin, int64_t end, float*) { SoftmaxChunkRows(args, begin, end); });
  });
}

void CpuKernels::SoftmaxChunkBackward(const SoftmaxChunkBackwardArgs& args) {
  compute_.Launch([this, args] {
    ForRanges(args.M, kTileRows,
              [&](int64_t begin, int64_t end, float*) { SoftmaxChunkBackwardRows(args, begin, end); });
  });
}

void CpuKernels::Loss(const LossArgs& args) {
  compute_.Launch([args] { AddLoss(args); });
}

void CpuKernels::ScoreSequences(const ScoreSequencesArgs& args) {
  compute_.Launch([this, args] {
    ForRanges(args.B, 1, [&](int64_t begin, int64_t end, float*) { ScoreSequencesRange(args, begin, end); });
  });
}

void CpuKernels::PreferenceLoss(const PreferenceLossArgs& args) {
  EPS_CHECK(args.B % 2 == 0);
  compute_.Launch([args] { AddPreferenceLoss(args); });
}

void CpuKernels::Widen(const WidenArgs& args) {
  compute_.Launch([this, args] {
    ForRanges(args.n, kLongTileElems, [&](int64_t begin, int64_t end, float*) { WidenElems(args, begin, end); });
  });
}

void CpuKernels::Dequantize(const DequantizeArgs& args) {
  static_assert(kLongTileElems % kQuantizedBlockElems == 0);
  compute_.Launch([this, args] {
    ForRanges(args.n, kLongTileElems, [&](int64_t begin, int64_t end, float*) { DequantizeElems(args, begin, end); });
  });
}

void CpuKernels::FinishLeaf(const FinishLeafArgs& args) {
  compute_.Launch([this, args] {
    std::atomic<bool> finite{true};
    ForRanges(args.n, kLongTileElems, [&](int64_t begin, int64_t end, float*) {
      if (!FinishLeafElems(args, begin, end)) finite.store(false, std::memory_order_relaxed);
    });
    if (!finite.load(std::memory_order_relaxed)) *args.finite = 0;
  });
}

void CpuKernels::AddGradient(const AddGradientArgs& args) {
  compute_.Launch([this, args] {
    ForRanges(args.n, kLongTileElems, [&](int64_t begin, int64_t end, float*) { AddGradientElems(args, begin, end); });
  });
}

void CpuKernels::EmitGradient(const EmitGradientArgs& args) {
  compute_.Launch([this, args] {
    ForRanges(args.n, kLongTileElems, [&](int64_t begin, int64_t end, float*) { EmitGradientElems(args, begin, end); });
  });
}

void CpuKernels::FillZero(const FillZeroArgs& args) {
  compute_.Launch([this, args] {
    ForRanges(args.num_bytes, kLongTileElems * 4, [&](int64_t begin, int64_t end, float*) {
      std::memset(static_cast<char*>(args.dst) + begin, 0, static_cast<size_t>(end - begin));
    });
  });
}

}  // namespace eps::worker::cpu
