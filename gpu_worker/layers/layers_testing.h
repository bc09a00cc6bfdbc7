#ifndef EPS_GPU_WORKER_LAYERS_LAYERS_TESTING_H_
#define EPS_GPU_WORKER_LAYERS_LAYERS_TESTING_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "common/base/byte_size.h"
#include "common/model/model_spec.h"
#include "common/model/rotary.h"
#include "common/tensor/dtype.h"
#include "common/testing/status_matchers.h"
#include "gpu_worker/device/arena_span.h"
#include "gpu_worker/device/cpu/cpu_device.h"
#include "gpu_worker/device/cpu/cpu_kernel_sizes.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/layers/block.h"
#include "gpu_worker/layers/layer_shape.h"

// Single layers in an arena with guards, for tests.
namespace eps::worker {

inline constexpr unsigned char kGuard = 0xA5;

// Buffers of a cpu device's arena with guard bytes before and behind each: a layer that needs more than it says
// overwrites them.
class GuardedArena {
 public:
  GuardedArena() : device_(NewCpuDevice({.arena_bytes = kBytes, .threads = 2}).value()) {
    base_ = static_cast<std::byte*>(device_->Address({0, kBytes}).value());
    std::memset(base_, kGuard, kBytes);
  }
  // Exactly num_bytes, filled with a NaN pattern: what is read before it is written shows.
  void* Take(int64_t num_bytes) {
    next_ += kArenaAlignBytes;
    std::byte* buffer = base_ + next_;
    std::memset(buffer, 0xFF, static_cast<size_t>(num_bytes));
    taken_.push_back({next_, num_bytes});
    next_ = RoundUp(next_ + num_bytes, kArenaAlignBytes);
    EXPECT_LE(next_ + kArenaAlignBytes, kBytes);
    return buffer;
  }
  float* TakeFloats(int64_t n) { return static_cast<float*>(Take(n * 4)); }
  const float* TakeRotaryTable(const ModelConfig& model) {
    const std::vector<float> table = RotaryTable(model.rotary, model.head_dim(), model.context);
    float* to = TakeFloats(static_cast<int64_t>(table.size()));
    std::copy(table.begin(), table.end(), to);
    return to;
  }
  void ExpectGuardsIntact() {
    ASSERT_OK(device_->stream(StreamId::kCompute).Synchronize());
    int64_t at = 0;
    for (const ArenaSpan& span : taken_) {
      for (; at < span.offset_bytes; ++at) ASSERT_EQ(base_[at], std::byte{kGuard}) << "before " << span.offset_bytes;
      at = span.end_bytes();
    }
    for (; at < next_ + kArenaAlignBytes; ++at) ASSERT_EQ(base_[at], std::byte{kGuard}) << "at the end";
  }
  Device& device() { return *device_; }

 private:
  static constexpr int64_t kBytes = int64_t{16} << 20;
  std::unique_ptr<Device> device_;
  std::byte* base_ = nullptr;
  int64_t next_ = 0;
  std::vector<ArenaSpan> taken_;
};

struct LayerCase {
  ModelConfig config;
  int64_t micro_batch = 1;
  Dtype wire = Dtype::kF32;
  int64_t feed_forward_tile = 0;

