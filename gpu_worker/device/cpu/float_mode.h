#ifndef EPS_GPU_WORKER_DEVICE_CPU_FLOAT_MODE_H_
#define EPS_GPU_WORKER_DEVICE_CPU_FLOAT_MODE_H_

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace eps::worker::cpu {

// Makes the calling thread read and write denormal numbers as zero (DAZ and FTZ). Every thread that
// computes calls it first: results depend on it, and denormals cost tens of times more (docs/notation.md).
inline void FlushDenormals() {
#if defined(__x86_64__)
  constexpr unsigned int kFlushToZero = 1u << 15, kDenormalsAreZero = 1u << 6;
  _mm_setcsr(_mm_getcsr() | kFlushToZero | kDenormalsAreZero);
#elif defined(__aarch64__)
  uint64_t mode;
  asm volatile("mrs %0, fpcr" : "=r"(mode));
  asm volatile("msr fpcr, %0" : : "r"(mode | uint64_t{1} << 24));
#endif
}

}  // namespace eps::worker::cpu

#endif  // EPS_GPU_WORKER_DEVICE_CPU_FLOAT_MODE_H_
