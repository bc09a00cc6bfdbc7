#include "common/model/model_spec.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/schedule/chunk_range.h"
#include "common/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

ModelConfig SmallConfig() {
  ModelConfig config;
  config.num_layers = 3;
  config.d_model = 24;
  config.num_heads = 4;
  config.context = 10;
  config.vocab = 101;
  config.init_seed = 1;
  return config;
}

ModelSpec Build(const ModelConfig& config) {
  absl::StatusOr<ModelSpec> model = BuildModel(config);
  EXPECT_OK(model);
  return model.ok() ? *std::move(model) : ModelSpec{};
}

std::vector<std::string> TensorNames(const BlobSpec& blob) {
  std::vector<std::string> names;
  for (const TensorSpec& tensor : blob.tensors) names.push_back(tensor.name);
  return names;
}

const TensorSpec& FindTensor(const ModelSpec& model, const std::string& name) {
  for (const BlobSpec& blob : model.blobs) {
    for (const TensorSpec& tensor : blob.tensors) {
      if (tensor.name == name) return tensor;
    }
  }
  ADD_FAILURE() << "no tensor " << name;
  return model.blobs[0].tensors[0];
}

std::vector<float> InitialValues(const TensorSpec& tensor, uint64_t seed) {
  std::vector<float> values(tensor.num_elems(), -7.0f);
  InitTensor(tensor, seed, values.data());
  return values;
}

TEST(ModelSpecTest, LayersAndBlobsStandInRelayAndPullOrder) {
  const ModelSpec model = Build(SmallConfig());
  std::vector<std::string> layers, blobs;
  for (const LayerSpec& layer : model.layers) layers.push_back(layer.name);
  for (const BlobSpec& blob : model.blobs) blobs.push_back(blob.name);
  EXPECT_EQ(layers, (std::vector<std::string>{"embedding", "h.0", "h.1", "h.2", "head"}));
  EXPECT_EQ(blobs, (std::vector<std::string>{"wte", "wpe", "h.0", "h.1", "h.2", "ln_f"}));
  EXPECT_EQ(model.layers.front().kind, LayerKind::kEmbedding);
  EXPECT_EQ(model.layers[1].kind, LayerKind::kBlock);
  EXPECT_EQ(model.layers.back().kind, LayerKind::kHead);
}

ModelConfig LlamaOfTwoLayers() {
  ModelConfig config;
  config.family = ModelFamily::kLlama;
  config.num_layers = 2;
  config.d_model = 24;
  config.num_heads = 6;
  config.num_kv_heads = 2;
  config.d_head = 10;
  config.d_ff = 36;
  config.context = config.max_positions = 10;
  config.vocab = 101;
  config.tied_head = false;
  return config;
}

TEST(LlamaSpecTest, ABlockHasTheTensorsOfHuggingFace) {
  ModelConfig config = LlamaOfTwoLayers();
  const std::string p = "model.layers.1.", attention = p + "self_attn.", mlp = p + "mlp.";
  const std::vector<std::string> plain = {
      p + "input_layernorm.weight", attention + "q_proj.weight", attention + "k_proj.weight",
      attention + "v_proj.weight",  attention + "o_proj.weight", p + "post_attention_layernorm.weight",
      mlp + "gate_proj.weight",     mlp + "up_proj.weight",      mlp + "down_proj.weight"};
  ModelSpec model = Build(config);
  EXPECT_EQ(TensorNames(model.blobs[2]), plain);
  EXPECT_EQ(FindTensor(model, attention + "q_proj.weight").shape, (std::vector<int64_t>{60, 24}));
  EXPECT_EQ(FindTensor(model, attention + "v_proj.weight").shape, (std::vector<int64_t>{20, 24}));
  EXPECT_EQ(FindTensor(model, attention + "o_proj.weight").shape, (std::vector<int64_t>{24, 60}));
  EXPECT_EQ(FindTensor(model, mlp + "up_proj.weight").shape, (std::vector<int64_t>{36, 24}));
  EXPECT_EQ(FindTensor(model, mlp + "down_proj.weight").shape, (std::vector<int64_t>{24, 36}));
  config.qkv_bias = config.out_bias = config.qk_norm = true;
  model = Build(config);
  EXPECT_EQ(FindTensor(model, attention + "q_proj.bias").shape, (std::vector<int64_t>{60}));
  EXPECT_EQ(FindTensor(model, attention + "k_norm.weight").shape, (std::vector<int64_t>{10}));
  EXPECT_EQ(FindTensor(model, attention + "o_proj.bias").shape, (std::vector<int64_t>{24}));
  EXPECT_EQ(model.blobs[2].tensors.size(), plain.size() + 6);
}

