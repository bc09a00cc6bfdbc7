#ifndef EPS_GPU_WORKER_DEVICE_REFERENCE_KERNELS_H_
#define EPS_GPU_WORKER_DEVICE_REFERENCE_KERNELS_H_

#include <cstdint>
#include <vector>

#include "gpu_worker/device/kernels.h"

// What the kernels of kernels.h mean, as plain fp64 loops: for tests, and slow. Shapes and letters
// are those of kernels.h; all arrays are dense.
namespace eps::worker::reference {

using Array = std::vector<double>;

// Each element's factor: 1 / (1 - rate) where kept, else 0; straight from the definition in
// kernels.h.
Array DropoutFactors(const Dropout& dropout, int64_t n);

double Activate(Activation activation, double x);
double ActivationSlope(Activation activation, double x);

// (M, N) = op(a) op(b); a is (M, K), or (K, M) if trans_a; b is (K, N), or (N, K) if trans_b.
Array MatMul(const Array& a, bool trans_a, const Array& b, bool trans_b, int64_t M, int64_t N, int64_t K);

struct LayerNormResult {
  Array y, mean, rstd;
};
LayerNormResult LayerNorm(const Array& x, const Array& gamma, const Array& beta, double eps, int64_t M, int64_t C);
struct LayerNormGradients {
  Array dx, dgamma, dbeta;
};
LayerNormGradients LayerNormBackward(const Array& dy, const Array& x, const Array& gamma, double eps, int64_t M,
                                     int64_t C);

// Of x (rows, C).
struct RmsNormResult {
  Array y, rstd;
};
RmsNormResult RmsNorm(const Array& x, const Array& gamma, double eps, int64_t rows, int64_t C);
struct RmsNormGradients {
  Array dx, dgamma;
};
RmsNormGradients RmsNormBackward(const Array& dy, const Array& x, const Array& gamma, double eps, int64_t rows,
                                 int64_t C);

// (M, F), and the gradient of gate_up (M, 2F).
Array Swiglu(const Array& gate_up, int64_t M, int64_t F);
Array SwigluBackward(const Array& dy, const Array& gate_up, int64_t M, int64_t F);

// The table (T, D) of Rotary: position t's i-th angle is t * theta^(-2i / D).
Array RotaryTable(int64_t T, int64_t D, double theta);
// x (M, heads, D), rotated. document_first (M), or empty.
Array Rotary(const Array& x, const Array& table, bool inverse, int64_t T, int64_t heads, int64_t D,
             const std::vector<int32_t>& document_first = {});

struct AttentionShape {
  int64_t B = 0, T = 0, H = 0, kv_heads = 0, D = 0;
  double scale = 1;
  bool causal = true;
  int64_t window = 0;
  std::vector<int32_t> document_first, document_end;  // (B, T), or empty
};
struct AttentionResult {
  Array o, lse;
};
// factors: the dropout's, of the (B, H, T, T) probabilities; empty for none.
AttentionResult Attention(const Array& qkv, const AttentionShape& shape, const Array& factors);
Array AttentionBackward(const Array& qkv, const Array& d_o, const AttentionShape& shape, const Array& factors);

// The sum over counted rows of -log softmax(logits)[label].
double CrossEntropy(const Array& logits, const std::vector<int32_t>& labels, int64_t M, int64_t V);
Array CrossEntropyGradient(const Array& logits, const std::vector<int32_t>& labels, int64_t M, int64_t V, double scale);
// The rows whose label is the first of the largest logits, which an argmax gives.
int64_t CorrectRows(const Array& logits, const std::vector<int32_t>& labels, int64_t M, int64_t V);

}  // namespace eps::worker::reference

#endif  // EPS_GPU_WORKER_DEVICE_REFERENCE_KERNELS_H_
