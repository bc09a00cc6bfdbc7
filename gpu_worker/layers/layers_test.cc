#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/model/lora.h"
#include "common/model/rotary.h"
#include "common/testing/status_matchers.h"
#include "gpu_worker/device/cpu/cpu_device.h"
#include "gpu_worker/device/cpu/cpu_kernel_sizes.h"
#include "gpu_worker/layers/block.h"
#include "gpu_worker/layers/embedding.h"
#include "gpu_worker/layers/head.h"
#include "gpu_worker/layers/layer_shape.h"
#include "gpu_worker/layers/tensor_offsets.h"

// Sizes and bits of single layers; their gradients are tested against fp64 in relay/relay_executor_test.cc.

namespace eps::worker {
namespace {

constexpr unsigned char kGuard = 0xA5;

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

struct Case {
  ModelConfig config;
  int64_t micro_batch = 1;
  Dtype wire = Dtype::kF32;
};
std::vector<Case> Cases() {
  std::vector<Case> cases;
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
      cases.push_back({odd, 1, wire});
      cases.push_back({odd, 3, wire});
      cases.push_back({even, 2, wire});
    }
  }
  return cases;
}

// The same with adapters: beside all products, of a rank whose columns of t are padded, and beside some.
std::vector<Case> CasesWithAdapters() {
  std::vector<Case> cases;
  for (Case c : Cases()) {
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
        c.config.lora.targets = {"k_proj", "v_proj", "up_proj"};
        break;
      case ModelFamily::kBert:
        c.config.lora.targets = {"query", "value", "intermediate.dense"};
        break;
    }
    cases.push_back(c);
  }
  return cases;
}
std::vector<Case> AllCases() {
  std::vector<Case> cases = Cases();
  for (const Case& c : CasesWithAdapters()) cases.push_back(c);
  return cases;
}

void FillSmall(float* values, int64_t n) {
  for (int64_t i = 0; i < n; ++i) values[i] = static_cast<float>(std::sin(static_cast<double>(i) * 0.7)) * 0.3f;
}
// Bytes that are as GuardedArena::Take left them.
int64_t Untouched(const void* buffer, int64_t num_bytes) {
  const auto* words = static_cast<const uint32_t*>(buffer);
  return 4 * std::count(words, words + num_bytes / 4, 0xFFFFFFFFu);
}
bool AllFinite(const float* values, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    if (!std::isfinite(values[i])) return false;
  }
  return true;
}

TEST(LayersTest, ABlockStaysWithinItsSizesAndRecomputesTheSameBits) {
  for (const Case& c : AllCases()) {
    const ModelSpec model = BuildModel(c.config).value();
    const LayerSpec& layer = model.layers[1];
    const LayerShape shape = MakeLayerShape(model, {.micro_batch = c.micro_batch}, c.wire, Dtype::kF32);
    const LayerSizes sizes = SizesOf(model, layer, shape, CpuKernelSizes());
    const int64_t boundary_elems = shape.M() * shape.C;
    GuardedArena arena;
    Kernels& kernels = arena.device().kernels();
    float* weights = arena.TakeFloats(layer.num_elems);
    FillSmall(weights, layer.num_elems);
    float* gradient = arena.TakeFloats(layer.num_elems);
    std::memset(gradient, 0, static_cast<size_t>(layer.num_elems) * 4);
    float* x = arena.TakeFloats(boundary_elems);
    FillSmall(x, boundary_elems);
    float* y = arena.TakeFloats(boundary_elems);
    void* inner = arena.Take(sizes.inner_bytes);
    const BlockOffsets offsets = BlockOffsetsOf(model, layer.id);
    BlockArgs args{.shape = shape,
                   .key = {.layer = layer.id, .micro_batch = 1},
                   .offsets = &offsets,
                   .is_first = true,
                   .weights = weights,
                   .trainable_elems = layer.trainable_elems,
                   .rotary_table = shape.is_rotary ? arena.TakeRotaryTable(c.config) : nullptr,
                   .inner = inner,
                   .scratch = arena.Take(sizes.forward_scratch_bytes)};
    BlockForward(kernels, args, x, y);
    BlockArgs again = args;
    again.inner = arena.Take(sizes.inner_bytes);
    again.scratch = arena.Take(sizes.forward_scratch_bytes);
    BlockForward(kernels, again, x, nullptr);
    arena.ExpectGuardsIntact();
    EXPECT_TRUE(AllFinite(y, boundary_elems));
    EXPECT_EQ(std::memcmp(inner, again.inner, static_cast<size_t>(sizes.inner_bytes)), 0);

    args.scratch = arena.Take(sizes.backward_scratch_bytes);
    FillSmall(y, boundary_elems);
    BlockBackward(kernels, args, x, y, gradient);
    arena.ExpectGuardsIntact();
    EXPECT_TRUE(AllFinite(y, boundary_elems));
    EXPECT_TRUE(AllFinite(gradient, layer.num_elems));
  }
}

