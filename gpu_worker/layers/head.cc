#include "gpu_worker/layers/head.h"

#include <algorithm>
#include <optional>

#include "common/base/byte_size.h"
#include "gpu_worker/layers/norm.h"
#include "gpu_worker/layers/tensor_offsets.h"

namespace eps::worker {
namespace {

constexpr int64_t kMaxVocabChunk = 4096;
constexpr int64_t kRowsTogether = 64;  // chunks start at multiples of it, so their rows of the table are aligned

struct HeadScratch {
  explicit HeadScratch(const LayerShape& s) {
    Layout layout;
    const int64_t row_bytes = s.M() * int64_t{sizeof(float)};
    gamma = layout.Take(s.expands() ? s.C * s.act_bytes() : 0);
    beta = layout.Take(s.expands() && s.has_mean ? s.C * s.act_bytes() : 0);
    normed = layout.Take(s.boundary_bytes());
    d_normed = layout.Take(s.boundary_bytes());
    mean = layout.Take(s.has_mean ? row_bytes : 0);
    rstd = layout.Take(row_bytes);
    row_max = layout.Take(row_bytes);
    row_sum = layout.Take(row_bytes);
    target = layout.Take(row_bytes);
    logits = layout.Take(s.M() * VocabChunk(s) * s.act_bytes());
    table = layout.Take(s.expands() ? VocabChunk(s) * s.C * s.act_bytes() : 0);
    kernel = layout.total_bytes();
  }
  int64_t gamma, beta;               // act (C) each, when the wire form is not the compute dtype
  int64_t normed, d_normed;          // act (M, C) each
  int64_t mean, rstd;                // fp32 (M) each
  int64_t row_max, row_sum, target;  // fp32 (M) each: the running softmax
  int64_t logits;                    // act (M, chunk)
  int64_t table;                     // act (chunk, C), when the wire form is not the compute dtype
  int64_t kernel;                    // kernels' own; last, so that no address depends on its size
};

// The head's work, step by step, over one micro-batch.
class HeadWork {
 public:
  HeadWork(Kernels& kernels, const HeadArgs& args)
      : k_(kernels),
        args_(args),
        s_(args.shape),
        at_(args.shape),
        rows_(args.shape.M()),
        norm_{kernels, rows_, args.shape.C, args.shape.layer_norm_eps} {}

  // A parameter in the compute dtype: where it lies, or expanded into `scratch_offset`.
  const void* Parameter(int64_t offset_elems, int64_t num_elems, int64_t scratch_offset) {
    const void* wire = At(args_.weights, offset_elems * SizeOf(s_.wire));
    if (!s_.expands()) return wire;
    void* expanded = Scratch(scratch_offset);
    k_.Widen({.n = num_elems, .src = wire, .src_dtype = s_.wire, .dst = expanded});
    return expanded;
  }

  void Normalize(const void* x) {
    const HeadOffsets& from = args_.weight_offsets;
    parameters_.scale = Parameter(from.gamma, s_.C, at_.gamma);
    if (from.beta.has_value()) parameters_.shift = Parameter(*from.beta, s_.C, at_.beta);
    norm_.Forward(parameters_, x, statistics(), normed());
  }

  // logits (num_rows, chunk) = normed (num_rows, C) table[first, first + chunk)^T, for the last `num_rows` rows.
  // Leaves the table's chunk in table_.
  void Logits(int64_t first, int64_t chunk, int64_t num_rows) {
    table_ = Parameter(args_.weight_offsets.table + first * s_.C, chunk * s_.C, at_.table);
    k_.MatMul({.M = num_rows,
               .N = chunk,
               .K = s_.C,
               .a = At(normed(), (rows_ - num_rows) * s_.C * s_.act_bytes()),
               .lda = s_.C,
               .b = table_,
               .ldb = s_.C,
               .trans_b = true,
               .c = logits(),
               .ldc = chunk});
  }

  // starts: d_normed is set, not added to. d_table: null where the table is frozen.
  void LogitsBackward(int64_t first, int64_t chunk, bool starts, float* d_table) {
    k_.MatMul({.M = rows_,
               .N = s_.C,
               .K = chunk,
               .a = logits(),
               .lda = chunk,
               .b = table_,
               .ldb = s_.C,
               .c = d_normed(),
               .ldc = s_.C,
               .accumulate = !starts});
    if (d_table == nullptr) return;
    k_.MatMul({.M = chunk,
               .N = s_.C,
               .K = rows_,
               .a = logits(),
               .lda = chunk,
               .trans_a = true,
               .b = normed(),
               .ldb = s_.C,
               .c = d_table + first * s_.C,
               .ldc = s_.C,
               .c_is_gradient = true,
               .accumulate = true});
  }

