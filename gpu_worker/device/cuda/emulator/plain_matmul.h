#ifndef EPS_GPU_WORKER_DEVICE_CUDA_EMULATOR_PLAIN_MATMUL_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_EMULATOR_PLAIN_MATMUL_H_

#include "gpu_worker/device/cuda/matmul_problem.h"

namespace eps::worker::cuda {

// Loops on the calling thread, with fp32 sums in the order of k.
void PlainMatMul(const MatMulProblem& problem);

}  // namespace eps::worker::cuda

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_EMULATOR_PLAIN_MATMUL_H_