// Adds scale B A of every adapter in the layer's slot to the weight that it is beside.
void Merge(const ModelSpec& model, const LayerSpec& layer, float* weights) {
  for (const BlobUse& use : layer.blobs) {
    for (const TensorSpec& tensor : model.blob(use.blob).tensors) {
      const std::optional<int64_t> a = FindTensorOffset(model, layer.id, tensor.role, LoraPart::kA);
      const std::optional<int64_t> b = FindTensorOffset(model, layer.id, tensor.role, LoraPart::kB);
      if (tensor.lora != LoraPart::kNone || !a.has_value()) continue;
      const ProductShape shape = ProductShapeOf(model.config.family, tensor.shape);
      const int64_t rank = model.config.lora.rank;
      float* weight = weights + use.offset_elems + tensor.offset_elems;
      for (int64_t o = 0; o < shape.out; ++o) {
        for (int64_t i = 0; i < shape.in; ++i) {
          double sum = 0;
          for (int64_t r = 0; r < rank; ++r) sum += double{weights[*b + o * rank + r]} * weights[*a + r * shape.in + i];
          weight[shape.is_out_in ? o * shape.in + i : i * shape.out + o] +=
              static_cast<float>(model.config.lora.scale() * sum);
        }
      }
    }
  }
}

double Distance(const float* a, const float* b, int64_t n) {
  double square = 0, size = 0;
  for (int64_t i = 0; i < n; ++i) square += std::pow(a[i] - b[i], 2), size += std::pow(b[i], 2);
  return std::sqrt(square / size);
}

TEST(LayersTest, ABlockWithAdaptersIsTheOneOfTheMergedWeights) {
  for (const Case& c : CasesWithAdapters()) {
    if (c.config.lora.dropout > 0) continue;
    ModelConfig plain = c.config;
    plain.lora = {};
    const ModelSpec model = BuildModel(c.config).value(), merged = BuildModel(plain).value();
    const LayerShape shape = MakeLayerShape(model, {.micro_batch = c.micro_batch}, c.wire, Dtype::kF32);
    const int64_t boundary_elems = shape.M() * shape.C;
    GuardedArena arena;
    float* x = arena.TakeFloats(boundary_elems);
    FillSmall(x, boundary_elems);
    // What forward and backward give, by weights that are `with`'s own or those into which its adapters are merged.
    const auto run = [&](const ModelSpec& with, float* weights) {
      const LayerSpec& layer = with.layers[1];
      const LayerShape own_shape = MakeLayerShape(with, {.micro_batch = c.micro_batch}, c.wire, Dtype::kF32);
      const LayerSizes sizes = SizesOf(with, layer, own_shape, CpuKernelSizes());
      const BlockOffsets offsets = BlockOffsetsOf(with, layer.id);
      float* gradient = arena.TakeFloats(layer.num_elems);
      std::fill(gradient, gradient + layer.num_elems, 0.0f);
      const BlockArgs args{.shape = own_shape,
                           .key = {.layer = layer.id, .micro_batch = 1},
                           .offsets = &offsets,
                           .is_first = true,
                           .weights = weights,
                           .trainable_elems = layer.trainable_elems,
                           .rotary_table = own_shape.is_rotary ? arena.TakeRotaryTable(with.config) : nullptr,
                           .inner = arena.Take(sizes.inner_bytes),
                           .scratch = arena.Take(std::max(sizes.forward_scratch_bytes, sizes.backward_scratch_bytes))};
      float* y = arena.TakeFloats(boundary_elems);
      BlockForward(arena.device().kernels(), args, x, y);
      EXPECT_OK(arena.device().stream(StreamId::kCompute).Synchronize());
      std::vector<float> both(y, y + boundary_elems);
      FillSmall(y, boundary_elems);
      BlockBackward(arena.device().kernels(), args, x, y, gradient);
      arena.ExpectGuardsIntact();
      both.insert(both.end(), y, y + boundary_elems);
      return both;
    };
    const LayerSpec& layer = model.layers[1];
    std::vector<float> weights(static_cast<size_t>(layer.num_elems));
    FillSmall(weights.data(), layer.num_elems);
    const auto put = [&](const std::vector<float>& values) {
      float* slot = arena.TakeFloats(static_cast<int64_t>(values.size()));
      std::copy(values.begin(), values.end(), slot);
      return slot;
    };
    const std::vector<float> adapted = run(model, put(weights)),
                             without = run(model, put([&] {
                                             std::vector<float> values = weights;
                                             std::fill(values.begin(), values.begin() + layer.trainable_elems, 0.0f);
                                             return values;
                                           }()));
    Merge(model, layer, weights.data());
    // The same tensors where the plain model has them.
    std::vector<float> own(static_cast<size_t>(merged.layers[1].num_elems));
    for (const BlobUse& use : merged.layers[1].blobs) {
      for (const TensorSpec& tensor : merged.blob(use.blob).tensors) {
        const int64_t from = TensorOffset(model, layer.id, tensor.role);
        std::copy_n(weights.begin() + from, tensor.num_elems(), own.begin() + use.offset_elems + tensor.offset_elems);
      }
    }
    const std::vector<float> wanted = run(merged, put(own));
    const auto n = static_cast<int64_t>(wanted.size());
    EXPECT_LT(Distance(adapted.data(), wanted.data(), n), 1e-5);
    EXPECT_GT(Distance(without.data(), wanted.data(), n), 1e-3);  // the adapters do something
  }
}

