#ifndef EPS_GPU_WORKER_DEVICE_CUDA_CUDNN_LIBRARY_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_CUDNN_LIBRARY_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/tensor/dtype.h"
#include "cuda_runtime_api.h"
#include "gpu_worker/device/cuda/cudnn_api.h"
#include "gpu_worker/device/cuda/cudnn_plan.h"
#include "gpu_worker/device/cuda/fused_attention.h"
#include "gpu_worker/device/cuda/sdpa_graph.h"
#include "gpu_worker/device/cuda/sdpa_problem.h"

namespace eps::worker::cuda {

// Fused attention by cuDNN, on one GPU. A problem is planned when it is first asked about: its kernels are compiled,
// which takes a second or so, and the workspace is replaced by a larger one if it must be, of at most
// kMaxAttentionWorkspaceBytes; with KeepWorkspaces the others are held too. Backward holds (sequences, H, T, T) numbers of
// the compute dtype there, which is what the same bits each time cost; either direction holds as many for dropout, and
// (sequences, T, T) for documents. So it runs on as many sequences at once as fit, or on some heads of one.
//
// Threads: safe
class CudnnLibrary : public FusedAttention {
 public:
  // `sm_major`: of the GPU's compute capability.
  // Errors: FAILED_PRECONDITION the library is not found, or its version is another
  static absl::StatusOr<std::unique_ptr<CudnnLibrary>> Load(int sm_major);
  ~CudnnLibrary() override;

  absl::StatusOr<bool> Takes(const SdpaProblem& problem) override;
  absl::StatusOr<std::string> Algorithm(const SdpaProblem& problem) override;
  absl::StatusOr<SdpaEngines> Engines(const SdpaProblem& problem) override;
  absl::Status Forward(cudaStream_t stream, const SdpaProblem& problem, const SdpaArrays& arrays,
                       const SdpaMaskKernels& masks) override;
  absl::Status Backward(cudaStream_t stream, const SdpaProblem& problem, const SdpaArrays& arrays,
                        const SdpaMaskKernels& masks) override;
  std::string version() const override { return api_->version(); }
  int64_t held_bytes() const override { return held_bytes_; }
  void KeepWorkspaces() override;

 private:
  // One direction of a problem: computed by parts like this one.
  struct Direction {
    SdpaProblem part;
    SdpaGraph graph;
    std::unique_ptr<CudnnPlan> plan;
    // Behind what the plan wants of the workspace, the part's masks: documents' bias, then what dropout keeps.
    int64_t bias_offset_bytes = 0, kept_offset_bytes = 0;
    int64_t workspace_bytes = 0;
  };
  struct Planned {
    Direction forward, backward;
  };
  using MakeGraph = absl::StatusOr<SdpaGraph>(const SdpaProblem&);

  CudnnLibrary(std::unique_ptr<CudnnApi> api, int sm_major) : api_(std::move(api)), sm_major_(sm_major) {}
  absl::Status HoldHandle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<std::unique_ptr<Planned>> Plan(const SdpaProblem& problem) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<Direction> PlanDirection(const SdpaProblem& problem, MakeGraph* make_graph,
                                          absl::Span<const int64_t> passed_over) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status HoldWorkspace(int64_t num_bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Execute(cudaStream_t stream, const SdpaProblem& problem, const SdpaArrays& arrays,
                       const SdpaMaskKernels& masks, Direction Planned::*which);

  const std::unique_ptr<CudnnApi> api_;
  const int sm_major_;

  Mutex mu_;
  cudnnHandle_t handle_ ABSL_GUARDED_BY(mu_) = nullptr;
  absl::Status no_handle_ ABSL_GUARDED_BY(mu_);  // why there will be none; OK: there is one, or nobody has asked
  std::map<SdpaProblem, std::unique_ptr<Planned>> planned_ ABSL_GUARDED_BY(mu_);  // null: not taken
  void* workspace_ ABSL_GUARDED_BY(mu_) = nullptr;
  int64_t workspace_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  bool keeps_workspaces_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<void*> outgrown_ ABSL_GUARDED_BY(mu_);  // workspaces that are kept

  std::atomic<int64_t> held_bytes_ = 0;  // atomic, because it is read while a problem is planned
};

}  // namespace eps::worker::cuda

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_CUDNN_LIBRARY_H_
