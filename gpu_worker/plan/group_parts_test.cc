#include "gpu_worker/plan/group_parts.h"

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/schedule/pushed_nodes.h"
#include "common/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace eps::worker {
namespace {

using absl::StatusCode;

// The embedding has 3 chunks, a block 2 and some, ln_f one.
ModelSpec SmallModel() {
  return BuildModel({.num_layers = 2, .d_model = 200, .num_heads = 4, .context = 64, .vocab = 3001}).value();
}

GroupVnodes EvenGroup(int num_vnodes, int size, int rank) {
  return {.group = 1, .rank = rank, .vnodes = EvenShares(num_vnodes, size)};
}

GroupBounds BoundsFor(const ModelSpec& model, int num_vnodes, int64_t max_leaves, Dtype gradients = Dtype::kF32) {
  GroupBounds bounds = {.num_vnodes = num_vnodes,
                        .max_pass_vnodes = num_vnodes,
                        .max_subtree_leaves = max_leaves,
                        .gradients = gradients};
  bounds.area_elems = GroupAreaElems(model, 8, bounds);
  return bounds;
}

// Values whose sums depend on their order.
float Leaf(int vnode) {
  return static_cast<float>(vnode % 5 - 2) * 0.1f + static_cast<float>(1 << (vnode % 13)) / 3.0f;
}

float TreeSum(TreeNode node) {
  if (node.is_leaf()) return Leaf(node.first);
  const int left = LeftLeaves(node.count);
  return TreeSum({node.first, left}) + TreeSum({node.first + left, node.count - left});
}

TEST(GroupPartsTest, ThePartsOfAllMembersAreTheLayerOnce) {
  const ModelSpec model = SmallModel();
  for (int size = 2; size <= 8; ++size) {
    const GroupBounds bounds = BoundsFor(model, 16, 16);
    ASSERT_OK_AND_ASSIGN(const GroupParts parts, GroupParts::Make(model, EvenGroup(16, size, 0), bounds));
    for (const LayerSpec& layer : model.layers) {
      std::map<int64_t, int64_t> covered;  // slot element -> elements
      int64_t total = 0;
      for (int rank = 0; rank < size; ++rank) {
        int64_t packed = 0;
        for (const GroupParts::Piece& piece : parts.PiecesOf(layer.id, rank)) {
          EXPECT_EQ(piece.packed_elem, packed);
          EXPECT_EQ(piece.slot_elem % 64, 0);
          EXPECT_EQ(piece.packed_elem % 64, 0);
          EXPECT_GT(piece.num_elems, 0);
          packed += piece.num_elems;
          EXPECT_TRUE(covered.emplace(piece.slot_elem, piece.num_elems).second);
        }
        EXPECT_EQ(parts.PartElems(layer.id, rank), packed);
        total += packed;
      }
      int64_t end = 0, blob_elems = 0;
      for (const auto& [first, elems] : covered) {
        EXPECT_GE(first, end) << "parts overlap";
        end = first + elems;
      }
      for (const BlobUse& use : layer.blobs) blob_elems += model.blob(use.blob).num_elems;
      EXPECT_EQ(total, blob_elems) << layer.name << " of " << size;
    }
  }
}

TEST(GroupPartsTest, WhatIsFrozenIsPulledInPartsAndIsNoPartOfWhatIsPushed) {
  ModelConfig config = SmallModel().config;
  config.freeze = {"transformer.wte.weight", "transformer.h.0.*", "transformer.h.1.mlp.*"};
  const ModelSpec model = BuildModel(config).value();
  ASSERT_OK_AND_ASSIGN(const GroupParts parts, GroupParts::Make(model, EvenGroup(16, 3, 0), BoundsFor(model, 16, 16)));
  for (const LayerSpec& layer : model.layers) {
    int64_t pushed = 0, pulled = 0;
    for (int rank = 0; rank < 3; ++rank) {
      pushed += parts.PartElems(layer.id, rank);
      for (const GroupParts::Piece& piece : parts.PiecesOf(layer.id, rank)) {
        EXPECT_FALSE(model.blob(piece.use.blob).frozen);
        EXPECT_LE(piece.slot_elem + piece.num_elems, layer.trainable_elems);
      }
      for (const GroupParts::Piece& piece : parts.WeightPiecesOf(layer.id, rank)) pulled += piece.num_elems;
    }
    EXPECT_EQ(pushed, layer.trainable_elems) << layer.name;
    EXPECT_EQ(pulled, layer.num_elems) << layer.name;
  }
}

// Carries the exchange of one element out: each member's nodes come together in a member's area and are added up.
TEST(GroupPartsTest, TheSumsAreTheTreesToTheBit) {
  const ModelSpec model = SmallModel();
  int carried = 0;
  for (int num_vnodes = 2; num_vnodes <= 20; ++num_vnodes) {
    for (int size = 2; size <= std::min(8, num_vnodes); ++size) {
      for (int64_t max_leaves = 1; max_leaves <= 32; max_leaves *= 2) {
        const GroupBounds bounds = BoundsFor(model, num_vnodes, max_leaves);
        ASSERT_OK_AND_ASSIGN(const GroupParts parts,
                             GroupParts::Make(model, EvenGroup(num_vnodes, size, size - 1), bounds));
        std::map<int64_t, float> area;  // by place
        const auto at = [&](int rank, int round) -> float& {
          return area[parts.AreaElem(model.layers[1].id, rank, round)];
        };
        for (int rank = 0; rank < size; ++rank) {
          for (int round = 0; round < parts.rounds(); ++round) {
            const std::optional<TreeNode> node = parts.Node(rank, round);
            if (!node.has_value()) continue;
            EXPECT_LE(node->count, max_leaves);
            at(rank, round) = TreeSum(*node);
          }
        }
        const auto num_nodes = static_cast<int64_t>(area.size());
        EXPECT_LE(num_nodes * parts.PartElems(model.layers[1].id, size - 1), bounds.area_elems);
        for (const GroupParts::Sum& sum : parts.sums()) {
          at(sum.left.rank, sum.left.round) += at(sum.right.rank, sum.right.round);
        }
        ASSERT_EQ(parts.roots().size(), 1u) << "together they hold all";
        const GroupParts::Root root = parts.roots().front();
        EXPECT_EQ(root.node, (TreeNode{0, num_vnodes}));
        const float got = at(root.place.rank, root.place.round), want = TreeSum(root.node);
        EXPECT_EQ(std::memcmp(&got, &want, sizeof(got)), 0) << num_vnodes << " vnodes, " << size << " members";
        ++carried;
      }
    }
  }
  EXPECT_GT(carried, 500);
}

TEST(GroupPartsTest, OfSomeOfTheVnodesTheLargestSubtreesArePushed) {
  const ModelSpec model = SmallModel();
  const GroupBounds bounds = BoundsFor(model, 8, 8);
  ASSERT_OK_AND_ASSIGN(const GroupParts parts,
                       GroupParts::Make(model, {.group = 1, .rank = 1, .vnodes = {{0, 1, 2}, {3, 6, 7}}}, bounds));
  ASSERT_EQ(parts.roots().size(), 2u);
  EXPECT_EQ(parts.roots()[0].node, (TreeNode{0, 4}));
  EXPECT_EQ(parts.roots()[1].node, (TreeNode{6, 2}));
  EXPECT_EQ(parts.rounds(), 2);
  EXPECT_EQ(parts.Node(0, 0), (TreeNode{0, 2}));
  EXPECT_EQ(parts.Node(1, 1), (TreeNode{6, 2}));
  EXPECT_EQ(parts.Node(0, 2), std::nullopt);
  EXPECT_EQ(parts.sums().size(), 2u);  // 2 += 3, {0, 1} += {2, 3}
}

TEST(GroupPartsTest, AllMembersComeToTheSameAnswer) {
  const ModelSpec model = SmallModel();
  GroupBounds bounds = BoundsFor(model, 6, 2, Dtype::kBf16);
  for (int rank = 0; rank < 3; ++rank) {
    // A vnode whose sibling is not in the group would leave in 16 bits.
    EXPECT_THAT(GroupParts::Make(model, {.group = 1, .rank = rank, .vnodes = {{0, 1}, {2}, {4, 5}}}, bounds).status(),
                StatusIs(StatusCode::kFailedPrecondition, "virtual node 2 would be pushed by itself"));
    EXPECT_THAT(
        GroupParts::Make(model, {.group = 1, .rank = rank, .vnodes = {{0, 1, 2}, {}, {3, 4, 5}}}, bounds).status(),
        StatusIs(StatusCode::kFailedPrecondition, "member 1 has 0 virtual nodes"));
    GroupBounds small = bounds;
    small.area_elems /= 8;
    EXPECT_THAT(GroupParts::Make(model, EvenGroup(6, 3, rank), small).status(),
                StatusIs(StatusCode::kFailedPrecondition, "the group area has"));
    small = bounds;
    small.max_pass_vnodes = 1;
    EXPECT_THAT(GroupParts::Make(model, EvenGroup(6, 3, rank), small).status(),
                StatusIs(StatusCode::kFailedPrecondition, "must be 1 to 1"));
    EXPECT_OK(GroupParts::Make(model, EvenGroup(6, 3, rank), bounds).status());
  }
}

TEST(GroupPartsTest, WhatMakesNoSenseIsRefusedByField) {
  const ModelSpec model = SmallModel();
  const GroupBounds bounds = BoundsFor(model, 4, 4);
  EXPECT_THAT(GroupParts::Make(model, {.group = 1, .rank = 2, .vnodes = {{0}, {1}}}, bounds).status(),
              StatusIs(StatusCode::kInvalidArgument, "assign.group.rank: 2, want 0 to 1"));
  EXPECT_THAT(GroupParts::Make(model, {.group = 1, .rank = 0, .vnodes = {{0, 4}, {1}}}, bounds).status(),
              StatusIs(StatusCode::kInvalidArgument, "assign.group.members[0].vnodes: 4 after 0"));
  EXPECT_THAT(GroupParts::Make(model, {.group = 1, .rank = 0, .vnodes = {{1, 0}, {2}}}, bounds).status(),
              StatusIs(StatusCode::kInvalidArgument, "assign.group.members[0].vnodes: 0 after 1"));
  EXPECT_THAT(GroupParts::Make(model, {.group = 1, .rank = 0, .vnodes = {{0, 1}, {1}}}, bounds).status(),
              StatusIs(StatusCode::kInvalidArgument, "assign.group.members[1].vnodes: 1 after -1"));
}

// Members' parts of a layer's weights lie beside each other in its slot, and are the slot.
TEST(GroupPartsTest, PartsOfWeightsFillTheSlotAlsoWhereSomeAreQuantized) {
  const ModelSpec model = BuildModel({.num_layers = 1,
                                      .d_model = 300,
                                      .num_heads = 2,
                                      .context = 64,
                                      .vocab = 9001,
                                      .freeze = {"transformer.h.0.mlp.*"},
                                      .frozen_format = QuantizedFormat::kMxInt8})
                              .value();
  ASSERT_GE(model.blob(model.layers[1].blobs.back().blob).num_chunks(), 3);
  for (const Dtype wire : {Dtype::kBf16, Dtype::kF32}) {
    std::vector<GroupParts> members;
    for (int rank = 0; rank < 2; ++rank) {
      members.push_back(GroupParts::Make(model, {.group = 1, .rank = rank, .vnodes = {{0}, {1}}},
                                         {.num_vnodes = 2, .area_elems = int64_t{1} << 30})
                            .value());
    }
    for (const LayerSpec& layer : model.layers) {
      std::map<int64_t, int64_t> ends;  // by where a piece begins
      int64_t all = 0;
      for (int rank = 0; rank < 2; ++rank) {
        const GroupParts& member = members[static_cast<size_t>(rank)];
        for (const GroupParts::Piece& piece : member.WeightPiecesOf(layer.id, rank)) {
          const GroupParts::SlotBytes bytes = member.BytesOf(piece, wire);
          ends.emplace(bytes.first, bytes.first + bytes.count);
        }
        all += member.WeightPartBytes(layer.id, rank, wire);
      }
      EXPECT_EQ(all, model.wire_bytes(layer, wire));
      int64_t at = 0;
      for (const auto& [first, end] : ends) {
        EXPECT_EQ(first, at) << layer.name;
        at = end;
      }
      EXPECT_EQ(at, all);
    }
  }
}

// Parts shrink as members grow. Shares that are no subtrees are two nodes or three: so less than two layers, and a
// chunk more for each node and blob.
TEST(GroupPartsTest, TheAreaIsOneLayerToTwo) {
  const ModelSpec model =
      BuildModel({.num_layers = 1, .d_model = 1024, .num_heads = 8, .context = 64, .vocab = 9001}).value();
  const GroupBounds bounds = {.num_vnodes = 8, .max_pass_vnodes = 8, .max_subtree_leaves = 8};
  const int64_t layer = model.max_layer_bytes(Dtype::kF32) / int64_t{sizeof(float)};
  EXPECT_GE(GroupAreaElems(model, 8, bounds), layer);
  EXPECT_LE(GroupAreaElems(model, 8, bounds), 2 * layer + 8 * 2 * kChunkElems);
  EXPECT_EQ(GroupAreaElems(model, 1, bounds), 0);
}

}  // namespace
}  // namespace eps::worker
