#ifndef EPS_GPU_WORKER_DEVICE_CPU_ATTENTION_H_
#define EPS_GPU_WORKER_DEVICE_CPU_ATTENTION_H_

#include <cstdint>

#include "gpu_worker/device/dropout_plan.h"
#include "gpu_worker/device/kernels.h"

namespace eps::worker::cpu {

inline constexpr int64_t kAttentionTile = 64;  // rows of q, and rows of k, of a tile of scores
inline constexpr int64_t kMaxHeadDim = 256;

// Attention in tiles of 64 x 64 scores; tiles above the diagonal of causal attention, or before the
// window, are skipped. Scores are kept transposed, (k row, q row): the running softmax of 64 q rows
// then runs in vector lanes, without sums across lanes, and only q is ever transposed, once per 64
// rows.
//
// While a tile is computed the rows of the next one are asked for, as they are kilobytes apart.
// bench/block_bench with B 8, T 256, H 6, D 64 on two cores of a virtual Xeon with AVX-512, 23 Nov
// 2026, without and with it: forward 120 and 160 GFLOP/s, backward 154 and 185.
//
// A task of the forward pass is one tile of q rows of one (sample, head); of the backward pass a
// whole (sample, head of k and v): its query heads in order, of each the q tiles in order, so that
// dk and dv are summed in one order. So kv_heads * B bounds the threads that backward keeps busy;
// more tasks would want an array of partial sums for each query head.
int64_t AttentionForwardTasks(const AttentionArgs& args);
void AttentionForwardTask(const AttentionArgs& args, const DropoutPlan& dropout, int64_t task, float* scratch);

int64_t AttentionBackwardTasks(const AttentionBackwardArgs& args);
void AttentionBackwardTask(const AttentionBackwardArgs& args, const DropoutPlan& dropout, int64_t task, float* scratch);

}  // namespace eps::worker::cpu

#endif  // EPS_GPU_WORKER_DEVICE_CPU_ATTENTION_H_
