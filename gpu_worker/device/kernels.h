#ifndef EPS_GPU_WORKER_DEVICE_KERNELS_H_
#define EPS_GPU_WORKER_DEVICE_KERNELS_H_

#include <cstdint>

#include "common/numeric/philox.h"
#include "common/numeric/quantized.h"
#include "common/spec/preference_config.h"
#include "common/tensor/dtype.h"

namespace eps::worker {

// The kernel table. Letters (docs/notation.md): B samples of a micro-batch, T tokens of a sample, M = B * T
// rows, C d_model, H heads, D = C / H, F width of the feed-forward, V vocabulary. All arrays are row-major and
// dense unless a leading dimension is given, start 64-byte aligned (MatMul operands: 4; arrays with a leading dimension
// of RmsNorm, its backward and Rotary: at any element), and do not overlap unless said so.
//
// "act" arrays hold activations and expanded weights in the device's compute dtype (fp32 on cpu);
// gradients of parameters, statistics and losses are always fp32.
//
// Every call enqueues on the compute stream and returns at once; a kernel cannot fail, given valid
// arguments. Bits: for equal arguments every kernel gives equal bits, for any number of threads: work is
// cut into tiles whose shape depends on the problem alone, and each is computed by one thread.

// out = in / (1 - rate) where kept, else 0. Element i is kept by the (i mod 4)-th 32 bits of
// Philox(key.philox(), counter {i / 4 low, i / 4 high, 0, 0}), counted from first_element: it is kept when the
// bits, as an unsigned number, are >= rate * 2^32. Nothing depends on the shape of a tile or batch.
struct Dropout {
  double rate = 0;  // [0, 1); 0 turns it off
  RandomKey key;
  int64_t first_element = 0;  // index within the vnode of the array's element 0; a multiple of 4
};

// y = f(x) of each element.
enum class Activation {
  kGeluTanh,  // GPT-2's GELU: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
  kGelu,      // x Phi(x), by the error function. Source, both: Hendrycks and Gimpel, arXiv:1606.08415
  kTanh,
};

// c (M, N) = scale * op(a) (M, K) * op(b) (K, N)  [+ c if accumulate] [+ bias]; then the epilogue.
// Leading dimensions are in elements; op(x) is x or its transpose, given by trans_*.
struct MatMulArgs {
  int64_t M = 0, N = 0, K = 0;
  const void* a = nullptr;
  int64_t lda = 0;
  bool trans_a = false;  // act; (M, K), or (K, M) if trans_a
  const void* b = nullptr;
  int64_t ldb = 0;
  bool trans_b = false;  // act; (K, N), or (N, K) if trans_b
  void* c = nullptr;
  int64_t ldc = 0;  // act, or fp32 if c_is_gradient
  bool c_is_gradient = false;
  double scale = 1;  // as fp32
  bool accumulate = false;
  const void* bias = nullptr;  // act (N) or null
  // kNone; kActivation: c receives the sum (what backward needs) and activated (act, (M, N), leading dimension ldc) f of
  // it; kResidual: c = residual + dropout(the sum), residual (act, (M, N), ldc) may be c itself only when dropout.rate is 0
  // and not with accumulate.
  enum class Epilogue { kNone, kActivation, kResidual } epilogue = Epilogue::kNone;
  Activation activation = Activation::kGeluTanh;
  void* activated = nullptr;
  const void* residual = nullptr;
  Dropout dropout;
};

// Several documents in a sample, one after the other: each is seen alone, and its positions count from its first token.
// Indices are of tokens within the sample. Null, both: a sample is one document.
struct Documents {
  const int32_t* first = nullptr;  // (B, T): where the token's document begins
  const int32_t* end = nullptr;    // (B, T): one behind its last token

