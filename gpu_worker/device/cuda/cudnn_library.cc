#include "gpu_worker/device/cuda/cudnn_library.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/byte_size.h"
#include "common/base/log.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "cuda_runtime_api.h"
#include "gpu_worker/device/cuda/cuda_kernel_sizes.h"
#include "gpu_worker/device/cuda/cudnn_api.h"
#include "gpu_worker/device/cuda/cudnn_plan.h"
#include "gpu_worker/device/cuda/sdpa_graph.h"
#include "gpu_worker/device/cuda/sdpa_problem.h"

namespace eps::worker::cuda {
namespace {

constexpr int64_t kMaskAlignBytes = 256;

}  // namespace

absl::StatusOr<std::unique_ptr<CudnnLibrary>> CudnnLibrary::Load(int sm_major) {
  EPS_ASSIGN_OR_RETURN(std::unique_ptr<CudnnApi> api, CudnnApi::Load());
  EPS_RETURN_IF_ERROR(CheckCudnnVersion(api->cudnnGetVersion(), sm_major));
  return std::unique_ptr<CudnnLibrary>(new CudnnLibrary(std::move(api), sm_major));
}

CudnnLibrary::~CudnnLibrary() {
  MutexLock lock(mu_);
  planned_.clear();
  if (handle_ != nullptr) api_->cudnnDestroy(handle_);
  if (workspace_ != nullptr) cudaFree(workspace_);
  for (void* outgrown : outgrown_) cudaFree(outgrown);
}

void CudnnLibrary::KeepWorkspaces() {
  MutexLock lock(mu_);
  keeps_workspaces_ = true;
}

absl::StatusOr<bool> CudnnLibrary::Takes(const SdpaProblem& problem) {
  MutexLock lock(mu_);
  const auto found = planned_.find(problem);
  if (found != planned_.end()) return found->second != nullptr;
  absl::StatusOr<std::unique_ptr<Planned>> planned = Plan(problem);
  if (planned.ok()) {
    const Planned& p = **planned;
    LogInfo("attention_planned", {{"B", problem.B},
                                  {"T", problem.T},
                                  {"H", problem.H},
                                  {"kv_heads", problem.kv_heads},
                                  {"D", problem.D},
                                  {"causal", problem.causal ? "yes" : "no"},
                                  {"window", problem.window},
                                  {"documents", problem.documents ? "yes" : "no"},
                                  {"dropout", problem.dropout},
                                  {"library", version()},
                                  {"forward_engine", p.forward.plan->engine()},
                                  {"backward_engine", p.backward.plan->engine()},
                                  {"backward_sequences", p.backward.part.B},
                                  {"backward_kv_heads", p.backward.part.kv_heads},
                                  {"workspace_bytes", held_bytes()}});
    planned_[problem] = *std::move(planned);
    return true;
  }
  if (!absl::IsUnimplemented(planned.status())) return planned.status();
  LogInfo("attention_by_plain_kernel", {{"B", problem.B},
                                        {"T", problem.T},
                                        {"H", problem.H},
                                        {"kv_heads", problem.kv_heads},
                                        {"D", problem.D},
                                        {"causal", problem.causal ? "yes" : "no"},
                                        {"window", problem.window},
                                        {"documents", problem.documents ? "yes" : "no"},
                                        {"dropout", problem.dropout},
                                        {"why", planned.status().message()}});
  planned_[problem] = nullptr;
  return false;
}

absl::StatusOr<std::string> CudnnLibrary::Algorithm(const SdpaProblem& problem) {
  MutexLock lock(mu_);
  const auto found = planned_.find(problem);
  if (found == planned_.end() || found->second == nullptr) {
    return absl::FailedPreconditionError("attention that was not planned");
  }
  const auto name = [](const Direction& direction) {
    return absl::StrCat("engine ", direction.plan->engine(), " of place ", direction.plan->place());
  };
  return absl::StrCat("forward ", name(found->second->forward), ", backward ", name(found->second->backward));
}

absl::StatusOr<SdpaEngines> CudnnLibrary::Engines(const SdpaProblem& problem) {
  MutexLock lock(mu_);
  const auto found = planned_.find(problem);
  if (found == planned_.end() || found->second == nullptr) {
    return absl::FailedPreconditionError("attention that was not planned");
  }
  return SdpaEngines{.forward = found->second->forward.plan->engine(),
                     .backward = found->second->backward.plan->engine()};
}

// A library that does not start, as where one of its parts is of another version, takes nothing.
absl::Status CudnnLibrary::HoldHandle() {
  if (handle_ != nullptr || !no_handle_.ok()) return no_handle_;
  const absl::Status made = api_->Check(api_->cudnnCreate(&handle_), "cudnnCreate");
  if (made.ok() || absl::IsResourceExhausted(made)) return made;
  handle_ = nullptr;
  no_handle_ = absl::UnimplementedError(made.message());
  LogWarning("attention_is_plain_and_slow", {{"why", made.ToString()}});
  return no_handle_;
}

absl::StatusOr<std::unique_ptr<CudnnLibrary::Planned>> CudnnLibrary::Plan(const SdpaProblem& problem) {
  EPS_RETURN_IF_ERROR(CheckFusedAttention(problem, sm_major_));
  EPS_RETURN_IF_ERROR(HoldHandle());
  auto planned = std::make_unique<Planned>();
  EPS_ASSIGN_OR_RETURN(planned->forward, PlanDirection(problem, &SdpaForwardGraph, problem.passed_forward));
  EPS_ASSIGN_OR_RETURN(planned->backward, PlanDirection(problem, &SdpaBackwardGraph, problem.passed_backward));
  EPS_RETURN_IF_ERROR(HoldWorkspace(std::max(planned->forward.workspace_bytes, planned->backward.workspace_bytes)));
  return planned;
}

absl::StatusOr<CudnnLibrary::Direction> CudnnLibrary::PlanDirection(const SdpaProblem& problem, MakeGraph* make_graph,
                                                                    absl::Span<const int64_t> passed_over) {
  EPS_ASSIGN_OR_RETURN(const CudnnDescriptor device, CudnnDeviceOf(api_.get(), handle_));
  Direction direction = {.part = problem};
  for (;;) {
    EPS_ASSIGN_OR_RETURN(direction.graph, make_graph(direction.part));
    EPS_ASSIGN_OR_RETURN(direction.plan, CudnnPlan::Make(api_.get(), direction.graph, device, passed_over));
    const SdpaProblem& part = direction.part;
    const int64_t of_a_head = part.B * part.T * part.T * SizeOf(part.act);
    direction.bias_offset_bytes = RoundUp(direction.plan->workspace_bytes(), kMaskAlignBytes);
    direction.kept_offset_bytes =
        RoundUp(direction.bias_offset_bytes + (part.documents ? of_a_head : 0), kMaskAlignBytes);
    direction.workspace_bytes = direction.kept_offset_bytes + (part.dropout > 0 ? part.H * of_a_head : 0);
    // What is not in proportion makes the first guess one too many, at most.
    const SdpaProblem smaller =
        CutSmaller(part, direction.workspace_bytes, kAttentionWorkspaceBytes, kMaxAttentionWorkspaceBytes);
    if (smaller == part) break;
    direction.part = smaller;
  }
  if (direction.workspace_bytes <= kMaxAttentionWorkspaceBytes) return direction;
  return absl::UnimplementedError(absl::StrCat(direction.part.B, " of ", problem.B, " sequences and ",
                                               direction.part.kv_heads, " of ", problem.kv_heads,
                                               " heads of keys and values want ", direction.workspace_bytes,
                                               " bytes of workspace; at most ", kMaxAttentionWorkspaceBytes));
}

// Without graphs the old one is freed: cudaFree returns when the GPU is done with it. With graphs it stays, as they have its
// address. What is not enqueued yet takes the larger.
absl::Status CudnnLibrary::HoldWorkspace(int64_t num_bytes) {
  if (num_bytes <= workspace_bytes_) return absl::OkStatus();
  void* larger = nullptr;
  const cudaError_t error = cudaMalloc(&larger, static_cast<size_t>(num_bytes));
  if (error != cudaSuccess) {
    return absl::ResourceExhaustedError(absl::StrCat("cudaMalloc: ", cudaGetErrorString(error), "; attention wants ",
                                                     num_bytes,
                                                     " bytes beside the cap; give a smaller --device-memory"));
  }
  if (keeps_workspaces_ && workspace_ != nullptr) {
    outgrown_.push_back(workspace_);
  } else {
    if (workspace_ != nullptr) cudaFree(workspace_);
    held_bytes_ -= workspace_bytes_;
  }
  workspace_ = larger;
  workspace_bytes_ = num_bytes;
  held_bytes_ += num_bytes;
  return absl::OkStatus();
}

absl::Status CudnnLibrary::Forward(cudaStream_t stream, const SdpaProblem& problem, const SdpaArrays& arrays,
                                   const SdpaMaskKernels& masks) {
  return Execute(stream, problem, arrays, masks, &Planned::forward);
}
absl::Status CudnnLibrary::Backward(cudaStream_t stream, const SdpaProblem& problem, const SdpaArrays& arrays,
                                    const SdpaMaskKernels& masks) {
  return Execute(stream, problem, arrays, masks, &Planned::backward);
}

absl::Status CudnnLibrary::Execute(cudaStream_t stream, const SdpaProblem& problem, const SdpaArrays& arrays,
                                   const SdpaMaskKernels& masks, Direction Planned::*which) {
  MutexLock lock(mu_);
  const auto found = planned_.find(problem);
  if (found == planned_.end() || found->second == nullptr) {
    return absl::FailedPreconditionError("attention that was not planned");
  }
  const Direction& direction = (*found->second).*which;
  EPS_RETURN_IF_ERROR(api_->Check(api_->cudnnSetStream(handle_, stream), "cudnnSetStream"));
  const SdpaProblem& like = direction.part;
  void* const bias = static_cast<char*>(workspace_) + direction.bias_offset_bytes;
  void* const kept = static_cast<char*>(workspace_) + direction.kept_offset_bytes;
  std::optional<Documents> in_bias;  // whose bias there is
  for (const SdpaPart& part : PartsOf(problem, like, arrays)) {
    if (problem.documents && in_bias != part.arrays.documents) {
      in_bias = part.arrays.documents;
      if (in_bias->first == nullptr || in_bias->end == nullptr) {
        return absl::InvalidArgumentError("attention: no arrays of documents");
      }
      EPS_RETURN_IF_ERROR(masks.DocumentBias(like.B, like.T, *in_bias, bias));
    }
    if (problem.dropout > 0) {
      EPS_RETURN_IF_ERROR(masks.Kept(like.B * like.H * like.T * like.T, part.arrays.dropout, kept));
    }
    EPS_ASSIGN_OR_RETURN(
        const std::vector<SdpaBinding> bindings,
        BindSdpa(problem, direction.graph, part.arrays, part.first_kv_head, {.bias = bias, .kept = kept}));
    EPS_RETURN_IF_ERROR(direction.plan->Execute(handle_, bindings, workspace_));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<FusedAttention>> LoadFusedAttention(int sm_major) {
  return CudnnLibrary::Load(sm_major);
}

}  // namespace eps::worker::cuda
