#ifndef EPS_SERVER_AGGREGATION_AGGREGATOR_H_
#define EPS_SERVER_AGGREGATION_AGGREGATOR_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/model/model_spec.h"
#include "common/tensor/dtype.h"
#include "eps_server/aggregation/contribution_key.h"
#include "eps_server/optimizer/chunk_gradient.h"

namespace eps::server {

struct ChunkOutcome {
  bool counted = false;  // false: it was there already, or its step is over
  // Every chunk of the contribution is held: a sender in order sees it at the last chunk at the
  // latest, and earlier when another worker sent the same.
  bool complete = false;
};

// Counts every gradient once. Keeps, per (step, blob, use, chunk), which nodes of the reduction
// tree are there; drops what is covered by a node that came before, replaces pending descendants
// unless the use is whole, and hands a chunk to `consume` the moment that all its uses are covered whole, in whatever
// order things came. Frozen blobs, and those that a step drops, have no contributions, and the step does not wait for
// any.
//
// Memory: contributions live in a window of window_bytes (AdmissionWindow). Each reserves those of its chunks that are
// missing when it is admitted; what does not fit is answered later, the highest layer first. The layer that backward
// completes next is always admitted, once no finished blob still waits for its update: the window is exceeded by one
// layer's contributions at most.
// A worker must go on to its next assignment while offers of an earlier one are not answered: that
// assignment, the redo of a lost worker's part, may be what makes the room.
//
// Threads: all methods are safe; payloads are copied outside the lock, or taken as they lie. Callbacks come without a
// lock, from the calling thread or from the one that released memory.
class Aggregator {
 public:
  struct Options {
    const ModelSpec* model = nullptr;  // outlives the aggregator
    int virtual_nodes = 1;
    Dtype gradients = Dtype::kF32;  // of leaves
    int64_t window_bytes = 0;       // 0: DefaultWindowBytes of one worker
    // A chunk is complete: its contributions of all uses, as a program; called once per (step,
    // blob, chunk). The memory is given back when the ChunkGradient is destroyed, which must be
    // before the aggregator is.
    std::function<void(StepId, BlobId, int64_t chunk, ChunkGradient)> consume;
    // What every use of a chunk but the first gives is complete: their contributions, as a program. (A head that shares
    // the embedding's table is through long before the embedding.) At most once per (step, blob, chunk), perhaps while
    // or after another thread hands the whole to `consume`. Owns nothing: the operands live as long as the
    // ChunkGradient that `consume` gets. Null: nobody asks.
    std::function<void(StepId, BlobId, int64_t chunk, ChunkGradient)> show_later_uses;
    // Every chunk of every blob that is neither frozen nor dropped was consumed; after the last `consume` was called
    // (it may still be running elsewhere).
    std::function<void(StepId)> on_step_in;
  };
  // Errors: INVALID_ARGUMENT a negative window
  static absl::StatusOr<std::unique_ptr<Aggregator>> Create(Options options);
  virtual ~Aggregator() = default;

  // Contributions of `step` are taken from now on; those of earlier steps are not wanted any more.
  // dropped: by blob, DroppedBlobs; empty: none. One that trains is left at least.
  virtual void BeginStep(StepId step, const std::vector<bool>& dropped = {}) = 0;

  // Calls `answer` at once, or when the window has room, or when the step is over, or at Stop.
  //
  // Errors: (given to `answer`) INVALID_ARGUMENT naming the field: no such blob or use, a frozen or dropped blob, not a
  //         node of the tree, a dtype that a node may not have (16 bits only for leaves, and only if the
  //         run's gradients are that), nonfinite_vnode not in the node, chunks that the blob does not have, or none
  //         (first_chunk, num_chunks), a step that was not begun ·
  //         RESOURCE_EXHAUSTED too many offers wait · Stop's reason
  virtual void Offer(const ContributionKey& key, std::function<void(absl::StatusOr<Verdict>)> answer) = 0;

  // The bytes of a chunk.
  struct Payload {
    int64_t num_bytes = 0;
    // Never null. Writes all of it to where it is kept, or fails. Called without a lock, at most once: not for a chunk
    // that is not wanted, or is taken as it lies.
    std::function<absl::Status(absl::Span<std::byte>)> copy;
    // Where it lies, 64-byte aligned, unchanged until the last reference is gone: handed to `consume` as it is if
    // nothing else of the chunk is missing, else let go of when AddChunk returns. Null: it is copied.
    std::shared_ptr<const std::byte> lent = nullptr;
  };

  // Takes one chunk of an admitted contribution. A repeated one, and one of a step that is over,
  // is dropped quietly.
  //
  // Errors: INVALID_ARGUMENT as in Offer, and: a chunk that is none of the contribution's, a payload that is not
  //         exactly the chunk's bytes · FAILED_PRECONDITION the contribution was not admitted ·
  //         RESOURCE_EXHAUSTED no memory · copy's, and the chunk does not count · Stop's reason
  virtual absl::StatusOr<ChunkOutcome> AddChunk(const ContributionKey& key, int64_t chunk, Payload payload) = 0;
  // The same of a payload in memory, which is copied.
  absl::StatusOr<ChunkOutcome> AddChunk(const ContributionKey& key, int64_t chunk, absl::Span<const std::byte> payload);

  // The stream of an admitted contribution ended before its last chunk: gives back what it reserved
  // and did not fill. Chunks that came stay valid. Call once per admission that did not reach
  // `complete`; harmless after that.
  virtual void Abandon(const ContributionKey& key) = 0;

  // Whether no chunk of the current step lacks anything.
  virtual bool AllIn() const = 0;
  // missing[v]: some chunk of the current step still lacks vnode v.
  virtual std::vector<bool> MissingVnodes() const = 0;
  // missing[v]: some chunk of the layer that backward completes next still lacks vnode v: those furthest behind.
  virtual std::vector<bool> VnodesMissingNext() const = 0;
  // Blobs of the current step of which some chunk still lacks a vnode, in the model's order.
  virtual std::vector<BlobId> MissingBlobs() const = 0;

  virtual int64_t window_bytes() const = 0;       // the limit
  virtual int64_t window_used_bytes() const = 0;  // held in copies, and reserved by what was admitted
  virtual int64_t waiting_offers() const = 0;
  // Whether offers wait for the memory of a finished blob, which its update will free.
  virtual bool waits_for_updates() const = 0;

  // Answers every offer that waits, or comes later, with `reason`.
  virtual void Stop(absl::Status reason) = 0;
};

}  // namespace eps::server

#endif  // EPS_SERVER_AGGREGATION_AGGREGATOR_H_
