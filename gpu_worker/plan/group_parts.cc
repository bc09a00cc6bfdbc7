#include "gpu_worker/plan/group_parts.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/schedule/pushed_nodes.h"

namespace eps::worker {
namespace {

absl::Status CheckVnodes(const GroupVnodes& group, int num_vnodes) {
  if (group.rank < 0 || group.rank >= group.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("assign.group.rank: ", group.rank, ", want 0 to ", group.size() - 1));
  }
  std::vector<bool> held(static_cast<size_t>(num_vnodes), false);
  for (int rank = 0; rank < group.size(); ++rank) {
    int last = -1;
    for (const int vnode : group.vnodes[static_cast<size_t>(rank)]) {
      if (vnode <= last || vnode >= num_vnodes || held[static_cast<size_t>(vnode)]) {
        return absl::InvalidArgumentError(absl::StrCat("assign.group.members[", rank, "].vnodes: ", vnode, " after ",
                                                       last, ", must rise, be below ", num_vnodes,
                                                       " and one member's alone"));
      }
      held[static_cast<size_t>(vnode)] = true;
      last = vnode;
    }
  }
  return absl::OkStatus();
}

int64_t PartElemsOf(const ModelSpec& model, const LayerSpec& layer, int rank, int size) {
  int64_t elems = 0;
  for (const BlobUse& use : layer.blobs) {
    const BlobSpec& blob = model.blob(use.blob);
    if (blob.frozen) continue;
    elems += blob.part_elems(PartOf(blob.num_chunks(), rank, size));
  }
  return elems;
}

// Of the member and the layer that need most.
int64_t MostAreaElems(const ModelSpec& model, int size, int64_t num_nodes) {
  int64_t most = 0;
  for (const LayerSpec& layer : model.layers) {
    for (int rank = 0; rank < size; ++rank) {
      most = std::max(most, num_nodes * PartElemsOf(model, layer, rank, size));
    }
  }
  return most;
}

}  // namespace

GroupBounds BoundsOf(const RelayPlan& plan, Dtype gradients) {
  return {.num_vnodes = plan.num_vnodes,
          .max_pass_vnodes = plan.max_pass_vnodes,
          .max_subtree_leaves = plan.max_subtree_leaves(),
          .area_elems = plan.group_area.num_bytes / int64_t{sizeof(float)},
          .gradients = gradients};
}

std::vector<TreeNode> GroupNodes(absl::Span<const int> vnodes, int num_vnodes, int max_leaves) {
  return PushedNodes(vnodes, num_vnodes, max_leaves, Dtype::kF32);
}

