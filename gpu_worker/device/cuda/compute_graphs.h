#ifndef EPS_GPU_WORKER_DEVICE_CUDA_COMPUTE_GRAPHS_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_COMPUTE_GRAPHS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/spec/graph_use.h"
#include "gpu_worker/device/cuda/compute_work.h"
#include "gpu_worker/device/cuda/gpu_runtime.h"

namespace eps::worker::cuda {

// Enqueues the compute stream's work by segments: what lies between two waits, records, copies or labels, in a relay a layer's
// pass over a micro-batch. As layers take turns in the same slots of the arena, and the plan gives each micro-batch the
// same ones in every step, most segments come again, to the last address. One that does, and in which the GPU was found
// close behind the host, waiting for each call, is captured as a graph (docs/decisions/0015-graphs-where-they-pay.md).
//
// Where capturing fails the log says so, once, and all goes on call by call.
//
// Threads: one at a time
class ComputeGraphs {
 public:
  ComputeGraphs(std::shared_ptr<GpuRuntime> runtime, GraphUse use) : runtime_(std::move(runtime)), use_(use) {}
  // Nothing runs any more. Logs how much was enqueued as graphs, if any was.
  ~ComputeGraphs();
  ComputeGraphs(const ComputeGraphs&) = delete;
  ComputeGraphs& operator=(const ComputeGraphs&) = delete;

  // Errors: the runtime's
  absl::Status Enqueue(GpuStream stream, const std::vector<ComputeWork>& segment);

 private:
  struct Captured {
    std::vector<ComputeWork> segment;
    GpuGraph graph;
  };
  // Whether it counts for a graph.
  absl::StatusOr<bool> EnqueueEach(GpuStream stream, absl::Span<const ComputeWork> segment);
  absl::Status Mark(GpuStream stream);
  bool MayCapture(size_t hash, size_t calls) const;
  absl::StatusOr<GpuGraph> Capture(GpuStream stream, absl::Span<const ComputeWork> segment);

  const std::shared_ptr<GpuRuntime> runtime_;
  GraphUse use_;                                   // kNever from the first capture that failed on
  std::optional<GpuEvent> mark_;                   // in the segment that is being enqueued; none until it is needed
  std::unordered_map<size_t, int> times_counted_;  // by segment's hash, of those without a graph
  std::unordered_map<size_t, Captured> graphs_;    // by segment's hash: of two that share one, the first
  int64_t nodes_ = 0;                              // of all graphs; kMostNodes once one had no room
  int64_t launched_ = 0, calls_spared_ = 0;
};

}  // namespace eps::worker::cuda

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_COMPUTE_GRAPHS_H_
