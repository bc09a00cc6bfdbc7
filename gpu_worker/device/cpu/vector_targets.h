#ifndef EPS_GPU_WORKER_DEVICE_CPU_VECTOR_TARGETS_H_
#define EPS_GPU_WORKER_DEVICE_CPU_VECTOR_TARGETS_H_

// Include before any header of Highway. On x86 kernels are compiled for AVX3 (AVX-512) and AVX2
// alone, and NewCpuDevice refuses a processor with neither: without fused multiply-add the bits
// would be others. AVX2 is called the baseline so that Highway does not ask for a scalar fallback
// that would never run.
#if defined(__x86_64__)
#define HWY_BASELINE_TARGETS HWY_AVX2
#endif

#endif  // EPS_GPU_WORKER_DEVICE_CPU_VECTOR_TARGETS_H_
