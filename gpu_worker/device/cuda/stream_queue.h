#ifndef EPS_GPU_WORKER_DEVICE_CUDA_STREAM_QUEUE_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_STREAM_QUEUE_H_

#include "absl/status/status.h"
#include "common/base/status_macros.h"
#include "gpu_worker/device/cuda/gpu_runtime.h"
#include "gpu_worker/device/cuda/launch.h"

namespace eps::worker::cuda {

// Enqueues what is launched at once, in a stream of a runtime; after an error no more.
//
// Threads: one at a time
class StreamQueue : public KernelQueue {
 public:
  StreamQueue(GpuRuntime* runtime, GpuStream stream) : runtime_(runtime), stream_(stream) {}
  void Launch(KernelCall call) override {
    if (status_.ok()) status_ = Annotate(runtime_->Launch(stream_, call), call.name);
  }
  const absl::Status& status() const { return status_; }

 private:
  GpuRuntime* const runtime_;
  const GpuStream stream_;
  absl::Status status_;
};

}  // namespace eps::worker::cuda

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_STREAM_QUEUE_H_
