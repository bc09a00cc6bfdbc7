#ifndef EPS_SERVER_AGGREGATION_STEP_COVERAGE_H_
#define EPS_SERVER_AGGREGATION_STEP_COVERAGE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "common/base/ids.h"
#include "common/model/model_spec.h"
#include "common/schedule/reduction_tree.h"
#include "eps_server/aggregation/chunk_pool.h"
#include "eps_server/aggregation/contribution_key.h"
#include "eps_server/aggregation/coverage.h"

namespace eps::server {

// What is there of one step: a Coverage for each chunk of each use of each blob. Frozen blobs, and those that the step
// drops, have no uses, and nothing of them is missing.
//
// What is asked with a key is asked of its (blob, use, node, chunks), which must be the model's, of a blob that has uses;
// its step is the caller's to check.
//
// Threads: none of its own; the owner guards it.
class StepCoverage {
 public:
  // Of no step yet: nothing is there, and nothing is missing. `model` outlives it.
  StepCoverage(const ModelSpec* model, int virtual_nodes);

  // Nothing is there from now on; what was held is given back. dropped: by blob; empty: none.
  void Begin(const std::vector<bool>& dropped);

  bool is_dropped(BlobId blob) const { return blobs_[blob.value()].is_dropped; }
  // The key's node or an ancestor is there, or all of its use, which is replaced no more, as it may be read already: of
  // `chunk`, and of each of the key's chunks.
  bool Covers(const ContributionKey& key, int64_t chunk) const;
  bool Covers(const ContributionKey& key) const;

  // `chunk` of the key, which is not covered, is there: in `buffer`.
  void Add(const ContributionKey& key, int64_t chunk, ChunkBuffer buffer);

  // Whether with `chunk` of the key, which is not covered, every use of that chunk is whole.
  bool IsWholeWith(const ContributionKey& key, int64_t chunk) const;

  // Every vnode is there: of every use of a chunk, and of all chunks.
  bool IsWhole(BlobId blob, int64_t chunk) const;
  bool IsWhole(BlobId blob) const { return blobs_[blob.value()].missing_chunks == 0; }
  // The same of every use of a chunk but the first, which is not.
  bool HasAllButFirstUse(BlobId blob, int64_t chunk) const;
  // What one use of a chunk has.
  const std::vector<HeldContribution>& Held(BlobId blob, int use, int64_t chunk) const;
  // Takes out what one use of a whole chunk has; it stays whole.
  std::vector<HeldContribution> Consume(BlobId blob, int use, int64_t chunk);

  int num_uses(BlobId blob) const { return static_cast<int>(blobs_[blob.value()].uses.size()); }
  int64_t missing_chunks() const { return missing_chunks_; }  // over all blobs: not whole
  // The layer that backward completes next: the highest with a use that is not whole; empty: all are.
  std::optional<LayerId> next_layer() const;

  // missing[v]: some chunk lacks vnode v.
  std::vector<bool> MissingVnodes() const;
  // missing[v]: some chunk of next_layer() lacks vnode v.
  std::vector<bool> VnodesMissingNext() const;
  // Blobs of which some chunk lacks a vnode, in the model's order.
  std::vector<BlobId> MissingBlobs() const;

 private:
  struct Use {
    BlobId blob;
    int use = 0;
  };
  struct UseSlot {
    std::vector<Coverage> chunks;
    int64_t whole_chunks = 0;
  };
  struct BlobSlot {
    std::vector<UseSlot> uses;
    int64_t missing_chunks = 0;  // not whole
    bool is_dropped = false;
  };

  LayerId LayerOf(Use use) const { return model_.blob(use.blob).uses[use.use]; }
  const UseSlot& SlotOf(const ContributionKey& key) const { return blobs_[key.blob.value()].uses[key.use]; }
  bool Covers(const Coverage& chunk, TreeNode node) const { return chunk.IsWhole(num_vnodes_) || chunk.Covers(node); }
  bool IsWhole(Use use) const;
  void AddMissing(const UseSlot& use, std::vector<bool>& missing) const;
  void AdvanceFront();

  // Fixed after construction.
  const ModelSpec& model_;
  const int num_vnodes_;
  std::vector<Use> backward_order_;  // the highest layer first

  std::vector<BlobSlot> blobs_;  // empty before the first step
  int64_t missing_chunks_ = 0;
  size_t front_ = 0;  // the first of backward_order_ that is not whole
};

}  // namespace eps::server

#endif  // EPS_SERVER_AGGREGATION_STEP_COVERAGE_H_
