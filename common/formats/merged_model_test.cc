#include "common/formats/merged_model.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/formats/model_folder.h"
#include "common/formats/safetensors.h"
#include "common/formats/tensor_file_writer.h"
#include "common/model/hf_config.h"
#include "common/model/lora.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

// Widths that are no multiple of a block, and wider ones.
ModelConfig AdaptedModel(ModelFamily family) {
  ModelConfig config = {.family = family, .num_layers = 2, .d_model = 72, .num_heads = 4, .context = 8, .vocab = 11};
  if (family == ModelFamily::kGpt2) return config;
  config.max_positions = 8;
  config.d_ff = 100;
  if (family == ModelFamily::kBert) {
    config.num_types = 2;
    config.num_classes = 3;
    return config;
  }
  config.num_kv_heads = 2;
  config.d_head = 18;
  config.tied_head = false;
  return config;
}

class MergedModelTest : public testing::Test {
 protected:
  // A folder as a checkpoint's is, of numbers that are drawn.
  void Write(const ModelConfig& config) {
    model_ = BuildModel(config).value();
    for (const BlobSpec& blob : model_.blobs) {
      for (const TensorSpec& tensor : blob.tensors) {
        tensors_.push_back({.name = tensor.name, .tensor = &tensor});
        TensorSpec drawn = tensor;
        drawn.init = InitRule::kNormal;
        drawn.init_stddev = 0.5;
        std::vector<float>& values = values_[tensor.name];
        values.resize(static_cast<size_t>(tensor.num_elems()));
        InitTensor(drawn, 3, values.data());
      }
    }
    WriteValues();
  }
  void WriteValues() {
    ASSERT_OK(WriteTensorFile(dir_.File("model.safetensors"), tensors_, "F32",
                              [&](const TensorSpec& tensor, int64_t first, absl::Span<float> values) {
                                std::copy_n(values_.at(tensor.name).begin() + first, values.size(), values.begin());
                                return absl::OkStatus();
                              }));
    std::ofstream(dir_.File("config.json")) << ModelConfigToJson(model_.config);
  }

  // By plain loops in fp64.
  std::vector<double> Expected(const TensorSpec& tensor) const {
    const std::vector<float>& own = values_.at(tensor.name);
    std::vector<double> expected(own.begin(), own.end());
    const std::string module(ModuleOf(tensor));
    if (!values_.contains(module + ".lora_A.weight") || tensor.shape.size() != 2) return expected;
    const std::vector<float>&a = values_.at(module + ".lora_A.weight"), &b = values_.at(module + ".lora_B.weight");
    const ProductShape shape = ProductShapeOf(model_.config, tensor.shape);
    const LoraConfig& lora = model_.config.lora;
    for (int64_t o = 0; o < shape.out; ++o) {
      for (int64_t i = 0; i < shape.in; ++i) {
        double sum = 0;
        for (int64_t r = 0; r < lora.rank; ++r) {
          sum += static_cast<double>(b[static_cast<size_t>(o * lora.rank + r)]) *
                 static_cast<double>(a[static_cast<size_t>(r * shape.in + i)]);
        }
        expected[static_cast<size_t>(shape.is_out_in ? o * shape.in + i : i * shape.out + o)] += lora.scale() * sum;
      }
    }
    return expected;
  }

  TempDir dir_;
  ModelSpec model_;
  std::vector<NamedTensor> tensors_;
  std::map<std::string, std::vector<float>> values_;
};

TEST_F(MergedModelTest, EveryTensorOfEveryFamilyIsWhatItsAdapterMakesOfIt) {
  for (const ModelFamily family : {ModelFamily::kGpt2, ModelFamily::kLlama, ModelFamily::kBert}) {
    tensors_.clear();
    values_.clear();
    ModelConfig config = AdaptedModel(family);
    config.lora = {.rank = 5, .alpha = 7.5, .rank_stabilized = family == ModelFamily::kBert};
    Write(config);
    ASSERT_OK_AND_ASSIGN(const auto folder, ModelFolder::Open(dir_.path()));
    ASSERT_OK_AND_ASSIGN(const auto merged, MergedModel::Create(*folder));
    config.lora = {};
    EXPECT_EQ(merged->model().config, config);
    EXPECT_EQ(merged->num_adapters(), family == ModelFamily::kGpt2 ? 8 : family == ModelFamily::kLlama ? 14 : 12);
    size_t num_changed = 0;
    for (const BlobSpec& blob : merged->model().blobs) {
      for (const TensorSpec& tensor : blob.tensors) {
        std::vector<float> values(static_cast<size_t>(tensor.num_elems()));
        ASSERT_OK(merged->ReadPart(tensor, 0, absl::MakeSpan(values)));
        const std::vector<double> expected = Expected(tensor);
        num_changed += values != values_.at(tensor.name);
        for (size_t i = 0; i < values.size(); ++i) {
          // Five products of about 0.5, times 3: a few roundings of numbers below 8.
          ASSERT_NEAR(values[i], expected[i], 4e-6) << tensor.name << " " << i;
        }
      }
    }
    EXPECT_EQ(num_changed, merged->num_adapters());
  }
}

