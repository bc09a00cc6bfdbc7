#ifndef EPS_GPU_WORKER_DEVICE_CUDA_ACT_DISPATCH_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_ACT_DISPATCH_H_

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "common/tensor/dtype.h"
#include "gpu_worker/device/cuda/device_code.h"
#include "gpu_worker/device/cuda/launch.h"

// From what is known at run time to the instance of a kernel's template.
namespace eps::worker::cuda {

template <typename T>
struct Type {
  using type = T;
};

// fn(Type<float>), fn(Type<ActBf16>) or fn(Type<ActFp16>).
template <typename Fn>
void ForAct(Dtype act, const Fn& fn) {
  switch (act) {
    case Dtype::kF32:
      return fn(Type<float>());
    case Dtype::kBf16:
      return fn(Type<ActBf16>());
    case Dtype::kF16:
      return fn(Type<ActFp16>());
  }
}

template <bool kValue>
struct Flag {
  static constexpr bool value = kValue;
};

// fn(Flag<whether packs of rows that are `ld` elements apart may be accessed whole>).
template <typename Fn>
void ForVector(int64_t ld, std::initializer_list<const void*> arrays, const Fn& fn) {
  bool vector = ld % kPack == 0;
  for (const void* array : arrays) vector = vector && reinterpret_cast<uintptr_t>(array) % 16 == 0;
  vector ? fn(Flag<true>()) : fn(Flag<false>());
}

inline int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

inline constexpr int kElementThreads = 256;

// One thread for each pack of `n` elements.
inline LaunchShape ElementShape(int64_t n) {
  return {.blocks_x = CeilDiv(CeilDiv(n, kPack), kElementThreads), .threads = kElementThreads};
}

// A thread for each pack of a row; blocks of rows as far as they go.
inline LaunchShape RowsShape(int64_t M, int64_t N) {
  LaunchShape shape = ElementShape(N);
  shape.blocks_y = std::min(M, kMaxBlocksY);
  return shape;
}

}  // namespace eps::worker::cuda

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_ACT_DISPATCH_H_
