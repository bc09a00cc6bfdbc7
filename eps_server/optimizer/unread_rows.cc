#include "eps_server/optimizer/unread_rows.h"

#include <string.h>

#include <algorithm>

#include "common/base/byte_size.h"
#include "common/base/status_macros.h"
#include "common/tensor/dtype.h"

namespace eps::server {
namespace {

// Never written: pages of zeros that the system has once.
alignas(64) std::byte zeros[kChunkElems * sizeof(float)];

constexpr int64_t RoundDown(int64_t value, int64_t multiple) { return value / multiple * multiple; }

// Appends the part of `range` within [begin, end), if there is any.
void AppendWithin(const GroupRange& range, int64_t begin, int64_t end, std::vector<GroupRange>& to) {
  const GroupRange part = {std::max(range.begin, begin), std::min(range.end, end), range.group};
  if (part.begin < part.end) to.push_back(part);
}

}  // namespace

ChunkParts PartsOf(const BlobSpec& blob, const TensorSpec& table, int64_t chunk, absl::Span<const GroupRange> ranges,
                   const RowsRead& rows) {
  const int64_t first = chunk * kChunkElems, end = first + blob.chunk_elems(chunk);
  const int64_t row_elems = table.shape[1];
  const int64_t first_row = std::clamp<int64_t>((first - table.offset_elems) / row_elems, 0, table.shape[0]);
  const int64_t end_row =
      std::clamp<int64_t>((end - table.offset_elems + row_elems - 1) / row_elems, first_row, table.shape[0]);
  // From the chunk's start on; what rows that are read share with others goes with them.
  std::vector<std::pair<int64_t, int64_t>> unread;
  for (int64_t row = first_row; row < end_row;) {
    int64_t behind = row;
    while (behind < end_row && !rows.Has(behind)) ++behind;
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

const GradientOperand* NonzeroOfEmbedding(const ChunkGradient& whole, absl::Span<const GroupRange> unread) {
  for (const GradientOperand& operand : whole.operands) {
    if (operand.use != 0) continue;
    const int64_t elem_bytes = SizeOf(operand.dtype);
    for (const GroupRange& range : unread) {
      const auto num_bytes = static_cast<size_t>((range.end - range.begin) * elem_bytes);
      if (memcmp(operand.values + range.begin * elem_bytes, zeros, num_bytes) != 0) return &operand;
    }
  }
  return nullptr;
}

ChunkGradient WithoutEmbedding(ChunkGradient of_head) {
  // Of the same type as what is there, which has the fastest sums.
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
  return std::exchange(found.arrived, std::nullopt);
}

UnreadRows::What UnreadRows::Arrive(int64_t chunk, ChunkGradient& gradient) {
  if (rows_ == nullptr) return What::kWhole;
  Chunk& found = chunks_.try_emplace(chunk, Chunk{State::kWhole, {}}).first->second;
  switch (found.state) {
    case State::kDone:
      return What::kRest;
    case State::kRuns:
      found.arrived = std::move(gradient);
      return What::kLater;
    case State::kQueued:
    case State::kWhole:
      break;
  }
  found.state = State::kWhole;
  return What::kWhole;
}

}  // namespace eps::server
