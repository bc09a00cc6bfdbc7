#include "gpu_worker/layers/block.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/string_view.h"
#include "gpu_worker/layers/tensor_offsets.h"

namespace eps::worker {
namespace {

// Which random numbers are whose; part of what makes a run's bits.
constexpr int kAttentionDropoutUse = 0;
constexpr int kAttentionProjectionDropoutUse = 1;
constexpr int kMlpProjectionDropoutUse = 2;

// Scratch of the forward pass. Kernels' own scratch is last, so that addresses do not depend on it.
struct ForwardScratch {
  explicit ForwardScratch(const LayerShape& s) {
    Layout layout;
    normed = layout.Take(s.boundary_bytes());
    gelu = layout.Take(4 * s.boundary_bytes());
    kernel = layout.total_bytes();
  }
  int64_t normed;  // act (M, C): ln1's output, then ln2's
  int64_t gelu;    // act (M, 4C)
  int64_t kernel;
};

// Scratch of the backward pass: two areas of 4C numbers a token, each used for several arrays in turn.
struct BackwardScratch {
  explicit BackwardScratch(const LayerShape& s) {
    const int64_t bytes = s.boundary_bytes();
    Layout first, first_again, second, second_again;
    d_fc = first.Take(4 * bytes);
    d_o = first_again.Take(bytes);
    normed1 = first_again.Take(bytes);
    d_normed1 = first_again.Take(bytes);
    gelu = second.Take(4 * bytes);
    d_qkv = 0;  // 3 of the 4 that gelu had
    normed2 = second_again.Take(bytes);
    d_normed2 = second_again.Take(bytes);

    Layout layout;
    layout.Take(std::max(first.total_bytes(), first_again.total_bytes()));
    const int64_t area = layout.Take(std::max(second.total_bytes(), second_again.total_bytes()));
    for (int64_t* offset : {&gelu, &d_qkv, &normed2, &d_normed2}) *offset += area;
    dropped = layout.Take(s.residual_dropout > 0 ? bytes : 0);
    kernel = layout.total_bytes();
  }
  // First area: d_fc, and when it is dead the gradients of the attention part.
  int64_t d_fc;                     // act (M, 4C)
  int64_t d_o, normed1, d_normed1;  // act (M, C) each
  // Second area: three lives.
  int64_t gelu;                // act (M, 4C), for the gradient of w_proj
  int64_t normed2, d_normed2;  // act (M, C) each
  int64_t d_qkv;               // act (M, 3C)
  int64_t dropped;             // act (M, C): a dropout's backward; empty without dropout
  int64_t kernel;              // kernels' own; last, so that no address depends on its size
};

struct BlockKernels {
  Kernels& k;
  const BlockArgs& a;
  const LayerShape& s;
  int64_t M, C;

  const std::byte* Weight(int64_t offset_elems) const { return At(a.weights, offset_elems * s.act_bytes()); }

