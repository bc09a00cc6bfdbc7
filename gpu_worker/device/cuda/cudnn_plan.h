#ifndef EPS_GPU_WORKER_DEVICE_CUDA_CUDNN_PLAN_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_CUDNN_PLAN_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cudnn_graph.h"
#include "gpu_worker/device/cuda/cudnn_api.h"
#include "gpu_worker/device/cuda/sdpa_graph.h"

namespace eps::worker::cuda {

// The GPU that plans are for: the handle's, or one that need not be there, by cuDNN's own JSON of it.
absl::StatusOr<CudnnDescriptor> CudnnDeviceOf(const CudnnApi* api, cudnnHandle_t handle);
absl::StatusOr<CudnnDescriptor> CudnnDeviceByJson(const CudnnApi* api, const std::string& json);

// A graph made ready to run: what the library's heuristic (mode A) lists first, of what it supports and of what gives
// the same bits each time. So the same for every process with this version of the library and this model of GPU, but where
// an engine fails that works elsewhere: it is passed over, and place() tells which one was taken instead.
class CudnnPlan {
 public:
  // passed_over: engines that are not taken.
  // Errors: UNIMPLEMENTED no engine of the library takes the graph, or it lists none, with what it says, also of failures ·
  //         RESOURCE_EXHAUSTED no memory
  static absl::StatusOr<std::unique_ptr<CudnnPlan>> Make(const CudnnApi* api, const SdpaGraph& graph,
                                                         const CudnnDescriptor& device,
                                                         absl::Span<const int64_t> passed_over = {});

  int64_t workspace_bytes() const { return workspace_bytes_; }
  int64_t engine() const { return engine_; }  // the library's number of it
  int64_t place() const { return place_; }    // in the heuristic's list, which may have an engine several times
  // Enqueues in the handle's stream. `bindings`: as BindSdpa gives them. `workspace`: workspace_bytes() of the device.
  absl::Status Execute(cudnnHandle_t handle, absl::Span<const SdpaBinding> bindings, void* workspace) const;

 private:
  explicit CudnnPlan(const CudnnApi* api) : api_(api) {}
  absl::Status Choose(const CudnnDescriptor& operation_graph, const CudnnDescriptor& device,
                      absl::Span<const int64_t> passed_over);

  const CudnnApi* const api_;
  std::vector<CudnnDescriptor> parts_;  // what the plan was made of, and the plan, which is last
  int64_t workspace_bytes_ = 0, engine_ = 0, place_ = 0;
  std::vector<int64_t> number_uids_;
  std::vector<uint32_t> numbers_;  // the values of number_uids_, by their bits
};

}  // namespace eps::worker::cuda

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_CUDNN_PLAN_H_
