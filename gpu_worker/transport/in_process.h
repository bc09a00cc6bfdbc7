#ifndef EPS_GPU_WORKER_TRANSPORT_IN_PROCESS_H_
#define EPS_GPU_WORKER_TRANSPORT_IN_PROCESS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/model/model_spec.h"
#include "common/schedule/chunk_range.h"
#include "common/schedule/reduction_tree.h"
#include "common/tensor/dtype.h"
#include "gpu_worker/transport/transport.h"

namespace eps::worker {

// For tests: the daemon's side of transports that live in one process. Versions of blobs in their wire form, and
// the contributions of every step, each counted once, summed in the tree's order.
//
// Threads: safe
class InProcessStore {
 public:
  // `model` outlives the store.
  InProcessStore(const ModelSpec* model, int num_vnodes, Dtype wire);

  // Makes `version` of `blob` from its fp32 master (num_elems).
  void Publish(BlobId blob, Version version, absl::Span<const float> master);
  // Takes every blob's `version` away, as a daemon does that is one step further: a pull of it is ABORTED.
  void Retire(Version version);
  // The pull of `blob` that comes after `successes` more of them fails with `error`, once.
  void FailPull(BlobId blob, int successes, absl::Status error);

  // The sum over all vnodes for one use of a blob, or over its uses in layer order.
  // Errors: FAILED_PRECONDITION a vnode is missing
  absl::StatusOr<std::vector<float>> UseGradient(StepId step, BlobId blob, int use) const;
  absl::StatusOr<std::vector<float>> Gradient(StepId step, BlobId blob) const;

  // What is held of one chunk for (step, blob, use), by first vnode.
  std::vector<TreeNode> Held(StepId step, BlobId blob, int use, int64_t chunk = 0) const;
  // The dtype that `node` of the blob's first chunk was pushed in.
  absl::StatusOr<Dtype> HeldDtype(StepId step, BlobId blob, int use, TreeNode node) const;
  // Vnodes that a contribution of `step` named as not finite, one for each such contribution.
  std::vector<int> NonFiniteVnodes(StepId step) const;
  int64_t num_pulls() const;
  int64_t num_pushes() const;

 private:
  friend class InProcessTransport;
  struct HeldNode {
    TreeNode node;
    Dtype dtype = Dtype::kF32;
    std::vector<float> values;  // of the chunk
  };
  using ChunkKey = std::tuple<int64_t, int32_t, int, int64_t>;  // step, blob, use, chunk
  struct PullFault {
    int successes = 0;
    absl::Status error;
  };

  absl::StatusOr<std::vector<std::byte>> Wire(BlobId blob, Version version, const absl::Status& cancelled)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Take(const Contribution& contribution);
  void Hold(std::vector<HeldNode>& held, HeldNode node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<std::vector<float>> Sum(const BlobSpec& blob, const ChunkKey& key) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Fixed after construction.
  const ModelSpec& model_;
  const int num_vnodes_;
  const Dtype wire_;

  mutable Mutex mu_;
  CondVar changed_;
  std::map<std::pair<int32_t, int64_t>, std::vector<std::byte>> versions_ ABSL_GUARDED_BY(mu_);
  int64_t retired_ ABSL_GUARDED_BY(mu_) = -1;  // versions up to this one are gone
  std::map<int32_t, PullFault> faults_ ABSL_GUARDED_BY(mu_);
  std::map<ChunkKey, std::vector<HeldNode>> held_ ABSL_GUARDED_BY(mu_);
  std::map<int64_t, std::vector<int>> non_finite_ ABSL_GUARDED_BY(mu_);
  int64_t num_pulls_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t num_pushes_ ABSL_GUARDED_BY(mu_) = 0;
};

// One worker's connection to an InProcessStore, which outlives it.
class InProcessTransport : public Transport {
 public:
  explicit InProcessTransport(InProcessStore* store) : store_(*store) {}

  absl::StatusOr<PullTiming> Pull(BlobId blob, Version version, ChunkRange chunks,
                                  absl::Span<std::byte> destination) override;
  void Push(Contribution contribution) override;
  absl::Status Flush() override;
  void Cancel(absl::Status reason) override;

 private:
  InProcessStore& store_;
  absl::Status failure_ ABSL_GUARDED_BY(store_.mu_);  // the first; only Cancel and a refused push make one
};

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_TRANSPORT_IN_PROCESS_H_