// Of sum(y * dy), by each tensor that is trained and by x; all random numbers are those of the micro-batch, so that it is a
// function.
TEST(LayersTest, GradientsWithAdaptersAreSlopes) {
  for (const Case& c : CasesWithAdapters()) {
    if (c.wire != Dtype::kF32) continue;
    const ModelSpec model = BuildModel(c.config).value();
    const LayerSpec& layer = model.layers[1];
    const LayerShape shape = MakeLayerShape(model, {.micro_batch = c.micro_batch}, c.wire, Dtype::kF32);
    const LayerSizes sizes = SizesOf(model, layer, shape, CpuKernelSizes());
    const int64_t boundary_elems = shape.M() * shape.C;
    const BlockOffsets offsets = BlockOffsetsOf(model, layer.id);
    GuardedArena arena;
    float* weights = arena.TakeFloats(layer.num_elems);
    float* gradient = arena.TakeFloats(layer.num_elems);
    float *x = arena.TakeFloats(boundary_elems), *y = arena.TakeFloats(boundary_elems);
    const BlockArgs args{.shape = shape,
                         .key = {.layer = layer.id, .micro_batch = 1},
                         .offsets = &offsets,
                         .is_first = true,
                         .weights = weights,
                         .trainable_elems = layer.trainable_elems,
                         .rotary_table = shape.is_rotary ? arena.TakeRotaryTable(c.config) : nullptr,
                         .inner = arena.Take(sizes.inner_bytes),
                         .scratch = arena.Take(std::max(sizes.forward_scratch_bytes, sizes.backward_scratch_bytes))};
    // n elements from `at` on move along a direction of length 1 that is the same for each of them, whatever the gradient.
    const auto direction = [](int64_t i, int64_t n) {
      return (i * 2654435761 % 3 == 0 ? -1 : 1) / std::sqrt(static_cast<double>(n));
    };
    const auto value = [&](float* at, int64_t n, double moved) {
      FillSmall(weights, layer.num_elems);
      FillSmall(x, boundary_elems);
      for (int64_t i = 0; i < n; ++i) at[i] += static_cast<float>(moved * direction(i, n));
      BlockForward(arena.device().kernels(), args, x, y);
      EXPECT_OK(arena.device().stream(StreamId::kCompute).Synchronize());
      double sum = 0;
      for (int64_t i = 0; i < boundary_elems; ++i) sum += y[i] * std::sin(static_cast<double>(i) * 0.7) * 0.3;
      return sum;
    };
    value(x, 0, 0);
    std::fill(gradient, gradient + layer.num_elems, 0.0f);
    FillSmall(y, boundary_elems);
    BlockBackward(arena.device().kernels(), args, x, y, gradient);
    arena.ExpectGuardsIntact();
    const std::vector<float> dx(y, y + boundary_elems);
    const auto expect_slope = [&](float* at, const float* slopes, int64_t n, const std::string& what) {
      double slope = 0, square = 0;
      for (int64_t i = 0; i < n; ++i) slope += slopes[i] * direction(i, n), square += double{slopes[i]} * slopes[i];
      constexpr double kMove = 2e-2;
      const double measured = (value(at, n, kMove) - value(at, n, -kMove)) / (2 * kMove);
      EXPECT_GT(square, 0) << what;
      // To the second order of the move, and a rounding of the sum.
      EXPECT_NEAR(measured, slope, 5e-3 * std::sqrt(square) + 2e-4)
          << what << ", rank " << c.config.lora.rank << ", dropout " << c.config.lora.dropout;
    };
    for (const BlobUse& use : layer.blobs) {
      if (model.blob(use.blob).frozen) continue;
      for (const TensorSpec& tensor : model.blob(use.blob).tensors) {
        const int64_t at = use.offset_elems + tensor.offset_elems;
        expect_slope(weights + at, gradient + at, tensor.num_elems(), tensor.name);
      }
    }
    expect_slope(x, dx.data(), boundary_elems, "x");
  }
}