  friend bool operator==(const Documents&, const Documents&) = default;
};

struct EmbeddingArgs {
  int64_t B = 0, T = 0, C = 0, V = 0;
  const int32_t* tokens = nullptr;  // (B, T), each in [0, V)
  const void* wte = nullptr;        // (V, C) in wire_dtype: gathered from the wire form, not expanded
  const void* wpe = nullptr;        // (>= T, C) in wire_dtype, or null: no positions are added
  const int32_t* types = nullptr;   // (B, T), each a row of wtt; or null, both: no types are added
  const void* wtt = nullptr;        // (num_types, C) in wire_dtype
  Documents documents;
  Dtype wire_dtype = Dtype::kF32;
  void* y = nullptr;  // act (M, C)
  Dropout dropout;
};
struct EmbeddingBackwardArgs {
  int64_t B = 0, T = 0, C = 0, V = 0;
  const int32_t* tokens = nullptr;  // (B, T)
  const int32_t* types = nullptr;   // (B, T), or null
  Documents documents;
  void* dy = nullptr;  // act (M, C); overwritten by its dropout backward
  // Each row is added to in the order of its tokens; of many, by the rule of KernelSizes::embedding_tile.
  float* dwte = nullptr;  // (V, C)
  float* dwpe = nullptr;  // (>= T, C), or null
  float* dwtt = nullptr;  // (num_types, C), or null
  int64_t num_types = 0;
  Dropout dropout;
  void* scratch = nullptr;  // KernelSizes::embedding_backward(B * T, V, C) bytes
};

struct LayerNormArgs {
  int64_t M = 0, C = 0;
  double eps = 1e-5;
  const void* x = nullptr;      // act (M, C)
  const void* gamma = nullptr;  // act (C)
  const void* beta = nullptr;   // act (C)
  void* y = nullptr;            // act (M, C)
  float* mean = nullptr;        // (M) out
  float* rstd = nullptr;        // (M) out
};
// y again from x, mean and rstd: the same bits as LayerNorm gave.
struct LayerNormApplyArgs {
  int64_t M = 0, C = 0;
  const void* x = nullptr;
  const void* gamma = nullptr;
  const void* beta = nullptr;
  const float* mean = nullptr;
  const float* rstd = nullptr;
  void* y = nullptr;
};
struct LayerNormBackwardArgs {
  int64_t M = 0, C = 0;
  const void* dy = nullptr;         // act (M, C)
  const void* x = nullptr;          // act (M, C)
  const void* gamma = nullptr;      // act (C)
  const float* mean = nullptr;      // (M)
  const float* rstd = nullptr;      // (M)
  const void* dresidual = nullptr;  // act (M, C) or null: added to dx
  void* dx = nullptr;               // act (M, C); may be dresidual or dy
  float* dgamma = nullptr;          // (C), added to
  float* dbeta = nullptr;           // (C), added to
  void* scratch = nullptr;          // KernelSizes::layer_norm_backward(M, C) bytes
};

// y = x rstd gamma, rstd = 1 / sqrt(mean(x^2) + eps), over rows of C. Row (m, h) of `heads` begins at m * ld + h * C,
// so that the heads of a projection are normed where they lie; what lies between them is left alone.
// Source: Zhang and Sennrich, arXiv:1910.07467.
struct RmsNormArgs {
  int64_t M = 0, heads = 1, C = 0;
  int64_t ldx = 0, ldy = 0;  // >= heads * C
  double eps = 1e-5;
  const void* x = nullptr;      // act (M, heads, C), ldx
  const void* gamma = nullptr;  // act (C)
  void* y = nullptr;            // act (M, heads, C), ldy; may be x where ldx == ldy
  float* rstd = nullptr;        // (M, heads) out
};
// y again from x and rstd: the same bits as RmsNorm gave.
struct RmsNormApplyArgs {
  int64_t M = 0, heads = 1, C = 0;
  int64_t ldx = 0, ldy = 0;
  const void* x = nullptr;
  const void* gamma = nullptr;
  const float* rstd = nullptr;
  void* y = nullptr;
};
struct RmsNormBackwardArgs {
  int64_t M = 0, heads = 1, C = 0;
  int64_t lddy = 0, ldx = 0, lddx = 0;
  const void* dy = nullptr;         // act (M, heads, C), lddy
  const void* x = nullptr;          // act (M, heads, C), ldx
  const void* gamma = nullptr;      // act (C)
  const float* rstd = nullptr;      // (M, heads)
  const void* dresidual = nullptr;  // act (M, heads, C), lddx, or null: added to dx
  void* dx = nullptr;               // act (M, heads, C), lddx; may be dresidual, or dy where lddx == lddy
  float* dgamma = nullptr;          // (C), added to
  void* scratch = nullptr;          // KernelSizes::rms_norm_backward(M * heads, C) bytes
};

// Self-attention in tiles with a running softmax; the (T, T) matrix never exists, and tiles of it that no row sees
// are not computed: with a window the cost is in proportion to T * (window + a tile), with documents to the sum of the
// squares of their lengths.
// Source: Dao et al., FlashAttention, arXiv:2205.14135, algorithms 1 and 4; heads that share keys and values: Ainslie
// et al., arXiv:2305.13245; the window: Jiang et al., Mistral 7B, arXiv:2310.06825.
struct AttentionArgs {
  // kv_heads divides H: query head h reads head h / (H / kv_heads) of keys and values.
  int64_t B = 0, T = 0, H = 0, kv_heads = 0, D = 0;
  const void* qkv = nullptr;  // act (B, T, H + 2 kv_heads, D): queries, keys, values
  void* o = nullptr;          // act (B, T, H, D)
  float* lse = nullptr;       // (B, H, T) out: log of the softmax's sum, max included
  double scale = 1;           // of q k^T, usually 1 / sqrt(D)
  bool causal = true;         // a row attends to columns up to its own; else to all
  int64_t window = 0;         // 0: no bound; else only to columns with row - column < window. With causal only
  Documents documents;        // a row attends within its own
  Dropout dropout;            // of the probabilities; element ((b * H + h) * T + row) * T + column
  void* scratch = nullptr;    // KernelSizes::attention(B, T, H, D) bytes
};
// The gradient of a shared head of keys or values is the sum over its query heads, in rising order of heads.
struct AttentionBackwardArgs {
  int64_t B = 0, T = 0, H = 0, kv_heads = 0, D = 0;
  const void* qkv = nullptr;
  const void* o = nullptr;
  const float* lse = nullptr;
  const void* d_o = nullptr;  // act (B, T, H, D)
  void* dqkv = nullptr;       // act (B, T, H + 2 kv_heads, D) out
  double scale = 1;
  bool causal = true;
  int64_t window = 0;
  Documents documents;
  Dropout dropout;
  void* scratch = nullptr;  // KernelSizes::attention_backward(B, T, H, D) bytes
};

struct ActivationBackwardArgs {
  int64_t M = 0, N = 0;
  Activation activation = Activation::kGeluTanh;
  const void* x = nullptr;    // act (M, N): before the activation
  void* dy = nullptr;         // act (M, N): in, the gradient of f(x); out, that of x
  void* activated = nullptr;  // act (M, N) out: f(x) again, the bits that MatMul's kActivation gave; or null
  float* dbias = nullptr;     // (N), added to: the gradient of x's bias, the bits that ColumnSum gives of dy; or null
  void* scratch = nullptr;    // with dbias KernelSizes::column_sum(M, N) bytes
};

// y = weight silu(gate) up, silu(x) = x / (1 + e^-x). Source: Shazeer, arXiv:2002.05202.
struct SwigluArgs {
  int64_t M = 0, F = 0;
  const void* gate_up = nullptr;  // act (M, 2F): gate, then up
  const float* weight = nullptr;  // (M), or null: 1
  void* y = nullptr;              // act (M, F)
};
struct SwigluBackwardArgs {
  int64_t M = 0, F = 0;
  const void* gate_up = nullptr;  // act (M, 2F)
  const float* weight = nullptr;  // (M), or null
  const void* dy = nullptr;       // act (M, F)
  void* dgate_up = nullptr;       // act (M, 2F) out; may be gate_up
  void* y = nullptr;              // act (M, F) out: y again, the bits that Swiglu gave; or null
  float* dweight = nullptr;       // (M) out, with weight and only then: the sum over F of dy silu(gate) up
};

// A mixture of experts: of E feed-forward parts a token goes through the K that its router gives most, and takes the
// sum of what they give, each times its weight. A token's row in one of them is a routed row: R = M * K of them, those
// of an expert together, experts in order, and within one by rising token. An expert may have none.
// Source: Shazeer et al., arXiv:1701.06538; the order softmax, then K of it: Fedus et al., arXiv:2101.03961.
struct Routing {                 // on the device; made by Route, read by the others
  int32_t* first_row = nullptr;  // (E + 1): expert e has the routed rows [first_row[e], first_row[e + 1])
  int32_t* token = nullptr;      // (R): whose the row is
  int32_t* expert = nullptr;     // (M, K): of a token, by falling logit; of equal ones the lower expert first
  int32_t* row = nullptr;        // (M, K): the routed rows of these
  float* weight = nullptr;       // (R)

