#ifndef EPS_GPU_WORKER_DEVICE_CUDA_EXPERTS_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_EXPERTS_H_

#include "common/tensor/dtype.h"
#include "gpu_worker/device/cuda/launch.h"
#include "gpu_worker/device/kernels.h"

// A mixture of experts (kernels.h). How many rows an expert has only the device knows: grids are of the most that there
// may be, and a block that finds no rows returns. So nothing waits for the host, and a graph holds for every routing.
namespace eps::worker::cuda {

// No bit depends on the grid: a routed row is one block's, and so is each number of a gradient; orders are those of tokens.
void Route(KernelQueue& queue, Dtype act, const RouteArgs& args);
void RouteBackward(KernelQueue& queue, Dtype act, const RouteBackwardArgs& args);
void GatherRows(KernelQueue& queue, Dtype act, const GatherRowsArgs& args);
void SumRows(KernelQueue& queue, Dtype act, const SumRowsArgs& args);

// In 16 bits on tensor cores, in fp32 on the others; sums are fp32. Operands that are not aligned to packs of 8
// elements, or whose rows are none, are read by elements, and all else is the same: also the bits.
void ExpertMatMul(KernelQueue& queue, Dtype act, const ExpertMatMulArgs& args);
void ExpertGradient(KernelQueue& queue, Dtype act, const ExpertGradientArgs& args);

}  // namespace eps::worker::cuda

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_EXPERTS_H_
