#ifndef EPS_GPU_WORKER_DEVICE_CUDA_DEVICE_CODE_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_DEVICE_CODE_H_

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

#include "common/numeric/fp16.h"
#include "common/numeric/philox.h"
#include "gpu_worker/device/cuda/device_dropout.h"
#include "gpu_worker/device/cuda/simt.h"

// What kernels share: elements of the compute dtype, packs of them, sums over warps and blocks, and dropout.
namespace eps::worker::cuda {

// An activation in bf16. Rounded to nearest, ties to even, as the GPU's own conversion and its libraries do; common's
// Bf16 has the other rule, of weights on the wire and of gradient leaves.
struct ActBf16 {
  uint16_t bits;
};

// One in fp16 (binary16): to nearest, ties to even, as common's Fp16.
struct ActFp16 {
  uint16_t bits;
};

__device__ __forceinline__ float ToFloat(float x) { return x; }
__device__ __forceinline__ float ToFloat(ActBf16 x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16);
}

__device__ __forceinline__ float ToFloat(ActFp16 x) {
#ifdef __CUDACC__
  return __half2float(__ushort_as_half(x.bits));
#else
  return eps::ToFloat(Fp16{x.bits});
#endif
}

template <typename T>
__device__ __forceinline__ T FromFloat(float x);
template <>
__device__ __forceinline__ float FromFloat<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ ActBf16 FromFloat<ActBf16>(float x) {
#ifdef __CUDACC__
  return {__bfloat16_as_ushort(__float2bfloat16_rn(x))};
#else
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7FFFFFFF) > 0x7F800000) return {0x7FFF};  // NaN: the rounding below could make a number of it
  return {static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16)};
#endif
}

template <>
__device__ __forceinline__ ActFp16 FromFloat<ActFp16>(float x) {
#ifdef __CUDACC__
  return {__half_as_ushort(__float2half_rn(x))};
#else
  return {ToFp16(x).bits};
#endif
}

// exp(x) for x <= 0, within a few roundings of x, by six instructions less than expf's (sm_90a); 0 from exp(-87) down,
// where it is added to 1 or more.
__device__ __forceinline__ float ExpOf(float x) {
  constexpr float kLog2E = 1.44269504f;
#ifdef __CUDACC__
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * kLog2E));
  return y;
#else
  return exp2f(x * kLog2E);
#endif
}

// Two elements that follow each other: of 16 bits, one instruction converts both.
template <typename T>
struct alignas(2 * sizeof(T)) Pair {
  T first, second;
};
template <typename T>
__device__ __forceinline__ Pair<T> PairFromFloats(float first, float second) {
  return {FromFloat<T>(first), FromFloat<T>(second)};
}
#ifdef __CUDACC__
template <>
__device__ __forceinline__ Pair<ActBf16> PairFromFloats<ActBf16>(float first, float second) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
  return {{__bfloat16_as_ushort(pair.x)}, {__bfloat16_as_ushort(pair.y)}};
}
template <>
__device__ __forceinline__ Pair<ActFp16> PairFromFloats<ActFp16>(float first, float second) {
  const __half2 pair = __floats2half2_rn(first, second);
  return {{__half_as_ushort(pair.x)}, {__half_as_ushort(pair.y)}};
}
#endif

// Kernels pass over arrays in packs of 8 elements: one access of 16 bytes in 16 bits each, two in fp32.
inline constexpr int kPack = 8;
template <typename T>
struct alignas(16) Pack {
  T element[kPack];
};

