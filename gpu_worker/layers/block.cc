#include "gpu_worker/layers/block.h"

#include <algorithm>
#include <cmath>

#include "common/base/status_macros.h"
#include "gpu_worker/layers/experts.h"
#include "gpu_worker/layers/feed_forward.h"
#include "gpu_worker/layers/linear.h"
#include "gpu_worker/layers/norm.h"

namespace eps::worker {
namespace {

int64_t AdaptersInputBytes(const LayerShape& s) {
  if (s.lora.dropout == 0) return 0;
  return std::max(s.rows_bytes(s.lora.widest_input), s.mlp_bytes(s.lora.widest_feed_forward_input));
}

// What lies in the inner slot where the feed-forward part is not computed in tiles.
int64_t TileUpBytes(const LayerShape& s) { return s.is_tiled() ? s.mlp_bytes(s.up_width()) : 0; }

// Scratch of the forward pass. Kernels' own scratch is last, so that addresses do not depend on it.
struct ForwardScratch {
  explicit ForwardScratch(const LayerShape& s) {
    Layout layout;
    normed = layout.Take(s.boundary_bytes());
    up = layout.Take(TileUpBytes(s));
    hidden = layout.Take(s.mlp_bytes(s.F));
    rows = layout.Take(s.experts.are_on() ? s.mlp_bytes(s.C) : 0);
    routing = RoutingPlaces(s, layout);
    t = layout.Take(s.rows_bytes(s.lora.t_width));
    adapters_input = layout.Take(AdaptersInputBytes(s));
    kernel = layout.total_bytes();
  }
  LoraScratch Lora(const BlockArgs& args) const {
    return {.t = At(args.scratch, t), .dropped = At(args.scratch, adapters_input), .t_width = args.shape.lora.t_width};
  }
  int64_t normed;  // act (M, C): norm1's output, then norm2's
  int64_t up;      // act (mlp_rows, up_width): of a tile
  int64_t hidden;  // act (mlp_rows, F): of GELU or SwiGLU
  int64_t rows;    // act (mlp_rows, C): of ExpertsContext
  RoutingPlaces routing;
  int64_t t;               // of LoraScratch
  int64_t adapters_input;  // LoraScratch::dropped
  int64_t kernel;
};

// Scratch of the backward pass: two areas, each used for several arrays in turn.
struct BackwardScratch {
  explicit BackwardScratch(const LayerShape& s) {
    const int64_t bytes = s.boundary_bytes();
    Layout first, first_again, second, second_again, second_at_last;
    d_up = first.Take(s.mlp_bytes(s.up_width()));
    rows = first.Take(s.experts.are_on() ? s.mlp_bytes(s.C) : 0);
    d_o = first_again.Take(s.rows_bytes(s.q_width()));
    normed1 = first_again.Take(bytes);
    d_normed1 = first_again.Take(bytes);
    hidden = second.Take(s.mlp_bytes(s.F));
    d_hidden = second.Take(s.is_gated ? s.mlp_bytes(s.F) : 0);
    normed2 = second_again.Take(s.tile_bytes(s.C));
    d_normed2 = second_again.Take(s.tile_bytes(s.C));
    d_logits = second_again.Take(s.rows_bytes(s.experts.num));
    d_qkv = second_at_last.Take(s.rows_bytes(s.qkv_width()));

    Layout layout;
    layout.Take(std::max(first.total_bytes(), first_again.total_bytes()));
    const int64_t area =
        layout.Take(std::max({second.total_bytes(), second_again.total_bytes(), second_at_last.total_bytes()}));
    for (int64_t* offset : {&hidden, &d_hidden, &d_qkv, &normed2, &d_normed2, &d_logits}) *offset += area;
    routing = RoutingPlaces(s, layout);
    up = layout.Take(TileUpBytes(s));
    d_weight = layout.Take(s.experts.are_on() ? s.mlp_rows() * int64_t{sizeof(float)} : 0);
    dropped = layout.Take(s.residual_dropout > 0 ? bytes : 0);
    t = layout.Take(s.rows_bytes(s.lora.t_width));
    dt = layout.Take(s.rows_bytes(s.lora.t_width));
    adapters_input = layout.Take(AdaptersInputBytes(s));
    kernel = layout.total_bytes();
  }
  LoraScratch Lora(const BlockArgs& args) const {
    return {.t = At(args.scratch, t),
            .dt = At(args.scratch, dt),
            .dropped = At(args.scratch, adapters_input),
            .t_width = args.shape.lora.t_width};
  }
  // First area: d_up and rows, and when they are dead the gradients of the attention part.
  int64_t d_up;                // act (mlp_rows, up_width)
  int64_t rows;                // act (mlp_rows, C): of ExpertsContext
  int64_t d_o;                 // act (M, H D)
  int64_t normed1, d_normed1;  // act (M, C) each
  // Second area: three lives.
  int64_t hidden;              // act (mlp_rows, F), for the gradient of W_down
  int64_t d_hidden;            // act (mlp_rows, F), where d_up cannot take its place: SwiGLU
  int64_t normed2, d_normed2;  // act (tile_rows, C) each
  int64_t d_logits;            // act (M, experts)
  int64_t d_qkv;               // act (M, qkv_width)
  RoutingPlaces routing;
  int64_t up;              // act (mlp_rows, up_width): of a tile
  int64_t d_weight;        // fp32 (mlp_rows): of the routing's weights
  int64_t dropped;         // act (M, C): a dropout's backward; empty without dropout
  int64_t t, dt;           // of LoraScratch
  int64_t adapters_input;  // LoraScratch::dropped
  int64_t kernel;          // kernels' own; last, so that no address depends on its size
};

struct BlockWork {
  Kernels& k;
  const BlockArgs& a;
  const LayerShape& s;
  int64_t M, C;
  BlockInner in;
  LinearContext linear;
  NormContext norm;