TEST(LlamaSpecTest, TheHeadHasATableOfItsOwnUnlessItIsTied) {
  ModelConfig config = LlamaOfTwoLayers();
  const auto names = [](const ModelSpec& model) {
    std::vector<std::string> blobs;
    for (const BlobUse& use : model.layers.back().blobs) blobs.push_back(model.blob(use.blob).name);
    return blobs;
  };
  ModelSpec model = Build(config);
  EXPECT_EQ(names(model), (std::vector<std::string>{"norm", "lm_head"}));
  EXPECT_EQ(model.blobs[0].uses.size(), 1u);
  EXPECT_EQ(FindTensor(model, "lm_head.weight").role, TensorRole::kHeadTable);
  config.tied_head = true;
  model = Build(config);
  EXPECT_EQ(names(model), (std::vector<std::string>{"norm", "embed_tokens"}));
  EXPECT_EQ(model.blobs[0].uses, (std::vector<LayerId>{LayerId(0), LayerId(3)}));
}

TEST(LlamaSpecTest, EveryRoleIsOnceInALayer) {
  for (const bool all : {false, true}) {
    ModelConfig config = LlamaOfTwoLayers();
    config.qkv_bias = config.out_bias = config.qk_norm = all;
    for (const ModelSpec& model : {Build(config), Build(SmallConfig())}) {
      for (const LayerSpec& layer : model.layers) {
        std::set<TensorRole> roles;
        for (const BlobUse& use : layer.blobs) {
          for (const TensorSpec& tensor : model.blob(use.blob).tensors) {
            EXPECT_TRUE(roles.insert(tensor.role).second) << layer.name << " " << tensor.name;
          }
        }
      }
    }
  }
}

TEST(ModelSpecTest, IdsArePositions) {
  const ModelSpec model = Build(SmallConfig());
  for (size_t i = 0; i < model.layers.size(); ++i) {
    EXPECT_EQ(model.layers[i].id, LayerId(static_cast<int32_t>(i)));
    EXPECT_EQ(&model.layer(model.layers[i].id), &model.layers[i]);
  }
  for (size_t i = 0; i < model.blobs.size(); ++i) {
    EXPECT_EQ(model.blobs[i].id, BlobId(static_cast<int32_t>(i)));
    EXPECT_EQ(&model.blob(model.blobs[i].id), &model.blobs[i]);
  }
}

TEST(ModelSpecTest, TheTiedEmbeddingIsUsedByTheEmbeddingAndTheHead) {
  const ModelSpec model = Build(SmallConfig());
  const BlobSpec& wte = model.blobs[0];
  EXPECT_EQ(wte.uses, (std::vector<LayerId>{LayerId(0), LayerId(4)}));
  const LayerSpec& head = model.layers.back();
  ASSERT_EQ(head.blobs.size(), 2u);
  EXPECT_EQ(model.blob(head.blobs[0].blob).name, "ln_f");
  EXPECT_EQ(head.blobs[0].use, 0);
  EXPECT_EQ(head.blobs[1].blob, wte.id);
  EXPECT_EQ(head.blobs[1].use, 1);
  EXPECT_EQ(model.layers[0].blobs[0].blob, wte.id);
  EXPECT_EQ(model.layers[0].blobs[0].use, 0);
}

