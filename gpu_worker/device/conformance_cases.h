#ifndef EPS_GPU_WORKER_DEVICE_CONFORMANCE_CASES_H_
#define EPS_GPU_WORKER_DEVICE_CONFORMANCE_CASES_H_

#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/tensor/dtype.h"
#include "gpu_worker/device/conformance_memory.h"
#include "gpu_worker/device/kernels.h"
#include "gpu_worker/device/reference_kernels.h"

// The shapes that the kernels are tried at, their inputs (functions of the case alone), and what
// runs a case on a device and brings its outputs back: for tests against fp64, and for tests of
// bits.
namespace eps::worker::conformance {

using reference::Array;
using Outputs = std::vector<Array>;

constexpr double kEps = 1.0 / (1 << 24);  // half a unit in the last place of fp32, relative

// What the rounding of inputs and outputs adds where the compute dtype is coarser than fp32.
double ActEps(const ConformanceMemory& memory);

Dropout SomeDropout(double rate, int64_t first_element = 0);

struct MatMulCase {
  int64_t M, N, K;
  bool trans_a = false, trans_b = false, accumulate = false, bias = false;
  MatMulArgs::Epilogue epilogue = MatMulArgs::Epilogue::kNone;
  double dropout = 0;
  int64_t ld_extra = 0;   // leading dimensions beyond the least
  bool in_place = false;  // residual is c

  std::string Name() const {
    return "matmul " + std::to_string(M) + "x" + std::to_string(N) + "x" + std::to_string(K) + (trans_a ? " Ta" : "") +
           (trans_b ? " Tb" : "") + (accumulate ? " acc" : "") + (bias ? " bias" : "") + " epilogue " +
           std::to_string(static_cast<int>(epilogue)) + " dropout " + std::to_string(dropout) + " ld+" +
           std::to_string(ld_extra);
  }
};
struct MatMulInputs {
  Array a, b, c, bias, residual;
};
MatMulInputs MakeMatMulInputs(const MatMulCase& t);
// {c, gelu_out or nothing}
Outputs RunMatMul(ConformanceMemory& memory, const MatMulCase& t);

struct EmbeddingCase {
  int64_t B, T, C, V;
  Dtype wire = Dtype::kF32;
  double dropout = 0;
};

struct EmbeddingInputs {
  std::vector<int32_t> tokens;
  Array wte, wpe, dy, dwte, dwpe;
};
EmbeddingInputs MakeEmbeddingInputs(const EmbeddingCase& t);
// {y, dy after dropout, dwte, dwpe}
Outputs RunEmbedding(ConformanceMemory& memory, const EmbeddingCase& t, const KernelSizes& sizes);

struct LayerNormCase {
  int64_t M, C;
  bool residual = false, in_place = false;
  double offset = 0;  // added to x: sums of squares must not cancel
};
struct LayerNormInputs {
  Array x, gamma, beta, dy, residual, dgamma, dbeta;
};
LayerNormInputs MakeLayerNormInputs(const LayerNormCase& t);
// {y, mean, rstd, y again, dx, dgamma, dbeta}
Outputs RunLayerNorm(ConformanceMemory& memory, const LayerNormCase& t, const KernelSizes& sizes);

struct AttentionCase {
  int64_t B, T, H, D;
  double dropout = 0;
  double range = 1;  // of q, k, v

  std::string Name() const {
    return "attention B" + std::to_string(B) + " T" + std::to_string(T) + " H" + std::to_string(H) + " D" +
           std::to_string(D) + " dropout " + std::to_string(dropout);
  }
  int64_t o_elems() const { return B * T * H * D; }
  double scale() const { return 1 / std::sqrt(static_cast<double>(D)); }
  reference::AttentionShape shape() const { return {B, T, H, D, scale()}; }
  Dropout MakeDropout() const { return dropout > 0 ? SomeDropout(dropout, 4 * 4097) : Dropout(); }
  Array Factors() const { return dropout > 0 ? reference::DropoutFactors(MakeDropout(), B * H * T * T) : Array(); }
};
struct AttentionInputs {
  Array qkv, d_o;
};
AttentionInputs MakeAttentionInputs(const AttentionCase& t);
// {o, lse, dqkv}
Outputs RunAttention(ConformanceMemory& memory, const AttentionCase& t, const KernelSizes& sizes);

// {dx, gelu_out}
Outputs RunGeluBackward(ConformanceMemory& memory, const Array& x, const Array& dy);
Array RunDropout(ConformanceMemory& memory, const Array& x, const Dropout& dropout, bool in_place);
// Onto 0.25 in each column.
Array RunColumnSum(ConformanceMemory& memory, int64_t M, int64_t N, const KernelSizes& sizes);

struct LossCase {
  int64_t M, V, chunk;
  double range = 4;
};
struct LossInputs {
  Array logits;
  std::vector<int32_t> labels;
};
LossInputs MakeLossInputs(const LossCase& t);
struct LossOutputs {
  Array dlogits;  // (M, V)
  LossRecord record;
};
// The record starts with a loss of 0.5 over 2 rows.
LossOutputs RunLoss(ConformanceMemory& memory, const LossCase& t, const LossInputs& in, double scale);

// (f(x + h u) - f(x - h u)) / 2h, for a direction u.
double Slope(const std::function<double(const Array&)>& f, const Array& x, const Array& u);

}  // namespace eps::worker::conformance

#endif  // EPS_GPU_WORKER_DEVICE_CONFORMANCE_CASES_H_
