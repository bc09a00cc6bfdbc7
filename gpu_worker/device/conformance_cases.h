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
// The same, absolute, where relative to a number near zero it is more: half of fp16's smallest one.
double ActTiny(const ConformanceMemory& memory);

Dropout SomeDropout(double rate, int64_t first_element = 0);

struct MatMulCase {
  int64_t M, N, K;
  bool trans_a = false, trans_b = false, accumulate = false, bias = false;
  MatMulArgs::Epilogue epilogue = MatMulArgs::Epilogue::kNone;
  Activation activation = Activation::kGeluTanh;
  double dropout = 0;
  int64_t ld_extra = 0;   // leading dimensions beyond the least
  bool in_place = false;  // residual is c
  double scale = 1;

  std::string Name() const {
    return "matmul " + std::to_string(M) + "x" + std::to_string(N) + "x" + std::to_string(K) + (trans_a ? " Ta" : "") +
           (trans_b ? " Tb" : "") + (accumulate ? " acc" : "") + (bias ? " bias" : "") + " epilogue " +
           std::to_string(static_cast<int>(epilogue)) + "." + std::to_string(static_cast<int>(activation)) +
           " dropout " + std::to_string(dropout) + " ld+" + std::to_string(ld_extra) + " scale " +
           std::to_string(scale);
  }
};
struct MatMulInputs {
  Array a, b, c, bias, residual;
};
MatMulInputs MakeMatMulInputs(const MatMulCase& t);
// {c, activated or nothing}
Outputs RunMatMul(ConformanceMemory& memory, const MatMulCase& t);

// Documents of `tokens`, 1, tokens + 3, 1, ... tokens, over all samples and cut where one ends; (B, T) each.
struct DocumentArrays {
  std::vector<int32_t> first, end;
};
// Nothing where `tokens` is 0.
DocumentArrays MakeDocuments(int64_t B, int64_t T, int64_t tokens);

struct EmbeddingCase {
  int64_t B, T, C, V;
  Dtype wire = Dtype::kF32;
  double dropout = 0;
  bool positions = true;
  int64_t document_tokens = 0;  // of MakeDocuments
  int64_t num_types = 0;        // 0: no types are added
  // How often tokens 0, 1, ... come, B * T times in all; none: as chance has it, and each of 0 and V - 1 at least once.
  std::vector<int64_t> token_counts;
};

struct EmbeddingInputs {
  std::vector<int32_t> tokens, types;
  DocumentArrays documents;
  Array wte, wpe, wtt, dy, dwte, dwpe, dwtt;
};
EmbeddingInputs MakeEmbeddingInputs(const EmbeddingCase& t);
// {y, dy after dropout, dwte, dwpe, dwtt}
Outputs RunEmbedding(ConformanceMemory& memory, const EmbeddingCase& t, const KernelSizes& sizes);

struct LayerNormCase {
  int64_t M, C;
  bool residual = false;
  bool in_place = false;  // dx is dresidual, or dy without it
  double offset = 0;      // added to x: sums of squares must not cancel
};
struct LayerNormInputs {
  Array x, gamma, beta, dy, residual, dgamma, dbeta;
};
LayerNormInputs MakeLayerNormInputs(const LayerNormCase& t);
// {y, mean, rstd, y again, dx, dgamma, dbeta}
Outputs RunLayerNorm(ConformanceMemory& memory, const LayerNormCase& t, const KernelSizes& sizes);

struct RmsNormCase {
  int64_t M, heads, C;
  int64_t ldx_extra = 0, ldy_extra = 0;  // leading dimensions beyond the least: of x and dx, of y and dy
  bool residual = false;
  bool in_place = false;  // y is x, and dx is dresidual, or dy without it; with ldx_extra == ldy_extra
  int64_t first = 0;      // elements before the first row: it may start anywhere

  int64_t rows() const { return M * heads; }
  std::string Name() const {
    return "rms norm " + std::to_string(M) + "x" + std::to_string(heads) + "x" + std::to_string(C) + " ld+" +
           std::to_string(ldx_extra) + "," + std::to_string(ldy_extra) + " from " + std::to_string(first);
  }
};
struct RmsNormInputs {
  Array x, gamma, dy, residual, dgamma;
};
// The same for all cases of as many rows, however they lie.
RmsNormInputs MakeRmsNormInputs(const RmsNormCase& t);
// {y, rstd, y again, dx, dgamma}
Outputs RunRmsNorm(ConformanceMemory& memory, const RmsNormCase& t, const KernelSizes& sizes);

