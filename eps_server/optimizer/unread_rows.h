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
#include "common/model/model_spec.h"
#include "eps_server/optimizer/chunk_gradient.h"
#include "eps_server/optimizer/chunk_kernels.h"

namespace eps::server {

// A step ends with the embedding's backward, whose gradient is pushed, updated and pulled one after the other while the
// device has nothing to do. Most of a large vocabulary does not occur in a step: to the rows of the token table that no
// token reads the embedding's gradient adds zero, so that what the head gives them, if it shares the table, is all that
// they will get. They are updated as soon as that is there, and the end of the step is left with the others.
//
// No bit depends on it: the gradient of such a row is what the head gives plus zero, either way.

// Which rows of the token table the tokens of a step read.
class RowsRead {
 public:
  // Of num_rows none, so far.
  explicit RowsRead(int64_t num_rows) : read_(static_cast<size_t>(num_rows)) {}
  // tokens: each in [0, num_rows)
  void Add(absl::Span<const int32_t> tokens) {
    for (const int32_t token : tokens) read_[static_cast<size_t>(token)] = true;
  }
  bool Has(int64_t row) const { return read_[static_cast<size_t>(row)]; }

 private:
  std::vector<bool> read_;
};

// The elements of a chunk by what is known of them, each part as GroupRange has them.
struct ChunkParts {
  std::vector<GroupRange> unread;  // of rows that no token reads
  std::vector<GroupRange> rest;
};
// `ranges`: all of the chunk's. `table`: of `blob`.
ChunkParts PartsOf(const BlobSpec& blob, const TensorSpec& table, int64_t chunk, absl::Span<const GroupRange> ranges,
                   const RowsRead& rows);

// The first contribution of the embedding that is not zero in `unread`, whose update did without; null: none.
const GradientOperand* NonzeroOfEmbedding(const ChunkGradient& whole, absl::Span<const GroupRange> unread);

// `of_head`, and nothing of the embedding but zeros; of_head without operands: there is no head that shares the table.
// What it points to is of_head's, which must outlive it.
ChunkGradient WithoutEmbedding(ChunkGradient of_head);

// How far each chunk of the table is in a step, between the update of rows that no token reads and that of the rest.
//
// Threads: none of its own; the owner guards it.
class UnreadRows {
 public:
  UnreadRows() = default;
  // rows: null: not known; nothing is updated early
  explicit UnreadRows(std::shared_ptr<const RowsRead> rows) : rows_(std::move(rows)) {}

  const std::shared_ptr<const RowsRead>& rows() const { return rows_; }

  // What can be known early of a chunk is there: whether its update is to be queued, once. No: its whole gradient came
  // before.
  bool Queue(int64_t chunk) { return rows_ != nullptr && chunks_.emplace(chunk, Chunk{State::kQueued, {}}).second; }
  // That update is about to run; no: the whole gradient came meanwhile, and what was known early may be gone.
  bool Begin(int64_t chunk);
  // That update is over. Returns the whole gradient, if it came meanwhile.
  std::optional<ChunkGradient> End(int64_t chunk);

  // The whole gradient of a chunk came: what of it is to be updated, if not End's caller is to be given it.
  enum class What { kWhole, kRest, kLater };
  What Arrive(int64_t chunk, ChunkGradient& gradient);

 private:
  enum class State { kQueued, kRuns, kDone, kWhole };
  struct Chunk {
    State state;
    std::optional<ChunkGradient> arrived;  // while kRuns
  };
  std::shared_ptr<const RowsRead> rows_;
  std::map<int64_t, Chunk> chunks_;
};

}  // namespace eps::server

#endif  // EPS_SERVER_OPTIMIZER_UNREAD_ROWS_H_