TEST(ModelSpecTest, EveryUseOfABlobPointsBackAtItsLayer) {
  const ModelSpec model = Build(SmallConfig());
  for (const LayerSpec& layer : model.layers) {
    for (const BlobUse& use : layer.blobs) {
      EXPECT_EQ(model.blob(use.blob).uses[use.use], layer.id);
    }
  }
}

TEST(ModelSpecTest, ABlockHasTheTensorsOfHuggingFaceGpt2) {
  const ModelSpec model = Build(SmallConfig());
  const std::string p = "transformer.h.1.";
  EXPECT_EQ(TensorNames(model.blobs[3]),
            (std::vector<std::string>{p + "ln_1.weight", p + "ln_1.bias", p + "attn.c_attn.weight",
                                      p + "attn.c_attn.bias", p + "attn.c_proj.weight", p + "attn.c_proj.bias",
                                      p + "ln_2.weight", p + "ln_2.bias", p + "mlp.c_fc.weight", p + "mlp.c_fc.bias",
                                      p + "mlp.c_proj.weight", p + "mlp.c_proj.bias"}));
  EXPECT_EQ(FindTensor(model, p + "attn.c_attn.weight").shape, (std::vector<int64_t>{24, 72}));
  EXPECT_EQ(FindTensor(model, p + "attn.c_attn.bias").shape, (std::vector<int64_t>{72}));
  EXPECT_EQ(FindTensor(model, p + "attn.c_proj.weight").shape, (std::vector<int64_t>{24, 24}));
  EXPECT_EQ(FindTensor(model, p + "mlp.c_fc.weight").shape, (std::vector<int64_t>{24, 96}));
  EXPECT_EQ(FindTensor(model, p + "mlp.c_proj.weight").shape, (std::vector<int64_t>{96, 24}));
  EXPECT_EQ(FindTensor(model, "transformer.wte.weight").shape, (std::vector<int64_t>{101, 24}));
  EXPECT_EQ(FindTensor(model, "transformer.wpe.weight").shape, (std::vector<int64_t>{10, 24}));
  EXPECT_EQ(FindTensor(model, "transformer.ln_f.bias").shape, (std::vector<int64_t>{24}));
}

TEST(ModelSpecTest, TensorsAreAlignedAndDoNotOverlap) {
  const ModelSpec model = Build(SmallConfig());
  for (const BlobSpec& blob : model.blobs) {
    int64_t end = 0;
    for (const TensorSpec& tensor : blob.tensors) {
      EXPECT_EQ(tensor.offset_elems % kTensorAlignElems, 0) << tensor.name;
      EXPECT_GE(tensor.offset_elems, end) << tensor.name;
      EXPECT_LT(tensor.offset_elems - end, kTensorAlignElems) << tensor.name;
      end = tensor.offset_elems + tensor.num_elems();
    }
    EXPECT_EQ(blob.num_elems % kTensorAlignElems, 0);
    EXPECT_GE(blob.num_elems, end);
    EXPECT_LT(blob.num_elems - end, kTensorAlignElems);
  }
}

TEST(ModelSpecTest, BlobsOfASlotAreAlignedAndDoNotOverlap) {
  const ModelSpec model = Build(SmallConfig());
  for (const LayerSpec& layer : model.layers) {
    int64_t end = 0;
    for (const BlobUse& use : layer.blobs) {
      EXPECT_EQ(use.offset_elems % kTensorAlignElems, 0);
      EXPECT_EQ(use.offset_elems, end);
      end += model.blob(use.blob).num_elems;
    }
    EXPECT_EQ(layer.num_elems, end);
    EXPECT_LE(2 * layer.num_elems, model.max_layer_bytes(Dtype::kBf16));
  }
}