  BatchShape batch() const { return {.micro_batch = micro_batch, .feed_forward_tile = feed_forward_tile}; }
};
inline std::vector<LayerCase> Cases() {
  std::vector<LayerCase> cases;
  for (const Dtype wire : {Dtype::kF32, Dtype::kBf16}) {
    for (const double dropout : {0.0, 0.2}) {
      ModelConfig odd{.num_layers = 1, .d_model = 6, .num_heads = 3, .context = 7, .vocab = 11};
      odd.embedding_dropout = odd.attention_dropout = odd.residual_dropout = dropout;
      ModelConfig even = odd;
      even.d_model = 64;
      even.num_heads = 2;
      even.context = 48;
      even.vocab = 5000;  // two chunks
      ModelConfig llama = {.family = ModelFamily::kLlama, .num_layers = 1, .d_model = 10, .num_heads = 6};
      llama.context = llama.max_positions = 7;
      llama.vocab = 11;
      llama.num_kv_heads = 2;
      llama.d_head = 6;
      llama.d_ff = 21;
      llama.tied_head = llama.qkv_bias = llama.qk_norm = dropout > 0;
      llama.attention_dropout = dropout;
      llama.sliding_window = dropout > 0 ? 3 : 0;
      // Matrices of 63 and 70 elements, which leave gaps; and of 640, of which gate and up are one product.
      ModelConfig experts = llama, joined_experts = llama;
      experts.qk_norm = joined_experts.qk_norm = true;
      experts.d_ff = 7;
      experts.experts = {.num = 5, .per_token = 2, .normalizes = dropout > 0};
      joined_experts.d_ff = 64;
      joined_experts.experts = {.num = 40, .per_token = 3};  // of which some have no token
      ModelConfig bert = {.family = ModelFamily::kBert, .num_layers = 1, .d_model = 10, .num_heads = 2};
      bert.context = 7;
      bert.max_positions = 9;
      bert.vocab = 8222;  // three chunks
      bert.d_ff = 21;
      bert.num_types = 2;
      bert.embedding_dropout = bert.attention_dropout = bert.residual_dropout = bert.classifier_dropout = dropout;
      ModelConfig classifier = bert;
      classifier.num_classes = 3;
      cases.push_back({bert, 3, wire});
      cases.push_back({classifier, 3, wire});
      cases.push_back({llama, 3, wire});
      cases.push_back({experts, 3, wire});
      cases.push_back({joined_experts, 2, wire});
      cases.push_back({odd, 1, wire});
      cases.push_back({odd, 3, wire});
      cases.push_back({even, 2, wire});
    }
  }
  return cases;
}

// The same with adapters: beside all products, of a rank whose columns of t are padded, and beside some.
inline std::vector<LayerCase> CasesWithAdapters() {
  std::vector<LayerCase> cases;
  for (LayerCase c : Cases()) {
    c.config.lora = {.rank = 3, .alpha = 6};
    cases.push_back(c);
    c.config.lora.dropout = 0.3;
    cases.push_back(c);
    c.config.lora.dropout = 0;
    c.config.lora.rank = 8;
    switch (c.config.family) {
      case ModelFamily::kGpt2:
        c.config.lora.targets = {"attn.c_attn", "mlp.c_proj"};
        break;
      case ModelFamily::kLlama:
        c.config.lora.targets = {"k_proj", "v_proj", c.config.experts.are_on() ? "o_proj" : "up_proj"};
        break;
      case ModelFamily::kBert:
        c.config.lora.targets = {"query", "value", "intermediate.dense"};
        break;
    }
    cases.push_back(c);
  }
  return cases;
}
// Those of several tiles of the feed-forward part, of which the last one may be smaller. 16 rows begin aligned.
inline std::vector<LayerCase> CasesInTiles() {
  std::vector<LayerCase> cases;
  for (const std::vector<LayerCase>& some : {Cases(), CasesWithAdapters()}) {
    for (LayerCase c : some) {
      c.feed_forward_tile = 16;
      if (c.config.experts.are_on() || c.micro_batch * c.config.context <= c.feed_forward_tile) continue;
      cases.push_back(c);
    }
  }
  return cases;
}
inline std::vector<LayerCase> AllCases() {
  std::vector<LayerCase> cases = Cases();
  for (const LayerCase& c : CasesWithAdapters()) cases.push_back(c);
  for (const LayerCase& c : CasesInTiles()) cases.push_back(c);
  return cases;
}

inline void FillSmall(float* values, int64_t n) {
  for (int64_t i = 0; i < n; ++i) values[i] = static_cast<float>(std::sin(static_cast<double>(i) * 0.7)) * 0.3f;
}
inline bool AllFinite(const float* values, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    if (!std::isfinite(values[i])) return false;
  }
  return true;
}

// Of a from b, in parts of b.
inline double Distance(const std::vector<float>& a, const std::vector<float>& b) {
  double square = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) square += std::pow(a[i] - b[i], 2), size += std::pow(b[i], 2);
  return std::sqrt(square / size);
}

// The first block of a model, once: weights and x are small numbers, all else is as GuardedArena::Take leaves it.
struct BlockInArena {
  BlockInArena(const ModelSpec& model, const LayerCase& c)
      : layer(model.layers[1]),
        shape(MakeLayerShape(model, c.batch(), c.wire, Dtype::kF32)),
        sizes(SizesOf(model, layer, shape, CpuKernelSizes())),
        boundary_elems(shape.M() * shape.C),
        weights(arena.TakeFloats(layer.num_elems)),
        x(arena.TakeFloats(boundary_elems)),
        y(arena.TakeFloats(boundary_elems)),
        offsets(BlockOffsetsOf(model, layer.id)),
        forward({.shape = shape,
                 .key = {.layer = layer.id, .micro_batch = 1},
                 .offsets = &offsets,
                 .is_first = true,
                 .weights = weights,
                 .trainable_elems = layer.trainable_elems,
                 .expert_balance = 0.5,
                 .rotary_table = shape.is_rotary ? arena.TakeRotaryTable(model.config) : nullptr,
                 .inner = arena.Take(sizes.inner_bytes),
                 .scratch = arena.Take(sizes.forward_scratch_bytes)}),
        backward(forward) {
    backward.scratch = arena.Take(sizes.backward_scratch_bytes);
    FillSmall(weights, layer.num_elems);
    FillSmall(x, boundary_elems);
  }
  BlockInArena(const BlockInArena&) = delete;
  BlockInArena& operator=(const BlockInArena&) = delete;

  // x to y.
  void Forward() {
    BlockForward(arena.device().kernels(), forward, x, y);
    EXPECT_OK(arena.device().stream(StreamId::kCompute).Synchronize());
  }
  // Of small numbers in y, which become the gradient of x; that of the weights is added to `gradient`.
  void Backward(float* gradient) {
    FillSmall(y, boundary_elems);
    BlockBackward(arena.device().kernels(), backward, x, y, gradient);
    arena.ExpectGuardsIntact();
  }
  // num_elems zeros.
  float* TakeZeros(int64_t num_elems) {
    float* zeros = arena.TakeFloats(num_elems);
    std::fill(zeros, zeros + num_elems, 0.0f);
    return zeros;
  }

  const LayerSpec& layer;
  const LayerShape shape;
  const LayerSizes sizes;
  const int64_t boundary_elems;
  GuardedArena arena;
  float* const weights;  // (layer.num_elems)
  float* const x;        // (boundary_elems)
  float* const y;        // (boundary_elems)
  const BlockOffsets offsets;
  BlockArgs forward;
  BlockArgs backward;  // with scratch of its own
};

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_LAYERS_LAYERS_TESTING_H_
