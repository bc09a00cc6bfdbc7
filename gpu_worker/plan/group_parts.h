#ifndef EPS_GPU_WORKER_PLAN_GROUP_PARTS_H_
#define EPS_GPU_WORKER_PLAN_GROUP_PARTS_H_

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/model/model_spec.h"
#include "common/schedule/chunk_range.h"
#include "common/schedule/reduction_tree.h"
#include "common/schedule/vnode_batch.h"
#include "common/tensor/dtype.h"
#include "gpu_worker/plan/relay_plan.h"

namespace eps::worker {

// What a member gathers of its vnodes, each of which is one round: as PushedNodes, of fp32, in which they travel.
std::vector<TreeNode> GroupNodes(absl::Span<const int> vnodes, int num_vnodes, int max_leaves);

// What bounds a group, equal in all members.
struct GroupBounds {
  int num_vnodes = 1;       // of the run
  int max_pass_vnodes = 1;  // RelayPlan::max_pass_vnodes
  int64_t max_subtree_leaves = 1;
  int64_t area_elems = 0;  // of RelayPlan::group_area, fp32; 0: this worker forms no groups
  Dtype gradients = Dtype::kF32;
};
// Of the groups of workers with that plan. gradients: the run's.
GroupBounds BoundsOf(const RelayPlan& plan, Dtype gradients);

// Who gives what to whom, so that each member ends with the group's sum of its part of every layer.
//
// A member's part of a blob are its chunks PartOf(chunks, rank, size), and of a layer its parts of the layer's blobs;
// of gradients, of those that are not frozen. For each layer, each member gathers its vnodes into nodes of the
// reduction tree as it does alone, and each node is one round: in round k every member that has a k-th node gives every
// other member that one's part of it. What a member gets lies in its group area, one place a node in tree order, and it
// adds them up as the tree says. So the bits are those of the daemon's own sum, whatever the members are, and nothing
// is exchanged twice.
//
// Bytes: in fp32, as single vnodes too: (n - 1) / n of a layer a node and member, each way.
//
// Threads: never changes after Make; safe
class GroupParts {
 public:
  // Errors: FAILED_PRECONDITION this group cannot carry this step, and why: each member goes alone then, as all of them
  //         come to the same answer · INVALID_ARGUMENT the daemon's words make no sense: naming the field
  static absl::StatusOr<GroupParts> Make(const ModelSpec& model, GroupVnodes group, const GroupBounds& bounds);

  int rank() const { return group_.rank; }
  int size() const { return group_.size(); }
  int rounds() const { return rounds_; }
  // The k-th node that `rank` gathers; none when it has fewer.
  std::optional<TreeNode> Node(int rank, int round) const;

  // A part of one blob, in a layer. Elements are of gradients; of weights BytesOf says where they lie.
  struct Piece {
    BlobUse use;
    ChunkRange chunks;        // of the blob; never empty
    int64_t slot_elem = 0;    // where it begins in the layer's slot
    int64_t packed_elem = 0;  // and where among the pieces of this part, one behind the other
    int64_t num_elems = 0;
  };
  // What is pushed: of the blobs that are not frozen.
  std::vector<Piece> PiecesOf(LayerId layer, int rank) const;
  // What is pulled: of all blobs.
  std::vector<Piece> WeightPiecesOf(LayerId layer, int rank) const;
  // Of PiecesOf.
  int64_t PartElems(LayerId layer, int rank) const;
  // Where a piece begins in the layer's weight slot, and how long it is there. wire: precision.wire
  struct SlotBytes {
    int64_t first = 0, count = 0;
  };
  SlotBytes BytesOf(const Piece& piece, Dtype wire) const;
  // Of WeightPiecesOf.
  int64_t WeightPartBytes(LayerId layer, int rank, Dtype wire) const;
  // Where the node of (rank, round) lies in this member's group area, in elements.
  int64_t AreaElem(LayerId layer, int rank, int round) const;

  // The sums that are left once every node is there, in order: left += right, both by rank and round.
  struct Place {
    int rank = 0, round = 0;
  };
  struct Sum {
    Place left, right;
  };
  const std::vector<Sum>& sums() const { return sums_; }
  // What is pushed then: the largest subtrees that the group holds together, and where each lies.
  struct Root {
    TreeNode node;
    Place place;
  };
  const std::vector<Root>& roots() const { return roots_; }

 private:
  GroupParts(const ModelSpec& model, GroupVnodes group) : model_(&model), group_(std::move(group)) {}
  std::vector<Piece> Pieces(LayerId layer, int rank, bool with_frozen) const;
  // Sums `node`'s parts; none: the group does not hold all of it.
  std::optional<Place> Gather(TreeNode node);

  const ModelSpec* model_;
  GroupVnodes group_;
  std::vector<std::vector<TreeNode>> nodes_;  // by rank
  std::vector<std::vector<int64_t>> places_;  // by rank and round: which in tree order
  int rounds_ = 0;
  std::vector<Sum> sums_;
  std::vector<Root> roots_;
};

// The vnodes of each of `size` workers that share all of a run's, as the daemon shares them out.
std::vector<std::vector<int>> EvenShares(int num_vnodes, int size);

// The group area of a worker whose groups have at most `max_members`, with even shares of the vnodes: fp32 elements.
int64_t GroupAreaElems(const ModelSpec& model, int max_members, const GroupBounds& bounds);

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_PLAN_GROUP_PARTS_H_
