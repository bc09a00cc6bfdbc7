#ifndef EPS_GPU_WORKER_DEVICE_CUDA_CHECKED_ATTENTION_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_CHECKED_ATTENTION_H_

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/tensor/dtype.h"
#include "gpu_worker/device/cuda/gpu_runtime.h"
#include "gpu_worker/device/cuda/sdpa_problem.h"

namespace eps::worker::cuda {

// A runtime's fused attention, as far as it computes what our own kernel does. A library takes graphs that it computes
// wrongly, and says nothing: cuDNN 9.19 on an H200 gave other gradients of documents and of dropout, in the forms that were
// first asked for. So what has a window, documents or dropout is tried with small random arrays before it is believed, on
// this GPU and with this version of the library: once for each kind of problem, which takes some seconds, most of them for
// the library to plan the small one. What is causal alone, or sees all, is believed.
//
// An engine that computes a direction otherwise is passed over for the next one that the library has; on an H200 it was
// the first of backward's two.
//
// Threads: one at a time. The first problem of a kind waits for the GPU, and no attention may be under way meanwhile: the
// library has one workspace.
class CheckedAttention {
 public:
  explicit CheckedAttention(std::shared_ptr<GpuRuntime> runtime) : runtime_(std::move(runtime)) {}

  // As GpuRuntime's TakesAttention and AttentionAlgorithm; but what all of the library's engines compute otherwise it does
  // not take, which is logged as a warning. The answer stays.
  // Errors: the runtime's
  absl::StatusOr<bool> Takes(const SdpaProblem& problem);
  absl::StatusOr<std::string> Algorithm(const SdpaProblem& problem);
  // A problem that it takes as the library is to be asked for it: with the engines that are passed over.
  SdpaProblem AsAsked(const SdpaProblem& problem) const;
  // Whether Takes would try something.
  bool Tries(const SdpaProblem& problem) const;

  // How far apart the library and our own kernel are on a problem that it takes, in the norm and relative to our own's: of
  // the output, and of the gradients of queries, keys and values. NaN where either has one.
  struct Distance {
    double output = 0, queries = 0, keys = 0, values = 0;
    double Largest() const;  // NaN if any is
  };
  static absl::StatusOr<Distance> Measure(GpuRuntime& runtime, const SdpaProblem& problem);

 private:
  // Of what a library makes kernels for, all but sizes of arrays.
  struct Kind {
    int64_t D = 0, sharers = 0;
    Dtype act = Dtype::kBf16;
    bool causal = false, window = false, dropout = false, documents = false;
    friend auto operator<=>(const Kind&, const Kind&) = default;
  };
  struct Belief {
    bool is_right = false;
    std::vector<int64_t> passed_forward, passed_backward;  // SdpaProblem's
  };
  static Kind KindOf(const SdpaProblem& problem);
  static bool IsBelievedUntried(const SdpaProblem& problem);

  // Finds engines whose results are ours, of those that the library has.
  absl::StatusOr<Belief> Try(const SdpaProblem& problem);

  const std::shared_ptr<GpuRuntime> runtime_;
  std::map<Kind, Belief> believed_;
};

}  // namespace eps::worker::cuda

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_CHECKED_ATTENTION_H_
