#ifndef EPS_SERVER_CHECKPOINT_STATE_CAPTURE_H_
#define EPS_SERVER_CHECKPOINT_STATE_CAPTURE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/model/model_spec.h"
#include "common/spec/moment_format.h"
#include "eps_server/checkpoint/capture_buffer.h"
#include "eps_server/store/store.h"

namespace eps::server {

// A chunk of a blob as it was at the checkpoint's version, padding included.
struct CapturedChunk {
  BlobId blob;
  int64_t first_elem = 0;
  int64_t num_elems = 0;
  // The masters, (num_elems) in fp32, then each moment, (num_elems) in the store's moment format; null: frozen.
  const std::byte* state = nullptr;
  const std::byte* wire = nullptr;  // (num_elems) as they are pulled, in the store; frozen blobs only
};

// Copies one version of the model out of the store, chunk by chunk in the order in which blobs are updated next, as far
// as the buffer reaches; who writes the chunks makes room for more. A copy takes a read and a write of 12 bytes a
// parameter (AdamW, fp32 moments): as much as memory can do, and no disk in it, but for a state that lies on one
// (optimizer_offload). A frozen blob does not change: it is
// read in the store when it is written, and takes no room.
//
// Threads: one at a time
class StateCapture {
 public:
  // `captured(blob)` is called from Fill once all of the blob is copied. `buffer` is empty, and holds the largest chunk
  // or more. All but `order` outlive this.
  // Errors: INVALID_ARGUMENT `order` does not have each blob once
  static absl::StatusOr<StateCapture> Create(const Store& store, const ModelSpec& model, Version version,
                                             std::vector<BlobId> order, std::function<void(BlobId)> captured,
                                             CaptureBuffer& buffer);

  // Copies while there is room. Errors: of the disk that the state lies on (Store::ReadChunk)
  absl::Status Fill();
  // The oldest chunk that is copied and not popped; null if there is none: after Fill, that is the end.
  const CapturedChunk* front() const { return chunks_.empty() ? nullptr : &chunks_.front(); }
  void Pop();

  // Arrays of a chunk, beside the masters.
  int num_moments() const { return store_->num_moments(); }
  MomentFormat moment_format() const { return store_->moment_format(); }

 private:
  StateCapture(const Store& store, const ModelSpec& model, Version version, std::vector<BlobId> order,
               std::function<void(BlobId)> captured, CaptureBuffer& buffer);
  // False: there is no room.
  absl::StatusOr<bool> CopyNext();

  // Fixed after construction.
  const Store* store_;
  const ModelSpec* model_;
  Version version_;
  std::vector<BlobId> order_;
  std::function<void(BlobId)> captured_;
  CaptureBuffer* buffer_;

  size_t next_blob_ = 0;  // of order_
  int64_t next_chunk_ = 0;
  std::deque<CapturedChunk> chunks_;  // as they lie in the buffer
};

}  // namespace eps::server

#endif  // EPS_SERVER_CHECKPOINT_STATE_CAPTURE_H_