// The head over weights in a slot.
HeadArgs HeadOf(const ModelSpec& model, const LayerShape& shape, const void* weights, void* scratch) {
  const LayerSpec& head = model.layers.back();
  return {.shape = shape,
          .key = {.layer = head.id},
          .offsets = HeadOffsetsOf(model, head.id),
          .weight_offsets = HeadOffsetsOf(model, head.id),
          .weights = weights,
          .trainable_elems = head.trainable_elems,
          .scratch = scratch};
}

// A slot for a layer's gradient that is zero where a vnode's first micro-batch needs it to be, and NaN elsewhere.
float* TakeStartedGradient(GuardedArena& arena, const ModelSpec& model, const LayerSpec& layer) {
  float* gradient = arena.TakeFloats(GradientElems(model, layer));
  for (const ElemRange& range : ZeroedGradientRanges(model, layer)) {
    EXPECT_EQ(range.first % kTensorAlignElems, 0);
    std::fill(gradient + range.first, gradient + range.end, 0.0f);
  }
  return gradient;
}

// Once with a slot of zeros that is added to, once with one that the first of two micro-batches starts.
// backward(gradient, starts_gradient)
void ExpectTheSameGradientStartedOrAddedToZeros(const std::function<void(float*, bool)>& backward, GuardedArena& arena,
                                                const ModelSpec& model, const LayerSpec& layer) {
  const int64_t elems = GradientElems(model, layer);
  float* added = arena.TakeFloats(elems);
  std::fill(added, added + elems, 0.0f);
  float* started = TakeStartedGradient(arena, model, layer);
  for (const bool is_first : {true, false}) {
    backward(added, false);
    arena.ExpectGuardsIntact();  // when all is done
    backward(started, is_first);
    arena.ExpectGuardsIntact();
    // As numbers: 0 + -0 is 0.
    const auto other = std::mismatch(added, added + elems, started);
    EXPECT_EQ(other.first, added + elems)
        << "element " << other.first - added << " of " << elems << ": " << *other.first << " and " << *other.second;
  }
}

TEST(LayersTest, ABlocksFirstMicroBatchWritesWhatNeedNotBeZero) {
  for (const Case& c : AllCases()) {
    const std::map<ModelFamily, std::vector<std::string>> patterns = {
        {ModelFamily::kGpt2, {"", "*.0.*bias", "*.0.*attn*.weight"}},
        {ModelFamily::kLlama, {"", "*.0.*norm.weight", "*.0.*attn.q_proj*"}},
        {ModelFamily::kBert, {"", "*.0.*bias", "*.0.*key*"}},
    };
    for (const std::string& frozen : patterns.at(c.config.family)) {
      ModelConfig config = c.config;
      if (!frozen.empty()) config.freeze = {frozen};
      ASSERT_OK_AND_ASSIGN(const ModelSpec model, BuildModel(config));
      const LayerSpec& layer = model.layers[1];
      const LayerShape shape = MakeLayerShape(model, {.micro_batch = c.micro_batch}, c.wire, Dtype::kF32);
      const LayerSizes sizes = SizesOf(model, layer, shape, CpuKernelSizes());
      const int64_t boundary_elems = shape.M() * shape.C;
      GuardedArena arena;
      Kernels& kernels = arena.device().kernels();
      float* weights = arena.TakeFloats(layer.num_elems);
      FillSmall(weights, layer.num_elems);
      float* x = arena.TakeFloats(boundary_elems);
      FillSmall(x, boundary_elems);
      float* dy = arena.TakeFloats(boundary_elems);
      const BlockOffsets offsets = BlockOffsetsOf(model, layer.id);
      BlockArgs args{.shape = shape,
                     .key = {.layer = layer.id, .micro_batch = 1},
                     .offsets = &offsets,
                     .weights = weights,
                     .trainable_elems = layer.trainable_elems,
                     .rotary_table = shape.is_rotary ? arena.TakeRotaryTable(config) : nullptr,
                     .inner = arena.Take(sizes.inner_bytes),
                     .scratch = arena.Take(std::max(sizes.forward_scratch_bytes, sizes.backward_scratch_bytes))};
      ExpectTheSameGradientStartedOrAddedToZeros(
          [&](float* gradient, bool starts_gradient) {
            BlockForward(kernels, args, x, nullptr);
            args.starts_gradient = starts_gradient;
            FillSmall(dy, boundary_elems);
            BlockBackward(kernels, args, x, dy, gradient);
          },
          arena, model, layer);
    }
  }
}

