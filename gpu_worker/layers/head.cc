#include "gpu_worker/layers/head.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "common/base/byte_size.h"
#include "gpu_worker/layers/norm.h"
#include "gpu_worker/layers/tensor_offsets.h"

namespace eps::worker {
namespace {

constexpr int64_t kMaxVocabChunk = 4096;
// Chunks start at multiples of it, so their rows of the table are aligned; so are rows of logits.
constexpr int64_t kRowsTogether = 64;
// cuBLASLt is fast where M, N and K are multiples of so many: of an odd vocabulary the last chunk takes seven times as
// long on an H200, unless the columns that are over are multiplied apart. To other devices it makes no difference in
// time.
constexpr int64_t kFastColumns = 8;

// Which random numbers are whose; part of what makes a run's bits.
constexpr int kClassifierDropoutUse = 0;

// Rows that have logits.
int64_t OutputRows(const LayerShape& s) { return s.is_classifier() ? s.B : s.M(); }

int64_t NumChunks(const LayerShape& s) { return (s.num_outputs() + VocabChunk(s) - 1) / VocabChunk(s); }
// Columns of chunk `index`: all have VocabChunk, but the last.
int64_t ChunkColumns(const LayerShape& s, int64_t index) {
  return std::min(VocabChunk(s), s.num_outputs() - index * VocabChunk(s));
}

int64_t LogitsBytes(const LayerShape& s) {
  const int64_t row = std::max(LogitsRow(VocabChunk(s)), LogitsRow(ChunkColumns(s, NumChunks(s) - 1)));
  return OutputRows(s) * row * s.act_bytes();
}
// Of one that is not the last.
int64_t KeptChunkBytes(const LayerShape& s) {
  return RoundUp(OutputRows(s) * LogitsRow(VocabChunk(s)) * s.act_bytes(), kArenaAlignBytes);
}

// A chunk of the vocabulary that has its logits.
struct Chunk {
  int64_t first = 0, columns = 0;  // [first, first + columns)
  int64_t ld = 0;                  // of logits
  void* logits = nullptr;          // act (rows, columns), ld
};

// What a classifier and a head of masked tokens have beside the norm and the table.
struct DenseScratch {
  DenseScratch(const LayerShape& s, Layout& layout) {
    const bool is_there = s.has_dense_head;
    const int64_t rows = OutputRows(s), row_bytes = rows * s.C * s.act_bytes();
    const bool has_norm = is_there && !s.is_classifier();
    weight = layout.Take(is_there && s.expands() ? s.C * s.C * s.act_bytes() : 0);
    weight_bias = layout.Take(is_there && s.expands() ? s.C * s.act_bytes() : 0);
    gamma = layout.Take(has_norm && s.expands() ? s.C * s.act_bytes() : 0);
    beta = layout.Take(has_norm && s.expands() ? s.C * s.act_bytes() : 0);
    bias = layout.Take(is_there && s.expands() ? VocabChunk(s) * s.act_bytes() : 0);
    before = layout.Take(is_there ? row_bytes : 0);
    activated = layout.Take(is_there ? row_bytes : 0);
    d_activated = layout.Take(s.is_classifier() ? row_bytes : 0);
    features = layout.Take(has_norm ? row_bytes : 0);
    mean = layout.Take(has_norm ? rows * int64_t{sizeof(float)} : 0);
    rstd = layout.Take(has_norm ? rows * int64_t{sizeof(float)} : 0);
  }
  // When the wire form is not the compute dtype:
  int64_t weight, weight_bias;  // act (C, C), (C)
  int64_t gamma, beta;          // act (C) each; of the dense part's norm
  int64_t bias;                 // act (chunk); of the logits
  // Always:
  int64_t before;       // act (rows, C): before the activation
  int64_t activated;    // act (rows, C)
  int64_t d_activated;  // act (rows, C); of masked tokens it lies in d_normed
  int64_t features;     // act (rows, C): normed again, and later the gradient of the first norm's output
  int64_t mean, rstd;   // fp32 (rows) each
};

struct HeadScratch {
  HeadScratch(const LayerShape& s, bool keeps_logits) : HeadScratch(s, keeps_logits, Layout()) {}

