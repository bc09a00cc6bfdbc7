#ifndef EPS_GPU_WORKER_DEVICE_CUDA_TENSOR_CORE_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_TENSOR_CORE_H_

#include <cstdint>
#include <type_traits>

#include "gpu_worker/device/cuda/device_code.h"
#include "gpu_worker/device/cuda/simt.h"
#ifndef __CUDACC__
#include "gpu_worker/device/cuda/emulator/warp_matrix.h"
#endif

// What a warp multiplies by tensor cores: (16, 16) by (16, 16), in 16 bits, added to (16, 16) in fp32. Every lane of
// the warp calls these. By ldmatrix and mma.sync, which all GPUs from sm_80 on have: they want shared memory's rows
// aligned to 16 bytes, where nvcuda::wmma wants 32, at which loads have bank conflicts. No GPU has run them yet.
// Source: PTX ISA, matrix fragments of mma.m16n8k16 with .f16 and .bf16; ldmatrix.
namespace eps::worker::cuda {

inline constexpr int kFragment = 16;

// Of the product, in halves of 8 columns: the elements that a lane holds, i of 4.
struct Accumulator {
  float half[2][4] = {};

  static __device__ __forceinline__ int RowOf(int i) {
    return static_cast<int>(threadIdx.x) % kWarpSize / 4 + i / 2 * 8;
  }
  // Those of an even i and of the next follow each other.
  static __device__ __forceinline__ int ColumnOf(int of_half, int i) {
    return of_half * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + i % 2;
  }
};

// 16 lines of an operand, rows of a or columns of b, by 16 of the depth, over which the sums are: in four squares of 8,
// of the first lines, the last, and the same of the second half of the depth.
template <typename T>
struct Fragment {
  uint32_t squares[4];
};

// squares: those whose rows lie at the lanes' addresses `row`, eight lanes for each. The first line of a square is its
// first row, or column with kTransposes.
template <bool kTransposes, typename T>
__device__ __forceinline__ void LoadSquares(const T* row, uint32_t (&squares)[4]) {
#ifdef __CUDACC__
  const unsigned from = static_cast<unsigned>(__cvta_generic_to_shared(row));
  if constexpr (kTransposes) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(squares[0]), "=r"(squares[1]), "=r"(squares[2]), "=r"(squares[3])
                 : "r"(from)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(squares[0]), "=r"(squares[1]), "=r"(squares[2]), "=r"(squares[3])
                 : "r"(from)
                 : "memory");
  }
#else
  emulator::LoadMatrices(row, kTransposes, squares);
#endif
}

// c (16, 8) += a (16, 16) b (16, 8)
template <typename T>
__device__ __forceinline__ void MultiplyAddSquares(const uint32_t (&a)[4], const uint32_t (&b)[2], float (&c)[4]) {
  static_assert(std::is_same_v<T, ActBf16> || std::is_same_v<T, ActFp16>);
#ifdef __CUDACC__
  if constexpr (std::is_same_v<T, ActBf16>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
#else
  emulator::MultiplyAdd(
      a, b, [](uint16_t bits) { return ToFloat(T{bits}); }, c);
#endif
}

// From shared memory: `at` is the element of the first line and depth. With kAlong a line's elements follow each other
// and lines are `stride` elements apart; else the elements of a depth do, and depths are. `at` and stride: 16 bytes'
// multiples.
template <bool kAlong, typename T>
__device__ __forceinline__ void LoadFragment(const T* at, int stride, Fragment<T>& out) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize, square = lane / 8, row = lane % 8;
  const int line = square % 2 * 8 + (kAlong ? row : 0), depth = square / 2 * 8 + (kAlong ? 0 : row);
  LoadSquares<!kAlong>(at + (kAlong ? line * stride + depth : depth * stride + line), out.squares);
}

// c += a b
template <typename T>
__device__ __forceinline__ void MultiplyAdd(const Fragment<T>& a, const Fragment<T>& b, Accumulator& c) {
  EPS_UNROLL
  for (int half = 0; half < 2; ++half) {
    MultiplyAddSquares<T>(a.squares, {b.squares[half], b.squares[half + 2]}, c.half[half]);
  }
}

}  // namespace eps::worker::cuda

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_TENSOR_CORE_H_
