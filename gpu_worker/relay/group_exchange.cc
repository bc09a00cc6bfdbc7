#include "gpu_worker/relay/group_exchange.h"

#include <cstdint>
#include <optional>

#include "absl/types/span.h"
#include "common/schedule/reduction_tree.h"

namespace eps::worker {
namespace {

Exchange EmptyExchange(int size) {
  Exchange exchange;
  exchange.gives.resize(static_cast<size_t>(size));
  exchange.gets.resize(static_cast<size_t>(size));
  return exchange;
}

template <typename Byte>
absl::Span<Byte> Bytes(Byte* base, GroupParts::SlotBytes bytes) {
  return absl::Span<Byte>(base + bytes.first, static_cast<size_t>(bytes.count));
}
template <typename Byte>
absl::Span<Byte> Elems(Byte* base, int64_t first, int64_t count, int64_t elem_bytes) {
  return Bytes(base, {.first = first * elem_bytes, .count = count * elem_bytes});
}

}  // namespace

Exchange ExchangeWeights(const GroupParts& parts, LayerId layer, Dtype wire, std::byte* slot) {
  Exchange exchange = EmptyExchange(parts.size());
  for (int rank = 0; rank < parts.size(); ++rank) {
    if (rank == parts.rank()) continue;
    const auto at = static_cast<size_t>(rank);
    for (const GroupParts::Piece& own : parts.WeightPiecesOf(layer, parts.rank())) {
      exchange.gives[at].push_back(Bytes<const std::byte>(slot, parts.BytesOf(own, wire)));
    }
    for (const GroupParts::Piece& other : parts.WeightPiecesOf(layer, rank)) {
      exchange.gets[at].push_back(Bytes(slot, parts.BytesOf(other, wire)));
    }
  }
  return exchange;
}

Exchange ExchangeGradients(const GroupParts& parts, LayerId layer, int round, const std::byte* push, std::byte* area,
                           std::byte* flags) {
  constexpr int64_t kElemBytes = sizeof(float), kFlagBytes = sizeof(int32_t);
  Exchange exchange = EmptyExchange(parts.size());
  const std::optional<TreeNode> own = parts.Node(parts.rank(), round);
  for (int rank = 0; rank < parts.size(); ++rank) {
    if (rank == parts.rank()) continue;
    const auto at = static_cast<size_t>(rank);
    if (own.has_value()) {
      for (const GroupParts::Piece& piece : parts.PiecesOf(layer, rank)) {
        exchange.gives[at].push_back(Elems(push, piece.slot_elem, piece.num_elems, kElemBytes));
      }
      exchange.gives[at].push_back(Elems<const std::byte>(flags, own->first, own->count, kFlagBytes));
    }
    if (const std::optional<TreeNode> node = parts.Node(rank, round); node.has_value()) {
      const int64_t place = parts.AreaElem(layer, rank, round);
      for (const GroupParts::Piece& piece : parts.PiecesOf(layer, parts.rank())) {
        exchange.gets[at].push_back(Elems(area, place + piece.packed_elem, piece.num_elems, kElemBytes));
      }
      exchange.gets[at].push_back(Elems(flags, node->first, node->count, kFlagBytes));
    }
  }
  return exchange;
}

}  // namespace eps::worker