// The first element of the calling thread's pack.
__device__ __forceinline__ int64_t PackStart() {
  return (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kPack;
}

// Elements [at, at + 8) of `x`, of which those before `end` are there; 0 for the rest. `at` is a multiple of 8. With
// kVector `x` is aligned to 16 bytes, and whole packs are accessed whole.
template <bool kVector, typename T>
__device__ __forceinline__ void LoadPack(const T* x, int64_t at, int64_t end, float (&out)[kPack]) {
  if (kVector && at + kPack <= end) {
    const Pack<T> pack = *reinterpret_cast<const Pack<T>*>(x + at);
    EPS_UNROLL
    for (int i = 0; i < kPack; ++i) out[i] = ToFloat(pack.element[i]);
  } else {
    EPS_UNROLL
    for (int i = 0; i < kPack; ++i) out[i] = at + i < end ? ToFloat(x[at + i]) : 0.0f;
  }
}

template <bool kVector, typename T>
__device__ __forceinline__ void StorePack(const float (&values)[kPack], T* x, int64_t at, int64_t end) {
  if (kVector && at + kPack <= end) {
    Pack<T> pack;
    EPS_UNROLL
    for (int i = 0; i < kPack; i += 2) {
      const Pair<T> pair = PairFromFloats<T>(values[i], values[i + 1]);
      pack.element[i] = pair.first;
      pack.element[i + 1] = pair.second;
    }
    *reinterpret_cast<Pack<T>*>(x + at) = pack;
  } else {
    EPS_UNROLL
    for (int i = 0; i < kPack; ++i) {
      if (at + i < end) x[at + i] = FromFloat<T>(values[i]);
    }
  }
}

// ---- Over a warp, lanes by halves: every lane gets the result. --------------------------------------------------------

template <typename T>  // float or int
__device__ __forceinline__ T WarpSum(T x) {
  EPS_UNROLL
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(kWarpMask, x, distance);
  return x;
}
// The largest that is not NaN.
__device__ __forceinline__ float WarpMax(float x) {
  EPS_UNROLL
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
    x = fmaxf(x, __shfl_xor_sync(kWarpMask, x, distance));
  }
  return x;
}

// ---- Dropout (kernels.h) --------------------------------------------------------------------------------------------

__device__ __forceinline__ std::array<uint32_t, 4> DropoutWords(const DeviceDropout& plan, uint64_t group) {
  return Philox(*plan.key, {static_cast<uint32_t>(group), static_cast<uint32_t>(group >> 32), 0, 0});
}

__device__ __forceinline__ float DropoutFactor(const DeviceDropout& plan, uint32_t word) {
  return word > plan.drop_up_to ? plan.keep_scale : 0.0f;
}

// words[i]. An index that is not known to the compiler would put the array into memory.
__device__ __forceinline__ uint32_t WordAt(const std::array<uint32_t, 4>& words, uint64_t i) {
  const uint32_t low = i % 2 == 0 ? words[0] : words[1], high = i % 2 == 0 ? words[2] : words[3];
  return i < 2 ? low : high;
}

// What 8 elements from `element` on (counted from the array's first) are multiplied by.
__device__ __forceinline__ void DropoutFactors(const DeviceDropout& plan, int64_t element, float (&factors)[kPack]) {
  const uint64_t first = static_cast<uint64_t>(plan.first_element + element);
  if (!plan.on) {
    EPS_UNROLL
    for (int i = 0; i < kPack; ++i) factors[i] = 1;
  } else if (first % 4 == 0) {
    EPS_UNROLL
    for (int half = 0; half < 2; ++half) {
      const std::array<uint32_t, 4> words = DropoutWords(plan, first / 4 + half);
      EPS_UNROLL
      for (int i = 0; i < 4; ++i) factors[4 * half + i] = DropoutFactor(plan, words[i]);
    }
  } else {
    std::array<uint32_t, 4> words = DropoutWords(plan, first / 4);
    for (int i = 0; i < kPack; ++i) {
      const uint64_t at = first + i;
      if (i > 0 && at % 4 == 0) words = DropoutWords(plan, at / 4);
      factors[i] = DropoutFactor(plan, WordAt(words, at % 4));
    }
  }
}

}  // namespace eps::worker::cuda

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_DEVICE_CODE_H_
