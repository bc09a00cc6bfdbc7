#ifndef EPS_GPU_WORKER_TRANSPORT_TRANSPORT_H_
#define EPS_GPU_WORKER_TRANSPORT_TRANSPORT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/schedule/chunk_range.h"
#include "common/schedule/reduction_tree.h"
#include "common/tensor/dtype.h"

namespace eps::worker {

struct PullTiming {
  // How long the daemon had been asked for the version, and did not have it yet: at least 0, and no more than the pull
  // took. The rest of it is the transfer, the way of the request included. Where the answer carries the weights the
  // daemon says it; where it does not, in shared memory, there is nothing else to wait for.
  double version_wait_seconds = 0;
};

// One node of the reduction tree of one (step, blob, use), or a part of it, on the host, on its way to the daemon.
struct Contribution {
  StepId step;
  BlobId blob;
  int use = 0;
  TreeNode node;
  ChunkRange chunks;                    // of the blob: those that `payload` holds; never empty
  Dtype dtype = Dtype::kF32;            // 16 bits only for a leaf
  int nonfinite_vnode = -1;             // a vnode of `node` whose gradient is not finite; -1: none
  absl::Span<const std::byte> payload;  // `chunks` alone: the blob's part_elems(chunks) * SizeOf(dtype)
  // Keeps `payload` alive; released when the daemon has it all or does not want it.
  std::shared_ptr<void> owner;
};

// Host memory of a contribution, and who keeps it alive.
struct PushMemory {
  absl::Span<std::byte> bytes;
  std::shared_ptr<void> owner;
};

// How weights and gradients travel between the daemon and this worker. The relay executor is its only user.
//
// Errors:  ABORTED the version was overwritten, or the assignment is void · UNAVAILABLE the daemon is gone, or the run is
//          over · FAILED_PRECONDITION the run has failed, or it is another daemon's · DATA_LOSS, INTERNAL a chunk that is
//          not what was asked for. Once failed, it stays failed with its first error, of which an implementation's
//          `on_failure` is told, unless it was cancelled before: of a Cancel that comes meanwhile it may be told as well.
// Threads: Pull and Await from one thread, Push from another; the rest from any
// Conformance: gpu_worker/transport/transport_conformance.h
class Transport {
 public:
  virtual ~Transport() = default;

  // Waits until `version` of `blob` is published and copies the wire form of `chunks` (some, of those that it has) to
  // `destination`, which holds them alone: the blob's part_bytes(chunks, the wire dtype). Blocks.
  virtual absl::StatusOr<PullTiming> Pull(BlobId blob, Version version, ChunkRange chunks,
                                          absl::Span<std::byte> destination) = 0;

  // Where `version` of `blob` lies, in its wire form, in memory that this process can read; null: nowhere, it must be
  // pulled. What is there is that version from Await's return on, until the daemon may make version + 2: while the
  // step that reads it is open. The address stays valid as long as the transport lives, whatever becomes of the daemon.
  virtual const std::byte* InPlace(BlobId /*blob*/, Version /*version*/) const { return nullptr; }
  // As Pull, for one that is InPlace: waits, and copies nothing. `chunks`: those that the caller reads.
  virtual absl::StatusOr<PullTiming> Await(BlobId /*blob*/, Version /*version*/, ChunkRange /*chunks*/) {
    return absl::UnimplementedError("this transport has no weights in place");
  }

  // Memory from which a contribution leaves without another copy. Empty: there is none left, or none at all; any other
  // memory will do. Uninitialised; may outlive the transport.
  virtual std::optional<PushMemory> NewPushMemory(int64_t /*num_bytes*/) { return std::nullopt; }

  // Hands a contribution over and returns at once. It is offered to the daemon, sent when the daemon has
  // room for it, and waits in host memory until then; several may wait, and they may overtake each other. Of a
  // transport that has failed it is let go.
  virtual void Push(Contribution contribution) = 0;

  // Blocks until everything pushed so far is held by the daemon, or was not wanted (already counted). A worker does
  // not: its daemon knows what of a step is in. Tests do.
  virtual absl::Status Flush() = 0;

  // Fails everything that is under way or comes later with `reason`.
  virtual void Cancel(absl::Status reason) = 0;
};

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_TRANSPORT_TRANSPORT_H_
