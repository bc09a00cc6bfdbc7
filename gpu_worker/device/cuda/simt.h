#ifndef EPS_GPU_WORKER_DEVICE_CUDA_SIMT_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_SIMT_H_

#include <cstdint>

// What every kernel's source includes: CUDA's language, or its emulator where nvcc is not the compiler. Kernels use
// blocks of whole warps in one dimension, __syncthreads and its _or, warp exchanges by all 32 lanes, and shared memory.
#ifdef __CUDACC__

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#define EPS_UNROLL _Pragma("unroll")                        // so that arrays indexed in the loop stay in registers
#define EPS_NO_UNROLL _Pragma("unroll 1")                   // where code would grow for nothing
#define EPS_UNROLL_PACKS _Pragma("unroll (Code::kUnroll)")  // the one or the other, by what `Code` is for

namespace eps::worker::cuda {

inline constexpr unsigned kWarpMask = 0xFFFFFFFF;

// A block's dynamic shared memory, 16-byte aligned.
template <typename T>
__device__ T* DynamicShared() {
  extern __shared__ __align__(16) unsigned char dynamic_shared_memory[];
  return reinterpret_cast<T*>(dynamic_shared_memory);
}

}  // namespace eps::worker::cuda

#else

#include "gpu_worker/device/cuda/emulator/grid.h"

#define EPS_UNROLL
#define EPS_NO_UNROLL
#define EPS_UNROLL_PACKS

namespace eps::worker::cuda {

template <typename T>
T* DynamicShared() {
  return static_cast<T*>(emulator::DynamicSharedMemory());
}

}  // namespace eps::worker::cuda

#endif

namespace eps::worker::cuda {

inline constexpr int kWarpSize = 32;

}  // namespace eps::worker::cuda

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_SIMT_H_
