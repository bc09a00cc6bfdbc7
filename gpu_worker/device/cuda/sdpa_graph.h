#ifndef EPS_GPU_WORKER_DEVICE_CUDA_SDPA_GRAPH_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_SDPA_GRAPH_H_

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "gpu_worker/device/cuda/sdpa_problem.h"

// A problem as the graph of operations that cuDNN recognises and runs as one fused kernel: plain data, no library.
// cuDNN 9.19 has an operation for attention as a whole (CUDNN_BACKEND_OPERATION_SDPA_FWD and _BWD), which takes no causal
// mask; so attention is written out, in the pattern that the library's engines look for:
//
//   forward    S  = (Q K^T) scale                       matmul, multiply
//              S  = S + bias                            if there are documents
//              S  = S where row >= column, else -inf                             if causal
//              S  = S where column + window > row, else -inf                     if there is a window
//              m  = max S;  e = exp(S - m);  l = sum e                           over columns
//              stats = m + log l                        so it is our lse
//              P  = e / l;  P = P one kept                                       the second with dropout
//              O  = (P, as act) V
//   backward   delta = (sum over D of dO O) one         an array of its own
//              P  = exp(masked (S - stats))             again; and where nothing is causal, masked where column < T
//              dV = (P kept one, as act)^T dO
//              dS = (dO V^T kept - delta) P one scale
//              dK = (dS, as act)^T Q;  dQ = dS K
//
// The last is for Hopper, where backward computes columns behind a T that is no multiple of 128 as zeros, whose exp(-stats)
// may be infinite (cudnn-frontend's issue 628). Causal masks hide them.
//
// `kept` is an array, as which probabilities are kept is not the library's to say: what each is multiplied by, 0 or
// 1 / (1 - dropout), rounded to act. The front end has ones and zeros there, and the number in place of `one`, its inverse
// in delta; but backward on Hopper seems to leave that inverse out (cuDNN 9.19 on an H200). The ones are what the pattern
// still wants. `bias` is an array too, 0 where a row sees a column of its document and else -inf, one for all heads. Two
// vectors along the columns would say the same, and are taken; but backward on Hopper reads them as if their first element
// were all (the same).
//
// dQ is the product itself. The alternative, fp32 sums that blocks add to in any order, is faster and gives other bits
// in each run. With fewer heads of keys, dK and dV are made for each head of queries and added.
//
// All tensors are (B, heads, rows, columns). K^T and V^T are K and V with rows and columns exchanged.
// Source: the graphs that NVIDIA's cudnn-frontend builds for sdpa and sdpa_backward; Dao, arXiv:2307.08691.
namespace eps::worker::cuda {

enum class ElementType { kBf16, kF16, kF32, kI32, kBool };

// The graph's own tensors have ids from kFirstVirtual on.
enum SdpaUid : int64_t {
  kNoUid = 0,
  kUidQ,
  kUidK,
  kUidV,
  kUidO,
  kUidStats,
  kUidDO,
  kUidDQ,
  kUidDK,
  kUidDV,
  kUidDelta,
  kUidBias,
  kUidKept,
  kUidScale,
  kUidMasked,  // what takes the place of a score that is not seen
  kUidWindow,
  kUidColumns,  // T
  kUidOne,       // of dropout
  kUidOneDelta,  // the same, of delta
  kFirstVirtual = 100,
};

struct SdpaTensor {
  int64_t uid = 0;
  ElementType type = ElementType::kF32;
  std::array<int64_t, 4> dims = {1, 1, 1, 1};
  std::array<int64_t, 4> strides = {1, 1, 1, 1};  // in elements
  bool is_virtual = false;                        // exists within the fused kernel alone
  std::optional<float> value;                     // of a number that is passed with the call: fp32, or int32

  friend bool operator==(const SdpaTensor&, const SdpaTensor&) = default;
};

struct SdpaOperation {
  enum class Kind {
    kMatMul,     // inputs a, b
    kReshape,    // the same memory with other dims and strides
    kReduceMax,  // over dimensions that the output has fewer of
    kReduceAdd,
    kMultiply,  // from here on pointwise; a dimension of 1 is repeated
    kAdd,
    kSubtract,
    kDivide,
    kExp,
    kLog,
    kRowIndex,  // of each element; the input's values are not read
    kColumnIndex,
    kLess,
    kGreater,
    kGreaterEqual,
    kSelect,  // inputs a, b, condition: a where it holds, else b
  } kind = Kind::kMatMul;
  std::vector<int64_t> inputs;  // uids
  int64_t output = 0;

  friend bool operator==(const SdpaOperation&, const SdpaOperation&) = default;
};

struct SdpaGraph {
  std::vector<SdpaTensor> tensors;        // uids are unique
  std::vector<SdpaOperation> operations;  // in an order in which they can be computed

  // Of a uid that there is.
  const SdpaTensor& tensor(int64_t uid) const;
  friend bool operator==(const SdpaGraph&, const SdpaGraph&) = default;
};

// Errors: as CheckSdpaProblem
absl::StatusOr<SdpaGraph> SdpaForwardGraph(const SdpaProblem& problem);
absl::StatusOr<SdpaGraph> SdpaBackwardGraph(const SdpaProblem& problem);

// Arrays of one part that are no arguments: made for the call. Null, each: the problem has none.
struct SdpaMasks {
  const void* bias = nullptr;  // with documents, act (B, T, T): 0 where a row sees a column, else -inf
  const void* kept = nullptr;  // with dropout, act (B, H, T, T): what each probability is multiplied by
};

// What a tensor of the graph is bound to: its array. For each tensor of the graph that is neither virtual nor a number.
// problem: of the whole arrays. graph: of it, or of a part of its heads (CutSmaller), as masks are. first_kv_head: where the
// part begins, a multiple of its kv_heads; its queries begin at first_kv_head * sharers().
//
// Errors: INVALID_ARGUMENT an array that the graph uses is null
struct SdpaBinding {
  int64_t uid = 0;
  void* address = nullptr;
};
absl::StatusOr<std::vector<SdpaBinding>> BindSdpa(const SdpaProblem& problem, const SdpaGraph& graph,
                                                  const SdpaArrays& arrays, int64_t first_kv_head = 0,
                                                  const SdpaMasks& masks = {});

}  // namespace eps::worker::cuda

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_SDPA_GRAPH_H_
