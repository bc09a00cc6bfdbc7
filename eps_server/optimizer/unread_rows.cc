#include "eps_server/optimizer/unread_rows.h"

#include <string.h>

#include <algorithm>

#include "common/base/byte_size.h"
#include "common/base/status_macros.h"
#include "common/schedule/reduction_tree.h"
#include "common/tensor/dtype.h"

namespace eps::server {
namespace {

// Not const, so that it lies where the system has its one page of zeros for all that is never written.
alignas(64) std::byte zeros[kChunkElems * sizeof(float)];

constexpr int64_t RoundDown(int64_t value, int64_t multiple) { return value / multiple * multiple; }

// Appends the part of `range` within [begin, end), if there is any.
void AppendWithin(const GroupRange& range, int64_t begin, int64_t end, std::vector<GroupRange>& to) {
  const GroupRange part = {std::max(range.begin, begin), std::min(range.end, end), range.group};
  if (part.begin < part.end) to.push_back(part);
}

}  // namespace

std::optional<BlobTensor> TokenTable(const ModelSpec& model) {
  for (const BlobUse& use : model.layers.front().blobs) {
    const BlobSpec& blob = model.blob(use.blob);
    for (const TensorSpec& tensor : blob.tensors) {
      if (tensor.role == TensorRole::kTokenTable && !blob.frozen) return BlobTensor{blob.id, &tensor};
    }
  }
  return std::nullopt;
}

ChunkParts PartsOf(const BlobSpec& blob, const TensorSpec& table, int64_t chunk, absl::Span<const GroupRange> ranges,
                   const RowsRead& rows) {
  const int64_t first = chunk * kChunkElems, end = first + blob.chunk_elems(chunk);
  const int64_t row_elems = table.shape[1];
  const int64_t first_row = std::clamp<int64_t>((first - table.offset_elems) / row_elems, 0, table.shape[0]);
  const int64_t end_row =
      std::clamp<int64_t>((end - table.offset_elems + row_elems - 1) / row_elems, first_row, table.shape[0]);
  // From the chunk's start on, in whole units.
  std::vector<std::pair<int64_t, int64_t>> unread;
  for (int64_t row = first_row; row < end_row;) {
    int64_t behind = row;
    while (behind < end_row && !rows.IsRead(behind)) ++behind;
    const int64_t from = std::max(first, table.offset_elems + row * row_elems) - first;
    const int64_t to = std::min(end, table.offset_elems + behind * row_elems) - first;
    const int64_t aligned_from = RoundUp(from, kTensorAlignElems), aligned_to = RoundDown(to, kTensorAlignElems);
    if (aligned_from < aligned_to) unread.emplace_back(aligned_from, aligned_to);
    row = behind + 1;
  }
  ChunkParts parts;
  for (const GroupRange& range : ranges) {
    int64_t done = range.begin;
    for (const auto& [from, to] : unread) {
      AppendWithin(range, done, from, parts.rest);
      AppendWithin(range, from, to, parts.unread);
      done = std::max(done, to);
    }
    AppendWithin(range, done, range.end, parts.rest);
  }
  return parts;
}

std::optional<NonzeroValue> NonzeroOfEmbedding(const ChunkGradient& whole, absl::Span<const GroupRange> unread) {
  for (const GradientOperand& operand : whole.operands) {
    if (operand.use != 0) continue;
    const auto is_zero = [&](int64_t begin, int64_t end) {
      const int64_t elem_bytes = SizeOf(operand.dtype);
      return memcmp(operand.values + begin * elem_bytes, zeros, static_cast<size_t>((end - begin) * elem_bytes)) == 0;
    };
    for (const GroupRange& range : unread) {
      if (is_zero(range.begin, range.end)) continue;
      int64_t elem = range.begin;
      // Bounded: what is read in an inbox a worker that errs may change meanwhile.
      while (elem + kTensorAlignElems < range.end && is_zero(elem, elem + kTensorAlignElems)) elem += kTensorAlignElems;
      return NonzeroValue{operand.node, elem};
    }
  }
  return std::nullopt;
}

ChunkGradient WithoutEmbedding(ChunkGradient of_head) {
  // In the head's, as sums of one type are the fastest.
  const Dtype dtype = of_head.operands.empty() ? Dtype::kF32 : of_head.operands.front().dtype;
  of_head.program.push_back({SumOp::Kind::kLoad, static_cast<int>(of_head.operands.size())});
  if (!of_head.operands.empty()) of_head.program.push_back({SumOp::Kind::kAdd, 0});
  of_head.operands.push_back({dtype, zeros, {}, 0});
  return of_head;
}

bool UnreadRows::Begin(int64_t chunk) {
  Chunk& found = chunks_.at(chunk);
  if (found.state != State::kQueued) return false;
  found.state = State::kRuns;
  return true;
}

std::optional<ChunkGradient> UnreadRows::End(int64_t chunk) {
  Chunk& found = chunks_.at(chunk);
  EPS_CHECK(found.state == State::kRuns);
  found.state = State::kDone;
  return std::exchange(found.parked, std::nullopt);
}

UnreadRows::Arrival UnreadRows::Arrive(int64_t chunk, ChunkGradient& gradient) {
  if (rows_ == nullptr) return Arrival::kWhole;
  Chunk& found = chunks_.try_emplace(chunk, Chunk{State::kOvertaken, std::nullopt}).first->second;
  switch (found.state) {
    case State::kDone:
      return Arrival::kRest;
    case State::kRuns:
      found.parked = std::move(gradient);
      return Arrival::kParked;
    case State::kQueued:
    case State::kOvertaken:
      break;
  }
  found.state = State::kOvertaken;
  return Arrival::kWhole;
}

}  // namespace eps::server