  void NormalizeBackward(const void* x, void* dx, float* gradient) {
    const HeadOffsets& to = args_.offsets;
    norm_.Backward(parameters_, d_normed(), x, statistics(), nullptr, dx, gradient + to.gamma,
                   to.beta.has_value() ? gradient + *to.beta : nullptr, Scratch(at_.kernel));
  }

  void* logits() { return Scratch(at_.logits); }
  float* row_max() { return Floats(at_.row_max); }
  float* row_sum() { return Floats(at_.row_sum); }
  float* target() { return Floats(at_.target); }

 private:
  std::byte* Scratch(int64_t offset) { return At(args_.scratch, offset); }
  float* Floats(int64_t offset) { return FloatsAt(args_.scratch, offset); }
  void* normed() { return Scratch(at_.normed); }
  NormStatistics statistics() { return {Floats(at_.mean), Floats(at_.rstd)}; }
  void* d_normed() { return Scratch(at_.d_normed); }

  Kernels& k_;
  const HeadArgs& args_;
  const LayerShape& s_;
  const HeadScratch at_;
  const int64_t rows_;
  const NormContext norm_;
  NormParameters parameters_;
  const void* table_ = nullptr;
};

}  // namespace

HeadOffsets HeadOffsetsOf(const ModelSpec& model, LayerId layer) {
  const std::optional<int64_t> own = FindTensorOffset(model, layer, TensorRole::kHeadTable);
  return {.gamma = TensorOffset(model, layer, TensorRole::kFinalNormScale),
          .beta = FindTensorOffset(model, layer, TensorRole::kFinalNormShift),
          .table = own.has_value() ? *own : TensorOffset(model, layer, TensorRole::kTokenTable)};
}

int64_t VocabChunk(const LayerShape& shape) {
  if (shape.V <= kMaxVocabChunk) return shape.V;
  const int64_t num_chunks = (shape.V + kMaxVocabChunk - 1) / kMaxVocabChunk;
  return RoundUp((shape.V + num_chunks - 1) / num_chunks, kRowsTogether);
}

int64_t HeadScratchBytes(const LayerShape& shape, const KernelSizes& kernels) {
  return HeadScratch(shape).kernel + NormScratchBytes(shape.has_mean, shape.M(), shape.C, kernels);
}

void HeadForwardBackward(Kernels& kernels, const HeadArgs& args, const void* x, const int32_t* labels, double scale,
                         LossRecord* record, void* dx, float* gradient) {
  const LayerShape& s = args.shape;
  const int64_t M = s.M(), V = s.V, width = VocabChunk(s);
  const int64_t num_chunks = (V + width - 1) / width;
  HeadWork work(kernels, args);
  const auto columns = [&](int64_t index) { return std::min(width, V - index * width); };

  float* d_table = args.offsets.table < args.trainable_elems ? gradient + args.offsets.table : nullptr;
  work.Normalize(x);
  for (int64_t i = 0; i < num_chunks; ++i) {
    work.Logits(i * width, columns(i), M);
    kernels.SoftmaxChunk({.M = M,
                          .chunk = columns(i),
                          .first = i * width,
                          .logits = work.logits(),
                          .labels = labels,
                          .row_max = work.row_max(),
                          .row_sum = work.row_sum(),
                          .target = work.target()});
  }
  kernels.Loss({.M = M,
                .V = V,
                .labels = labels,
                .row_max = work.row_max(),
                .row_sum = work.row_sum(),
                .target = work.target(),
                .record = record});
  for (int64_t i = num_chunks - 1; i >= 0; --i) {
    const bool is_last = i == num_chunks - 1;
    if (!is_last) work.Logits(i * width, columns(i), M);
    kernels.SoftmaxChunkBackward({.M = M,
                                  .chunk = columns(i),
                                  .first = i * width,
                                  .V = V,
                                  .logits = work.logits(),
                                  .labels = labels,
                                  .row_max = work.row_max(),
                                  .row_sum = work.row_sum(),
                                  .scale = scale});
    work.LogitsBackward(i * width, columns(i), is_last, d_table);
  }
  work.NormalizeBackward(x, dx, gradient);
}

void HeadLogits(Kernels& kernels, const HeadArgs& args, const void* x,
                const std::function<void(int64_t, int64_t, const void*)>& take) {
  const int64_t V = args.shape.V, width = VocabChunk(args.shape);
  HeadWork work(kernels, args);
  work.Normalize(x);
  for (int64_t first = 0; first < V; first += width) {
    const int64_t chunk = std::min(width, V - first);
    work.Logits(first, chunk, 1);
    take(first, chunk, work.logits());
  }
}

}  // namespace eps::worker
