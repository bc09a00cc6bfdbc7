#include "gpu_worker/device/cuda/swiglu.h"

#include <cstdint>

#include "common/tensor/dtype.h"
#include "gpu_worker/device/cuda/act_dispatch.h"
#include "gpu_worker/device/cuda/device_code.h"
#include "gpu_worker/device/cuda/launch.h"
#include "gpu_worker/device/cuda/row_packs.h"
#include "gpu_worker/device/cuda/sigmoid.h"
#include "gpu_worker/device/cuda/simt.h"
#include "gpu_worker/device/kernels.h"

namespace eps::worker::cuda {
namespace {

// The one place where silu(gate) is computed: forward and backward give the same bits. So is y: (silu up) weight.
__device__ __forceinline__ float SiluOf(float gate, float sigmoid) { return gate * sigmoid; }

__device__ __forceinline__ float WeightOf(const float* weight, int64_t row) {
  return weight == nullptr ? 1.0f : weight[row];
}

template <typename T, bool kVector>
__global__ void SwigluKernel(int64_t M, int64_t F, const T* gate_up, const float* weight, T* y) {
  const int64_t at = PackStart();
  for (int64_t row = blockIdx.y; row < M; row += gridDim.y) {
    const T* from = gate_up + row * 2 * F;
    const float factor = WeightOf(weight, row);
    float gate[kPack], up[kPack];
    LoadPack<kVector>(from, at, F, gate);
    LoadPack<kVector>(from + F, at, F, up);
    EPS_UNROLL
    for (int i = 0; i < kPack; ++i) up[i] = SiluOf(gate[i], PartsOfSigmoid(gate[i]).sigmoid) * up[i] * factor;
    StorePack<kVector>(up, y + row * F, at, F);
  }
}

// What the backward reads and writes, each from a row's start.
template <typename T>
struct SwigluRow {
  const T* gate_up;  // (2F)
  const T* dy;       // (F)
  T* dgate_up;       // (2F)
  T* y;              // (F), or null
};
template <typename T>
__device__ __forceinline__ SwigluRow<T> RowOf(int64_t row, int64_t F, const T* gate_up, const T* dy, T* dgate_up,
                                              T* y) {
  return {gate_up + row * 2 * F, dy + row * F, dgate_up + row * 2 * F, y == nullptr ? nullptr : y + row * F};
}

// Of elements [at, at + 8) of a row; returns their sum of dy silu(gate) up, of the row's weight the gradient.
template <bool kVector, typename T>
__device__ __forceinline__ float SwigluBackwardPack(const SwigluRow<T>& row, float weight, int64_t at, int64_t F) {
  float gate[kPack], up[kPack], d[kPack], out[kPack], sum = 0;
  LoadPack<kVector>(row.gate_up, at, F, gate);
  LoadPack<kVector>(row.gate_up + F, at, F, up);
  LoadPack<kVector>(row.dy, at, F, d);
  EPS_UNROLL
  for (int i = 0; i < kPack; ++i) {
    const SigmoidParts parts = PartsOfSigmoid(gate[i]);
    const float silu = SiluOf(gate[i], parts.sigmoid), product = silu * up[i];
    sum += d[i] * product;
    out[i] = product * weight;
    d[i] *= weight;
    gate[i] = d[i] * up[i] * fmaf(gate[i], parts.slope, parts.sigmoid);
    up[i] = d[i] * silu;
  }
  StorePack<kVector>(gate, row.dgate_up, at, F);
  StorePack<kVector>(up, row.dgate_up + F, at, F);
  if (row.y != nullptr) StorePack<kVector>(out, row.y, at, F);
  return sum;
}

template <typename T, bool kVector>
__global__ void SwigluBackwardKernel(int64_t M, int64_t F, const T* gate_up, const T* dy, T* dgate_up, T* y) {
  const int64_t at = PackStart();
  for (int64_t row = blockIdx.y; row < M; row += gridDim.y) {
    SwigluBackwardPack<kVector>(RowOf(row, F, gate_up, dy, dgate_up, y), 1.0f, at, F);
  }
}

// A row is a warp's, or a wide one a block's: its weight's gradient is a sum over it.
template <typename T, bool kVector, typename Team>
__global__ void __launch_bounds__(Team::kMaxThreads, (kVector ? 1024 : 512) / Team::kMaxThreads)
    WeightedSwigluBackwardKernel(int64_t M, int64_t F, const T* gate_up, const float* weight, const T* dy, T* dgate_up,
                                 T* y, float* dweight) {
  const int64_t row = Team::Row();
  if (row >= M) return;
  const SwigluRow<T> at_row = RowOf(row, F, gate_up, dy, dgate_up, y);
  const float factor = weight[row];
  float sum = 0;
  EPS_NO_UNROLL
  for (int64_t at = Team::Thread() * kPack; at < F; at += Team::Threads() * kPack) {
    sum += SwigluBackwardPack<kVector>(at_row, factor, at, F);
  }
  sum = Team::template Sum<0>(sum);
  if (Team::Thread() == 0) dweight[row] = sum;
}

template <typename Team, typename T, bool kVector>
void LaunchWeightedBackward(KernelQueue& queue, const SwigluBackwardArgs& args) {
  Launch(queue, "WeightedSwigluBackward", Team::Shape(args.M, args.F), &WeightedSwigluBackwardKernel<T, kVector, Team>,
         args.M, args.F, static_cast<const T*>(args.gate_up), args.weight, static_cast<const T*>(args.dy),
         static_cast<T*>(args.dgate_up), static_cast<T*>(args.y), args.dweight);
}

}  // namespace

void Swiglu(KernelQueue& queue, Dtype act, const SwigluArgs& args) {
  ForAct(act, [&](auto type) {
    using T = typename decltype(type)::type;
    ForVector(args.F, {args.gate_up, args.y}, [&](auto vector) {
      Launch(queue, "Swiglu", RowsShape(args.M, args.F), &SwigluKernel<T, decltype(vector)::value>, args.M, args.F,
             static_cast<const T*>(args.gate_up), args.weight, static_cast<T*>(args.y));
    });
  });
}

void SwigluBackward(KernelQueue& queue, Dtype act, const SwigluBackwardArgs& args) {
  ForAct(act, [&](auto type) {
    using T = typename decltype(type)::type;
    ForVector(args.F, {args.gate_up, args.dy, args.dgate_up, args.y}, [&](auto vector) {
      constexpr bool kVector = decltype(vector)::value;
      if (args.weight == nullptr) {
        Launch(queue, "SwigluBackward", RowsShape(args.M, args.F), &SwigluBackwardKernel<T, kVector>, args.M, args.F,
               static_cast<const T*>(args.gate_up), static_cast<const T*>(args.dy), static_cast<T*>(args.dgate_up),
               static_cast<T*>(args.y));
      } else if (args.F <= kWarpColumns) {
        LaunchWeightedBackward<WarpTeam, T, kVector>(queue, args);
      } else {
        LaunchWeightedBackward<BlockTeam, T, kVector>(queue, args);
      }
    });
  });
}

}  // namespace eps::worker::cuda