TEST(ModelSpecTest, ParametersOfGpt2SmallAreCounted) {
  ModelConfig config;
  config.num_layers = 12;
  config.d_model = 768;
  config.num_heads = 12;
  config.context = 1024;
  config.vocab = 50257;
  const ModelSpec model = Build(config);
  EXPECT_EQ(model.num_parameters(), 124439808);  // what Hugging Face counts for "gpt2"
  EXPECT_EQ(model.num_elems(), 124439808 + 0);   // 768 and 50257 * 768 are multiples of 64
  EXPECT_EQ(model.max_layer_bytes(Dtype::kF32), 4 * (50257 * 768 + 1024 * 768));
  EXPECT_EQ(model.max_block_bytes(Dtype::kBf16), 2 * (12 * 768 * 768 + 13 * 768));
  EXPECT_EQ(model.max_trainable_block_elems(), 12 * 768 * 768 + 13 * 768);
}

TEST(ModelSpecTest, PaddingIsCountedInElementsAndNotInParameters) {
  const ModelSpec model = Build(SmallConfig());
  const BlobSpec& ln_f = model.blobs.back();
  EXPECT_EQ(ln_f.num_parameters(), 48);
  EXPECT_EQ(ln_f.num_elems, 128);
  EXPECT_LT(model.num_parameters(), model.num_elems());
}

TEST(ModelSpecTest, ChunksCoverABlobAndTheLastOneIsTheRest) {
  BlobSpec blob;
  blob.num_elems = 2 * kChunkElems + 64;
  EXPECT_EQ(blob.num_chunks(), 3);
  EXPECT_EQ(blob.chunk_elems(0), kChunkElems);
  EXPECT_EQ(blob.chunk_elems(1), kChunkElems);
  EXPECT_EQ(blob.chunk_elems(2), 64);
  blob.num_elems = kChunkElems;
  EXPECT_EQ(blob.num_chunks(), 1);
  EXPECT_EQ(blob.chunk_elems(0), kChunkElems);
}

TEST(ModelSpecTest, APartHasTheElementsOfItsChunks) {
  BlobSpec blob;
  blob.num_elems = 2 * kChunkElems + 64;
  EXPECT_EQ(blob.all_chunks(), (ChunkRange{0, 3}));
  EXPECT_EQ(blob.part_elems(blob.all_chunks()), blob.num_elems);
  EXPECT_EQ(blob.part_first_elem({1, 1}), kChunkElems);
  EXPECT_EQ(blob.part_elems({1, 1}), kChunkElems);
  EXPECT_EQ(blob.part_elems({1, 2}), kChunkElems + 64);
  EXPECT_EQ(blob.part_elems({2, 1}), 64);
  EXPECT_EQ(blob.part_elems({1, 0}), 0);
}

TEST(ModelSpecTest, ChunksThatABlobDoesNotHaveAreRefusedByField) {
  BlobSpec blob;
  blob.num_elems = 2 * kChunkElems + 64;
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  EXPECT_OK(CheckChunks(blob, {0, 3}));
  EXPECT_OK(CheckChunks(blob, {2, 1}));
  const struct {
    ChunkRange chunks;
    const char* message;
  } cases[] = {
      {{-1, 1}, "first_chunk: -1, the blob has 3"},
      {{3, 1}, "first_chunk: 3, the blob has 3"},
      {{kMost, kMost}, "first_chunk: 9223372036854775807"},
      {{0, 0}, "num_chunks: 0, from first_chunk on are 1 to 3"},
      {{1, -1}, "num_chunks: -1"},
      {{1, 3}, "num_chunks: 3, from first_chunk on are 1 to 2"},
      {{2, kMost}, "num_chunks: 9223372036854775807"},
      {{std::numeric_limits<int64_t>::min(), 1}, "first_chunk: -9223372036854775808"},
  };
  for (const auto& c : cases) {
    EXPECT_THAT(CheckChunks(blob, c.chunks), StatusIs(absl::StatusCode::kInvalidArgument, c.message));
  }
}

TEST(ModelSpecTest, OnlyTensorsOfTwoDimensionsDecay) {
  const ModelSpec model = Build(SmallConfig());
  EXPECT_TRUE(FindTensor(model, "transformer.wte.weight").decays());
  EXPECT_TRUE(FindTensor(model, "transformer.h.0.mlp.c_fc.weight").decays());
  EXPECT_FALSE(FindTensor(model, "transformer.h.0.mlp.c_fc.bias").decays());
  EXPECT_FALSE(FindTensor(model, "transformer.ln_f.weight").decays());
}

