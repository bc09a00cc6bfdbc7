#ifndef EPS_SERVER_OPTIMIZER_FLOAT_MODE_H_
#define EPS_SERVER_OPTIMIZER_FLOAT_MODE_H_

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace eps::server {

// Reads and writes denormal numbers as zero (DAZ and FTZ) for its scope, on this thread. Bits
// depend on it, and denormal moments make an update tens of times slower (docs/notation.md).
class ScopedFlushDenormals {
 public:
#if defined(__x86_64__)
  ScopedFlushDenormals() : saved_(_mm_getcsr()) {
    constexpr unsigned int kFlushToZero = 1u << 15, kDenormalsAreZero = 1u << 6;
    _mm_setcsr(saved_ | kFlushToZero | kDenormalsAreZero);
  }
  ~ScopedFlushDenormals() { _mm_setcsr(saved_); }
#elif defined(__aarch64__)
  ScopedFlushDenormals() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    asm volatile("msr fpcr, %0" : : "r"(saved_ | uint64_t{1} << 24));
  }
  ~ScopedFlushDenormals() { asm volatile("msr fpcr, %0" : : "r"(saved_)); }
#else
#error "ScopedFlushDenormals: how does this processor flush denormals?"
#endif
  ScopedFlushDenormals(const ScopedFlushDenormals&) = delete;
  ScopedFlushDenormals& operator=(const ScopedFlushDenormals&) = delete;

 private:
#if defined(__x86_64__)
  unsigned int saved_;
#else
  uint64_t saved_;
#endif
};

}  // namespace eps::server

#endif  // EPS_SERVER_OPTIMIZER_FLOAT_MODE_H_