  BlockWork(Kernels& kernels, const BlockArgs& args, const LoraScratch& lora_scratch)
      : k(kernels),
        a(args),
        s(args.shape),
        M(args.shape.M()),
        C(args.shape.C),
        in(args.shape),
        linear{.kernels = kernels,
               .micro_batch_rows = M,
               .rows = {0, M},
               .act_bytes = args.shape.act_bytes(),
               .weights = args.weights,
               .trainable_elems = args.trainable_elems,
               .starts_gradient = args.starts_gradient,
               .key = args.key,
               .lora = args.shape.lora,
               .has_adapters = args.has_adapters,
               .scratch = lora_scratch},
        norm{kernels, M, C, args.shape.layer_norm_eps} {}

  const BlockOffsets& w() const { return *a.offsets; }
  const std::byte* Weight(int64_t offset_elems) const { return At(a.weights, offset_elems * s.act_bytes()); }
  std::byte* Inner(int64_t offset) const { return At(a.inner, offset); }
  std::byte* Scratch(int64_t offset) const { return At(a.scratch, offset); }
  // Column `column` of an array of activations.
  void* Column(void* array, int64_t column) const { return At(array, column * s.act_bytes()); }

  NormParameters Parameters(const BlockOffsets::Norm& n) const {
    return {.scale = Weight(n.scale), .shift = n.shift < 0 ? nullptr : Weight(n.shift)};
  }
  NormStatistics Norm1() const { return {FloatsAt(a.inner, in.norm1_mean), FloatsAt(a.inner, in.norm1_rstd)}; }
  NormStatistics Norm2() const { return {FloatsAt(a.inner, in.norm2_mean), FloatsAt(a.inner, in.norm2_rstd)}; }
  static float* Shift(float* gradient, const BlockOffsets::Norm& n) {
    return n.shift < 0 ? nullptr : gradient + n.shift;
  }