TEST(LayersTest, TheHeadsFirstMicroBatchWritesWhatNeedNotBeZero) {
  for (const Case& c : Cases()) {
    const ModelSpec model = BuildModel(c.config).value();
    const LayerSpec& head = model.layers.back();
    const LayerShape shape = MakeLayerShape(model, {.micro_batch = c.micro_batch}, c.wire, Dtype::kF32);
    const LayerSizes sizes = SizesOf(model, head, shape, CpuKernelSizes());
    const int64_t boundary_elems = shape.M() * shape.C;
    GuardedArena arena;
    float* x = arena.TakeFloats(boundary_elems);
    FillSmall(x, boundary_elems);
    void* weights = arena.Take(sizes.wire_bytes);
    std::memset(weights, 0x3D, static_cast<size_t>(sizes.wire_bytes));  // about 0.05 in either dtype
    auto* labels = static_cast<int32_t*>(arena.Take(shape.num_labels() * int64_t{sizeof(int32_t)}));
    for (int64_t i = 0; i < shape.num_labels(); ++i) labels[i] = static_cast<int32_t>(i * 3 % shape.num_outputs());
    float* dx = arena.TakeFloats(boundary_elems);
    auto* record = static_cast<LossRecord*>(arena.Take(sizeof(LossRecord)));
    *record = LossRecord();
    void* scratch = arena.Take(sizes.backward_scratch_bytes);
    ExpectTheSameGradientStartedOrAddedToZeros(
        [&](float* gradient, bool starts_gradient) {
          HeadArgs args = HeadOf(model, shape, weights, scratch);
          args.starts_gradient = starts_gradient;
          HeadForwardBackward(arena.device().kernels(), args, x, labels, 0.25, record, dx, gradient);
        },
        arena, model, head);
  }
}

// The gradients of a block with frozen tensors, in a slot that has room for GradientElems and guards behind it.
void ExpectFrozenBlockStaysWithinItsGradients(const Case& c, const std::vector<std::string>& freeze) {
  ModelConfig config = c.config;
  config.freeze = freeze;
  const ModelSpec model = BuildModel(config).value();
  const LayerSpec& layer = model.layers[1];
  const LayerShape shape = MakeLayerShape(model, {.micro_batch = c.micro_batch}, c.wire, Dtype::kF32);
  const LayerSizes sizes = SizesOf(model, layer, shape, CpuKernelSizes());
  EXPECT_LT(layer.trainable_elems, layer.num_elems);
  EXPECT_LE(layer.trainable_elems * 4, sizes.gradient_bytes);
  const int64_t boundary_elems = shape.M() * shape.C;
  GuardedArena arena;
  float* weights = arena.TakeFloats(layer.num_elems);
  FillSmall(weights, layer.num_elems);
  auto* gradient = static_cast<float*>(arena.Take(sizes.gradient_bytes));
  std::memset(gradient, 0, static_cast<size_t>(sizes.gradient_bytes));
  float* x = arena.TakeFloats(boundary_elems);
  FillSmall(x, boundary_elems);
  float* y = arena.TakeFloats(boundary_elems);
  const BlockOffsets offsets = BlockOffsetsOf(model, layer.id);
  const BlockArgs args{.shape = shape,
                       .key = {.layer = layer.id, .micro_batch = 1},
                       .offsets = &offsets,
                       .is_first = true,
                       .weights = weights,
                       .trainable_elems = layer.trainable_elems,
                       .rotary_table = shape.is_rotary ? arena.TakeRotaryTable(config) : nullptr,
                       .inner = arena.Take(sizes.inner_bytes),
                       .scratch = arena.Take(std::max(sizes.forward_scratch_bytes, sizes.backward_scratch_bytes))};
  BlockForward(arena.device().kernels(), args, x, y);
  EXPECT_OK(arena.device().stream(StreamId::kCompute).Synchronize());
  FillSmall(y, boundary_elems);
  BlockBackward(arena.device().kernels(), args, x, y, gradient);
  arena.ExpectGuardsIntact();
  EXPECT_TRUE(AllFinite(y, boundary_elems));
  EXPECT_TRUE(AllFinite(gradient, sizes.gradient_bytes / 4));
}