  friend bool operator==(const Routing&, const Routing&) = default;
};
// R is below 2^31. The weights of a token are its probabilities, softmax of its logits, rounded to fp32; with
// `normalizes` over their sum, which is the softmax of the chosen logits alone. Logits that are not finite choose K
// different experts all the same; with a NaN among them, or nothing but infinite ones, a token's weights are NaN.
struct RouteArgs {
  int64_t M = 0, E = 0, K = 0;   // 1 <= K <= E <= kMaxExperts
  const void* logits = nullptr;  // act (M, E)
  bool normalizes = true;
  Routing routing;          // all of it out
  void* scratch = nullptr;  // KernelSizes::route(M, E, K) bytes
};
// Of the loss, through the weights, and of `balance` * E * (the sum over experts of f P), f an expert's share of the
// routed rows and P the mean of its probability over tokens: 1 where all have as many. Of f there is no gradient.
// Source of the latter: Fedus et al., arXiv:2101.03961, section 2.2, eq. 4 to 6.
struct RouteBackwardArgs {
  int64_t M = 0, E = 0, K = 0;
  const void* logits = nullptr;  // act (M, E)
  bool normalizes = true;
  Routing routing;
  const float* dweight = nullptr;  // (R)
  double balance = 0;              // as fp32
  void* dlogits = nullptr;         // act (M, E) out
};
// y[r] = x[token[r]], for every routed row.
struct GatherRowsArgs {
  int64_t R = 0, C = 0;
  const int32_t* token = nullptr;  // (R)
  const void* x = nullptr;         // act (M, C)
  void* y = nullptr;               // act (R, C)
};
// y[m] = residual[m] + the sum of x[row[m, 0]], x[row[m, 1]], ..., in that order in fp32, rounded once.
struct SumRowsArgs {
  int64_t M = 0, K = 0, C = 0;
  const int32_t* row = nullptr;    // (M, K)
  const void* x = nullptr;         // act (R, C)
  const void* residual = nullptr;  // act (M, C), or null: 0
  void* y = nullptr;               // act (M, C); may be residual
};
// c[r] = a[r] op(b_e) [+ c[r]], for each routed row r of each expert e, whose matrix begins e * b_stride elements
// behind b.
struct ExpertMatMulArgs {
  int64_t E = 0, R = 0, N = 0, K = 0;
  const int32_t* first_row = nullptr;  // (E + 1), of Routing
  const void* a = nullptr;             // act (R, K)
  int64_t lda = 0;
  const void* b = nullptr;  // act (K, N), or (N, K) if trans_b; E of them
  int64_t ldb = 0, b_stride = 0;
  bool trans_b = false;
  void* c = nullptr;  // act (R, N)
  int64_t ldc = 0;
  bool accumulate = false;
};
// c_e (M, N) = a^T b over the routed rows of e [+ c_e]; 0 [+ c_e] where it has none.
struct ExpertGradientArgs {
  int64_t E = 0, R = 0, M = 0, N = 0;
  const int32_t* first_row = nullptr;  // (E + 1), of Routing
  const void* a = nullptr;             // act (R, M)
  int64_t lda = 0;
  const void* b = nullptr;  // act (R, N)
  int64_t ldb = 0;
  float* c = nullptr;  // (M, N), dense, E of them
  int64_t c_stride = 0;
  bool accumulate = false;
};

// Rotates each head's pairs, element i of its first half and i of its second, by the angle of the row's position, in
// place. Source: Su et al., arXiv:2104.09864, in the layout of Hugging Face's models.
struct RotaryArgs {
  int64_t M = 0, T = 0, heads = 0, D = 0;  // row m has position m mod T, counted from its document's first; D even
  int64_t ld = 0;                          // >= heads * D
  void* x = nullptr;                       // act (M, heads, D), ld; what lies behind a row's heads is left alone
  const float* table = nullptr;            // (>= T, D): D / 2 cosines, then D / 2 sines, of a position's angles
  bool inverse = false;                    // by the negative angles: the backward
  Documents documents;
};

// y = dropout(x), and its own backward. y may be x.
struct DropoutArgs {
  int64_t n = 0;
  const void* x = nullptr;
  void* y = nullptr;
  Dropout dropout;
};

// out (N) += sum over rows of x (M, N), in a fixed order. x may start anywhere: it may be columns of an array.
struct ColumnSumArgs {
  int64_t M = 0, N = 0;
  int64_t ld = 0;           // of x, >= N
  const void* x = nullptr;  // act
  float* out = nullptr;
  void* scratch = nullptr;  // KernelSizes::column_sum(M, N) bytes
};

// The fused cross-entropy, one chunk of the vocabulary at a time: no logits (M, V) need exist.
// First pass, every chunk in order: row_max and row_sum are the running softmax over the chunks seen. The sum is positive;
// its sign is free, and says of a label that has the largest logit whether a class before it has as large a one.
struct SoftmaxChunkArgs {
  int64_t M = 0, chunk = 0, first = 0;  // columns [first, first + chunk) of the vocabulary
  int64_t ld = 0;                       // of logits, >= chunk
  const void* logits = nullptr;         // act (M, chunk), ld
  const int32_t* labels = nullptr;      // (M); a label outside [0, V) is not counted (-100 by convention)
  float* row_max = nullptr;             // (M) in and out; set by this call when first == 0
  float* row_sum = nullptr;             // (M) in and out; the sum is its magnitude
  float* target = nullptr;              // (M) out: the label's logit, when it lies in this chunk
};
// Second pass: logits -> their gradient, in place: (softmax - onehot) * scale, 0 for uncounted rows.
struct SoftmaxChunkBackwardArgs {
  int64_t M = 0, chunk = 0, first = 0, V = 0;
  int64_t ld = 0;          // of logits, >= chunk
  void* logits = nullptr;  // act (M, chunk), ld: in; gradient out; what lies behind a row's columns is left alone
  const int32_t* labels = nullptr;
  const float* row_max = nullptr;
  const float* row_sum = nullptr;
  double scale = 1;  // 1 / counted tokens of the whole step
  // Not null: in place of it, of each T rows that are a sequence (PreferenceLossArgs).
  const float* sequence_scale = nullptr;
  int64_t T = 0;
};
// What one vnode adds to the step's loss; micro-batches in order, rows by the rule of docs/notation.md.
struct LossRecord {
  double loss_sum = 0;  // nats, over counted rows
  int64_t counted = 0;
  int64_t finite = 1;   // 0 if a row's loss was not finite
  int64_t correct = 0;  // of the counted rows: the label's is the first of the largest logits, and the loss is finite
  // PreferenceLoss's alone: what the rewards of counted pairs add up to, of preferred sequences and of the others.
  double chosen_reward = 0, rejected_reward = 0;
};
// What a sequence's counted rows add up to, for preferences.
struct SequenceScore {
  double log_prob = 0;  // of their labels, in nats
  int64_t counted = 0;
};
// Sums are fp64, 16 logical lanes by row, then lanes in order.
struct ScoreSequencesArgs {
  int64_t B = 0, T = 0, V = 0;      // T rows a sequence
  const int32_t* labels = nullptr;  // (B, T), as are the next three
  const float* row_max = nullptr;
  const float* row_sum = nullptr;
  const float* target = nullptr;
  SequenceScore* scores = nullptr;  // (B) out

