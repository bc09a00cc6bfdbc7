#include "eps_server/optimizer/sum_program.h"

#include <cstddef>

#include "common/base/status_macros.h"
#include "common/schedule/reduction_tree.h"

namespace eps::server {

FusedProgram Fuse(const ChunkGradient& gradient) {
  FusedProgram fused;
  fused.operands = gradient.operands.data();
  const std::vector<SumOp>& program = gradient.program;
  const auto is = [&](size_t i, SumOp::Kind kind) { return i < program.size() && program[i].kind == kind; };
  int depth = 0;
  for (size_t i = 0; i < program.size();) {
    if (is(i, SumOp::Kind::kAdd)) {
      fused.ops.push_back({FusedOp::Kind::kAdd});
      --depth;
      ++i;
    } else if (is(i + 1, SumOp::Kind::kLoad) && is(i + 2, SumOp::Kind::kAdd)) {
      fused.ops.push_back({FusedOp::Kind::kLoadAdd, program[i].operand, program[i + 1].operand});
      ++depth;
      i += 3;
    } else if (depth > 0 && is(i + 1, SumOp::Kind::kAdd)) {
      fused.ops.push_back({FusedOp::Kind::kAddTo, program[i].operand});
      i += 2;
    } else {
      fused.ops.push_back({FusedOp::Kind::kLoad, program[i].operand});
      ++depth;
      ++i;
    }
    EPS_CHECK(depth >= 1 && depth <= kMaxSumDepth);
  }
  EPS_CHECK(depth == 1);
  return fused;
}

}  // namespace eps::server