TEST(LayersTest, AFrozenBlocksBackwardWritesNoMoreThanGradientElems) {
  for (const Case& c : Cases()) {
    const std::map<ModelFamily, std::vector<std::string>> patterns = {
        {ModelFamily::kGpt2, {"transformer.h.0.*", "*.c_*.weight", "*.mlp.*", "*.attn.c_attn.weight", "*.bias"}},
        {ModelFamily::kLlama, {"model.layers.0.*", "*_proj.weight", "*.mlp.*", "*.q_proj.*", "*norm.weight"}},
        {ModelFamily::kBert,
         {"bert.encoder.layer.0.*", "*.layer.0.*.weight", "*.intermediate.*", "*.query.*", "*.layer.0.*.bias"}},
    };
    for (const std::string& pattern : patterns.at(c.config.family)) {
      ExpectFrozenBlockStaysWithinItsGradients(c, {pattern});
    }
  }
}

ModelConfig TwoLlamaBlocks() {
  ModelConfig config = {.family = ModelFamily::kLlama, .num_layers = 2, .d_model = 64, .num_heads = 2, .context = 8};
  config.vocab = 100;
  config.max_positions = 8;
  config.num_kv_heads = 2;
  config.d_head = 32;
  config.d_ff = 128;
  config.tied_head = false;
  return config;
}

TEST(LayersTest, ALayersGradientsEndWithTheLastThatKernelsMake) {
  ModelConfig config = TwoLlamaBlocks();
  const auto elems = [&](std::vector<std::string> freeze) {
    config.freeze = std::move(freeze);
    const ModelSpec model = BuildModel(config).value();
    std::vector<int64_t> sizes;
    for (const LayerSpec& layer : model.layers) sizes.push_back(GradientElems(model, layer));
    return sizes;
  };
  const int64_t table = 100 * 64, block = 4 * 64 * 64 + 3 * 64 * 128 + 2 * 64;
  EXPECT_EQ(elems({}), (std::vector<int64_t>{table, block, block, table + 64}));
  // Nothing below the lowest layer that trains; of a frozen one above it the norms'; of the head its norm's.
  EXPECT_EQ(elems({"*embed*", "lm_head.*", "*.1.*"}), (std::vector<int64_t>{0, block, 2 * 64, 64}));
  EXPECT_EQ(elems({"*", "!lm_head.weight"}), (std::vector<int64_t>{0, 0, 0, table + 64}));
}

TEST(LayersTest, AVnodesGradientBeginsWithZerosWhereNoProductIsWritten) {
  ModelConfig config = TwoLlamaBlocks();
  const auto zeroed = [&](std::vector<std::string> freeze) {
    config.freeze = std::move(freeze);
    const ModelSpec model = BuildModel(config).value();
    std::vector<int64_t> elems;
    for (const LayerSpec& layer : model.layers) {
      elems.push_back(0);
      for (const ElemRange& range : ZeroedGradientRanges(model, layer)) elems.back() += range.num_elems();
    }
    return elems;
  };
  // Of the embedding all, as tokens choose the rows; else norms alone.
  EXPECT_EQ(zeroed({}), (std::vector<int64_t>{100 * 64, 2 * 64, 2 * 64, 64}));
  EXPECT_EQ(zeroed({"*embed*", "lm_head.*", "*.1.*"}), (std::vector<int64_t>{0, 2 * 64, 2 * 64, 64}));
}

