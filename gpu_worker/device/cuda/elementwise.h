#ifndef EPS_GPU_WORKER_DEVICE_CUDA_ELEMENTWISE_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_ELEMENTWISE_H_

#include <cstdint>

#include "common/tensor/dtype.h"
#include "gpu_worker/device/cuda/device_dropout.h"
#include "gpu_worker/device/cuda/launch.h"
#include "gpu_worker/device/kernels.h"

// Kernels that pass once over memory: limited by its bandwidth, each input read once and each output written once.
// `act` is the compute dtype. The arguments are those of kernels.h.
namespace eps::worker::cuda {

// What a MatMul leaves to a kernel of its own: rows of N elements, ld apart.
struct EpilogueArgs {
  int64_t M = 0, N = 0, ld = 0;
  const void* x = nullptr;  // act
  void* y = nullptr;        // act; may be x
  const void* residual = nullptr;
  DeviceDropout dropout;
};
// y = f(x)
void Activate(KernelQueue& queue, Dtype act, Activation activation, const EpilogueArgs& args);
// y = residual + dropout(x)
void AddResidual(KernelQueue& queue, Dtype act, const EpilogueArgs& args);

void ActivationBackward(KernelQueue& queue, Dtype act, const ActivationBackwardArgs& args);
// y = dropout(x), act (n); y may be x.
void ApplyDropout(KernelQueue& queue, Dtype act, int64_t n, const void* x, const DeviceDropout& dropout, void* y);
// Writes y, act (n): what `dropout` multiplies each element by, 0 or 1 / (1 - rate).
KernelCall DropoutMask(Dtype act, int64_t n, const DeviceDropout& dropout, void* y);
// Writes y, act (B, T, T): 0 where a row's document has the column, else -inf.
KernelCall DocumentBias(Dtype act, int64_t B, int64_t T, const Documents& documents, void* y);
// Copies whole words of 4 bytes, both aligned so, and 16 bytes at a time where all are multiples of that; `from` may be
// host memory that the device reads.
KernelCall CopyWords(int64_t num_bytes, const void* from, void* to);
inline constexpr int64_t kCopyWordBytes = 4;
// To be launched before what has dropout.
KernelCall SetDropoutKeys(const DropoutKeyPack& keys, PhiloxKey* out);
void Widen(KernelQueue& queue, Dtype act, const WidenArgs& args);
void Dequantize(KernelQueue& queue, Dtype act, const DequantizeArgs& args);
void FinishLeaf(KernelQueue& queue, const FinishLeafArgs& args);
void AddGradient(KernelQueue& queue, const AddGradientArgs& args);
void EmitGradient(KernelQueue& queue, const EmitGradientArgs& args);
void FillZero(KernelQueue& queue, const FillZeroArgs& args);

}  // namespace eps::worker::cuda

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_ELEMENTWISE_H_
