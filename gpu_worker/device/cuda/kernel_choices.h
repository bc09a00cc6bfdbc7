#ifndef EPS_GPU_WORKER_DEVICE_CUDA_KERNEL_CHOICES_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_KERNEL_CHOICES_H_

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/choices/choices.h"
#include "common/numeric/philox.h"
#include "gpu_worker/device/cuda/checked_attention.h"
#include "gpu_worker/device/cuda/cuda_kernels.h"
#include "gpu_worker/device/cuda/gpu_runtime.h"
#include "gpu_worker/device/cuda/lt_matmul.h"
#include "gpu_worker/device/cuda/matmul_problem.h"
#include "gpu_worker/device/cuda/sdpa_problem.h"

namespace eps::worker::cuda {

// All that tells a problem of attention from others of a model.
std::string KeyOf(const SdpaProblem& problem);

// By which algorithms a device computes its matrix products, and attention: Device's survey, Choose and Follow. Of attention
// there is nothing to choose from: what the device has is told, so that no other device computes with another.
//
// As a queue it keeps what products and attention it is asked for, one of each shape, and runs nothing.
//
// Threads: one at a time
class KernelChoices : public ComputeQueue {
 public:
  // `plain_attention`: whatever the library has, which is not asked.
  explicit KernelChoices(std::shared_ptr<GpuRuntime> runtime, bool plain_attention = false)
      : runtime_(std::move(runtime)), plain_attention_(plain_attention), library_(runtime_) {}

  void Launch(KernelCall) override {}
  void MatMul(const MatMulProblem& problem) override { surveyed_.emplace(LtShapeOf(problem), problem); }
  const PhiloxKey* DropoutKey(PhiloxKey) override { return nullptr; }
  bool TakesAttention(const SdpaProblem& problem) override {
    if (!plain_attention_) attention_.insert(problem);
    return false;
  }
  void Attention(const SdpaProblem&, const SdpaArrays&) override {}
  void AttentionBackward(const SdpaProblem&, const SdpaArrays&) override {}

  // kFastest takes the first few that the runtime offers of each shape and times them in turns, in the arena, with
  // operands of random numbers: of zeros a GPU multiplies faster. One that fails is left out; one that is not faster than
  // an earlier one by more than the measurement's own spread is not taken.
  // Cost: kMostTried * (1 + kRounds * kCallsPerRound) products of each shape
  absl::StatusOr<Choices> Choose(ChoiceRule rule);
  absl::Status Follow(const Choices& choices);
  // False: choices are followed, and there is none for this product, or this attention.
  bool Covers(const MatMulProblem& problem) const { return !follows_ || surveyed_.count(LtShapeOf(problem)) > 0; }
  bool Covers(const SdpaProblem& problem) const { return !follows_ || attention_.count(problem) > 0; }

  // Whether the library computes this attention; as CheckedAttention's.
  absl::StatusOr<bool> ByLibrary(const SdpaProblem& problem) { return library_.Takes(problem); }
  SdpaProblem AsAskedOfLibrary(const SdpaProblem& problem) const { return library_.AsAsked(problem); }
  bool TriesLibrary(const SdpaProblem& problem) const { return library_.Tries(problem); }

  static constexpr int kMostTried = 8, kRounds = 3, kCallsPerRound = 4;

 private:
  // Errors: FAILED_PRECONDITION there is none
  absl::StatusOr<std::string> ChosenFor(const std::string& key, const Choices& choices) const;

  const std::shared_ptr<GpuRuntime> runtime_;
  const bool plain_attention_;
  CheckedAttention library_;
  std::map<LtShape, MatMulProblem> surveyed_;
  std::set<SdpaProblem> attention_;
  bool follows_ = false;
};

}  // namespace eps::worker::cuda

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_KERNEL_CHOICES_H_
