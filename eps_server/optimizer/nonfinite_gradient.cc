#include "eps_server/optimizer/nonfinite_gradient.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/numeric/bf16.h"
#include "common/numeric/fp16.h"
#include "common/schedule/reduction_tree.h"
#include "common/tensor/dtype.h"

namespace eps::server {
namespace {

bool IsFiniteAt(const GradientOperand& operand, int64_t i) {
  if (operand.dtype == Dtype::kF32) return std::isfinite(reinterpret_cast<const float*>(operand.values)[i]);
  const uint16_t bits = reinterpret_cast<const uint16_t*>(operand.values)[i];
  return std::isfinite(operand.dtype == Dtype::kBf16 ? ToFloat(Bf16{bits}) : ToFloat(Fp16{bits}));
}

std::string TensorAt(const BlobSpec& blob, int64_t elem) {
  const auto after = std::find_if(blob.tensors.begin(), blob.tensors.end(),
                                  [elem](const TensorSpec& tensor) { return tensor.offset_elems > elem; });
  return std::prev(after)->name;
}

}  // namespace

std::string DescribeNonFinite(const BlobSpec& blob, int64_t chunk, const ChunkGradient& gradient) {
  if (gradient.nonfinite_vnode >= 0) return absl::StrCat("layer ", blob.name, ", vnode ", gradient.nonfinite_vnode);
  for (const GradientOperand& operand : gradient.operands) {
    for (int64_t i = 0; i < blob.chunk_elems(chunk); ++i) {
      if (IsFiniteAt(operand, i)) continue;
      const char* kind = operand.node.is_leaf() ? ", vnode " : ", one of vnodes ";
      const std::string nodes = operand.node.is_leaf() ? absl::StrCat(operand.node.first) : DebugString(operand.node);
      return absl::StrCat("layer ", blob.name, ", ", TensorAt(blob, chunk * kChunkElems + i), kind, nodes);
    }
  }
  return absl::StrCat("layer ", blob.name, ", the sum over the vnodes");
}

}  // namespace eps::server
