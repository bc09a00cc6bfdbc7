#ifndef EPS_GPU_WORKER_DEVICE_CUDA_EMULATOR_PLAIN_MATMUL_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_EMULATOR_PLAIN_MATMUL_H_

#include "gpu_worker/device/cuda/matmul_problem.h"

namespace eps::worker::cuda {

// In which order products are added, which changes the last bits of a sum.
enum class SumOrder { kRising, kFalling };  // by k

// Loops on the calling thread, with fp32 sums in that order.
void PlainMatMul(const MatMulProblem& problem, SumOrder order = SumOrder::kRising);

}  // namespace eps::worker::cuda

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_EMULATOR_PLAIN_MATMUL_H_