TEST_F(MergedModelTest, PartsOfATensorAreTheBitsOfTheWhole) {
  for (const ModelFamily family : {ModelFamily::kGpt2, ModelFamily::kLlama}) {
    tensors_.clear();
    values_.clear();
    ModelConfig config = AdaptedModel(family);
    config.lora = {.rank = 3, .alpha = 2};
    Write(config);
    ASSERT_OK_AND_ASSIGN(const auto folder, ModelFolder::Open(dir_.path()));
    ASSERT_OK_AND_ASSIGN(const auto merged, MergedModel::Create(*folder));
    for (const BlobSpec& blob : merged->model().blobs) {
      for (const TensorSpec& tensor : blob.tensors) {
        std::vector<float> whole(static_cast<size_t>(tensor.num_elems())), parts(whole.size());
        ASSERT_OK(merged->ReadPart(tensor, 0, absl::MakeSpan(whole)));
        // Within a row and a block, beyond both, and elements alone.
        int64_t first = 0, count = 1;
        while (first < tensor.num_elems()) {
          count = std::min(count * 3 % 257, tensor.num_elems() - first);
          ASSERT_OK(merged->ReadPart(tensor, first, absl::MakeSpan(parts).subspan(first, count)));
          first += count;
        }
        EXPECT_EQ(parts, whole) << tensor.name;
      }
    }
  }
}

TEST_F(MergedModelTest, OnlyTargetsAreMergedAndAModelWithoutAdaptersIsAsItIs) {
  ModelConfig config = AdaptedModel(ModelFamily::kLlama);
  config.lora = {.rank = 2, .alpha = 2, .targets = {"1.self_attn.q_proj"}};
  Write(config);
  ASSERT_OK_AND_ASSIGN(const auto folder, ModelFolder::Open(dir_.path()));
  ASSERT_OK_AND_ASSIGN(const auto merged, MergedModel::Create(*folder));
  EXPECT_EQ(merged->num_adapters(), 1);
  for (const BlobSpec& blob : merged->model().blobs) {
    for (const TensorSpec& tensor : blob.tensors) {
      std::vector<float> values(static_cast<size_t>(tensor.num_elems()));
      ASSERT_OK(merged->ReadPart(tensor, 0, absl::MakeSpan(values)));
      EXPECT_EQ(values == values_.at(tensor.name), tensor.name != "model.layers.1.self_attn.q_proj.weight")
          << tensor.name;
    }
  }
}

TEST_F(MergedModelTest, AValueOfAnAdapterThatIsNoNumberIsNamedWithItsTensor) {
  ModelConfig config = AdaptedModel(ModelFamily::kLlama);
  config.lora = {.rank = 2, .alpha = 2};
  Write(config);
  ASSERT_OK_AND_ASSIGN(const auto folder, ModelFolder::Open(dir_.path()));
  // In its place in the file: the writer would refuse it.
  ASSERT_OK_AND_ASSIGN(const auto file, SafetensorsReader::Open(dir_.File("model.safetensors")));
  std::fstream bytes(dir_.File("model.safetensors"), std::ios::in | std::ios::out | std::ios::binary);
  bytes.seekp(file->Find("model.layers.0.mlp.up_proj.lora_B.weight")->offset_bytes + 7 * 4);
  const float wrong = std::numeric_limits<float>::infinity();
  bytes.write(reinterpret_cast<const char*>(&wrong), sizeof(wrong));
  bytes.flush();
  ASSERT_OK_AND_ASSIGN(const auto merged, MergedModel::Create(*folder));
  for (const BlobSpec& blob : merged->model().blobs) {
    for (const TensorSpec& tensor : blob.tensors) {
      std::vector<float> values(static_cast<size_t>(tensor.num_elems()));
      const absl::Status status = merged->ReadPart(tensor, 0, absl::MakeSpan(values));
      if (tensor.name != "model.layers.0.mlp.up_proj.weight") {
        EXPECT_OK(status);
        continue;
      }
      EXPECT_THAT(status, StatusIs(kInvalid, "tensor model.layers.0.mlp.up_proj.lora_B.weight, element 7 at byte "));
      EXPECT_THAT(status, StatusIs(kInvalid, "inf, must be finite"));
    }
  }
}

}  // namespace
}  // namespace eps
