#ifndef EPS_GPU_WORKER_DEVICE_CUDA_CUDA_KERNELS_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_CUDA_KERNELS_H_

#include <cstdint>

#include "common/numeric/philox.h"
#include "common/tensor/dtype.h"
#include "gpu_worker/device/cuda/device_dropout.h"
#include "gpu_worker/device/cuda/launch.h"
#include "gpu_worker/device/cuda/matmul_problem.h"
#include "gpu_worker/device/cuda/sdpa_problem.h"
#include "gpu_worker/device/kernels.h"

namespace eps::worker::cuda {

// A KernelQueue that takes the libraries' work too: matrix products, and fused attention where TakesAttention says so.
class ComputeQueue : public KernelQueue {
 public:
  virtual void MatMul(const MatMulProblem& problem) = 0;
  // Memory of the device that has `key` when what is enqueued next runs; for later work it may have another. Where the
  // same work comes again, with other keys, the addresses do too.
  virtual const PhiloxKey* DropoutKey(PhiloxKey key) = 0;
  // As GpuRuntime's; an error becomes the stream's.
  virtual bool TakesAttention(const SdpaProblem& problem) = 0;
  virtual void Attention(const SdpaProblem& problem, const SdpaArrays& arrays) = 0;
  virtual void AttentionBackward(const SdpaProblem& problem, const SdpaArrays& arrays) = 0;
};

// The kernel table: what each kernel is made of. `act`: the compute dtype; `tf32`: CudaDeviceOptions'. The queue outlives
// the table.
//
// Threads: one at a time
class CudaKernels : public Kernels {
 public:
  CudaKernels(Dtype act, ComputeQueue* queue, bool tf32 = false) : act_(act), tf32_(tf32), queue_(*queue) {}

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
  // For the launch that comes next: its key is put into the device's memory.
  DeviceDropout PutDropout(const Dropout& dropout);

  const Dtype act_;
  const bool tf32_;
  ComputeQueue& queue_;
};

}  // namespace eps::worker::cuda

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_CUDA_KERNELS_H_