  int64_t gamma, beta;               // act (C) each, when the wire form is not the compute dtype
  int64_t normed, d_normed;          // act (M, C) each
  int64_t mean, rstd;                // fp32 (M) each
  int64_t row_max, row_sum, target;  // fp32 (rows) each: the running softmax
  int64_t scores, sequence_scale;    // SequenceScore (B), fp32 (B); of preferences alone
  int64_t logits;                    // act (rows, columns of a chunk), LogitsRow; of the last one, or of all in turn
  int64_t kept_logits;               // likewise, of each other chunk, KeptChunkBytes apart, when they are kept
  int64_t table;                     // act (chunk, C), when the wire form is not the compute dtype
  DenseScratch dense;
  int64_t kernel;  // kernels' own; last, so that no address depends on its size

 private:
  HeadScratch(const LayerShape& s, bool keeps_logits, Layout layout)
      : gamma(layout.Take(s.expands() ? s.C * s.act_bytes() : 0)),
        beta(layout.Take(s.expands() && s.has_mean ? s.C * s.act_bytes() : 0)),
        normed(layout.Take(s.boundary_bytes())),
        d_normed(layout.Take(s.boundary_bytes())),
        mean(layout.Take(s.has_mean ? s.M() * int64_t{sizeof(float)} : 0)),
        rstd(layout.Take(s.M() * int64_t{sizeof(float)})),
        row_max(layout.Take(OutputRows(s) * int64_t{sizeof(float)})),
        row_sum(layout.Take(OutputRows(s) * int64_t{sizeof(float)})),
        target(layout.Take(OutputRows(s) * int64_t{sizeof(float)})),
        scores(layout.Take(s.preferences.is_on() ? s.B * int64_t{sizeof(SequenceScore)} : 0)),
        sequence_scale(layout.Take(s.preferences.is_on() ? s.B * int64_t{sizeof(float)} : 0)),
        logits(layout.Take(LogitsBytes(s))),
        kept_logits(layout.Take(keeps_logits ? KeptLogitsBytes(s) : 0)),
        table(layout.Take(s.expands() ? VocabChunk(s) * s.C * s.act_bytes() : 0)),
        dense(s, layout),
        kernel(layout.total_bytes()) {}
};

// The head's work, step by step, over one micro-batch.
class HeadWork {
 public:
  HeadWork(Kernels& kernels, const HeadArgs& args)
      : k_(kernels),
        args_(args),
        s_(args.shape),
        at_(args.shape, args.keeps_logits),
        rows_(OutputRows(args.shape)),
        norm_{kernels, args.shape.M(), args.shape.C, args.shape.layer_norm_eps},
        dense_norm_{kernels, rows_, args.shape.C, args.shape.layer_norm_eps} {}

  // From x to what the logits are products of.
  void Features(const void* x) {
    parameters_ = Parameters(args_.weight_offsets.norm, at_.gamma, at_.beta);
    norm_.Forward(parameters_, x, statistics(), normed());
    if (s_.has_dense_head) Dense();
  }

  int64_t num_chunks() const { return NumChunks(s_); }
  Chunk ChunkOf(int64_t index) {
    const int64_t columns = ChunkColumns(s_, index);
    const bool is_kept = args_.keeps_logits && index < num_chunks() - 1;
    return {.first = index * VocabChunk(s_),
            .columns = columns,
            .ld = LogitsRow(columns),
            .logits = Scratch(is_kept ? at_.kept_logits + index * KeptChunkBytes(s_) : at_.logits)};
  }

  // Columns of a chunk that are multiplied at once.
  struct Part {
    int64_t first = 0, columns = 0;  // `first`: within the chunk
  };
  static std::vector<Part> PartsOf(const Chunk& chunk) {
    const int64_t fast = chunk.columns / kFastColumns * kFastColumns;
    if (chunk.columns < kRowsTogether || fast == chunk.columns) return {{.columns = chunk.columns}};
    return {{.columns = fast}, {.first = fast, .columns = chunk.columns - fast}};
  }

