#ifndef EPS_SERVER_AGGREGATION_COVERAGE_H_
#define EPS_SERVER_AGGREGATION_COVERAGE_H_

#include <memory>
#include <vector>

#include "common/schedule/reduction_tree.h"
#include "common/tensor/dtype.h"
#include "eps_server/aggregation/chunk_pool.h"

namespace eps::server {

// One contribution to one chunk that is held.
struct HeldContribution {
  TreeNode node;
  Dtype dtype = Dtype::kF32;
  int nonfinite_vnode = -1;
  ChunkBuffer buffer;
};

// Which nodes of the reduction tree are there for one (step, blob, use, chunk): disjoint, by rising
// first vnode.
//
// Threads: none of its own; the owner guards it.
class Coverage {
 public:
  // `node` or an ancestor is there.
  bool Covers(TreeNode node) const;
  bool Covers(int vnode) const { return Covers(TreeNode{vnode, 1}); }
  // All of 0..num_vnodes - 1 is there.
  bool IsWhole(int num_vnodes) const { return whole_ || covered_leaves_ == num_vnodes; }

  // Whether all would be there with `node`, which is not covered.
  bool IsWholeWith(TreeNode node, int num_vnodes) const;

  // Adds what is not covered and drops the descendants that it replaces; returns how many.
  int Add(HeldContribution contribution);

  // By rising first vnode.
  const std::vector<HeldContribution>& held() const { return held_; }
  // Takes everything out; covered whole from now on.
  std::vector<HeldContribution> Consume();

 private:
  std::vector<HeldContribution> held_;
  int covered_leaves_ = 0;
  bool whole_ = false;
};

}  // namespace eps::server

#endif  // EPS_SERVER_AGGREGATION_COVERAGE_H_