TEST(ModelSpecTest, HeadsThatDoNotDivideTheWidthAreNamed) {
  ModelConfig config = SmallConfig();
  config.d_model = 384;
  config.num_heads = 5;
  EXPECT_THAT(BuildModel(config), StatusIs(kInvalid, "model.heads: 5 does not divide model.d_model 384"));
}

TEST(ModelSpecTest, HeadsWiderThanTheKernelsTakeAreRefused) {
  ModelConfig config = SmallConfig();
  config.d_model = 1024;
  config.num_heads = 2;
  EXPECT_THAT(BuildModel(config), StatusIs(kInvalid, "heads of 512, at most 256"));
  config.num_heads = 4;
  EXPECT_OK(BuildModel(config));
  config.num_heads = 1024;  // heads of 1
  EXPECT_OK(BuildModel(config));
}

TEST(ModelSpecTest, NumbersOutsideTheirRangeAreNamed) {
  struct Case {
    int64_t ModelConfig::*field;
    const char* name;
    int64_t too_large;
  };
  for (const Case& c :
       {Case{&ModelConfig::num_layers, "model.layers", 4097}, Case{&ModelConfig::d_model, "model.d_model", 65537},
        Case{&ModelConfig::num_heads, "model.heads", 25}, Case{&ModelConfig::context, "model.context", (1 << 20) + 1},
        Case{&ModelConfig::vocab, "model.vocab", (1 << 24) + 1}}) {
    for (const int64_t bad : {int64_t{0}, int64_t{-1}, c.too_large, std::numeric_limits<int64_t>::max(),
                              std::numeric_limits<int64_t>::min()}) {
      ModelConfig config = SmallConfig();
      config.*c.field = bad;
      EXPECT_THAT(BuildModel(config), StatusIs(kInvalid, std::string(c.name) + ": " + std::to_string(bad)));
    }
  }
}

TEST(ModelSpecTest, DropoutAndEpsilonOutsideTheirRangeAreNamed) {
  struct Case {
    double ModelConfig::*field;
    const char* name;
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const Case& c : {Case{&ModelConfig::embedding_dropout, "model.embedding_dropout"},
                        Case{&ModelConfig::attention_dropout, "model.attention_dropout"},
                        Case{&ModelConfig::residual_dropout, "model.residual_dropout"},
                        Case{&ModelConfig::layer_norm_eps, "model.layer_norm_eps"}}) {
    for (const double bad : {-0.1, 1.0, nan}) {
      ModelConfig config = SmallConfig();
      config.*c.field = bad;
      EXPECT_THAT(BuildModel(config), StatusIs(kInvalid, c.name)) << bad;
    }
  }
}

TEST(ModelSpecTest, TheLargestModelDoesNotOverflow) {
  ModelConfig config;
  config.num_layers = 4096;
  config.d_model = 65536;
  config.num_heads = 256;
  config.context = 1 << 20;
  config.vocab = 1 << 24;
  const ModelSpec model = Build(config);
  EXPECT_GT(model.num_elems(), int64_t{1} << 47);
  EXPECT_LT(model.num_elems(), int64_t{1} << 58);
  EXPECT_GE(model.num_elems(), model.num_parameters());
}

TEST(InitTensorTest, BiasesAreZeroAndNormScalesAreOne) {
  const ModelSpec model = Build(SmallConfig());
  for (const float v : InitialValues(FindTensor(model, "transformer.h.0.mlp.c_fc.bias"), 1)) EXPECT_EQ(v, 0.0f);
  for (const float v : InitialValues(FindTensor(model, "transformer.h.0.ln_1.bias"), 1)) EXPECT_EQ(v, 0.0f);
  for (const float v : InitialValues(FindTensor(model, "transformer.h.0.ln_1.weight"), 1)) EXPECT_EQ(v, 1.0f);
  for (const float v : InitialValues(FindTensor(model, "transformer.ln_f.weight"), 1)) EXPECT_EQ(v, 1.0f);
}

