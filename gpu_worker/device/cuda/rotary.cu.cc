#include "gpu_worker/device/cuda/rotary.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>

#include "common/tensor/dtype.h"
#include "gpu_worker/device/cuda/act_dispatch.h"
#include "gpu_worker/device/cuda/device_code.h"
#include "gpu_worker/device/cuda/launch.h"
#include "gpu_worker/device/cuda/simt.h"
#include "gpu_worker/device/kernels.h"

namespace eps::worker::cuda {
namespace {

// A thread rotates a pack of a head's first half with that of its second.
template <typename T, bool kVector>
__global__ void RotaryKernel(int64_t M, int64_t positions, int heads, int half, int64_t ld, T* x, const float* table,
                             bool inverse, const int32_t* document_first) {
  const int packs = (half + kPack - 1) / kPack;  // of half a head
  const int index = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x), head = index / packs;
  const int64_t at = index % packs * kPack;
  if (head >= heads) return;
  for (int64_t row = blockIdx.y; row < M; row += gridDim.y) {
    T* first = x + row * ld + static_cast<int64_t>(head) * 2 * half;
    T* second = first + half;
    const int64_t position = row % positions - (document_first == nullptr ? 0 : document_first[row]);
    const float* cosines = table + position * 2 * half;
    float a[kPack], b[kPack], c[kPack], s[kPack];
    LoadPack<kVector>(first, at, half, a);
    LoadPack<kVector>(second, at, half, b);
    LoadPack<kVector>(cosines, at, half, c);
    LoadPack<kVector>(cosines + half, at, half, s);
    EPS_UNROLL
    for (int i = 0; i < kPack; ++i) {
      const float sine = inverse ? -s[i] : s[i];
      const float turned = fmaf(-b[i], sine, a[i] * c[i]);
      b[i] = fmaf(a[i], sine, b[i] * c[i]);
      a[i] = turned;
    }
    StorePack<kVector>(a, first, at, half);
    StorePack<kVector>(b, second, at, half);
  }
}

}  // namespace

void Rotary(KernelQueue& queue, Dtype act, const RotaryArgs& args) {
  const int64_t half = args.D / 2, pairs = args.heads * CeilDiv(half, kPack);  // of packs, in a row
  // No wider than a row: key heads are few.
  const int64_t threads = std::min<int64_t>(kElementThreads, CeilDiv(pairs, kWarpSize) * kWarpSize);
  if (pairs == 0) return;
  ForAct(act, [&](auto type) {
    using T = typename decltype(type)::type;
    ForVector(std::gcd(args.ld, half), {args.x, args.table}, [&](auto vector) {
      Launch(queue, "Rotary",
             {.blocks_x = CeilDiv(pairs, threads),
              .blocks_y = std::min(args.M, kMaxBlocksY),
              .threads = static_cast<int>(threads)},
             &RotaryKernel<T, decltype(vector)::value>, args.M, args.T, static_cast<int>(args.heads),
             static_cast<int>(half), args.ld, static_cast<T*>(args.x), args.table, args.inverse, args.documents.first);
    });
  });
}

}  // namespace eps::worker::cuda
