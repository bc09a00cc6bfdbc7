#ifndef EPS_GPU_WORKER_DEVICE_CUDA_EMULATOR_EMULATED_RUNTIME_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_EMULATOR_EMULATED_RUNTIME_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gpu_worker/device/cuda/emulator/grid.h"
#include "gpu_worker/device/cuda/emulator/plain_matmul.h"
#include "gpu_worker/device/cuda/gpu_runtime.h"

namespace eps::worker::cuda {

// A GPU that is not there, for tests: device memory is the host's, a stream is a thread, kernels are run by GridRunner
// in the given order of threads, matrix products are plain loops, and fused attention, if it has that, is its graph.
// Everything of the cuda device but what NVIDIA's calls do runs as it does on a GPU, streams that run behind the thread
// that issues their work included.
//
// It checks that host memory is registered as a GPU's runtime wants it, and ends the program by EPS_CHECK where it is not,
// or where that or a graph is left at the end.
struct EmulatedAlgorithm {  // of any product
  std::string name;
  SumOrder order = SumOrder::kRising;
  std::chrono::microseconds takes = {};  // longer than the sums themselves
  bool is_refused = false;               // when it is to be run
};
struct EmulatedTraits {
  int64_t most_pinned_bytes = INT64_MAX;
  int64_t good_launches = INT64_MAX;  // the kernel launched after so many fails when it runs, and every call after that
  bool has_fused_attention = false;   // of what Hopper's takes
  bool attention_by_parts = false;    // as small as they may be
  int attention_engines = 1;          // of each direction
  bool errs_in_dropout = false;       // backward's first engine has another delta, as cuDNN 9.19's seems to on an H200
  std::string attention_algorithm = "graph";        // what it is called
  absl::Status attention_error;                     // what a question about attention gets, if it is not OK
  absl::Status capture_error;                       // what a capture ends with, if it is not OK
  absl::Status captured_call_error;                 // what a launch or a product gets in a capture, if it is not OK
  std::optional<bool> is_reached;                   // what it says of every event when it is asked; none: the truth
  std::atomic<int64_t>* graphs_launched = nullptr;  // counted here, if anywhere; outlives the runtime
  std::atomic<int64_t>* pinned_bytes = nullptr;     // the same, of the host's memory
  std::vector<EmulatedAlgorithm> algorithms = {{.name = "rising", .order = SumOrder::kRising},
                                               {.name = "falling", .order = SumOrder::kFalling}};  // as it prefers them
};
std::unique_ptr<GpuRuntime> NewEmulatedRuntime(GridOrder order, EmulatedTraits traits = {});

// Enqueues work of an emulated library. `stream`: as Stream::IssueNative gives it.
void LaunchInEmulatedStream(void* stream, std::function<void()> work);

}  // namespace eps::worker::cuda

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_EMULATOR_EMULATED_RUNTIME_H_
