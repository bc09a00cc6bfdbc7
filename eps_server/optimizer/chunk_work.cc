#include "eps_server/optimizer/chunk_work.h"

#include <cstddef>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/spec/moment_format.h"
#include "common/spec/run_config.h"
#include "common/tensor/dtype.h"

namespace eps::server {
int64_t GradientBytes(const ChunkGradient& gradient, int64_t num_elems) {
  int64_t bytes = 0;
  for (const GradientOperand& operand : gradient.operands) bytes += num_elems * SizeOf(operand.dtype);
  return bytes;
}

int64_t NumElems(absl::Span<const GroupRange> ranges) {
  int64_t num_elems = 0;
  for (const GroupRange& range : ranges) num_elems += range.end - range.begin;
  return num_elems;
}

absl::StatusOr<ChunkState> ChunkWork::Open(StepId step, BlobId blob, int64_t chunk, PagedMemory::Access access) {
  absl::StatusOr<ChunkState> state = store_.Chunk(blob, chunk, ReadVersion(step), access);
  if (state.ok()) return state;
  return Annotate(state.status(), absl::StrCat("step ", step.value(), ": ", model_.blob(blob).name, ", chunk ", chunk));
}

int64_t ChunkWork::StateBytes(int64_t num_elems) const {
  const int64_t wire_forms = store_.wire_dtype() == Dtype::kF16 ? 1 : 2;
  return num_elems * (wire_forms * SizeOf(store_.wire_dtype()) + 2 * MasterRestBytes(store_.wire_dtype())) +
         2 * store_.num_moments() * MomentBytes(store_.moment_format(), num_elems);
}

double ChunkWork::Sum(StepId step, BlobId blob, int64_t chunk, const ChunkGradient& gradient, float* sum) {
  const int64_t num_elems = model_.blob(blob).chunk_elems(chunk);
  if (sum == nullptr) ShowSum(step, blob, chunk, gradient);
  const double squares = SumChunk(gradient, num_elems, sum);
  if (sum != nullptr && witness_ != nullptr) {
    witness_->OnSummed(step, blob, chunk, absl::MakeConstSpan(sum, static_cast<size_t>(num_elems)));
  }
  moved_bytes_ += GradientBytes(gradient, num_elems) + (sum == nullptr ? 0 : num_elems * SizeOf(Dtype::kF32));
  return squares;
}

double ChunkWork::SumAgain(BlobId blob, int64_t chunk, const ChunkGradient& gradient) {
  const int64_t num_elems = model_.blob(blob).chunk_elems(chunk);
  moved_bytes_ += GradientBytes(gradient, num_elems);
  return SumChunk(gradient, num_elems, nullptr);
}

absl::StatusOr<std::vector<StepSquares>> ChunkWork::Measure(StepId step, BlobId blob, int64_t chunk,
                                                            const ChunkGradient& gradient, const UpdateScalars& scalars,
                                                            double* squares) {
  EPS_ASSIGN_OR_RETURN(const ChunkState state, Open(step, blob, chunk, PagedMemory::Access::kRead));
  const std::vector<GroupRange>& ranges = RangesOf(blob, chunk);
  std::vector<StepSquares> step_squares(ranges.size());
  const double of_gradient = MeasureSteps(state, gradient, ranges, scalars, absl::MakeSpan(step_squares));
  if (squares != nullptr) *squares = of_gradient;
  const int64_t master_bytes =
      MasterRestBytes(store_.wire_dtype()) + (state.master == nullptr ? SizeOf(state.wire_dtype) : 0);
  moved_bytes_ += GradientBytes(gradient, state.num_elems) + state.num_elems * master_bytes +
                  2 * MomentBytes(state.moment_format, state.num_elems);
  return step_squares;
}

absl::Status ChunkWork::Update(StepId step, BlobId blob, int64_t chunk, const ChunkGradient& gradient,
                               const UpdateScalars& scalars, double* squares) {
  return UpdateRanges(step, blob, chunk, gradient, RangesOf(blob, chunk), scalars, squares);
}

absl::Status ChunkWork::UpdateRanges(StepId step, BlobId blob, int64_t chunk, const ChunkGradient& gradient,
                                     absl::Span<const GroupRange> ranges, const UpdateScalars& scalars,
                                     double* squares) {
  EPS_ASSIGN_OR_RETURN(const ChunkState state, Open(step, blob, chunk, PagedMemory::Access::kWrite));
  UpdateChunk(state, gradient, ranges, scalars, squares);
  const int64_t num_elems = NumElems(ranges);
  updated_elems_ += num_elems;
  moved_bytes_ += GradientBytes(gradient, num_elems) + StateBytes(num_elems);
  return absl::OkStatus();
}

void ChunkWork::CarryOver(StepId step, BlobId blob) {
  store_.CarryOver(blob, ReadVersion(step));
  for (int64_t chunk = 0; chunk < model_.blob(blob).num_chunks(); ++chunk) ShowUpdated(step, blob, chunk);
  moved_bytes_ += model_.blob(blob).num_elems * 2 * SizeOf(store_.wire_dtype());
}

void ChunkWork::ShowSum(StepId step, BlobId blob, int64_t chunk, const ChunkGradient& gradient) {
  if (witness_ == nullptr) return;
  std::vector<float> sum(static_cast<size_t>(model_.blob(blob).chunk_elems(chunk)));
  SumChunk(gradient, static_cast<int64_t>(sum.size()), sum.data());
  witness_->OnSummed(step, blob, chunk, sum);
}

void ChunkWork::ShowUpdated(StepId step, BlobId blob, int64_t chunk) {
  if (witness_ != nullptr) witness_->OnUpdated(step, blob, chunk);
}

}  // namespace eps::server