  friend bool operator==(const ScoreSequencesArgs&, const ScoreSequencesArgs&) = default;
};
// The loss of pairs of sequences, 2 i and 2 i + 1, of which the first is preferred (PreferenceConfig), and by what of it
// goes back through each row of a sequence. A pair of which either has no counted row is not counted.
struct PreferenceLossArgs {
  int64_t B = 0;  // even
  PreferenceConfig preferences;
  const SequenceScore* scores = nullptr;     // (B)
  const SequenceScore* reference = nullptr;  // (B), of has_reference() alone
  double scale = 1;                          // of a pair's loss: 1 / pairs of the whole step
  float* sequence_scale = nullptr;           // (B) out; of SoftmaxChunkBackwardArgs
  // Added to: pairs in order, in fp64. `correct` are those whose better answer the model prefers: z, but for the margin, > 0.
  LossRecord* record = nullptr;
};
struct LossArgs {
  int64_t M = 0, V = 0;
  const int32_t* labels = nullptr;
  const float* row_max = nullptr;
  const float* row_sum = nullptr;
  const float* target = nullptr;
  LossRecord* record = nullptr;  // added to; fp64, 16 logical lanes, then lanes in order

  friend bool operator==(const LossArgs&, const LossArgs&) = default;
};

// Wire form -> compute dtype (weights), n elements.
struct WidenArgs {
  int64_t n = 0;
  const void* src = nullptr;
  Dtype src_dtype = Dtype::kBf16;
  void* dst = nullptr;  // act (n)
};
// A quantized format -> compute dtype (weights), n elements, a multiple of kTensorAlignElems: the bf16 that the format
// says, which is exact, but for what fp16 cannot hold.
struct DequantizeArgs {
  int64_t n = 0;
  QuantizedFormat format = QuantizedFormat::kMxInt8;
  const void* src = nullptr;  // an array of n of common/numeric/quantized.h; at a multiple of 64 bytes
  void* dst = nullptr;        // act (n)
};
// The end of a vnode's gradient of a layer: src is rounded to values of round_to (a leaf is rounded once), to bf16 by
// common/numeric/bf16.h, to fp16 by fp16.h: in place, or, where the leaf is pushed alone, into dst, and src stays as it
// is. What dst gets are the bits that EmitGradient would give after it. *finite becomes 0 if an element is not finite
// (looked at before rounding), else stays; one that only fp16 makes infinite is found in the sum.
struct FinishLeafArgs {
  int64_t n = 0;
  float* src = nullptr;
  Dtype round_to = Dtype::kF32;
  void* dst = nullptr;  // round_to (n), or null
  int32_t* finite = nullptr;
};
// dst (n) += src (n): left += right, in the reduction tree.
struct AddGradientArgs {
  int64_t n = 0;
  float* dst = nullptr;
  const float* src = nullptr;
};
// fp32 gradient -> what is pushed: fp32, or 16 bits (exact after FinishLeaf rounded it).
struct EmitGradientArgs {
  int64_t n = 0;
  const float* src = nullptr;
  Dtype dst_dtype = Dtype::kF32;
  void* dst = nullptr;
};
struct FillZeroArgs {
  int64_t num_bytes = 0;
  void* dst = nullptr;
};

class Kernels {
 public:
  virtual ~Kernels() = default;
  virtual void MatMul(const MatMulArgs&) = 0;
  virtual void Embedding(const EmbeddingArgs&) = 0;
  virtual void EmbeddingBackward(const EmbeddingBackwardArgs&) = 0;
  virtual void LayerNorm(const LayerNormArgs&) = 0;
  virtual void LayerNormApply(const LayerNormApplyArgs&) = 0;
  virtual void LayerNormBackward(const LayerNormBackwardArgs&) = 0;
  virtual void RmsNorm(const RmsNormArgs&) = 0;
  virtual void RmsNormApply(const RmsNormApplyArgs&) = 0;
  virtual void RmsNormBackward(const RmsNormBackwardArgs&) = 0;
  virtual void Attention(const AttentionArgs&) = 0;
  virtual void AttentionBackward(const AttentionBackwardArgs&) = 0;
  virtual void ActivationBackward(const ActivationBackwardArgs&) = 0;
  virtual void Swiglu(const SwigluArgs&) = 0;
  virtual void SwigluBackward(const SwigluBackwardArgs&) = 0;
  virtual void Route(const RouteArgs&) = 0;
  virtual void RouteBackward(const RouteBackwardArgs&) = 0;
  virtual void GatherRows(const GatherRowsArgs&) = 0;
  virtual void SumRows(const SumRowsArgs&) = 0;
  virtual void ExpertMatMul(const ExpertMatMulArgs&) = 0;
  virtual void ExpertGradient(const ExpertGradientArgs&) = 0;
  virtual void Rotary(const RotaryArgs&) = 0;
  virtual void ApplyDropout(const DropoutArgs&) = 0;
  virtual void ColumnSum(const ColumnSumArgs&) = 0;
  virtual void SoftmaxChunk(const SoftmaxChunkArgs&) = 0;
  virtual void SoftmaxChunkBackward(const SoftmaxChunkBackwardArgs&) = 0;
  virtual void Loss(const LossArgs&) = 0;
  virtual void ScoreSequences(const ScoreSequencesArgs&) = 0;
  virtual void PreferenceLoss(const PreferenceLossArgs&) = 0;
  virtual void Widen(const WidenArgs&) = 0;
  virtual void Dequantize(const DequantizeArgs&) = 0;
  virtual void FinishLeaf(const FinishLeafArgs&) = 0;
  virtual void AddGradient(const AddGradientArgs&) = 0;
  virtual void EmitGradient(const EmitGradientArgs&) = 0;
  virtual void FillZero(const FillZeroArgs&) = 0;
};

inline constexpr int64_t kMaxExperts = 1024;  // of a layer

// What libraries hold memory for.
struct LibraryUse {
  int threads = 1;
  // Attention of H heads of D over B sequences of T, in documents or not, of which probabilities may be dropped. 0: none.
  int64_t B = 0, T = 0, H = 0, D = 0;
  bool has_documents = false;
  bool drops = false;
};

// Scratch that kernels of a kind of device need: pure functions of the problem's shape, so that the planner
// can ask before any device exists. Every kind of device has one: CpuKernelSizes.
struct KernelSizes {
  Dtype compute_dtype = Dtype::kF32;
  int64_t (*embedding_backward)(int64_t M, int64_t V, int64_t C) = nullptr;
  int64_t (*layer_norm_backward)(int64_t M, int64_t C) = nullptr;
  int64_t (*rms_norm_backward)(int64_t rows, int64_t C) = nullptr;
  int64_t (*attention)(int64_t B, int64_t T, int64_t H, int64_t D) = nullptr;
  int64_t (*attention_backward)(int64_t B, int64_t T, int64_t H, int64_t D) = nullptr;
  int64_t (*column_sum)(int64_t M, int64_t N) = nullptr;
  int64_t (*route)(int64_t M, int64_t E, int64_t K) = nullptr;
  // Not scratch: how the embedding's backward adds to a row of a table that more tokens gathered than this: the first so many
  // in order, then tiles of so many, each summed by itself, in order. 0: all in order, however many they are.
  int64_t embedding_tile = 0;
  // Whether the device pins the host's memory that it copies from and to.
  bool pins_host_memory = false;
  // Not scratch: what libraries and threads hold beside the arena, as Device::outside_bytes says.
  int64_t (*outside_bytes)(const LibraryUse& use) = nullptr;
};

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_DEVICE_KERNELS_H_
