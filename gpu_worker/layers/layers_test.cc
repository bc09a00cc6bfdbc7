#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "common/testing/status_matchers.h"
#include "gpu_worker/device/cpu/cpu_kernel_sizes.h"
#include "gpu_worker/layers/block.h"
#include "gpu_worker/layers/embedding.h"
#include "gpu_worker/layers/head.h"
#include "gpu_worker/layers/layer_shape.h"
#include "gpu_worker/layers/layers_testing.h"

// Sizes and bits of single layers; their gradients are tested against fp64 in relay/relay_executor_test.cc.

namespace eps::worker {
namespace {

// Bytes that are as GuardedArena::Take left them.
int64_t Untouched(const void* buffer, int64_t num_bytes) {
  const auto* words = static_cast<const uint32_t*>(buffer);
  return 4 * std::count(words, words + num_bytes / 4, 0xFFFFFFFFu);
}
TEST(LayersTest, ABlockStaysWithinItsSizesAndRecomputesTheSameBits) {
  for (const LayerCase& c : AllCases()) {
    const ModelSpec model = BuildModel(c.config).value();
    BlockInArena block(model, c);
    float* gradient = block.TakeZeros(block.layer.num_elems);
    block.Forward();
    BlockArgs again = block.forward;
    again.inner = block.arena.Take(block.sizes.inner_bytes);
    again.scratch = block.arena.Take(block.sizes.forward_scratch_bytes);
    BlockForward(block.arena.device().kernels(), again, block.x, nullptr);
    block.arena.ExpectGuardsIntact();
    EXPECT_TRUE(AllFinite(block.y, block.boundary_elems));
    EXPECT_EQ(std::memcmp(block.forward.inner, again.inner, static_cast<size_t>(block.sizes.inner_bytes)), 0);

    block.Backward(gradient);
    EXPECT_TRUE(AllFinite(block.y, block.boundary_elems));
    EXPECT_TRUE(AllFinite(gradient, block.layer.num_elems));
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
  for (const LayerCase& c : AllCases()) {
    const std::map<ModelFamily, std::vector<std::string>> patterns = {
        {ModelFamily::kGpt2, {"", "*.0.*bias", "*.0.*attn*.weight"}},
        {ModelFamily::kLlama, {"", "*.0.*norm.weight", "*.0.*attn.q_proj*", "*.0.mlp.*gate*", "*.0.mlp.*down*"}},
        {ModelFamily::kBert, {"", "*.0.*bias", "*.0.*key*"}},
    };
    for (const std::string& frozen : patterns.at(c.config.family)) {
      ModelConfig config = c.config;
      if (!frozen.empty()) config.freeze = {frozen};
      ASSERT_OK_AND_ASSIGN(const ModelSpec model, BuildModel(config));
      BlockInArena block(model, c);
      ExpectTheSameGradientStartedOrAddedToZeros(
          [&](float* gradient, bool starts_gradient) {
            BlockForward(block.arena.device().kernels(), block.forward, block.x, nullptr);
            block.backward.starts_gradient = starts_gradient;
            block.Backward(gradient);
          },
          block.arena, model, block.layer);
    }
  }
}

TEST(LayersTest, TheHeadsFirstMicroBatchWritesWhatNeedNotBeZero) {
  for (const LayerCase& c : Cases()) {
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
void ExpectFrozenBlockStaysWithinItsGradients(const LayerCase& c, const std::vector<std::string>& freeze) {
  ModelConfig config = c.config;
  config.freeze = freeze;
  const ModelSpec model = BuildModel(config).value();
  BlockInArena block(model, c);
  EXPECT_LT(block.layer.trainable_elems, block.layer.num_elems);
  EXPECT_LE(block.layer.trainable_elems * 4, block.sizes.gradient_bytes);
  float* gradient = block.TakeZeros(block.sizes.gradient_bytes / 4);
  block.Forward();
  block.Backward(gradient);
  EXPECT_TRUE(AllFinite(block.y, block.boundary_elems));
  EXPECT_TRUE(AllFinite(gradient, block.sizes.gradient_bytes / 4));
}

TEST(LayersTest, AFrozenBlocksBackwardWritesNoMoreThanGradientElems) {
  for (const LayerCase& c : Cases()) {
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
  for (const LayerCase& c : Cases()) {
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
  shape.preferences.rule = PreferenceRule::kSimPo;
  EXPECT_EQ(shape.token_bytes(), 1280) << "without a reference";
  shape.preferences.rule = PreferenceRule::kDpo;
  EXPECT_EQ(shape.reference_offset_bytes(), 768);
  EXPECT_EQ(shape.document_first_offset_bytes(), 1024);
  EXPECT_EQ(shape.token_bytes(), 1536);
  shape.B = 18, shape.T = 1;  // 288 bytes of scores, 72 of ids
  EXPECT_EQ(shape.reference_offset_bytes(), 768);
  EXPECT_EQ(shape.document_first_offset_bytes(), 1280);
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
  EXPECT_EQ(key.MakeDropout(0.1, 2, 10, 8).first_element, 44) << "from its element 8 on";
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

TEST(LayersTest, InTilesWhatIsWiderThanTheModelIsOfOneTileAlone) {
  const ModelSpec model =
      BuildModel({.num_layers = 1, .d_model = 64, .num_heads = 4, .context = 4096, .vocab = 256}).value();
  const auto sizes = [&](int64_t tile) {
    const BatchShape batch{.micro_batch = 2, .feed_forward_tile = tile};
    return SizesOf(model, model.layers[1], MakeLayerShape(model, batch, Dtype::kBf16, Dtype::kF32), CpuKernelSizes());
  };
  const LayerSizes whole = sizes(0), tiled = sizes(64), of_all_rows = sizes(2 * 4096);
  const int64_t column = 2 * 4096 * 64 * 4;  // act (M, C)
  EXPECT_EQ(of_all_rows.inner_bytes, whole.inner_bytes);
  EXPECT_EQ(of_all_rows.backward_scratch_bytes, whole.backward_scratch_bytes);
  EXPECT_EQ(tiled.inner_bytes, whole.inner_bytes - 4 * column);
  // `up` and `hidden` of a tile.
  EXPECT_EQ(tiled.forward_scratch_bytes, whole.forward_scratch_bytes - 4 * column + 2 * 4 * column / 128);
  // The gradients of `up` and `hidden`, of which a tile's share memory with those of the attention part.
  EXPECT_EQ(tiled.backward_scratch_bytes,
            whole.backward_scratch_bytes - (4 + 4) * column + (3 + 3) * column + 4 * column / 128);
}

}  // namespace
}  // namespace eps::worker