absl::StatusOr<GroupParts> GroupParts::Make(const ModelSpec& model, GroupVnodes group, const GroupBounds& bounds) {
  EPS_RETURN_IF_ERROR(CheckVnodes(group, bounds.num_vnodes));
  GroupParts parts(model, std::move(group));
  const int most_leaves = static_cast<int>(std::min<int64_t>(bounds.max_subtree_leaves, bounds.num_vnodes));
  std::vector<std::pair<TreeNode, Place>> in_order;
  std::vector<int> all;
  for (int rank = 0; rank < parts.size(); ++rank) {
    const std::vector<int>& vnodes = parts.group_.vnodes[static_cast<size_t>(rank)];
    if (vnodes.empty() || static_cast<int>(vnodes.size()) > bounds.max_pass_vnodes) {
      return absl::FailedPreconditionError(absl::StrCat("member ", rank, " has ", vnodes.size(),
                                                        " virtual nodes, must be 1 to ", bounds.max_pass_vnodes,
                                                        ", what a pass takes"));
    }
    all.insert(all.end(), vnodes.begin(), vnodes.end());
    parts.nodes_.push_back(GroupNodes(vnodes, bounds.num_vnodes, most_leaves));
    const int rounds = static_cast<int>(parts.nodes_.back().size());
    parts.rounds_ = std::max(parts.rounds_, rounds);
    parts.places_.emplace_back(static_cast<size_t>(rounds));
    for (int round = 0; round < rounds; ++round) {
      in_order.push_back({parts.nodes_.back()[static_cast<size_t>(round)], {rank, round}});
    }
  }
  std::sort(in_order.begin(), in_order.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (size_t i = 0; i < in_order.size(); ++i) {
    const Place place = in_order[i].second;
    parts.places_[static_cast<size_t>(place.rank)][static_cast<size_t>(place.round)] = static_cast<int64_t>(i);
  }
  const int64_t area = MostAreaElems(model, parts.size(), static_cast<int64_t>(in_order.size()));
  if (area > bounds.area_elems) {
    return absl::FailedPreconditionError(absl::StrCat(in_order.size(), " nodes of ", parts.size(), " members take ",
                                                      area, " elements, the group area has ", bounds.area_elems));
  }
  std::sort(all.begin(), all.end());
  for (const TreeNode node : LargestSubtrees(all, bounds.num_vnodes, bounds.num_vnodes)) {
    if (PushedDtype(node, bounds.gradients) != Dtype::kF32) {
      return absl::FailedPreconditionError(
          absl::StrCat("virtual node ", node.first, " would be pushed by itself: nothing to sum"));
    }
    const std::optional<Place> place = parts.Gather(node);
    EPS_CHECK(place.has_value());
    parts.roots_.push_back({node, *place});
  }
  return parts;
}

std::optional<TreeNode> GroupParts::Node(int rank, int round) const {
  EPS_CHECK(round >= 0);
  const std::vector<TreeNode>& nodes = nodes_[static_cast<size_t>(rank)];
  if (round >= static_cast<int>(nodes.size())) return std::nullopt;
  return nodes[static_cast<size_t>(round)];
}

std::vector<GroupParts::Piece> GroupParts::PiecesOf(LayerId layer, int rank) const {
  return Pieces(layer, rank, /*with_frozen=*/false);
}
std::vector<GroupParts::Piece> GroupParts::WeightPiecesOf(LayerId layer, int rank) const {
  return Pieces(layer, rank, /*with_frozen=*/true);
}

std::vector<GroupParts::Piece> GroupParts::Pieces(LayerId layer, int rank, bool with_frozen) const {
  std::vector<Piece> pieces;
  int64_t packed = 0;
  for (const BlobUse& use : model_->layer(layer).blobs) {
    const BlobSpec& blob = model_->blob(use.blob);
    if (blob.frozen && !with_frozen) continue;
    const ChunkRange chunks = PartOf(blob.num_chunks(), rank, size());
    if (chunks.empty()) continue;
    const int64_t elems = blob.part_elems(chunks);
    pieces.push_back({.use = use,
                      .chunks = chunks,
                      .slot_elem = use.offset_elems + blob.part_first_elem(chunks),
                      .packed_elem = packed,
                      .num_elems = elems});
    packed += elems;
  }
  return pieces;
}

int64_t GroupParts::PartElems(LayerId layer, int rank) const {
  return PartElemsOf(*model_, model_->layer(layer), rank, size());
}
GroupParts::SlotBytes GroupParts::BytesOf(const Piece& piece, Dtype wire) const {
  const BlobSpec& blob = model_->blob(piece.use.blob);
  return {.first = ModelSpec::first_wire_byte(piece.use, wire) + blob.part_first_byte(piece.chunks, wire),
          .count = blob.part_bytes(piece.chunks, wire)};
}
int64_t GroupParts::WeightPartBytes(LayerId layer, int rank, Dtype wire) const {
  int64_t num_bytes = 0;
  for (const Piece& piece : WeightPiecesOf(layer, rank)) num_bytes += BytesOf(piece, wire).count;
  return num_bytes;
}

int64_t GroupParts::AreaElem(LayerId layer, int rank, int round) const {
  return places_[static_cast<size_t>(rank)][static_cast<size_t>(round)] * PartElems(layer, group_.rank);
}

std::optional<GroupParts::Place> GroupParts::Gather(TreeNode node) {
  for (int rank = 0; rank < size(); ++rank) {
    const std::vector<TreeNode>& nodes = nodes_[static_cast<size_t>(rank)];
    const auto found = std::find(nodes.begin(), nodes.end(), node);
    if (found != nodes.end()) return Place{rank, static_cast<int>(found - nodes.begin())};
  }
  if (node.is_leaf()) return std::nullopt;
  const int left_leaves = LeftLeaves(node.count);
  const std::optional<Place> left = Gather({node.first, left_leaves});
  const std::optional<Place> right = Gather({node.first + left_leaves, node.count - left_leaves});
  if (!left.has_value() || !right.has_value()) return std::nullopt;
  sums_.push_back({*left, *right});
  return left;
}

std::vector<std::vector<int>> EvenShares(int num_vnodes, int size) {
  std::vector<std::vector<int>> shares(static_cast<size_t>(size));
  for (int rank = 0; rank < size; ++rank) {
    const ChunkRange share = PartOf(num_vnodes, rank, size);
    for (int64_t vnode = share.first; vnode < share.end(); ++vnode) {
      shares[static_cast<size_t>(rank)].push_back(static_cast<int>(vnode));
    }
  }
  return shares;
}

int64_t GroupAreaElems(const ModelSpec& model, int max_members, const GroupBounds& bounds) {
  const int most_leaves = static_cast<int>(std::min<int64_t>(bounds.max_subtree_leaves, bounds.num_vnodes));
  int64_t most = 0;
  for (int size = 2; size <= std::min(max_members, bounds.num_vnodes); ++size) {
    int64_t num_nodes = 0;
    for (const std::vector<int>& vnodes : EvenShares(bounds.num_vnodes, size)) {
      num_nodes += static_cast<int64_t>(GroupNodes(vnodes, bounds.num_vnodes, most_leaves).size());
    }
    most = std::max(most, MostAreaElems(model, size, num_nodes));
  }
  return most;
}

}  // namespace eps::worker
