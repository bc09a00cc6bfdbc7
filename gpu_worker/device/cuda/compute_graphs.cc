#include "gpu_worker/device/cuda/compute_graphs.h"

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/spec/graph_use.h"
#include "gpu_worker/device/cuda/compute_work.h"
#include "gpu_worker/device/cuda/gpu_runtime.h"
#include "gpu_worker/device/cuda/launch.h"

namespace eps::worker::cuda {
namespace {

constexpr size_t kLeastCalls = 8;  // of a segment: fewer say little of the GPU, and gain little
// An event is recorded before the last so many calls of a segment, and asked for before the very last. A GPU that has
// reached it is at most three calls behind the host, and waits for each. What was enqueued a microsecond ago cannot be
// done in any case.
constexpr size_t kCallsMarked = 4;
constexpr int kTimesWaited = 3;        // the first time the host loads code, and another time it may be chance
constexpr int64_t kMostNodes = 4096;   // CUDA holds device memory for each, beside the cap
constexpr size_t kMostSeen = 1 << 16;  // segments that never come again are forgotten

size_t HashOf(absl::Span<const ComputeWork> segment) {
  size_t hash = segment.size();
  for (const ComputeWork& work : segment) hash = MixHash(hash, cuda::HashOf(work));
  return hash;
}

}  // namespace

ComputeGraphs::~ComputeGraphs() {
  if (mark_.has_value()) runtime_->DestroyEvent(*mark_);
  for (const auto& [hash, captured] : graphs_) runtime_->DestroyGraph(captured.graph);
  if (launched_ == 0) return;
  LogInfo("graphs_used",
          {{"graphs", graphs_.size()}, {"nodes", nodes_}, {"launched", launched_}, {"calls_spared", calls_spared_}});
}

absl::Status ComputeGraphs::Enqueue(GpuStream stream, const std::vector<ComputeWork>& segment) {
  if (use_ == GraphUse::kNever || segment.size() < kLeastCalls) return EnqueueEach(stream, segment).status();
  const size_t hash = HashOf(segment);
  auto found = graphs_.find(hash);
  if (found == graphs_.end() && MayCapture(hash, segment.size())) {
    const absl::StatusOr<GpuGraph> graph = Capture(stream, segment);
    if (!graph.ok()) {
      use_ = GraphUse::kNever;
      LogWarning("graphs_not_used", {{"why", graph.status().message()}});
    } else if (nodes_ + graph->nodes > kMostNodes) {  // a call may be several kernels
      runtime_->DestroyGraph(*graph);
      nodes_ = kMostNodes;
    } else {
      times_counted_.erase(hash);
      nodes_ += graph->nodes;
      found = graphs_.emplace(hash, Captured{.segment = segment, .graph = *graph}).first;
    }
  }
  if (found != graphs_.end() && found->second.segment == segment) {
    ++launched_;
    calls_spared_ += static_cast<int64_t>(segment.size()) - 1;
    return runtime_->LaunchGraph(stream, found->second.graph);
  }
  EPS_ASSIGN_OR_RETURN(const bool counts, EnqueueEach(stream, segment));
  if (counts && found == graphs_.end()) {
    if (times_counted_.size() == kMostSeen) times_counted_.clear();
    ++times_counted_[hash];
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> ComputeGraphs::EnqueueEach(GpuStream stream, absl::Span<const ComputeWork> segment) {
  const bool looks = use_ == GraphUse::kAuto && segment.size() >= kLeastCalls;
  bool counts = use_ == GraphUse::kAlways;
  for (size_t i = 0; i < segment.size(); ++i) {
    if (looks && i + kCallsMarked == segment.size()) EPS_RETURN_IF_ERROR(Mark(stream));
    if (looks && i + 1 == segment.size()) {
      EPS_ASSIGN_OR_RETURN(counts, runtime_->IsReached(*mark_));
    }
    EPS_RETURN_IF_ERROR(cuda::Enqueue(*runtime_, stream, segment[i]));
  }
  return counts;
}

absl::Status ComputeGraphs::Mark(GpuStream stream) {
  if (!mark_.has_value()) {
    EPS_ASSIGN_OR_RETURN(mark_, runtime_->NewEvent(GpuEventUse::kOrder));
  }
  return runtime_->Record(stream, *mark_);
}

bool ComputeGraphs::MayCapture(size_t hash, size_t calls) const {
  const auto counted = times_counted_.find(hash);
  return counted != times_counted_.end() && counted->second >= (use_ == GraphUse::kAlways ? 1 : kTimesWaited) &&
         nodes_ + static_cast<int64_t>(calls) <= kMostNodes;
}

absl::StatusOr<GpuGraph> ComputeGraphs::Capture(GpuStream stream, absl::Span<const ComputeWork> segment) {
  EPS_RETURN_IF_ERROR(runtime_->BeginCapture(stream));
  absl::Status enqueued;
  for (const ComputeWork& work : segment) {
    enqueued = cuda::Enqueue(*runtime_, stream, work);
    if (!enqueued.ok()) break;
  }
  absl::StatusOr<GpuGraph> graph = runtime_->EndCapture(stream);  // in any case: the stream is to run things again
  if (!enqueued.ok() && graph.ok()) runtime_->DestroyGraph(*graph);
  EPS_RETURN_IF_ERROR(enqueued);
  return graph;
}

}  // namespace eps::worker::cuda
