#ifndef EPS_GPU_WORKER_DEVICE_CUDA_TILE_PRODUCT_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_TILE_PRODUCT_H_

#include <cstdint>
#include <type_traits>

#include "gpu_worker/device/cuda/device_code.h"
#include "gpu_worker/device/cuda/simt.h"
#include "gpu_worker/device/cuda/tensor_core.h"

// A block's part of a matrix product: kTile rows by kTile columns, of operands that pass through shared memory in
// stages, so that loads of the next few are under way while one is multiplied.
//
// Of an operand a block has lines, rows of a or columns of b, of `depth` elements each, over which the sums are.
// kAlong: the elements of a line follow each other in memory; else those of a depth do.
namespace eps::worker::cuda {

inline constexpr int kTile = 128;

template <typename T>
struct Lines {
  const T* x;     // of the first line and depth
  int64_t ld;     // from a line to the next with kAlong, else from a depth
  int64_t count;  // of lines, also beyond kTile; for those behind it are 0
  int64_t depth;
};

// How elements of 16 bits are multiplied, by tensor cores: 4 warps, of 64 by 64 each, as then shared memory, of which a
// step of 16 reads 16 KiB, keeps up with them. kWhole: x is aligned to packs of 8 elements, as are ld, and count, or
// with kAlong depth: packs are copied whole, by cp.async.
template <typename T, bool kAAlong, bool kBAlong, bool kWhole>
struct TensorProduct {
  static constexpr int kThreads = 128, kBlocks = 2;
  // 3 on their way are 48 KiB of a block, and two blocks fit on a multiprocessor from sm_80 on (one on sm_86, sm_89,
  // sm_120).
  static constexpr int kStages = 4, kStep = 32;
  static constexpr int kOfWarp = 64, kFragments = kOfWarp / kFragment;

  template <bool kAlong>
  struct Operand {
    // The pack beside it puts the 8 rows of 16 bytes that are loaded at once into different banks.
    static constexpr int kStride = (kAlong ? kStep : kTile) + kPack;
    static constexpr int kElems = (kAlong ? kTile : kStep) * kStride;

    static __device__ __forceinline__ int At(int line, int depth) {
      return kAlong ? line * kStride + depth : depth * kStride + line;
    }
    static __device__ __forceinline__ void Copy(const Lines<T>& lines, int64_t first, T* to) {
      constexpr int kCopies = kTile * kStep / kPack / kThreads;
      if constexpr (kWhole) {
        EPS_UNROLL
        for (int i = 0; i < kCopies; ++i) CopyPack(lines, first, static_cast<int>(threadIdx.x) + i * kThreads, to);
      } else {
        EPS_NO_UNROLL
        for (int i = 0; i < kCopies; ++i) CopyPack(lines, first, static_cast<int>(threadIdx.x) + i * kThreads, to);
      }
    }
    static __device__ __forceinline__ void CopyPack(const Lines<T>& lines, int64_t first, int pack, T* to) {
      constexpr int kPacksOfRow = (kAlong ? kStep : kTile) / kPack;
      const int row = pack / kPacksOfRow, column = pack % kPacksOfRow * kPack;
      const int line = kAlong ? row : column;
      const int64_t depth = first + (kAlong ? column : row);
      const T* from = lines.x + (kAlong ? line * lines.ld + depth : depth * lines.ld + line);
      to += row * kStride + column;
      if constexpr (kWhole) {
        const bool there = line < lines.count && depth < lines.depth;
        BeginCopy<16>(to, there ? from : lines.x, there);
      } else {
        Pack<T> elements = {};
        EPS_UNROLL
        for (int j = 0; j < kPack; ++j) {
          const bool there = line + (kAlong ? 0 : j) < lines.count && depth + (kAlong ? j : 0) < lines.depth;
          if (there) elements.element[j] = from[j];
        }
        *reinterpret_cast<Pack<T>*>(to) = elements;
      }
    }
  };
  using A = Operand<kAAlong>;
  using B = Operand<kBAlong>;
  static constexpr int kStageElems = A::kElems + B::kElems;
  // As they go out, 16 rows of a warp at a time, it has its own part of shared memory for. The rows are so far apart
  // that 4 of them, pairs of columns in each, are in different banks.
  static constexpr int kOutStride = kOfWarp + kPack, kOutElems = kFragment * kOutStride;
  static_assert(kThreads / kWarpSize * kOutElems * sizeof(float) <= kStages * kStageElems * sizeof(T));

  Accumulator c[kFragments][kFragments];

  static __device__ __forceinline__ int Warp() { return static_cast<int>(threadIdx.x) / kWarpSize; }
  static __device__ __forceinline__ int FirstRow() { return Warp() / 2 * kOfWarp; }
  static __device__ __forceinline__ int FirstColumn() { return Warp() % 2 * kOfWarp; }

  __device__ __forceinline__ void Add(const T* stage) {
    EPS_UNROLL
    for (int depth = 0; depth < kStep; depth += kFragment) {
      Fragment<T> a[kFragments], b[kFragments];
      EPS_UNROLL
      for (int i = 0; i < kFragments; ++i) {
        LoadFragment<kAAlong>(stage + A::At(FirstRow() + i * kFragment, depth), A::kStride, a[i]);
        LoadFragment<kBAlong>(stage + A::kElems + B::At(FirstColumn() + i * kFragment, depth), B::kStride, b[i]);
      }
      EPS_UNROLL
      for (int i = 0; i < kFragments; ++i) {
        EPS_UNROLL
        for (int j = 0; j < kFragments; ++j) MultiplyAdd(a[i], b[j], c[i][j]);
      }
    }
  }

