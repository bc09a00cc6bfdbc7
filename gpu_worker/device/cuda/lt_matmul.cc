#include "gpu_worker/device/cuda/lt_matmul.h"

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/tensor/dtype.h"
#include "gpu_worker/device/cuda/matmul_problem.h"

namespace eps::worker::cuda {
namespace {

constexpr int kVectorBytes = 16;

bool IsAligned(const void* start) { return reinterpret_cast<uintptr_t>(start) % kVectorBytes == 0; }

// `aligned`: what else has to be, of which the library is told nothing apart. One operand that is not makes no other slow.
void SetAlignment(LtMatrix& matrix, const void* start, bool aligned = true) {
  aligned = aligned && IsAligned(start) && matrix.ld * SizeOf(matrix.dtype) % kVectorBytes == 0;
  matrix.alignment_bytes = aligned ? kVectorBytes : static_cast<int>(SizeOf(matrix.dtype));
}

std::string TextOf(const LtMatrix& matrix, bool transposed) {
  const absl::string_view dtype = DtypeName(matrix.dtype);
  return absl::StrCat(dtype, "[", matrix.rows, "x", matrix.columns, "/", matrix.ld, "]", transposed ? "T" : "");
}

}  // namespace

LtShape LtShapeOf(const MatMulProblem& problem) {
  const MatMulProblem& p = problem;
  LtShape shape;
  // b is (K, N) in rows, so (N, K) in columns; transposed it is (N, K) in rows, so (K, N) in columns.
  shape.a = {p.operand_dtype, p.trans_b ? p.K : p.N, p.trans_b ? p.N : p.K, p.ldb};
  shape.b = {p.operand_dtype, p.trans_a ? p.M : p.K, p.trans_a ? p.K : p.M, p.lda};
  shape.d = {p.result_dtype, p.N, p.M, p.ldc};
  shape.trans_a = p.trans_b;
  shape.trans_b = p.trans_a;
  shape.has_addend = p.addend != nullptr;
  shape.has_bias = p.bias != nullptr;
  shape.tf32 = p.tf32;
  SetAlignment(shape.a, p.b, IsAligned(p.bias));
  SetAlignment(shape.b, p.a);
  SetAlignment(shape.d, p.c, IsAligned(p.addend));
  return shape;
}

std::string KeyOf(const LtShape& shape) {
  return absl::StrCat("matmul ", TextOf(shape.a, shape.trans_a), " * ", TextOf(shape.b, shape.trans_b), " -> ",
                      TextOf(shape.d, false), shape.has_addend ? " + C" : "", shape.has_bias ? " + bias" : "",
                      shape.tf32 ? ", tf32" : "", ", align ", shape.a.alignment_bytes, " ", shape.b.alignment_bytes,
                      " ", shape.d.alignment_bytes);
}

}  // namespace eps::worker::cuda