  // The gradient through the dropout of attention's residual branch: dy itself without dropout.
  const void* ThroughDropout(void* dy, void* dropped) const {
    const Dropout dropout = a.key.MakeDropout(s.residual_dropout, kAttentionProjectionDropoutUse, M * C);
    if (dropout.rate == 0) return dy;
    k.ApplyDropout({.n = M * C, .x = dy, .y = dropped, .dropout = dropout});
    return dropped;
  }
  // Of the first block's input, in place: norm1's output, or its gradient.
  void DropInput(void* normed) const {
    if (!a.is_first) return;
    const Dropout dropout = a.key.MakeDropout(s.input_dropout, kInputDropoutUse, M * C);
    if (dropout.rate > 0) k.ApplyDropout({.n = M * C, .x = normed, .y = normed, .dropout = dropout});
  }
  struct ExpertsPlaces {  // in bytes of the scratch
    RoutingPlaces routing;
    int64_t rows = 0, hidden = 0, kernel = 0;
  };
  ExpertsContext Experts(const ExpertsPlaces& at) const {
    return {.kernels = k,
            .shape = s,
            .offsets = w(),
            .linear = linear,
            .logits = Inner(in.router),
            .up = Inner(in.up),
            .balance = a.expert_balance,
            .routing = at.routing.At(a.scratch),
            .rows = Scratch(at.rows),
            .hidden = Scratch(at.hidden),
            .kernel = Scratch(at.kernel)};
  }
  struct FeedForwardPlaces {  // in bytes of the scratch
    int64_t up = 0, normed = 0, hidden = 0;
  };
  FeedForwardContext FeedForward(const FeedForwardPlaces& at) const {
    return {.kernels = k,
            .shape = s,
            .offsets = w(),
            .linear = linear,
            .norm = norm,
            .norm_parameters = Parameters(w().mlp_norm),
            .statistics = Norm2(),
            .x = Inner(in.x_mid),
            .up = s.is_tiled() ? Scratch(at.up) : Inner(in.up),
            .normed = Scratch(at.normed),
            .hidden = Scratch(at.hidden)};
  }
  double attention_scale() const { return 1 / std::sqrt(static_cast<double>(s.D)); }
  Dropout attention_dropout() const {
    return a.key.MakeDropout(s.attention_dropout, kAttentionDropoutUse, s.B * s.H * s.T * s.T);
  }

  // ---- queries, keys and values ----

  int64_t heads_width() const { return (s.H + s.kv_heads) * s.D; }

  RotaryArgs Rotary(void* qkv, bool inverse) const {
    return {.M = M,
            .T = s.T,
            .heads = s.H + s.kv_heads,
            .D = s.D,
            .ld = s.qkv_width(),
            .x = qkv,
            .table = a.rotary_table,
            .inverse = inverse,
            .documents = a.documents};
  }
  // Heads [first, first + count) of queries and keys.
  RmsNormArgs HeadNorm(int64_t first, int64_t count, int64_t scale, int64_t rstd) const {
    return {.M = M,
            .heads = count,
            .C = s.D,
            .ldx = heads_width(),
            .ldy = s.qkv_width(),
            .eps = s.layer_norm_eps,
            .x = Column(Inner(in.heads), first * s.D),
            .gamma = Weight(scale),
            .y = Column(Inner(in.qkv), first * s.D),
            .rstd = FloatsAt(a.inner, rstd)};
  }

  void MakeQkv(const void* normed) const {
    linear.Forward(w().qkv, normed, [this](const Linear& l) -> LinearOutput {
      // What is normed first lies apart.
      const bool is_apart = s.has_qk_norm && l.first_column < heads_width();
      return {.y = Inner(is_apart ? in.heads : in.qkv), .ld = is_apart ? heads_width() : s.qkv_width()};
    });
    if (s.has_qk_norm) {
      k.RmsNorm(HeadNorm(0, s.H, w().query_norm, in.query_rstd));
      k.RmsNorm(HeadNorm(s.H, s.kv_heads, w().key_norm, in.key_rstd));
    }
    if (s.is_rotary) k.Rotary(Rotary(Inner(in.qkv), false));
  }