TEST(LayersTest, EmbeddingAndHeadStayWithinTheirSizes) {
  for (const Case& c : Cases()) {
    const ModelSpec model = BuildModel(c.config).value();
    const LayerSpec& embedding = model.layers.front();
    const LayerSpec& head = model.layers.back();
    const LayerShape shape = MakeLayerShape(model, {.micro_batch = c.micro_batch}, c.wire, Dtype::kF32);
    const int64_t boundary_elems = shape.M() * shape.C;
    GuardedArena arena;
    Kernels& kernels = arena.device().kernels();
    const auto take_weights = [&](const LayerSpec& layer) {
      const LayerSizes sizes = SizesOf(model, layer, shape, CpuKernelSizes());
      void* weights = arena.Take(sizes.wire_bytes);
      std::memset(weights, 0x3D, static_cast<size_t>(sizes.wire_bytes));  // about 0.05 in either dtype
      return weights;
    };
    const auto take_gradient = [&](const LayerSpec& layer) {
      float* gradient = arena.TakeFloats(layer.num_elems);
      std::memset(gradient, 0, static_cast<size_t>(layer.num_elems) * 4);
      return gradient;
    };
    auto* tokens = static_cast<int32_t*>(arena.Take(shape.token_bytes()));
    auto* labels = reinterpret_cast<int32_t*>(At(tokens, shape.labels_offset_bytes()));
    auto* types = reinterpret_cast<int32_t*>(At(tokens, shape.types_offset_bytes()));
    for (int64_t i = 0; i < shape.M(); ++i) {
      tokens[i] = static_cast<int32_t>(i * 5 % shape.V);
      if (shape.has_types) types[i] = static_cast<int32_t>(i % 2);
    }
    for (int64_t i = 0; i < shape.num_labels(); ++i) {
      labels[i] = i % 4 == 0 ? -100 : static_cast<int32_t>(i * 3 % shape.num_outputs());
    }
    const MicroBatchKey key{.layer = embedding.id};
    float* y = arena.TakeFloats(boundary_elems);
    const EmbeddingOffsets offsets = EmbeddingOffsetsOf(model, embedding.id);
    EmbeddingForward(kernels, shape, key, offsets, take_weights(embedding), TokenArrays(shape, tokens), y);
    arena.ExpectGuardsIntact();
    EXPECT_TRUE(AllFinite(y, boundary_elems));

    const void* head_weights = take_weights(head);
    float* head_gradient = take_gradient(head);
    float* dx = arena.TakeFloats(boundary_elems);
    auto* record = static_cast<LossRecord*>(arena.Take(sizeof(LossRecord)));
    *record = LossRecord();
    const LayerSizes sizes = SizesOf(model, head, shape, CpuKernelSizes());
    void* scratch = arena.Take(sizes.backward_scratch_bytes);
    HeadForwardBackward(kernels, HeadOf(model, shape, head_weights, scratch), y, labels, 0.25, record, dx,
                        head_gradient);
    arena.ExpectGuardsIntact();
    EXPECT_TRUE(AllFinite(dx, boundary_elems));
    EXPECT_TRUE(AllFinite(head_gradient, head.num_elems));
    EXPECT_EQ(record->counted, shape.num_labels() - (shape.num_labels() + 3) / 4);
    // The forward pass alone gives the same record, and needs no place for gradients.
    auto* again = static_cast<LossRecord*>(arena.Take(sizeof(LossRecord)));
    *again = LossRecord();
    HeadForwardBackward(kernels, HeadOf(model, shape, head_weights, arena.Take(sizes.backward_scratch_bytes)), y,
                        labels, 0.25, again, nullptr, nullptr);
    arena.ExpectGuardsIntact();
    EXPECT_EQ(std::memcmp(again, record, sizeof(LossRecord)), 0);

    // Kept logits give the same bits as those that are computed twice.
    EXPECT_EQ(sizes.kept_logits_bytes > 0, shape.num_outputs() > VocabChunk(shape));
    float* kept_gradient = take_gradient(head);
    float* kept_dx = arena.TakeFloats(boundary_elems);
    auto* kept_record = static_cast<LossRecord*>(arena.Take(sizeof(LossRecord)));
    *kept_record = LossRecord();
    const int64_t scratch_bytes = sizes.backward_scratch_bytes + sizes.kept_logits_bytes;
    void* kept_scratch = arena.Take(scratch_bytes);
    HeadArgs keeping = HeadOf(model, shape, head_weights, kept_scratch);
    keeping.keeps_logits = true;
    HeadForwardBackward(kernels, keeping, y, labels, 0.25, kept_record, kept_dx, kept_gradient);
    arena.ExpectGuardsIntact();
    EXPECT_EQ(std::memcmp(kept_dx, dx, static_cast<size_t>(boundary_elems) * 4), 0);
    EXPECT_EQ(std::memcmp(kept_gradient, head_gradient, static_cast<size_t>(head.num_elems) * 4), 0);
    EXPECT_EQ(std::memcmp(kept_record, record, sizeof(LossRecord)), 0);
    // They did lie there, each chunk in a place of its own. The last one is narrower than those that lay where it does.
    EXPECT_LE(Untouched(kept_scratch, scratch_bytes),
              Untouched(scratch, sizes.backward_scratch_bytes) + sizes.kept_logits_bytes / 8);

    float* embedding_gradient = take_gradient(embedding);
    EmbeddingBackward(kernels, shape, key, offsets, TokenArrays(shape, tokens), dx, embedding_gradient,
                      arena.Take(SizesOf(model, embedding, shape, CpuKernelSizes()).backward_scratch_bytes));
    arena.ExpectGuardsIntact();
    EXPECT_TRUE(AllFinite(embedding_gradient, embedding.num_elems));
  }
}

