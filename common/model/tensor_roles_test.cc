#include "common/model/tensor_roles.h"

#include <cstdint>
#include <set>
#include <string>

#include "gtest/gtest.h"

namespace eps {
namespace {

ModelSpec ModelOf(ModelFamily family, bool tied_head, int64_t num_classes = 0) {
  ModelConfig config = {.family = family, .num_layers = 1, .d_model = 12, .num_heads = 3, .context = 8, .vocab = 17};
  config.lora = {.rank = 2, .alpha = 4};
  if (family == ModelFamily::kGpt2) return BuildModel(config).value();
  config.max_positions = 8;
  config.d_ff = 20;
  if (family == ModelFamily::kBert) {
    config.num_types = 2;
    config.num_classes = num_classes;
    return BuildModel(config).value();
  }
  config.num_kv_heads = 1;
  config.d_head = 6;
  config.tied_head = tied_head;
  return BuildModel(config).value();
}

std::string TiedName(const ModelSpec& model) {
  const TensorSpec* table = TiedTable(model);
  return table == nullptr ? "" : table->name;
}

TEST(TensorRolesTest, ATiedTableIsTheTokensUnlessTheHeadHasOneOfItsOwn) {
  EXPECT_EQ(TiedName(ModelOf(ModelFamily::kGpt2, true)), "transformer.wte.weight");
  EXPECT_EQ(TiedName(ModelOf(ModelFamily::kLlama, true)), "model.embed_tokens.weight");
  EXPECT_EQ(TiedName(ModelOf(ModelFamily::kLlama, false)), "");
  EXPECT_EQ(TiedName(ModelOf(ModelFamily::kBert, true)), "bert.embeddings.word_embeddings.weight");
  EXPECT_EQ(TiedName(ModelOf(ModelFamily::kBert, true, 3)), "") << "classes are no tokens";
}

TEST(TensorRolesTest, AClassifiersHeadIsADenseLayerAndItsOutput) {
  std::set<std::string> dense, output;
  for (const BlobSpec& blob : ModelOf(ModelFamily::kBert, true, 3).blobs) {
    for (const TensorSpec& tensor : blob.tensors) {
      if (IsHeadDense(tensor.role)) dense.insert(tensor.name);
      if (IsHeadOutput(tensor.role)) output.insert(tensor.name);
    }
  }
  EXPECT_EQ(dense, (std::set<std::string>{"bert.pooler.dense.weight", "bert.pooler.dense.bias"}));
  EXPECT_EQ(output, (std::set<std::string>{"classifier.weight", "classifier.bias"}));
}

}  // namespace
}  // namespace eps
