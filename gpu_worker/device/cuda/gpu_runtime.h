#ifndef EPS_GPU_WORKER_DEVICE_CUDA_GPU_RUNTIME_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_GPU_RUNTIME_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "gpu_worker/device/cuda/launch.h"
#include "gpu_worker/device/cuda/matmul_problem.h"
#include "gpu_worker/device/cuda/sdpa_problem.h"

namespace eps::worker::cuda {

// Handles of the runtime that made them.
struct GpuStream {
  void* handle = nullptr;
};
struct GpuEvent {
  void* handle = nullptr;
};
struct GpuGraph {
  void* handle = nullptr;
  int64_t nodes = 0;  // kernels, mostly
};

enum class GpuStreamUse {
  kCompute,
  // Its few small kernels, and exchanges of a group, go before those of compute that are not yet on a multiprocessor: else
  // they would wait until all blocks of a product are.
  kCopies,
};

enum class GpuEventUse {
  kOrder,    // cheaper to record and to wait for
  kTiming,   // SecondsBetween
  kArrival,  // Await
};

// Of attention that our own kernel computes.
inline constexpr char kPlainAttention[] = "plain";

// Of a whole device, whoever holds it.
struct GpuMemory {
  int64_t free_bytes = 0;  // now
  int64_t total_bytes = 0;
};

// What the GPU may do with host memory that is pinned for it.
enum class HostAccess { kRead, kReadWrite };

// What the cuda device needs of a GPU, one method a call: CUDA's runtime and libraries, or the emulator's in tests.
// Work is enqueued in a stream and runs later, in order; what fails there is returned by any later call, as FoundBy.
//
// Errors:  a status that names the call, with the runtime's own words
// Threads: safe; one stream from one thread at a time
class GpuRuntime {
 public:
  virtual ~GpuRuntime() = default;

  // What results depend on to the bit: the GPU's model, and the versions of what computes.
  virtual std::string model() const = 0;
  // Device memory that is known to be held beside what was allocated here: workspaces. What the context and the code of
  // libraries take is not in it: CUDA tells what is free from inside of a context alone, and of all processes together.
  virtual int64_t held_bytes() const = 0;

  virtual absl::StatusOr<GpuMemory> Memory() = 0;
  // Errors: RESOURCE_EXHAUSTED the device has not so much free
  virtual absl::StatusOr<void*> Allocate(int64_t num_bytes) = 0;
  virtual void Free(void* memory) = 0;

  // Host memory that is pinned from the start, aligned to a page.
  // Errors: RESOURCE_EXHAUSTED there is not so much
  virtual absl::StatusOr<void*> AllocateHost(int64_t num_bytes) = 0;
  virtual void FreeHost(void* memory) = 0;
  // Pins host memory: copies are one transfer, and run beside other work. Whole pages that overlap nothing that is
  // registered, and are mapped writable, whatever the access: CUDA's runtime pins others only where
  // cudaDevAttrHostRegisterReadOnlySupported says so (docs/decisions/0014-weights-that-a-gpu-pins.md).
  virtual absl::Status RegisterHost(absl::Span<const std::byte> pages, HostAccess access) = 0;
  virtual void UnregisterHost(absl::Span<const std::byte> pages) = 0;

  virtual absl::StatusOr<GpuStream> NewStream(GpuStreamUse use = GpuStreamUse::kCompute) = 0;
  virtual void DestroyStream(GpuStream stream) = 0;
  virtual absl::StatusOr<GpuEvent> NewEvent(GpuEventUse use) = 0;
  virtual void DestroyEvent(GpuEvent event) = 0;

  // `host` lies in what one call registered or allocated, or all of it in neither.
  virtual absl::Status CopyIn(GpuStream stream, void* device, absl::Span<const std::byte> host) = 0;
  virtual absl::Status CopyOut(GpuStream stream, absl::Span<std::byte> host, const void* device) = 0;
  virtual absl::Status Launch(GpuStream stream, const KernelCall& call) = 0;
  virtual absl::Status MatMul(GpuStream stream, const MatMulProblem& problem) = 0;

  // Algorithms for products of this shape (LtShapeOf), as text: the same text gives the same bits in every process with
  // this model(), each time. At most `most` of them and at least one, the best guess first. These two while no product
  // is being issued.
  virtual absl::StatusOr<std::vector<std::string>> MatMulAlgorithms(const MatMulProblem& problem, int most) = 0;
  // Products of this shape are computed by it from now on; those of a shape that was told none, by the first. Before
  // anything is captured: a graph keeps what it was captured with.
  // Errors: FAILED_PRECONDITION it is none that works here
  virtual absl::Status UseMatMulAlgorithm(const MatMulProblem& problem, const std::string& algorithm) = 0;
  // Whether fused attention computes a problem, forward and backward; where it does not the plain kernel has to, in
  // both. The answer stays. The first question about a problem may take seconds, and allocate.
  // Errors: RESOURCE_EXHAUSTED the device has no room for its workspace
  virtual absl::StatusOr<bool> TakesAttention(const SdpaProblem& problem) = 0;
  // By what: kPlainAttention, or text that gives the same bits in every process with this model(), each time. Of what a
  // library has, one engine may work in one process and fail in another. Asks TakesAttention first.
  virtual absl::StatusOr<std::string> AttentionAlgorithm(const SdpaProblem& problem) = 0;
  // Of a problem that it takes.
  virtual absl::StatusOr<SdpaEngines> AttentionEngines(const SdpaProblem& problem) = 0;
  // Of problems that it takes, in one stream.
  virtual absl::Status Attention(GpuStream stream, const SdpaProblem& problem, const SdpaArrays& arrays) = 0;
  virtual absl::Status AttentionBackward(GpuStream stream, const SdpaProblem& problem, const SdpaArrays& arrays) = 0;

  // Launches, products and attention that are enqueued in the stream between these two do not run, but become a graph:
  // the same work, on the same memory, which LaunchGraph enqueues in one call. Nothing else may be enqueued there
  // meanwhile, and each of them was enqueued before, so that whatever the first time takes is done. After an error of
  // either the stream captures no more, and no graph is left.
  virtual absl::Status BeginCapture(GpuStream stream) = 0;
  virtual absl::StatusOr<GpuGraph> EndCapture(GpuStream stream) = 0;
  // May be called while an earlier launch of it still runs, in that stream.
  virtual absl::Status LaunchGraph(GpuStream stream, GpuGraph graph) = 0;
  virtual void DestroyGraph(GpuGraph graph) = 0;
  // An event may be recorded again; a wait is for the last record before it.
  virtual absl::Status Record(GpuStream stream, GpuEvent event) = 0;
  virtual absl::Status Wait(GpuStream stream, GpuEvent event) = 0;
  virtual absl::Status Synchronize(GpuStream stream) = 0;
  // Waits for the GPU to come to the event's last record.
  virtual absl::Status Await(GpuEvent event) = 0;
  // Whether the GPU has come to the event's last record. Does not wait.
  virtual absl::StatusOr<bool> IsReached(GpuEvent event) = 0;
  // Between two events for timing that were reached.
  virtual absl::StatusOr<double> SecondsBetween(GpuEvent start, GpuEvent end) = 0;
};

// The error of work that was under way when `call` was made, which is not to blame. No call after it succeeds.
inline absl::Status FoundBy(absl::string_view call, absl::string_view words) {
  return absl::InternalError(
      absl::StrCat("found by ", call, ", in work that some stream of the GPU had been given before: ", words));
}

}  // namespace eps::worker::cuda

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_GPU_RUNTIME_H_
