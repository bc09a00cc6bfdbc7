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

// Begins to copy kBytes, 4 or 16 and aligned to as much, into shared memory; where not `there`, it is filled with 0. No
// register waits for it. The calling thread sees the bytes once it has waited (WaitForCopies); the block's other threads do
// behind a barrier after that.
template <int kBytes>
__device__ __forceinline__ void BeginCopy(void* shared, const void* from, bool there) {
  const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared)), bytes = there ? kBytes : 0;
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(kBytes), "r"(bytes)
                 : "memory");
  }
}
// Those that the thread has begun since the last call are a group.
__device__ __forceinline__ void EndCopyGroup() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// For all of the thread's groups but the last kLeft.
template <int kLeft>
__device__ __forceinline__ void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

}  // namespace eps::worker::cuda

#else

#include <cstring>

#include "gpu_worker/device/cuda/emulator/grid.h"

#define EPS_UNROLL
#define EPS_NO_UNROLL
#define EPS_UNROLL_PACKS

namespace eps::worker::cuda {

template <typename T>
T* DynamicShared() {
  return static_cast<T*>(emulator::DynamicSharedMemory());
}

template <int kBytes>
void BeginCopy(void* shared, const void* from, bool there) {
  there ? std::memcpy(shared, from, kBytes) : std::memset(shared, 0, kBytes);
}
inline void EndCopyGroup() {}
template <int kLeft>
void WaitForCopies() {}

}  // namespace eps::worker::cuda

#endif

namespace eps::worker::cuda {

inline constexpr int kWarpSize = 32;

}  // namespace eps::worker::cuda

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_SIMT_H_
