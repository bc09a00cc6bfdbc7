#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/model/model_spec.h"
#include "common/schedule/reduction_tree.h"
#include "common/tensor/dtype.h"
#include "eps_server/optimizer/chunk_gradient.h"
#include "eps_server/optimizer/chunk_kernels.h"
#include "eps_server/optimizer/chunk_work.h"
#include "eps_server/optimizer/unread_rows.h"
#include "eps_server/optimizer/update_engine_base.h"
#include "eps_server/optimizer/update_modes.h"
#include "eps_server/optimizer/update_scalars.h"

namespace eps::server {
namespace {

class ChunkUpdateEngine final : public UpdateEngineBase {
 public:
  explicit ChunkUpdateEngine(Options options) : UpdateEngineBase(std::move(options)) {
    if (run().updates_unread_rows_early()) table_ = TokenTable(model());
    Begin();
  }
  ~ChunkUpdateEngine() override { EndTasks(); }

 private:
  void PrepareStep() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    blocked_.assign(model().blobs.size(), {});
    any_came_ = false;
    unread_rows_ = UnreadRows();
  }
  void TakeRows(std::shared_ptr<const RowsRead> rows) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (table_.has_value()) unread_rows_ = UnreadRows(std::move(rows));
  }

  void Gather(BlobId blob, int64_t chunk, ChunkGradient gradient) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!std::exchange(any_came_, true)) BeginGradients();
    if (IsHeld(blob)) {
      blocked_[static_cast<size_t>(blob.value())].emplace_back(chunk, std::move(gradient));
      BeginWaitFor(blob);
    } else {
      PushUpdate(blob, chunk, std::move(gradient));
    }
  }
  bool TakesLaterUses(BlobId blob) const override { return table_.has_value() && blob == table_->blob; }
  void GatherLaterUses(int64_t chunk, ChunkGradient gradient) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    PushUnread(chunk, std::move(gradient));
  }
  void GatherStopped(BlobId blob, int64_t chunk, ChunkGradient& gradient) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    // An early update that runs reads what this gradient keeps, until it is over.
    if (TakesLaterUses(blob)) unread_rows_.Arrive(chunk, gradient);
  }
  void BeginReleased(BlobId blob) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    for (auto& [chunk, gradient] : std::exchange(blocked_[static_cast<size_t>(blob.value())], {})) {
      PushUpdate(blob, chunk, std::move(gradient));
    }
  }

  void PushUpdate(BlobId blob, int64_t chunk, ChunkGradient gradient) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    NoteUpdate();
    std::shared_ptr<const RowsRead> rows;  // if the others are updated already
    if (TakesLaterUses(blob)) {
      const UnreadRows::Arrival arrival = unread_rows_.Arrive(chunk, gradient);
      if (arrival == UnreadRows::Arrival::kParked) return;
      if (arrival == UnreadRows::Arrival::kRest) rows = unread_rows_.rows();
    }
    work().Prefetch(blob, chunk);
    // A std::function must be copyable, so the gradient goes behind a pointer.
    Push({"update", blob, chunk}, [this, blob, chunk, scalars = scalars(blob), step = step(), rows,
                                   shared = std::make_shared<ChunkGradient>(std::move(gradient))] {
      Update(step, blob, chunk, *shared, *scalars, rows.get());
    });
  }

  // The first gradient of the step came: backward has begun, beside which updates belong. Rows of a table that no head
  // shares need nothing else.
  void BeginGradients() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!table_.has_value() || model().blob(table_->blob).uses.size() > 1) return;
    for (int64_t chunk = 0; chunk < num_chunks(table_->blob); ++chunk) PushUnread(chunk, {});
  }
  // of_head: WithoutEmbedding's. While a checkpoint holds the blob nothing is early: all is updated with the whole
  // gradient.
  void PushUnread(int64_t chunk, ChunkGradient of_head) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const BlobId blob = table_->blob;
    if (IsHeld(blob) || of_head.nonfinite_vnode >= 0 || !unread_rows_.Queue(chunk)) return;
    NoteUpdate();
    // The table is pulled first, so before all others, which wait for longer without harm; what has not begun when the
    // whole gradient comes is updated with it.
    Push({"update unread rows of", blob, chunk},
         [this, chunk, step = step(), scalars = scalars(blob), rows = unread_rows_.rows(),
          of_head = std::make_shared<const ChunkGradient>(std::move(of_head))] {
           UpdateUnread(step, chunk, *of_head, *scalars, *rows);
         });
  }

  // ---- tasks; they run without the lock ----

  // One pass: sum, norm, update. rows: of the token table, whose other rows have been updated before; else null.
  void Update(StepId step, BlobId blob, int64_t chunk, ChunkGradient& gradient, const UpdateScalars& scalars,
              const RowsRead* rows) {
    if (gradient.nonfinite_vnode >= 0) return FailNonFinite(step, blob, chunk, gradient);
    double squares = 0;
    work().ShowSum(step, blob, chunk, gradient);
    const absl::Status status = rows == nullptr ? work().Update(step, blob, chunk, gradient, scalars, &squares)
                                                : UpdateRest(step, chunk, gradient, scalars, *rows, &squares);
    if (!status.ok()) return Fail(status);
    if (!std::isfinite(squares)) return FailNonFinite(step, blob, chunk, gradient);
    gradient = {};
    work().ShowUpdated(step, blob, chunk);
    FinishChunk(blob, chunk, squares);
  }

  // Of the token table: rows to which the embedding adds nothing. Of a chunk that has too few of them nothing is early.
  void UpdateUnread(StepId step, int64_t chunk, const ChunkGradient& of_head, const UpdateScalars& scalars,
                    const RowsRead& rows) {
    const BlobId blob = table_->blob;
    const ChunkParts parts = TablePartsOf(chunk, rows);
    if (!PaysEarly(model().blob(blob).chunk_elems(chunk), of_head, NumElems(parts.unread))) return;
    {
      MutexLock lock(mu_);
      if (step != this->step() || !unread_rows_.Begin(chunk)) return;
    }
    const absl::Status status =
        work().UpdateRanges(step, blob, chunk, WithoutEmbedding(of_head), parts.unread, scalars);
    if (!status.ok()) return Fail(status);
    MutexLock lock(mu_);
    std::optional<ChunkGradient> whole = unread_rows_.End(chunk);
    if (whole.has_value()) PushUpdate(blob, chunk, *std::move(whole));
  }
  // Whether what is updated early saves more at the step's end than it costs there: contributions are read once more
  // for the rest, and the embedding's to see that they are zero. There are as many of these as of the head's, or one.
  bool PaysEarly(int64_t num_elems, const ChunkGradient& of_head, int64_t num_unread) const {
    const int64_t num_rest = num_elems - num_unread;
    const int64_t head = GradientBytes(of_head, 1);
    const int64_t embedding = std::max<int64_t>(head, SizeOf(run().precision.gradients));
    return work().StateBytes(num_unread) > num_rest * (head + embedding) + num_unread * embedding;
  }
  // Then, with the whole gradient, the others. The squares are those of all rows, in their order.
  // Errors: INTERNAL the embedding's gradient is not zero where it has to be · ChunkWork's
  absl::Status UpdateRest(StepId step, int64_t chunk, const ChunkGradient& gradient, const UpdateScalars& scalars,
                          const RowsRead& rows, double* squares) {
    const BlobId blob = table_->blob;
    const ChunkParts parts = TablePartsOf(chunk, rows);
    if (const std::optional<NonzeroValue> wrong = NonzeroOfEmbedding(gradient, parts.unread); wrong.has_value()) {
      return NonzeroError(step, chunk, *wrong);
    }
    *squares = work().SumAgain(blob, chunk, gradient);
    return work().UpdateRanges(step, blob, chunk, gradient, parts.rest, scalars);
  }
  ChunkParts TablePartsOf(int64_t chunk, const RowsRead& rows) const {
    const BlobId blob = table_->blob;
    return PartsOf(model().blob(blob), *table_->tensor, chunk, work().RangesOf(blob, chunk), rows);
  }

  absl::Status NonzeroError(StepId step, int64_t chunk, const NonzeroValue& wrong) const {
    const TensorSpec& table = *table_->tensor;
    const int64_t row = (chunk * kChunkElems + wrong.elem - table.offset_elems) / table.shape[1];
    return absl::InternalError(absl::StrCat("step ", step.value(), ": the embedding's gradient of ", table.name,
                                            ", row ", row,
                                            ": not zero, though no token of the step reads it; from vnodes ",
                                            DebugString(wrong.node), ", whose worker computes it wrongly"));
  }

  std::optional<BlobTensor> table_;  // of tokens, if some of it may be updated early; fixed after construction
  // By blob, what waits for its release.
  std::vector<std::vector<std::pair<int64_t, ChunkGradient>>> blocked_ ABSL_GUARDED_BY(mu_);
  bool any_came_ ABSL_GUARDED_BY(mu_) = false;   // of the step's gradients
  UnreadRows unread_rows_ ABSL_GUARDED_BY(mu_);  // of table_, in the step
};

}  // namespace

std::unique_ptr<UpdateEngine> NewChunkUpdateEngine(UpdateEngine::Options options) {
  return std::make_unique<ChunkUpdateEngine>(std::move(options));
}

}  // namespace eps::server