TEST(LayersTest, AMicroBatchsArraysLieOneBehindTheOther) {
  LayerShape shape;
  shape.B = 1, shape.T = 20;  // 80 bytes, 256 aligned
  EXPECT_EQ(shape.token_bytes(), 512);
  EXPECT_EQ(TokenArrays(shape, nullptr).documents.first, nullptr);
  shape.has_documents = true;
  EXPECT_EQ(shape.document_first_offset_bytes(), 512);
  EXPECT_EQ(shape.document_end_offset_bytes(), 768);
  EXPECT_EQ(shape.token_bytes(), 1024);
  shape.has_types = true;
  EXPECT_EQ(shape.types_offset_bytes(), 512);
  EXPECT_EQ(shape.document_first_offset_bytes(), 768);
  EXPECT_EQ(shape.token_bytes(), 1280);
}

TEST(LayersTest, VocabularyChunksCoverItEvenly) {
  const auto width = [](int64_t vocab) {
    LayerShape shape;
    shape.V = vocab;
    return VocabChunk(shape);
  };
  EXPECT_EQ(width(1), 1);
  EXPECT_EQ(width(256), 256);
  EXPECT_EQ(width(4096), 4096);
  EXPECT_EQ(width(4097), 2112);   // 2049 rounded up to 64
  EXPECT_EQ(width(50257), 3904);  // 13 chunks, the last one of 3409
  for (int64_t vocab = 4000; vocab < 200000; vocab += 997) {
    const int64_t w = width(vocab), chunks = (vocab + w - 1) / w;
    EXPECT_LE(w, 4096);
    EXPECT_GE(vocab - (chunks - 1) * w, w - 64 * chunks) << vocab;  // each rounding takes from the last one
  }
}

TEST(LayersTest, RowsOfLogitsBeginAlignedAndClashOnlyWhereTheirColumnsDo) {
  EXPECT_EQ(LogitsRow(3904), 3904);
  EXPECT_EQ(LogitsRow(3409), 3456);
  EXPECT_EQ(LogitsRow(4096), 4096);
  EXPECT_EQ(LogitsRow(4036), 4096 + 64);
  for (int64_t columns = 1; columns <= 4096; ++columns) {
    const int64_t row = LogitsRow(columns);
    EXPECT_GE(row, columns);
    EXPECT_EQ(row % 64, 0) << columns;
    EXPECT_EQ(row % 256 == 0, columns % 256 == 0) << columns;
  }
}

TEST(LayersTest, AMicroBatchsRandomNumbersDependOnItsPlaceInTheVnodeOnly) {
  const MicroBatchKey key{.seed = 9, .step = StepId(3), .vnode = 2, .layer = LayerId(1), .micro_batch = 3};
  const Dropout dropout = key.MakeDropout(0.1, 2, 10);
  EXPECT_EQ(dropout.first_element, 36);  // 3 * 10 rounded up to 12, as elements come in fours
  EXPECT_EQ(dropout.key.use, 2);
  MicroBatchKey sampling = key;
  sampling.training = false;
  EXPECT_EQ(sampling.MakeDropout(0.1, 2, 10).rate, 0);
}

TEST(LayersTest, SizesDoNotDependOnDepth) {
  ModelConfig config{.num_layers = 4, .d_model = 64, .num_heads = 4, .context = 32, .vocab = 256};
  const ModelSpec few = BuildModel(config).value();
  config.num_layers = 32;
  const ModelSpec many = BuildModel(config).value();
  const LayerShape shape = MakeLayerShape(BuildModel(config).value(), {.micro_batch = 2}, Dtype::kBf16, Dtype::kF32);
  const LayerSizes a = SizesOf(few, few.layers[1], shape, CpuKernelSizes());
  const LayerSizes b = SizesOf(many, many.layers[31], shape, CpuKernelSizes());
  EXPECT_EQ(a.inner_bytes, b.inner_bytes);
  EXPECT_EQ(a.backward_scratch_bytes, b.backward_scratch_bytes);
  EXPECT_EQ(a.wire_bytes, b.wire_bytes);
  // 9 C numbers a token: qkv, attention output, x_mid, 4 C of the MLP; and rows of statistics.
  const int64_t act = shape.M() * 64 * 4, rows = shape.M() * 4;
  EXPECT_EQ(a.inner_bytes, 9 * act + 4 * rows + 4 * rows);
}

}  // namespace
}  // namespace eps::worker
