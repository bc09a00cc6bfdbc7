#ifndef EPS_COMMON_SPEC_VECTOR_WIDTH_H_
#define EPS_COMMON_SPEC_VECTOR_WIDTH_H_

#include <array>

namespace eps {

// What --vectors says: the widest vector instructions that the cpu device may use. The best that the processor has, or not
// beyond AVX-512 (F, BW, CD, DQ, VL) or AVX2. oneDNN's products have other bits with others, so processors that are held
// to the same are one device model (gpu_worker/device/device.h).
inline constexpr char kWidestVectors[] = "widest";
inline constexpr std::array<const char*, 3> kVectorWidths = {kWidestVectors, "avx512", "avx2"};

}  // namespace eps

#endif  // EPS_COMMON_SPEC_VECTOR_WIDTH_H_