  // What Logits and LogitsBackward read of the table.
  void LoadTable(const Chunk& chunk) {
    table_ = Parameter(args_.weight_offsets.table + chunk.first * s_.C, chunk.columns * s_.C, at_.table);
  }

  // logits (num_rows, columns) = features (num_rows, C) table[first, first + columns)^T + bias, from row `first_row`
  // on.
  void Logits(const Chunk& chunk, int64_t first_row, int64_t num_rows) {
    const std::optional<int64_t> offset = args_.weight_offsets.bias;
    const void* bias = offset.has_value() ? Parameter(*offset + chunk.first, chunk.columns, at_.dense.bias) : nullptr;
    for (const Part& part : PartsOf(chunk)) {
      k_.MatMul({.M = num_rows,
                 .N = part.columns,
                 .K = s_.C,
                 .a = At(features(), first_row * s_.C * s_.act_bytes()),
                 .lda = s_.C,
                 .b = At(table_, part.first * s_.C * s_.act_bytes()),
                 .ldb = s_.C,
                 .trans_b = true,
                 .c = At(chunk.logits, part.first * s_.act_bytes()),
                 .ldc = chunk.ld,
                 .bias = bias == nullptr ? nullptr : At(bias, part.first * s_.act_bytes())});
    }
  }

  // starts: the gradient of the features is set, not added to.
  void LogitsBackward(const Chunk& chunk, bool starts, float* gradient) {
    const HeadOffsets& to = args_.offsets;
    for (const Part& part : PartsOf(chunk)) {
      const void* d_logits = At(chunk.logits, part.first * s_.act_bytes());
      k_.MatMul({.M = rows_,
                 .N = s_.C,
                 .K = part.columns,
                 .a = d_logits,
                 .lda = chunk.ld,
                 .b = At(table_, part.first * s_.C * s_.act_bytes()),
                 .ldb = s_.C,
                 .c = d_features(),
                 .ldc = s_.C,
                 .accumulate = !starts || part.first > 0});
      if (!Trains(to.table)) continue;
      k_.MatMul({.M = part.columns,
                 .N = s_.C,
                 .K = rows_,
                 .a = d_logits,
                 .lda = chunk.ld,
                 .trans_a = true,
                 .b = features(),
                 .ldb = s_.C,
                 .c = gradient + to.table + (chunk.first + part.first) * s_.C,
                 .ldc = s_.C,
                 .c_is_gradient = true,
                 .accumulate = !args_.starts_gradient});
    }
    if (!to.bias.has_value()) return;
    k_.ColumnSum({.M = rows_,
                  .N = chunk.columns,
                  .ld = chunk.ld,
                  .x = chunk.logits,
                  .out = gradient + *to.bias + chunk.first,
                  .scratch = Scratch(at_.kernel)});
  }

  void FeaturesBackward(const void* x, void* dx, float* gradient) {
    void* d_normed = s_.has_dense_head ? DenseBackward(gradient) : Scratch(at_.d_normed);
    NormBackward(norm_, parameters_, args_.offsets.norm, d_normed, x, statistics(), dx, gradient);
  }

  // The running softmax over all chunks, of which the last one's logits are left.
  void Softmax(const int32_t* labels) {
    for (int64_t i = 0; i < num_chunks(); ++i) {
      const Chunk chunk = ChunkOf(i);
      LoadTable(chunk);
      Logits(chunk, 0, rows_);
      k_.SoftmaxChunk({.M = rows_,
                       .chunk = chunk.columns,
                       .first = chunk.first,
                       .ld = chunk.ld,
                       .logits = chunk.logits,
                       .labels = labels,
                       .row_max = row_max(),
                       .row_sum = row_sum(),
                       .target = target()});
    }
  }

  void Loss(const int32_t* labels, double scale, LossRecord* record) {
    if (!s_.preferences.is_on()) {
      return k_.Loss({.M = rows_,
                      .V = s_.num_outputs(),
                      .labels = labels,
                      .row_max = row_max(),
                      .row_sum = row_sum(),
                      .target = target(),
                      .record = record});
    }
    ScoreSequences(labels, scores());
    k_.PreferenceLoss({.B = s_.B,
                       .preferences = s_.preferences,
                       .scores = scores(),
                       .reference = args_.reference,
                       .scale = scale,
                       .sequence_scale = sequence_scale(),
                       .record = record});
  }

