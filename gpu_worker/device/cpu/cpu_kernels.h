#ifndef EPS_GPU_WORKER_DEVICE_CPU_CPU_KERNELS_H_
#define EPS_GPU_WORKER_DEVICE_CPU_CPU_KERNELS_H_

#include <cstdint>

#include "gpu_worker/device/cpu/cpu_stream.h"
#include "gpu_worker/device/cpu/thread_pool.h"
#include "gpu_worker/device/kernels.h"

namespace eps::worker::cpu {

class ExpertProducts;

// The kernel table over a stream and a pool: cuts each kernel in tiles by its shape, and lets the
// pool compute them.
class CpuKernels : public Kernels {
 public:
  // `compute` and `pool` outlive it; only work on `compute` uses the pool.
  CpuKernels(CpuStream* compute, ThreadPool* pool) : compute_(*compute), pool_(*pool) {}

  void MatMul(const MatMulArgs& args) override;
  void Embedding(const EmbeddingArgs& args) override;
  void EmbeddingBackward(const EmbeddingBackwardArgs& args) override;
  void LayerNorm(const LayerNormArgs& args) override;
  void LayerNormApply(const LayerNormApplyArgs& args) override;
  void LayerNormBackward(const LayerNormBackwardArgs& args) override;
  void RmsNorm(const RmsNormArgs& args) override;
  void RmsNormApply(const RmsNormApplyArgs& args) override;
  void RmsNormBackward(const RmsNormBackwardArgs& args) override;
  void Attention(const AttentionArgs& args) override;
  void AttentionBackward(const AttentionBackwardArgs& args) override;
  void ActivationBackward(const ActivationBackwardArgs& args) override;
  void Swiglu(const SwigluArgs& args) override;
  void SwigluBackward(const SwigluBackwardArgs& args) override;
  void Route(const RouteArgs& args) override;
  void RouteBackward(const RouteBackwardArgs& args) override;
  void GatherRows(const GatherRowsArgs& args) override;
  void SumRows(const SumRowsArgs& args) override;
  void ExpertMatMul(const ExpertMatMulArgs& args) override;
  void ExpertGradient(const ExpertGradientArgs& args) override;
  void Rotary(const RotaryArgs& args) override;
  void ApplyDropout(const DropoutArgs& args) override;
  void ColumnSum(const ColumnSumArgs& args) override;
  void SoftmaxChunk(const SoftmaxChunkArgs& args) override;
  void SoftmaxChunkBackward(const SoftmaxChunkBackwardArgs& args) override;
  void Loss(const LossArgs& args) override;
  void ScoreSequences(const ScoreSequencesArgs& args) override;
  void PreferenceLoss(const PreferenceLossArgs& args) override;
  void Widen(const WidenArgs& args) override;
  void Dequantize(const DequantizeArgs& args) override;
  void FinishLeaf(const FinishLeafArgs& args) override;
  void AddGradient(const AddGradientArgs& args) override;
  void EmitGradient(const EmitGradientArgs& args) override;
  void FillZero(const FillZeroArgs& args) override;

 private:
  // fn(begin, end, scratch) for each tile of at most `tile` of n things.
  template <typename Fn>
  void ForRanges(int64_t n, int64_t tile, const Fn& fn);
  // ColumnSum within a kernel.
  void SumColumns(const ColumnSumArgs& args);
  void Multiply(const ExpertProducts& products);

  CpuStream& compute_;
  ThreadPool& pool_;
};

}  // namespace eps::worker::cpu

#endif  // EPS_GPU_WORKER_DEVICE_CPU_CPU_KERNELS_H_
