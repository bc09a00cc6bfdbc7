#ifndef EPS_COMMON_SCHEDULE_PUSHED_NODES_H_
#define EPS_COMMON_SCHEDULE_PUSHED_NODES_H_

#include <vector>

#include "absl/types/span.h"
#include "common/schedule/reduction_tree.h"
#include "common/tensor/dtype.h"

namespace eps {

// What leaves a device: sums over vnodes go in fp32, a single vnode's gradient in the run's dtype. A sum is only worth
// making where it is fewer bytes than its leaves: from three 16-bit leaves on, from two fp32 ones.
inline int LeastSummedLeaves(Dtype gradients) { return static_cast<int>(sizeof(float)) / SizeOf(gradients) + 1; }

inline Dtype PushedDtype(TreeNode node, Dtype gradients) { return node.is_leaf() ? gradients : Dtype::kF32; }

// What is pushed of the vnodes of a pass: the largest subtrees of at most `max_leaves` (the device's gradient slots
// allow no more), or their leaves. `vnodes` as LargestSubtrees' `held`; the result covers them, rising.
std::vector<TreeNode> PushedNodes(absl::Span<const int> vnodes, int num_vnodes, int max_leaves, Dtype gradients);

}  // namespace eps

#endif  // EPS_COMMON_SCHEDULE_PUSHED_NODES_H_