  void ScoreSequences(const int32_t* labels, SequenceScore* to) {
    k_.ScoreSequences({.B = s_.B,
                       .T = s_.T,
                       .V = s_.V,
                       .labels = labels,
                       .row_max = row_max(),
                       .row_sum = row_sum(),
                       .target = target(),
                       .scores = to});
  }

  int64_t rows() const { return rows_; }
  // Null: all rows have one scale.
  float* sequence_scale() { return s_.preferences.is_on() ? Floats(at_.sequence_scale) : nullptr; }
  float* row_max() { return Floats(at_.row_max); }
  float* row_sum() { return Floats(at_.row_sum); }
  float* target() { return Floats(at_.target); }

 private:
  // Of a matrix: the gradients of vectors have room in the slot, frozen or not (GradientElems).
  bool Trains(int64_t offset_elems) const { return offset_elems < args_.trainable_elems; }
  std::byte* Scratch(int64_t offset) { return At(args_.scratch, offset); }
  float* Floats(int64_t offset) { return FloatsAt(args_.scratch, offset); }
  SequenceScore* scores() { return reinterpret_cast<SequenceScore*>(Scratch(at_.scores)); }
  void* normed() { return Scratch(at_.normed); }
  NormStatistics statistics() { return {Floats(at_.mean), Floats(at_.rstd)}; }
  NormStatistics dense_statistics() { return {Floats(at_.dense.mean), Floats(at_.dense.rstd)}; }
  void* features() {
    if (!s_.has_dense_head) return normed();
    return Scratch(s_.is_classifier() ? at_.dense.activated : at_.dense.features);
  }
  void* d_features() { return Scratch(s_.is_classifier() ? at_.dense.d_activated : at_.d_normed); }
  // Rows of the first norm's output that the dense part reads: all, or each sample's first.
  int64_t dense_ld() const { return s_.is_classifier() ? s_.T * s_.C : s_.C; }
  Activation activation() const { return s_.is_classifier() ? Activation::kTanh : s_.activation; }
  Dropout dropout() const { return args_.key.MakeDropout(s_.classifier_dropout, kClassifierDropoutUse, rows_ * s_.C); }

  // A parameter in the compute dtype: where it lies, or expanded into `scratch_offset`.
  const void* Parameter(int64_t offset_elems, int64_t num_elems, int64_t scratch_offset) {
    const void* wire = At(args_.weights, offset_elems * SizeOf(s_.wire));
    if (!s_.expands()) return wire;
    void* expanded = Scratch(scratch_offset);
    k_.Widen({.n = num_elems, .src = wire, .src_dtype = s_.wire, .dst = expanded});
    return expanded;
  }
  NormParameters Parameters(const HeadOffsets::Norm& from, int64_t gamma, int64_t beta) {
    NormParameters parameters = {.scale = Parameter(from.scale, s_.C, gamma)};
    if (from.shift.has_value()) parameters.shift = Parameter(*from.shift, s_.C, beta);
    return parameters;
  }
  void NormBackward(const NormContext& norm, const NormParameters& parameters, const HeadOffsets::Norm& to,
                    const void* dy, const void* x, const NormStatistics& statistics, void* dx, float* gradient) {
    norm.Backward(parameters, dy, x, statistics, nullptr, dx, gradient + to.scale,
                  to.shift.has_value() ? gradient + *to.shift : nullptr, Scratch(at_.kernel));
  }

