#ifndef EPS_SERVER_OPTIMIZER_CHUNK_GRADIENT_H_
#define EPS_SERVER_OPTIMIZER_CHUNK_GRADIENT_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "common/schedule/reduction_tree.h"
#include "common/tensor/dtype.h"

namespace eps::server {

// One contribution to a chunk: as many elements as the chunk has, 64-byte aligned.
struct GradientOperand {
  Dtype dtype = Dtype::kF32;
  const std::byte* values = nullptr;
  TreeNode node;
  int use = 0;
};

// All contributions to one chunk and the order in which they are summed: each use's tree, then the
// roots in layer order.
struct ChunkGradient {
  std::vector<GradientOperand> operands;
  std::vector<SumOp> program;   // postfix, over `operands`; leaves one value
  int nonfinite_vnode = -1;     // the lowest that a worker reported; -1: none
  std::shared_ptr<void> owner;  // keeps the operands alive
};

}  // namespace eps::server

#endif  // EPS_SERVER_OPTIMIZER_CHUNK_GRADIENT_H_
