#ifndef EPS_GPU_WORKER_DEVICE_CUDA_SDPA_PROBLEM_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_SDPA_PROBLEM_H_

#include <compare>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "common/tensor/dtype.h"
#include "gpu_worker/device/cuda/device_dropout.h"
#include "gpu_worker/device/kernels.h"

// Self-attention as a library's fused kernels are asked for it: scaled dot-product attention, "SDPA".
namespace eps::worker::cuda {

// Everything but addresses. Queries and keys are of the same positions.
struct SdpaProblem {
  int64_t B = 0, T = 0;         // sequences, and positions of each, or of the longest
  int64_t H = 0, kv_heads = 0;  // heads of queries, and of keys and values: each is used by H / kv_heads of the former
  int64_t D = 0;                // elements of a head
  // Heads that the arrays have, of which these are some of a single sequence that lie next to each other; 0: just these.
  int64_t array_H = 0, array_kv_heads = 0;
  Dtype act = Dtype::kBf16;
  double scale = 1;        // of q k^T
  bool causal = true;      // else each position sees all of its sequence
  int64_t window = 0;      // 0: no bound; else a row sees only columns with row - column < window; with causal only
  double dropout = 0;      // of the probabilities
  bool documents = false;  // a position sees its document alone, of which a sequence has several
  // Engines that are not taken for a direction, by the library's numbers: they were found to compute it otherwise.
  std::vector<int64_t> passed_forward, passed_backward;

  int64_t heads_of_array() const { return array_H == 0 ? H : array_H; }
  int64_t kv_heads_of_array() const { return array_kv_heads == 0 ? kv_heads : array_kv_heads; }
  int64_t sharers() const { return H / kv_heads; }  // heads of queries that use one of keys and values
  friend auto operator<=>(const SdpaProblem&, const SdpaProblem&) = default;
};

// The library's numbers of the engines that compute a problem.
struct SdpaEngines {
  int64_t forward = 0, backward = 0;
};

// Arrays of a problem. In their shapes H and kv_heads are heads_of_array() and kv_heads_of_array(). Those that a direction
// does not use may be null.
struct SdpaArrays {
  const void* qkv = nullptr;  // act (B, T, H + 2 kv_heads, D): queries, keys, values
  void* o = nullptr;          // act (B, T, H, D); out of forward, only read by backward
  float* lse = nullptr;       // (B, H, T): log of the softmax's sum, max included; as o
  Documents documents;        // of a problem with documents
  DeviceDropout dropout;      // of a problem with dropout; its elements are (B, H, T, T)
  // Of backward alone.
  const void* d_o = nullptr;  // as o
  void* dqkv = nullptr;       // as qkv; out
  float* delta = nullptr;     // (B, H, T) scratch

  friend bool operator==(const SdpaArrays&, const SdpaArrays&) = default;
};

// Errors: INVALID_ARGUMENT no such problem, naming the field
absl::Status CheckSdpaProblem(const SdpaProblem& problem);

// Whether fused attention computes a problem, forward and backward, on a GPU of compute capability `sm_major`.x:
// what is known without asking the library. The plain kernel computes the rest, in both directions.
//
// Errors: UNIMPLEMENTED it does not, and why · as CheckSdpaProblem
// Source: cuDNN's support matrix, docs.nvidia.com/cudnn/operations/Attention
absl::Status CheckFusedAttention(const SdpaProblem& problem, int sm_major);

// Neither sequences nor heads see each other, so a problem may be computed by parts that are alike, with less workspace:
// `part`, which wants `workspace_bytes`, cut smaller, if that is too much and it can be. Into sequences, as many as want at
// most `most_of_several` in proportion; a single one into heads of keys and values, with those of queries that use them, as
// many as want at most `most_of_one`. Every part's fp32 arrays begin at 16 bytes, as the library was told, its rows' sums
// are packed, as the library wants them, and its dropout's elements follow each other: so several sequences of which no
// fewer begin there are left as they are.
SdpaProblem CutSmaller(const SdpaProblem& part, int64_t workspace_bytes, int64_t most_of_several, int64_t most_of_one);

// One of a problem's parts: its arrays from its first sequence on, and its first head of keys and values, counted in the
// problem. Dropout's elements are counted from the part's own first.
struct SdpaPart {
  SdpaArrays arrays;
  int64_t first_kv_head = 0;
};
// All that are like `part`, which is of CutSmaller, or the problem itself.
std::vector<SdpaPart> PartsOf(const SdpaProblem& problem, const SdpaProblem& part, const SdpaArrays& arrays);

}  // namespace eps::worker::cuda

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_SDPA_PROBLEM_H_