TEST(InitTensorTest, ProjectionsIntoTheResidualStreamStartSmallerWithDepth) {
  const ModelSpec model = Build(SmallConfig());
  const double small = 0.02 / std::sqrt(6.0);
  EXPECT_DOUBLE_EQ(FindTensor(model, "transformer.h.2.attn.c_proj.weight").init_stddev, small);
  EXPECT_DOUBLE_EQ(FindTensor(model, "transformer.h.2.mlp.c_proj.weight").init_stddev, small);
  EXPECT_DOUBLE_EQ(FindTensor(model, "transformer.h.2.attn.c_attn.weight").init_stddev, 0.02);
  EXPECT_DOUBLE_EQ(FindTensor(model, "transformer.wpe.weight").init_stddev, 0.02);
}

TEST(InitTensorTest, TheSameSeedAndNameGiveTheSameBits) {
  TensorSpec tensor{"transformer.x", {1000}, 0, InitRule::kNormal, 0.02};
  const std::vector<float> once = InitialValues(tensor, 5);
  const std::vector<float> again = InitialValues(tensor, 5);
  EXPECT_EQ(std::memcmp(once.data(), again.data(), once.size() * 4), 0);
}

TEST(InitTensorTest, AnotherSeedOrNameGivesOtherValues) {
  TensorSpec a{"transformer.a", {1000}, 0, InitRule::kNormal, 1};
  TensorSpec b{"transformer.b", {1000}, 0, InitRule::kNormal, 1};
  EXPECT_NE(InitialValues(a, 5), InitialValues(a, 6));
  EXPECT_NE(InitialValues(a, 5), InitialValues(b, 5));
}

TEST(InitTensorTest, AnElementDependsOnItsPlaceAndNotOnTheTensorsSize) {
  TensorSpec longer{"t", {1001}, 0, InitRule::kNormal, 1};
  TensorSpec shorter{"t", {7}, 0, InitRule::kNormal, 1};
  const std::vector<float> all = InitialValues(longer, 5);
  const std::vector<float> some = InitialValues(shorter, 5);
  EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin()));
}

TEST(InitTensorTest, PartsGiveWhatTheWholeGives) {
  for (const InitRule rule : {InitRule::kZeros, InitRule::kOnes, InitRule::kNormal}) {
    const TensorSpec tensor{"t", {1001}, 0, rule, 1};
    std::vector<float> parts(1001, -7);
    InitTensorPart(tensor, 5, 600, absl::MakeSpan(parts).subspan(600));
    InitTensorPart(tensor, 5, 0, absl::MakeSpan(parts).subspan(0, 600));
    EXPECT_EQ(parts, InitialValues(tensor, 5));
  }
}

TEST(InitTensorTest, ValuesAreNormal) {
  TensorSpec tensor{"t", {200000}, 0, InitRule::kNormal, 0.02};
  const std::vector<float> values = InitialValues(tensor, 3);
  double sum = 0, squares = 0, fourth = 0;
  int64_t within_one = 0;
  for (const float v : values) {
    const double z = v / 0.02;
    sum += z;
    squares += z * z;
    fourth += z * z * z * z;
    within_one += std::fabs(z) < 1;
  }
  const double n = static_cast<double>(values.size());
  // Five standard errors of each estimate.
  EXPECT_NEAR(sum / n, 0, 5 / std::sqrt(n));
  EXPECT_NEAR(squares / n, 1, 5 * std::sqrt(2 / n));
  EXPECT_NEAR(fourth / n, 3, 5 * std::sqrt(96 / n));
  EXPECT_NEAR(static_cast<double>(within_one) / n, 0.682689, 5 * 0.47 / std::sqrt(n));
  EXPECT_GT(std::set<float>(values.begin(), values.end()).size(), values.size() * 9 / 10);
}

}  // namespace
}  // namespace eps