  // y (M, out) = x (M, in) w (in, out) + b
  MatMulArgs Linear(const void* x, int64_t in, int64_t out, int64_t w, int64_t b, void* y) const {
    return {.M = M,
            .N = out,
            .K = in,
            .a = x,
            .lda = in,
            .b = Weight(w),
            .ldb = out,
            .c = y,
            .ldc = out,
            .bias = Weight(b)};
  }
  // dx (M, in) = dy (M, out) w^T
  void LinearBackwardInput(const void* dy, int64_t in, int64_t out, int64_t w, void* dx) const {
    k.MatMul({.M = M,
              .N = in,
              .K = out,
              .a = dy,
              .lda = out,
              .b = Weight(w),
              .ldb = out,
              .trans_b = true,
              .c = dx,
              .ldc = in});
  }
  // dw (in, out) += x^T dy; db (out) += the sum of dy's rows
  void LinearBackwardWeight(const void* x, const void* dy, int64_t in, int64_t out, float* dw, float* db,
                            void* scratch) const {
    k.MatMul({.M = in,
              .N = out,
              .K = M,
              .a = x,
              .lda = in,
              .trans_a = true,
              .b = dy,
              .ldb = out,
              .c = dw,
              .ldc = out,
              .c_is_gradient = true,
              .accumulate = true});
    k.ColumnSum({.M = M, .N = out, .x = dy, .out = db, .scratch = scratch});
  }
  void Normalize(const void* x, int64_t gamma, int64_t beta, float* mean, float* rstd, void* y) const {
    k.LayerNorm({.M = M,
                 .C = C,
                 .eps = s.layer_norm_eps,
                 .x = x,
                 .gamma = Weight(gamma),
                 .beta = Weight(beta),
                 .y = y,
                 .mean = mean,
                 .rstd = rstd});
  }
  void NormalizeAgain(const void* x, int64_t gamma, int64_t beta, const float* mean, const float* rstd, void* y) const {
    k.LayerNormApply(
        {.M = M, .C = C, .x = x, .gamma = Weight(gamma), .beta = Weight(beta), .mean = mean, .rstd = rstd, .y = y});
  }
  // The gradient through the dropout of a residual branch: dy itself without dropout.
  const void* ThroughDropout(void* dy, int use, void* dropped) const {
    const Dropout dropout = a.key.MakeDropout(s.residual_dropout, use, M * C);
    if (dropout.rate == 0) return dy;
    k.ApplyDropout({.n = M * C, .x = dy, .y = dropped, .dropout = dropout});
    return dropped;
  }
  double attention_scale() const { return 1 / std::sqrt(static_cast<double>(s.D())); }
  Dropout attention_dropout() const {
    return a.key.MakeDropout(s.attention_dropout, kAttentionDropoutUse, s.B * s.H * s.T * s.T);
  }
};

void MlpBackward(const BlockKernels& b, const BlockInner& in, const BackwardScratch& at, void* dy, float* gradient) {
  const BlockArgs& a = b.a;
  const int64_t C = b.C, F = 4 * b.C;
  void* d_fc = At(a.scratch, at.d_fc);
  void* gelu = At(a.scratch, at.gelu);
  void* kernel = At(a.scratch, at.kernel);
  const void* x_mid = At(a.inner, in.x_mid);
  const float* mean = FloatsAt(a.inner, in.ln2_mean);
  const float* rstd = FloatsAt(a.inner, in.ln2_rstd);

  const void* d_out = b.ThroughDropout(dy, kMlpProjectionDropoutUse, At(a.scratch, at.dropped));
  b.LinearBackwardInput(d_out, F, C, a.offsets.w_proj, d_fc);
  b.k.GeluBackward({.n = b.M * F, .x = At(a.inner, in.fc), .dy = d_fc, .gelu_out = gelu});
  b.LinearBackwardWeight(gelu, d_out, F, C, gradient + a.offsets.w_proj, gradient + a.offsets.b_proj, kernel);

  void* normed = At(a.scratch, at.normed2);
  void* d_normed = At(a.scratch, at.d_normed2);
  b.NormalizeAgain(x_mid, a.offsets.ln2_gamma, a.offsets.ln2_beta, mean, rstd, normed);
  b.LinearBackwardWeight(normed, d_fc, C, F, gradient + a.offsets.w_fc, gradient + a.offsets.b_fc, kernel);
  b.LinearBackwardInput(d_fc, C, F, a.offsets.w_fc, d_normed);
  b.k.LayerNormBackward({.M = b.M,
                         .C = C,
                         .dy = d_normed,
                         .x = x_mid,
                         .gamma = b.Weight(a.offsets.ln2_gamma),
                         .mean = mean,
                         .rstd = rstd,
                         .dresidual = dy,
                         .dx = dy,
                         .dgamma = gradient + a.offsets.ln2_gamma,
                         .dbeta = gradient + a.offsets.ln2_beta,
                         .scratch = kernel});
}

void AttentionPartBackward(const BlockKernels& b, const BlockInner& in, const BackwardScratch& at, const void* x,
                           void* dx, float* gradient) {
  const BlockArgs& a = b.a;
  const LayerShape& s = b.s;
  const int64_t C = b.C;
  void* d_o = At(a.scratch, at.d_o);
  void* d_qkv = At(a.scratch, at.d_qkv);
  void* kernel = At(a.scratch, at.kernel);
  const float* mean = FloatsAt(a.inner, in.ln1_mean);
  const float* rstd = FloatsAt(a.inner, in.ln1_rstd);

  const void* d_out = b.ThroughDropout(dx, kAttentionProjectionDropoutUse, At(a.scratch, at.dropped));
  b.LinearBackwardInput(d_out, C, C, a.offsets.w_o, d_o);
  b.LinearBackwardWeight(At(a.inner, in.o), d_out, C, C, gradient + a.offsets.w_o, gradient + a.offsets.b_o, kernel);
  b.k.AttentionBackward({.B = s.B,
                         .T = s.T,
                         .H = s.H,
                         .D = s.D(),
                         .qkv = At(a.inner, in.qkv),
                         .o = At(a.inner, in.o),
                         .lse = FloatsAt(a.inner, in.lse),
                         .d_o = d_o,
                         .dqkv = d_qkv,
                         .scale = b.attention_scale(),
                         .dropout = b.attention_dropout(),
                         .scratch = kernel});

  void* normed = At(a.scratch, at.normed1);
  void* d_normed = At(a.scratch, at.d_normed1);
  b.NormalizeAgain(x, a.offsets.ln1_gamma, a.offsets.ln1_beta, mean, rstd, normed);
  b.LinearBackwardWeight(normed, d_qkv, C, 3 * C, gradient + a.offsets.w_qkv, gradient + a.offsets.b_qkv, kernel);
  b.LinearBackwardInput(d_qkv, C, 3 * C, a.offsets.w_qkv, d_normed);
  b.k.LayerNormBackward({.M = b.M,
                         .C = C,
                         .dy = d_normed,
                         .x = x,
                         .gamma = b.Weight(a.offsets.ln1_gamma),
                         .mean = mean,
                         .rstd = rstd,
                         .dresidual = dx,
                         .dx = dx,
                         .dgamma = gradient + a.offsets.ln1_gamma,
                         .dbeta = gradient + a.offsets.ln1_beta,
                         .scratch = kernel});
}

}  // namespace

BlockOffsets BlockOffsetsOf(const ModelSpec& model, LayerId layer) {
  const auto offset = [&](absl::string_view suffix) { return TensorOffset(model, layer, suffix); };
  return {.ln1_gamma = offset(".ln_1.weight"),
          .ln1_beta = offset(".ln_1.bias"),
          .w_qkv = offset(".attn.c_attn.weight"),
          .b_qkv = offset(".attn.c_attn.bias"),
          .w_o = offset(".attn.c_proj.weight"),
          .b_o = offset(".attn.c_proj.bias"),
          .ln2_gamma = offset(".ln_2.weight"),
          .ln2_beta = offset(".ln_2.bias"),
          .w_fc = offset(".mlp.c_fc.weight"),
          .b_fc = offset(".mlp.c_fc.bias"),
          .w_proj = offset(".mlp.c_proj.weight"),
          .b_proj = offset(".mlp.c_proj.bias")};
}

BlockInner::BlockInner(const LayerShape& shape) {
  Layout layout;
  const int64_t row_bytes = shape.M() * int64_t{sizeof(float)};
  ln1_mean = layout.Take(row_bytes);
  ln1_rstd = layout.Take(row_bytes);
  qkv = layout.Take(3 * shape.boundary_bytes());
  o = layout.Take(shape.boundary_bytes());
  lse = layout.Take(shape.H * row_bytes);
  x_mid = layout.Take(shape.boundary_bytes());
  ln2_mean = layout.Take(row_bytes);
  ln2_rstd = layout.Take(row_bytes);
  fc = layout.Take(4 * shape.boundary_bytes());
  total_bytes = layout.total_bytes();
}

int64_t BlockForwardScratchBytes(const LayerShape& shape, const KernelSizes& kernels) {
  return ForwardScratch(shape).kernel + kernels.attention(shape.B, shape.T, shape.H, shape.D());
}

int64_t BlockBackwardScratchBytes(const LayerShape& shape, const KernelSizes& kernels) {
  const int64_t M = shape.M(), C = shape.C;
  return BackwardScratch(shape).kernel +
         std::max({kernels.layer_norm_backward(M, C), kernels.column_sum(M, C), kernels.column_sum(M, 3 * C),
                   kernels.column_sum(M, 4 * C), kernels.attention_backward(shape.B, shape.T, shape.H, shape.D())});
}

void BlockForward(Kernels& kernels, const BlockArgs& args, const void* x, void* y) {
  const LayerShape& s = args.shape;
  const BlockKernels b{kernels, args, s, s.M(), s.C};
  const BlockInner in(s);
  const ForwardScratch at(s);
  const BlockOffsets& w = args.offsets;
  const int64_t C = s.C;
  void* normed = At(args.scratch, at.normed);
  void* x_mid = At(args.inner, in.x_mid);

  b.Normalize(x, w.ln1_gamma, w.ln1_beta, FloatsAt(args.inner, in.ln1_mean), FloatsAt(args.inner, in.ln1_rstd), normed);
  kernels.MatMul(b.Linear(normed, C, 3 * C, w.w_qkv, w.b_qkv, At(args.inner, in.qkv)));
  kernels.Attention({.B = s.B,
                     .T = s.T,
                     .H = s.H,
                     .D = s.D(),
                     .qkv = At(args.inner, in.qkv),
                     .o = At(args.inner, in.o),
                     .lse = FloatsAt(args.inner, in.lse),
                     .scale = b.attention_scale(),
                     .dropout = b.attention_dropout(),
                     .scratch = At(args.scratch, at.kernel)});
  MatMulArgs project = b.Linear(At(args.inner, in.o), C, C, w.w_o, w.b_o, x_mid);
  project.epilogue = MatMulArgs::Epilogue::kResidual;
  project.residual = x;
  project.dropout = args.key.MakeDropout(s.residual_dropout, kAttentionProjectionDropoutUse, s.M() * C);
  kernels.MatMul(project);

  b.Normalize(x_mid, w.ln2_gamma, w.ln2_beta, FloatsAt(args.inner, in.ln2_mean), FloatsAt(args.inner, in.ln2_rstd),
              normed);
  MatMulArgs up = b.Linear(normed, C, 4 * C, w.w_fc, w.b_fc, At(args.inner, in.fc));
  if (y == nullptr) {
    kernels.MatMul(up);
    return;
  }
  up.epilogue = MatMulArgs::Epilogue::kGelu;
  up.gelu_out = At(args.scratch, at.gelu);
  kernels.MatMul(up);
  MatMulArgs down = b.Linear(up.gelu_out, 4 * C, C, w.w_proj, w.b_proj, y);
  down.epilogue = MatMulArgs::Epilogue::kResidual;
  down.residual = x_mid;
  down.dropout = args.key.MakeDropout(s.residual_dropout, kMlpProjectionDropoutUse, s.M() * C);
  kernels.MatMul(down);
}

void BlockBackward(Kernels& kernels, const BlockArgs& args, const void* x, void* dy, float* gradient) {
  const LayerShape& s = args.shape;
  const BlockKernels b{kernels, args, s, s.M(), s.C};
  const BlockInner in(s);
  const BackwardScratch at(s);
  MlpBackward(b, in, at, dy, gradient);               // dy is now the gradient of x_mid
  AttentionPartBackward(b, in, at, x, dy, gradient);  // and now that of x
}

}  // namespace eps::worker