  void HeadNormBackward(int64_t first, int64_t count, int64_t scale, int64_t rstd, void* d_qkv, float* gradient,
                        void* kernel) const {
    void* columns = Column(d_qkv, first * s.D);
    k.RmsNormBackward({.M = M,
                       .heads = count,
                       .C = s.D,
                       .lddy = s.qkv_width(),
                       .ldx = heads_width(),
                       .lddx = s.qkv_width(),
                       .dy = columns,
                       .x = Column(Inner(in.heads), first * s.D),
                       .gamma = Weight(scale),
                       .rstd = FloatsAt(a.inner, rstd),
                       .dx = columns,
                       .dgamma = gradient + scale,
                       .scratch = kernel});
  }
  // In: the gradient of what attention read; out: of what the products gave.
  void QkvBackward(void* d_qkv, float* gradient, void* kernel) const {
    if (s.is_rotary) k.Rotary(Rotary(d_qkv, true));
    if (!s.has_qk_norm) return;
    HeadNormBackward(0, s.H, w().query_norm, in.query_rstd, d_qkv, gradient, kernel);
    HeadNormBackward(s.H, s.kv_heads, w().key_norm, in.key_rstd, d_qkv, gradient, kernel);
  }
};

void FeedForwardBackward(const BlockWork& b, const BackwardScratch& at, void* dy, float* gradient) {
  b.FeedForward({.up = at.up, .normed = at.normed2, .hidden = at.hidden})
      .Backward({.d_up = b.Scratch(at.d_up),
                 .d_hidden = b.Scratch(at.d_hidden),
                 .d_normed = b.Scratch(at.d_normed2),
                 .dropped = b.Scratch(at.dropped),
                 .kernel = b.Scratch(at.kernel)},
                dy, gradient);
}

void ExpertsBackward(const BlockWork& b, const BackwardScratch& at, void* dy, float* gradient) {
  const BlockOffsets& w = b.w();
  const void* x_mid = b.Inner(b.in.x_mid);
  void *normed = b.Scratch(at.normed2), *d_normed = b.Scratch(at.d_normed2);
  const ExpertsContext experts =
      b.Experts({.routing = at.routing, .rows = at.rows, .hidden = at.hidden, .kernel = at.kernel});
  const ExpertsContext::BackwardArrays arrays = {.d_up = b.Scratch(at.d_up),
                                                 .d_hidden = b.Scratch(at.d_hidden),
                                                 .d_weight = FloatsAt(b.a.scratch, at.d_weight),
                                                 .d_logits = b.Scratch(at.d_logits)};
  experts.BackwardDown(arrays, dy, gradient);
  b.norm.Again(b.Parameters(w.mlp_norm), x_mid, b.Norm2(), normed);
  experts.BackwardUp(arrays, normed, d_normed, gradient);
  b.norm.Backward(b.Parameters(w.mlp_norm), d_normed, x_mid, b.Norm2(), dy, dy, gradient + w.mlp_norm.scale,
                  BlockWork::Shift(gradient, w.mlp_norm), b.Scratch(at.kernel));
}

void AttentionPartBackward(const BlockWork& b, const BackwardScratch& at, const void* x, void* dx, float* gradient) {
  const LayerShape& s = b.s;
  const BlockOffsets& w = b.w();
  void* d_o = b.Scratch(at.d_o);
  void* d_qkv = b.Scratch(at.d_qkv);
  void* kernel = b.Scratch(at.kernel);

  const void* d_out = b.ThroughDropout(dx, b.Scratch(at.dropped));
  const LinearGradient of_out = b.linear.GradientOf(w.attention_out, d_out, b.C);
  b.linear.BackwardInput(w.attention_out, of_out, d_o);
  b.linear.BackwardWeights(w.attention_out, b.Inner(b.in.o), of_out, gradient);
  b.linear.BackwardBiases(w.attention_out, of_out, gradient, kernel);
  b.k.AttentionBackward({.B = s.B,
                         .T = s.T,
                         .H = s.H,
                         .kv_heads = s.kv_heads,
                         .D = s.D,
                         .qkv = b.Inner(b.in.qkv),
                         .o = b.Inner(b.in.o),
                         .lse = FloatsAt(b.a.inner, b.in.lse),
                         .d_o = d_o,
                         .dqkv = d_qkv,
                         .scale = b.attention_scale(),
                         .causal = s.is_causal,
                         .window = s.window,
                         .documents = b.a.documents,
                         .dropout = b.attention_dropout(),
                         .scratch = kernel});
  b.QkvBackward(d_qkv, gradient, kernel);

  void* normed = b.Scratch(at.normed1);
  void* d_normed = b.Scratch(at.d_normed1);
  b.norm.Again(b.Parameters(w.attention_norm), x, b.Norm1(), normed);
  b.DropInput(normed);
  const LinearGradient of_qkv = b.linear.GradientOf(w.qkv, d_qkv, s.qkv_width());
  b.linear.BackwardWeights(w.qkv, normed, of_qkv, gradient);
  b.linear.BackwardBiases(w.qkv, of_qkv, gradient, kernel);
  b.linear.BackwardInput(w.qkv, of_qkv, d_normed, s.adds_to_normed ? dx : nullptr);
  b.DropInput(d_normed);
  b.norm.Backward(b.Parameters(w.attention_norm), d_normed, x, b.Norm1(), s.adds_to_normed ? nullptr : dx, dx,
                  gradient + w.attention_norm.scale, BlockWork::Shift(gradient, w.attention_norm), kernel);
}

int64_t RouteScratchBytes(const LayerShape& s, const KernelSizes& kernels) {
  return s.experts.are_on() ? kernels.route(s.M(), s.experts.num, s.experts.per_token) : 0;
}

// What a layer's products need of the kernels' scratch: the largest of all.
BlockOffsets SizesOnly(const LayerShape& s) {
  const auto one = [](int64_t out) { return Linears{.products = {{.out = out, .bias = 0}}}; };
  BlockOffsets offsets;
  offsets.qkv = one(s.qkv_width());
  offsets.up = one(s.up_width());
  offsets.attention_out = offsets.down = one(s.C);
  return offsets;
}

}  // namespace

BlockInner::BlockInner(const LayerShape& shape) {
  Layout layout;
  const int64_t row_bytes = shape.M() * int64_t{sizeof(float)};
  const int64_t mean_bytes = shape.has_mean ? row_bytes : 0;
  const int64_t heads_of_norm = shape.has_qk_norm ? shape.H : 0, kv_of_norm = shape.has_qk_norm ? shape.kv_heads : 0;
  norm1_mean = layout.Take(mean_bytes);
  norm1_rstd = layout.Take(row_bytes);
  heads = layout.Take(shape.rows_bytes((heads_of_norm + kv_of_norm) * shape.D));
  query_rstd = layout.Take(heads_of_norm * row_bytes);
  key_rstd = layout.Take(kv_of_norm * row_bytes);
  qkv = layout.Take(shape.rows_bytes(shape.qkv_width()));
  o = layout.Take(shape.rows_bytes(shape.q_width()));
  lse = layout.Take(shape.H * row_bytes);
  x_mid = layout.Take(shape.boundary_bytes());
  norm2_mean = layout.Take(mean_bytes);
  norm2_rstd = layout.Take(row_bytes);
  router = layout.Take(shape.rows_bytes(shape.experts.num));
  up = layout.Take(shape.is_tiled() ? 0 : shape.mlp_bytes(shape.up_width()));
  total_bytes = layout.total_bytes();
}

int64_t BlockForwardScratchBytes(const LayerShape& shape, const KernelSizes& kernels) {
  return ForwardScratch(shape).kernel +
         std::max(kernels.attention(shape.B, shape.T, shape.H, shape.D), RouteScratchBytes(shape, kernels));
}

int64_t BlockBackwardScratchBytes(const LayerShape& shape, const KernelSizes& kernels) {
  const int64_t M = shape.M();
  const BlockOffsets largest = SizesOnly(shape);
  int64_t kernel =
      std::max(kernels.attention_backward(shape.B, shape.T, shape.H, shape.D), RouteScratchBytes(shape, kernels));
  // Of all rows, of a tile, and of the last tile, as more rows may want less.
  for (const int64_t rows : {M, shape.tile_rows(), M % shape.tile_rows()}) {
    if (rows == 0) continue;
    kernel = std::max({kernel, NormScratchBytes(shape.has_mean, rows, shape.C, kernels),
                       LinearScratchBytes(largest.qkv, rows, kernels), LinearScratchBytes(largest.up, rows, kernels),
                       LinearScratchBytes(largest.down, rows, kernels)});
  }
  if (shape.has_qk_norm) kernel = std::max(kernel, kernels.rms_norm_backward(M * shape.H, shape.D));
  return BackwardScratch(shape).kernel + kernel;
}

int64_t BlockForwardFirstRowOffset(const LayerShape& shape) { return ForwardScratch(shape).routing.first_row; }

void BlockForward(Kernels& kernels, const BlockArgs& args, const void* x, void* y) {
  const LayerShape& s = args.shape;
  const ForwardScratch at(s);
  const BlockWork b(kernels, args, at.Lora(args));
  const BlockInner& in = b.in;
  const BlockOffsets& w = b.w();
  void* normed = b.Scratch(at.normed);
  void* x_mid = b.Inner(in.x_mid);

  b.norm.Forward(b.Parameters(w.attention_norm), x, b.Norm1(), normed);
  b.DropInput(normed);
  b.MakeQkv(normed);
  kernels.Attention({.B = s.B,
                     .T = s.T,
                     .H = s.H,
                     .kv_heads = s.kv_heads,
                     .D = s.D,
                     .qkv = b.Inner(in.qkv),
                     .o = b.Inner(in.o),
                     .lse = FloatsAt(args.inner, in.lse),
                     .scale = b.attention_scale(),
                     .causal = s.is_causal,
                     .window = s.window,
                     .documents = args.documents,
                     .dropout = b.attention_dropout(),
                     .scratch = b.Scratch(at.kernel)});
  b.linear.Forward(w.attention_out, b.Inner(in.o), {x_mid, s.C},
                   {.epilogue = MatMulArgs::Epilogue::kResidual,
                    .residual = s.adds_to_normed ? normed : x,
                    .dropout = args.key.MakeDropout(s.residual_dropout, kAttentionProjectionDropoutUse, s.M() * s.C)});

  if (!s.experts.are_on()) {
    return b.FeedForward({.up = at.up, .normed = at.normed, .hidden = at.hidden}).Forward(y);
  }
  EPS_CHECK(s.is_gated && !s.adds_to_normed && s.residual_dropout == 0);
  b.norm.Forward(b.Parameters(w.mlp_norm), x_mid, b.Norm2(), normed);
  b.Experts({.routing = at.routing, .rows = at.rows, .hidden = at.hidden, .kernel = at.kernel})
      .Forward(normed, x_mid, y);
}

void BlockBackward(Kernels& kernels, const BlockArgs& args, const void* x, void* dy, float* gradient) {
  const BackwardScratch at(args.shape);
  const BlockWork b(kernels, args, at.Lora(args));
  // After it dy is the gradient of x_mid.
  args.shape.experts.are_on() ? ExpertsBackward(b, at, dy, gradient) : FeedForwardBackward(b, at, dy, gradient);
  AttentionPartBackward(b, at, x, dy, gradient);  // and now that of x
}

}  // namespace eps::worker