  void Dense() {
    const HeadOffsets& from = args_.weight_offsets;
    dense_weight_ = Parameter(from.dense->weight, s_.C * s_.C, at_.dense.weight);
    k_.MatMul({.M = rows_,
               .N = s_.C,
               .K = s_.C,
               .a = normed(),
               .lda = dense_ld(),
               .b = dense_weight_,
               .ldb = s_.C,
               .trans_b = true,
               .c = Scratch(at_.dense.before),
               .ldc = s_.C,
               .bias = Parameter(from.dense->bias, s_.C, at_.dense.weight_bias),
               .epilogue = MatMulArgs::Epilogue::kActivation,
               .activation = activation(),
               .activated = Scratch(at_.dense.activated)});
    if (s_.is_classifier()) {
      void* pooled = Scratch(at_.dense.activated);
      if (dropout().rate > 0) k_.ApplyDropout({.n = rows_ * s_.C, .x = pooled, .y = pooled, .dropout = dropout()});
      return;
    }
    dense_parameters_ = Parameters(*from.dense_norm, at_.dense.gamma, at_.dense.beta);
    dense_norm_.Forward(dense_parameters_, Scratch(at_.dense.activated), dense_statistics(),
                        Scratch(at_.dense.features));
  }

  // Returns the gradient of the first norm's output.
  void* DenseBackward(float* gradient) {
    void* d = d_features();
    void* d_normed = Scratch(s_.is_classifier() ? at_.d_normed : at_.dense.features);
    if (s_.is_classifier()) {
      if (dropout().rate > 0) k_.ApplyDropout({.n = rows_ * s_.C, .x = d, .y = d, .dropout = dropout()});
      k_.FillZero({.num_bytes = s_.boundary_bytes(), .dst = d_normed});  // of all rows but each sample's first
    } else {
      NormBackward(dense_norm_, dense_parameters_, *args_.offsets.dense_norm, d, Scratch(at_.dense.activated),
                   dense_statistics(), d, gradient);
    }
    k_.ActivationBackward({.M = rows_,
                           .N = s_.C,
                           .activation = activation(),
                           .x = Scratch(at_.dense.before),
                           .dy = d,
                           .dbias = gradient + args_.offsets.dense->bias,
                           .scratch = Scratch(at_.kernel)});
    if (Trains(args_.offsets.dense->weight)) {
      k_.MatMul({.M = s_.C,
                 .N = s_.C,
                 .K = rows_,
                 .a = d,
                 .lda = s_.C,
                 .trans_a = true,
                 .b = normed(),
                 .ldb = dense_ld(),
                 .c = gradient + args_.offsets.dense->weight,
                 .ldc = s_.C,
                 .c_is_gradient = true,
                 .accumulate = !args_.starts_gradient});
    }
    k_.MatMul({.M = rows_,
               .N = s_.C,
               .K = s_.C,
               .a = d,
               .lda = s_.C,
               .b = dense_weight_,
               .ldb = s_.C,
               .c = d_normed,
               .ldc = dense_ld()});
    return d_normed;
  }

