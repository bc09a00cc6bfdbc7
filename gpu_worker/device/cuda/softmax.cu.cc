#include "gpu_worker/device/cuda/softmax.h"

#include <cfloat>
#include <cmath>
#include <cstdint>

#include "common/tensor/dtype.h"
#include "gpu_worker/device/cuda/act_dispatch.h"
#include "gpu_worker/device/cuda/device_code.h"
#include "gpu_worker/device/cuda/launch.h"
#include "gpu_worker/device/cuda/simt.h"
#include "gpu_worker/device/kernels.h"

namespace eps::worker::cuda {
namespace {

constexpr int kRowThreads = 256;

template <typename T, bool kVector>
__global__ void __launch_bounds__(kRowThreads)
    SoftmaxChunkKernel(int64_t chunk, int64_t first, int64_t ld, const T* logits, const int32_t* labels, float* row_max,
                       float* row_sum, float* target) {
  const int64_t row = blockIdx.x;
  const T* x = logits + row * ld;
  const float old_max = first == 0 ? -FLT_MAX : row_max[row];
  float max = old_max;  // the largest that is not NaN: a NaN shows up in the sum
  for (int64_t at = threadIdx.x * kPack; at < chunk; at += kRowThreads * kPack) {
    float v[kPack];
    LoadPack<kVector>(x, at, chunk, v);
    EPS_UNROLL
    for (int i = 0; i < kPack; ++i) max = at + i < chunk ? fmaxf(max, v[i]) : max;
  }
  max = BlockMax(max);
  float sum = 0;
  for (int64_t at = threadIdx.x * kPack; at < chunk; at += kRowThreads * kPack) {
    float v[kPack];
    LoadPack<kVector>(x, at, chunk, v);
    EPS_UNROLL
    for (int i = 0; i < kPack; ++i) sum += at + i < chunk ? expf(v[i] - max) : 0.0f;
  }
  sum = BlockSum(sum);
  if (threadIdx.x != 0) return;
  row_sum[row] = first == 0 ? sum : row_sum[row] * expf(old_max - max) + sum;
  row_max[row] = max;
  const int64_t at = labels[row] - first;
  if (at >= 0 && at < chunk) target[row] = ToFloat(x[at]);
}

template <typename T, bool kVector>
__global__ void __launch_bounds__(kRowThreads)
    SoftmaxChunkBackwardKernel(int64_t chunk, int64_t first, int64_t V, int64_t ld, T* logits, const int32_t* labels,
                               const float* row_max, const float* row_sum, double scale) {
  const int64_t row = blockIdx.x;
  T* x = logits + row * ld;
  const int64_t label = labels[row];
  const bool counted = label >= 0 && label < V;
  const float max = row_max[row];
  const float factor = static_cast<float>(scale / static_cast<double>(row_sum[row]));
  for (int64_t at = threadIdx.x * kPack; at < chunk; at += kRowThreads * kPack) {
    float v[kPack];
    LoadPack<kVector>(x, at, chunk, v);
    EPS_UNROLL
    for (int i = 0; i < kPack; ++i) {
      v[i] = expf(v[i] - max) * factor - (first + at + i == label ? static_cast<float>(scale) : 0.0f);
      if (!counted) v[i] = 0;
    }
    StorePack<kVector>(v, x, at, chunk);
  }
}

constexpr int kLossLanes = 16;  // row i goes to lane i mod 16; then the lanes in order

__global__ void __launch_bounds__(kRowThreads) LossKernel(LossArgs args) {
  __shared__ double losses[kRowThreads];
  __shared__ double lanes[kLossLanes];
  int32_t counted = 0, correct = 0;  // of this thread's rows
  bool finite = true;
  double lane = 0;
  for (int64_t first = 0; first < args.M; first += kRowThreads) {
    const int64_t row = first + threadIdx.x;
    double loss = 0;
    if (row < args.M && args.labels[row] >= 0 && args.labels[row] < args.V) {
      loss = static_cast<double>(args.row_max[row]) + log(static_cast<double>(args.row_sum[row])) -
             static_cast<double>(args.target[row]);
      ++counted;
      correct += args.target[row] == args.row_max[row] ? 1 : 0;
      finite = finite && std::isfinite(loss);
    }
    losses[threadIdx.x] = loss;
    __syncthreads();
    if (threadIdx.x < kLossLanes) {
      for (int i = threadIdx.x; i < kRowThreads; i += kLossLanes) lane += losses[i];
    }
    __syncthreads();
  }
  if (threadIdx.x < kLossLanes) lanes[threadIdx.x] = lane;
  const bool all_finite = __syncthreads_or(!finite) == 0;
  __shared__ int32_t counts[kRowThreads], corrects[kRowThreads];
  counts[threadIdx.x] = counted;
  corrects[threadIdx.x] = correct;
  __syncthreads();
  if (threadIdx.x != 0) return;
  int64_t total = 0, total_correct = 0;
  for (int i = 0; i < kRowThreads; ++i) {
    total += counts[i];
    total_correct += corrects[i];
  }
  double sum = 0;
  for (int i = 0; i < kLossLanes; ++i) sum += lanes[i];
  args.record->loss_sum += sum;
  args.record->counted += total;
  args.record->correct += total_correct;
  if (!all_finite) args.record->finite = 0;
}

}  // namespace

void SoftmaxChunk(KernelQueue& queue, Dtype act, const SoftmaxChunkArgs& args) {
  ForAct(act, [&](auto type) {
    using T = typename decltype(type)::type;
    ForVector(args.ld, {args.logits}, [&](auto vector) {
      Launch(queue, "SoftmaxChunk", {.blocks_x = args.M, .threads = kRowThreads},
             &SoftmaxChunkKernel<T, decltype(vector)::value>, args.chunk, args.first, args.ld,
             static_cast<const T*>(args.logits), args.labels, args.row_max, args.row_sum, args.target);
    });
  });
}

void SoftmaxChunkBackward(KernelQueue& queue, Dtype act, const SoftmaxChunkBackwardArgs& args) {
  ForAct(act, [&](auto type) {
    using T = typename decltype(type)::type;
    ForVector(args.ld, {args.logits}, [&](auto vector) {
      Launch(queue, "SoftmaxChunkBackward", {.blocks_x = args.M, .threads = kRowThreads},
             &SoftmaxChunkBackwardKernel<T, decltype(vector)::value>, args.chunk, args.first, args.V, args.ld,
             static_cast<T*>(args.logits), args.labels, args.row_max, args.row_sum, args.scale);
    });
  });
}

void Loss(KernelQueue& queue, const LossArgs& args) {
  Launch(queue, "Loss", {.blocks_x = 1, .threads = kRowThreads}, &LossKernel, args);
}

}  // namespace eps::worker::cuda