  template <typename Store>
  __device__ __forceinline__ void ForPacks(T* shared, const Store& store) {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    float* out = reinterpret_cast<float*>(shared) + Warp() * kOutElems;
    EPS_UNROLL
    for (int i = 0; i < kFragments; ++i) {
      __syncwarp();  // the rows before have been read
      EPS_UNROLL
      for (int j = 0; j < kFragments; ++j) {
        EPS_UNROLL
        for (int half = 0; half < 2; ++half) {
          EPS_UNROLL
          for (int v = 0; v < 4; v += 2) {
            float* at = out + Accumulator::RowOf(v) * kOutStride + j * kFragment + Accumulator::ColumnOf(half, v);
            *reinterpret_cast<Pair<float>*>(at) = {c[i][j].half[half][v], c[i][j].half[half][v + 1]};
          }
        }
      }
      __syncwarp();
      constexpr int kPacksOfRow = kOfWarp / kPack, kRowsAtOnce = kWarpSize / kPacksOfRow;
      const int column = lane % kPacksOfRow * kPack;
      EPS_UNROLL
      for (int row = lane / kPacksOfRow; row < kFragment; row += kRowsAtOnce) {
        float pack[kPack];
        LoadPack<true>(out + row * kOutStride, column, kOfWarp, pack);
        store(FirstRow() + i * kFragment + row, FirstColumn() + column, pack);
      }
    }
  }
};

// How fp32 is: 8 by 8 for each thread. Limited by fused multiply-adds, of which there are 6 for each load of 16 bytes.
template <bool kAAlong, bool kBAlong>
struct PlainProduct {
  static constexpr int kThreads = 256, kBlocks = 2;
  static constexpr int kStages = 3, kStep = 16;
  static constexpr int kThreadsOfRow = kTile / kPack;
  // Between depths, whose lines follow each other; so copies meet fewer of a bank.
  static constexpr int kStride = kTile + 4;

  template <bool kAlong>
  struct Operand {
    static constexpr int kElems = kStep * kStride;
    static __device__ __forceinline__ void Copy(const Lines<float>& lines, int64_t first, float* to) {
      EPS_NO_UNROLL
      for (int i = 0; i < kTile * kStep / kThreads; ++i) {
        const int at = static_cast<int>(threadIdx.x) + i * kThreads;
        const int line = kAlong ? at / kStep : at % kTile, depth = kAlong ? at % kStep : at / kTile;
        const float* from = lines.x + (kAlong ? line * lines.ld + first + depth : (first + depth) * lines.ld + line);
        const bool there = line < lines.count && first + depth < lines.depth;
        BeginCopy<4>(to + depth * kStride + line, there ? from : lines.x, there);
      }
    }
  };
  using A = Operand<kAAlong>;
  using B = Operand<kBAlong>;
  static constexpr int kStageElems = A::kElems + B::kElems;

  float c[kPack][kPack] = {};

  static __device__ __forceinline__ int FirstRow() { return static_cast<int>(threadIdx.x) / kThreadsOfRow * kPack; }
  static __device__ __forceinline__ int FirstColumn() { return static_cast<int>(threadIdx.x) % kThreadsOfRow * kPack; }

  __device__ __forceinline__ void Add(const float* stage) {
    EPS_NO_UNROLL
    for (int depth = 0; depth < kStep; ++depth) {
      float a[kPack], b[kPack];
      LoadPack<true>(stage + depth * kStride, FirstRow(), kTile, a);
      LoadPack<true>(stage + A::kElems + depth * kStride, FirstColumn(), kTile, b);
      EPS_UNROLL
      for (int i = 0; i < kPack; ++i) {
        EPS_UNROLL
        for (int j = 0; j < kPack; ++j) c[i][j] += a[i] * b[j];
      }
    }
  }

  template <typename Store>
  __device__ __forceinline__ void ForPacks(float*, const Store& store) {
    EPS_UNROLL
    for (int i = 0; i < kPack; ++i) store(FirstRow() + i, FirstColumn(), c[i]);
  }
};

template <typename T, bool kAAlong, bool kBAlong, bool kWhole>
using TileProduct = std::conditional_t<std::is_same_v<T, float>, PlainProduct<kAAlong, kBAlong>,
                                       TensorProduct<T, kAAlong, kBAlong, kWhole>>;

template <typename Product, typename T>
constexpr int SharedBytesOf() {
  return Product::kStages * Product::kStageElems * static_cast<int>(sizeof(T));
}

// The tile of the product of a and b. store(row, column, pack) for each pack of it, also of those that are not there.
template <typename Product, typename T, typename Store>
__device__ __forceinline__ void MultiplyTile(const Lines<T>& a, const Lines<T>& b, const Store& store) {
  constexpr int kStages = Product::kStages, kStep = Product::kStep;
  T* shared = DynamicShared<T>();
  const int steps = static_cast<int>((a.depth + kStep - 1) / kStep);
  const auto copy = [&](int step) {
    if (step < steps) {
      T* stage = shared + step % kStages * Product::kStageElems;
      Product::A::Copy(a, int64_t{step} * kStep, stage);
      Product::B::Copy(b, int64_t{step} * kStep, stage + Product::A::kElems);
    }
    EndCopyGroup();
  };
  EPS_UNROLL
  for (int step = 0; step < kStages - 1; ++step) copy(step);
  Product product;
  const bool has_some = Product::FirstRow() < a.count && Product::FirstColumn() < b.count;
  for (int step = 0; step < steps; ++step) {
    WaitForCopies<kStages - 2>();
    __syncthreads();  // what is copied is there, and the stage that is copied to next has been read
    copy(step + kStages - 1);
    if (has_some) product.Add(shared + step % kStages * Product::kStageElems);
  }
  __syncthreads();
  if (has_some) product.ForPacks(shared, store);
}

}  // namespace eps::worker::cuda

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_TILE_PRODUCT_H_