  Kernels& k_;
  const HeadArgs& args_;
  const LayerShape& s_;
  const HeadScratch at_;
  const int64_t rows_;
  const NormContext norm_, dense_norm_;
  NormParameters parameters_, dense_parameters_;
  const void* dense_weight_ = nullptr;
  const void* table_ = nullptr;
};

}  // namespace

HeadOffsets HeadOffsets::Mapped(const std::function<int64_t(int64_t)>& fn) const {
  const auto norm_of = [&](const Norm& from) {
    Norm to = {.scale = fn(from.scale)};
    if (from.shift.has_value()) to.shift = fn(*from.shift);
    return to;
  };
  HeadOffsets to = {.norm = norm_of(norm), .table = fn(table)};
  if (dense.has_value()) to.dense = Dense{.weight = fn(dense->weight), .bias = fn(dense->bias)};
  if (dense_norm.has_value()) to.dense_norm = norm_of(*dense_norm);
  if (bias.has_value()) to.bias = fn(*bias);
  return to;
}

HeadOffsets HeadOffsetsOf(const ModelSpec& model, LayerId layer) {
  using Role = TensorRole;
  const auto find = [&](Role role) { return FindTensorOffset(model, layer, role); };
  HeadOffsets offsets;
  offsets.norm = {.scale = TensorOffset(model, layer, Role::kFinalNormScale), .shift = find(Role::kFinalNormShift)};
  const std::optional<int64_t> own = find(Role::kHeadTable);
  offsets.table = own.has_value() ? *own : TensorOffset(model, layer, Role::kTokenTable);
  offsets.bias = find(Role::kHeadBias);
  if (const std::optional<int64_t> weight = find(Role::kHeadDenseWeight); weight.has_value()) {
    offsets.dense = {.weight = *weight, .bias = TensorOffset(model, layer, Role::kHeadDenseBias)};
  }
  if (const std::optional<int64_t> scale = find(Role::kHeadDenseNormScale); scale.has_value()) {
    offsets.dense_norm = {.scale = *scale, .shift = find(Role::kHeadDenseNormShift)};
  }
  return offsets;
}

int64_t VocabChunk(const LayerShape& shape) {
  const int64_t outputs = shape.num_outputs();
  if (outputs <= kMaxVocabChunk) return outputs;
  const int64_t num_chunks = (outputs + kMaxVocabChunk - 1) / kMaxVocabChunk;
  return RoundUp((outputs + num_chunks - 1) / num_chunks, kRowsTogether);
}

int64_t LogitsRow(int64_t columns) {
  constexpr int64_t kClashingRow = 256;
  const int64_t row = RoundUp(columns, kRowsTogether);
  return row % kClashingRow == 0 && row != columns ? row + kRowsTogether : row;
}

int64_t HeadScratchBytes(const LayerShape& shape, const KernelSizes& kernels) {
  int64_t kernel = NormScratchBytes(shape.has_mean, shape.M(), shape.C, kernels);
  if (shape.has_dense_head) {
    const int64_t rows = OutputRows(shape);
    kernel = std::max({kernel, kernels.column_sum(rows, shape.C), kernels.column_sum(rows, VocabChunk(shape))});
  }
  return HeadScratch(shape, /*keeps_logits=*/false).kernel + kernel;
}

int64_t KeptLogitsBytes(const LayerShape& shape) { return (NumChunks(shape) - 1) * KeptChunkBytes(shape); }

void HeadForwardBackward(Kernels& kernels, const HeadArgs& args, const void* x, const int32_t* labels, double scale,
                         LossRecord* record, void* dx, float* gradient) {
  HeadWork work(kernels, args);
  const int64_t M = work.rows(), V = args.shape.num_outputs();
  work.Features(x);
  work.Softmax(labels);
  work.Loss(labels, scale, record);
  if (dx == nullptr) return;
  for (int64_t i = work.num_chunks() - 1; i >= 0; --i) {
    const Chunk chunk = work.ChunkOf(i);
    const bool is_last = i == work.num_chunks() - 1;
    if (!is_last) work.LoadTable(chunk);
    if (!is_last && !args.keeps_logits) work.Logits(chunk, 0, M);
    kernels.SoftmaxChunkBackward({.M = M,
                                  .chunk = chunk.columns,
                                  .first = chunk.first,
                                  .V = V,
                                  .ld = chunk.ld,
                                  .logits = chunk.logits,
                                  .labels = labels,
                                  .row_max = work.row_max(),
                                  .row_sum = work.row_sum(),
                                  .scale = scale,
                                  .sequence_scale = work.sequence_scale(),
                                  .T = args.shape.T});
    work.LogitsBackward(chunk, is_last, gradient);
  }
  work.FeaturesBackward(x, dx, gradient);
}

void HeadReference(Kernels& kernels, const HeadArgs& args, const void* x, const int32_t* labels) {
  HeadWork work(kernels, args);
  work.Features(x);
  work.Softmax(labels);
  work.ScoreSequences(labels, args.reference);
}

void HeadLogits(Kernels& kernels, const HeadArgs& args, const void* x, int64_t row,
                const std::function<void(int64_t, int64_t, const void*)>& take) {
  HeadWork work(kernels, args);
  work.Features(x);
  for (int64_t i = 0; i < work.num_chunks(); ++i) {
    const Chunk chunk = work.ChunkOf(i);
    work.LoadTable(chunk);
    work.Logits(chunk, row, 1);
    take(chunk.first, chunk.columns, chunk.logits);
  }
}

}  // namespace eps::worker
