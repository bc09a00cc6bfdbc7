#ifndef EPS_SERVER_OPTIMIZER_UNREAD_ROWS_H_
#define EPS_SERVER_OPTIMIZER_UNREAD_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/model/model_spec.h"
#include "common/schedule/reduction_tree.h"
#include "eps_server/optimizer/chunk_gradient.h"
#include "eps_server/optimizer/chunk_kernels.h"

namespace eps::server {

// A step ends with the embedding's backward, whose gradient is pushed, updated and pulled one after the other while the
// device has nothing to do. That gradient is row-sparse: rows of the token table that no token of the step reads get
// zero from it, and all that they get is what the head gives, if it shares the table. They are updated as soon as that
// is there, and the end of the step is left with the others.
//
// Bits:   the same; their gradient is what the head gives plus zero, either way
// Cost:   contributions to such a chunk are read once more, for its norm and to see that the zeros are there
// Source: docs/decisions/0019-rows-that-no-token-reads.md

// Which rows of the token table the tokens of a step read.
class RowsRead {
 public:
  // Of num_rows none, so far.
  explicit RowsRead(int64_t num_rows) : read_(static_cast<size_t>(num_rows)) {}
  // tokens: each in [0, num_rows)
  void Add(absl::Span<const int32_t> tokens) {
    for (const int32_t token : tokens) read_[static_cast<size_t>(token)] = true;
  }
  bool IsRead(int64_t row) const { return read_[static_cast<size_t>(row)]; }

 private:
  std::vector<bool> read_;
};

// A tensor in its blob.
struct BlobTensor {
  BlobId blob;
  const TensorSpec* tensor;  // the model's
};
// The embedding's table of tokens; none if it is frozen.
std::optional<BlobTensor> TokenTable(const ModelSpec& model);

// The elements of a chunk by what is known of them.
struct ChunkParts {
  std::vector<GroupRange> unread;  // of rows that no token reads
  std::vector<GroupRange> rest;
};
// Cuts `ranges`, which are all of the chunk's, in two, at multiples of kTensorAlignElems: a row that shares such a unit
// with one that is read, or with another tensor, is there in `rest`. table: of `blob`, two-dimensional
ChunkParts PartsOf(const BlobSpec& blob, const TensorSpec& table, int64_t chunk, absl::Span<const GroupRange> ranges,
                   const RowsRead& rows);

// What the head gives to a chunk, plus zeros for the embedding; of_head without operands: zeros alone. Its operands are
// of_head's, which must outlive it.
ChunkGradient WithoutEmbedding(ChunkGradient of_head);

struct NonzeroValue {
  TreeNode node;     // whose contribution it is in
  int64_t elem = 0;  // of the chunk: where the unit of kTensorAlignElems begins that it is in
};
// The first contribution of the embedding that is not zero, bit for bit, in `unread`, which was updated without it.
std::optional<NonzeroValue> NonzeroOfEmbedding(const ChunkGradient& whole, absl::Span<const GroupRange> unread);

// How far each chunk of the table is in a step, between the update of rows that no token reads and that of the rest.
//
// Threads: none of its own; the owner guards it.
class UnreadRows {
 public:
  UnreadRows() = default;
  // rows: null: not known; nothing is updated early
  explicit UnreadRows(std::shared_ptr<const RowsRead> rows) : rows_(std::move(rows)) {}

  const std::shared_ptr<const RowsRead>& rows() const { return rows_; }

  // True once: the early update of the chunk is to be queued. False: rows are not known, it is queued already, or the
  // whole gradient came first.
  bool Queue(int64_t chunk) {
    return rows_ != nullptr && chunks_.emplace(chunk, Chunk{State::kQueued, std::nullopt}).second;
  }
  // True: that update runs now. False: the whole gradient came meanwhile, and what the head gave may be gone.
  bool Begin(int64_t chunk);
  // It is over. Returns the whole gradient, if that came while it ran.
  std::optional<ChunkGradient> End(int64_t chunk);

  // The whole gradient of a chunk came: what is to be updated with it. kParked: it was taken, and is End's.
  enum class Arrival { kWhole, kRest, kParked };
  Arrival Arrive(int64_t chunk, ChunkGradient& gradient);

 private:
  enum class State { kQueued, kRuns, kDone, kOvertaken };
  struct Chunk {
    State state;
    std::optional<ChunkGradient> parked;  // while kRuns
  };
  std::shared_ptr<const RowsRead> rows_;
  std::map<int64_t, Chunk> chunks_;
};

}  // namespace eps::server

#endif  // EPS_SERVER_OPTIMIZER_UNREAD_ROWS_H_
