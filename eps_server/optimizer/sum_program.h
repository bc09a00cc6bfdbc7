#ifndef EPS_SERVER_OPTIMIZER_SUM_PROGRAM_H_
#define EPS_SERVER_OPTIMIZER_SUM_PROGRAM_H_

#include <vector>

#include "eps_server/optimizer/chunk_gradient.h"

namespace eps::server {

// 17 partial sums of 2^16 vnodes (the most of batch.virtual_nodes) + 1 root of the use before, and room; 4 KiB each.
inline constexpr int kMaxSumDepth = 24;

// A ChunkGradient's program with loads and adds joined where they follow each other. Same sums, in the same order.
struct FusedOp {
  enum class Kind {
    kLoad,     // push a
    kLoadAdd,  // push a + b
    kAddTo,    // top += a
    kAdd       // pop right, then top += right
  } kind;
  int a = 0;  // operands
  int b = 0;
};

struct FusedProgram {
  std::vector<FusedOp> ops;
  const GradientOperand* operands = nullptr;  // the gradient's
};

FusedProgram Fuse(const ChunkGradient& gradient);

}  // namespace eps::server

#endif  // EPS_SERVER_OPTIMIZER_SUM_PROGRAM_H_