struct SwigluCase {
  int64_t M, F;
  double range = 8;
  bool in_place = false;  // dgate_up is gate_up
  bool keeps_y = true;    // the backward gives y again
  bool weighted = false;
};
struct SwigluInputs {
  Array gate_up, dy, weight;  // weight (M): 1 where it is not weighted
};
SwigluInputs MakeSwigluInputs(const SwigluCase& t);
// {y, dgate_up, dweight or nothing, y again or nothing}
Outputs RunSwiglu(ConformanceMemory& memory, const SwigluCase& t, const SwigluInputs& in);

struct RotaryCase {
  int64_t M, T, heads, D;           // M a multiple of T with documents
  int64_t ld_extra = 0, first = 0;  // as RmsNormCase's
  int64_t document_tokens = 0;      // of MakeDocuments
};
// x (M, heads, D) rotated, and rotated back.
Outputs RunRotary(ConformanceMemory& memory, const RotaryCase& t, const Array& x, const Array& table);
// x rotated by the negative angles.
Array RunInverseRotary(ConformanceMemory& memory, const RotaryCase& t, const Array& x, const Array& table);

struct AttentionCase {
  int64_t B, T, H, D;
  double dropout = 0;
  double range = 1;       // of q, k, v
  int64_t shared_by = 1;  // heads of queries that read the same head of keys and values
  bool causal = true;
  int64_t window = 0;
  int64_t document_tokens = 0;  // of MakeDocuments

  std::string Name() const {
    return "attention B" + std::to_string(B) + " T" + std::to_string(T) + " H" + std::to_string(H) + " kv_heads " +
           std::to_string(kv_heads()) + " D" + std::to_string(D) + " dropout " + std::to_string(dropout) +
           (causal ? " causal" : "") + " window " + std::to_string(window) + " documents of " +
           std::to_string(document_tokens);
  }
  int64_t kv_heads() const { return H / shared_by; }
  int64_t qkv_elems() const { return B * T * (H + 2 * kv_heads()) * D; }
  int64_t o_elems() const { return B * T * H * D; }
  double scale() const { return 1 / std::sqrt(static_cast<double>(D)); }
  reference::AttentionShape shape() const {
    const DocumentArrays documents = MakeDocuments(B, T, document_tokens);
    return {.B = B,
            .T = T,
            .H = H,
            .kv_heads = kv_heads(),
            .D = D,
            .scale = scale(),
            .causal = causal,
            .window = window,
            .document_first = documents.first,
            .document_end = documents.end};
  }
  Dropout MakeDropout() const { return dropout > 0 ? SomeDropout(dropout, 4 * 4097) : Dropout(); }
  Array Factors() const { return dropout > 0 ? reference::DropoutFactors(MakeDropout(), B * H * T * T) : Array(); }
};
struct AttentionInputs {
  Array qkv, d_o;
};
AttentionInputs MakeAttentionInputs(const AttentionCase& t);
// {o, lse, dqkv}
Outputs RunAttention(ConformanceMemory& memory, const AttentionCase& t, const AttentionInputs& in,
                     const KernelSizes& sizes);
inline Outputs RunAttention(ConformanceMemory& memory, const AttentionCase& t, const KernelSizes& sizes) {
  return RunAttention(memory, t, MakeAttentionInputs(t), sizes);
}

inline constexpr Activation kActivations[] = {Activation::kGeluTanh, Activation::kGelu, Activation::kTanh};
// Of rows of N. {dx, activated, dbias onto 0.25 in each column or nothing}
Outputs RunActivationBackward(ConformanceMemory& memory, Activation activation, int64_t N, const Array& x,
                              const Array& dy, const KernelSizes& sizes, bool has_bias = true);
Array RunDropout(ConformanceMemory& memory, const Array& x, const Dropout& dropout, bool in_place);
// Onto 0.25 in each column.
Array RunColumnSum(ConformanceMemory& memory, int64_t M, int64_t N, int64_t before, const KernelSizes& sizes);

struct LossCase {
  int64_t M, V, chunk;
  double range = 4;
  int64_t extra = 0;  // columns of junk behind each row of a chunk, which nothing reads or writes
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
// The record starts with a loss of 0.5 over 2 rows, one of them correct.
LossOutputs RunLoss(ConformanceMemory& memory, const LossCase& t, const LossInputs& in, double scale);

// (f(x + h u) - f(x - h u)) / 2h, for a direction u.
double Slope(const std::function<double(const Array&)>& f, const Array& x, const Array& u);

}  // namespace eps::worker::conformance

#endif  // EPS_GPU_WORKER_DEVICE_CONFORMANCE_CASES_H_
