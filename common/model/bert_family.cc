// BERT (Devlin et al., arXiv:1810.04805), with a head of masked tokens or of classes. Linear weights are (out, in), as
// torch.nn.Linear has them.
//
// Its layer norms stand behind the sums. Here each belongs to the layer that reads what it gives, so that blocks are
// those of the other families but for what they add to: block i begins with the norm that ends block i - 1 in Hugging
// Face's names, the first one with the embedding's, and the head with the last block's.

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"
#include "common/model/class_name_check.h"
#include "common/model/families.h"
#include "common/model/hf_json.h"
#include "common/model/model_builder.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

using nlohmann::json;
using Role = TensorRole;

constexpr int64_t kMaxTypes = 65536;
constexpr int64_t kMaxClasses = 65536;

absl::Status Check(const ModelConfig& config) {
  EPS_RETURN_IF_ERROR(CheckCommonRanges(config));
  EPS_RETURN_IF_ERROR(CheckHeadsDivideWidth(config));
  EPS_RETURN_IF_ERROR(CheckMaxPositions(config, kMaxContext));
  EPS_RETURN_IF_ERROR(CheckRange("model.d_ff", config.d_ff, kMaxWidth));
  EPS_RETURN_IF_ERROR(CheckRange("model.types", config.num_types, kMaxTypes));
  if (config.num_classes != 0 && (config.num_classes < 2 || config.num_classes > kMaxClasses)) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.classes: ", config.num_classes, ", must be 0, or between 2 and ", kMaxClasses));
  }
  EPS_RETURN_IF_ERROR(CheckClassNames(config));
  return CheckDropout("model.classifier_dropout", config.classifier_dropout);
}

// ---- tensors ----

BlobSpec Block(const ModelConfig& c, int64_t index) {
  const int64_t d = c.d_model;
  const std::string layers = "bert.encoder.layer.";
  const std::string prefix = absl::StrCat(layers, index, ".");
  const std::string attention = prefix + "attention.self.";
  const std::string norm_before =
      index == 0 ? "bert.embeddings.LayerNorm." : absl::StrCat(layers, index - 1, ".output.LayerNorm.");
  return BlobBuilder(absl::StrCat("layer.", index))
      .Ones(Role::kAttentionNormScale, norm_before + "weight", {d})
      .Zeros(Role::kAttentionNormShift, norm_before + "bias", {d})
      // One behind the other, so that they are one product where the alignment leaves no gap.
      .Normal(Role::kQueryWeight, attention + "query.weight", {d, d})
      .Normal(Role::kKeyWeight, attention + "key.weight", {d, d})
      .Normal(Role::kValueWeight, attention + "value.weight", {d, d})
      .Zeros(Role::kQueryBias, attention + "query.bias", {d})
      .Zeros(Role::kKeyBias, attention + "key.bias", {d})
      .Zeros(Role::kValueBias, attention + "value.bias", {d})
      .Normal(Role::kAttentionOutWeight, prefix + "attention.output.dense.weight", {d, d})
      .Zeros(Role::kAttentionOutBias, prefix + "attention.output.dense.bias", {d})
      .Ones(Role::kMlpNormScale, prefix + "attention.output.LayerNorm.weight", {d})
      .Zeros(Role::kMlpNormShift, prefix + "attention.output.LayerNorm.bias", {d})
      .Normal(Role::kUpWeight, prefix + "intermediate.dense.weight", {c.d_ff, d})
      .Zeros(Role::kUpBias, prefix + "intermediate.dense.bias", {c.d_ff})
      .Normal(Role::kDownWeight, prefix + "output.dense.weight", {d, c.d_ff})
      .Zeros(Role::kDownBias, prefix + "output.dense.bias", {d})
      .Build();
}

BlobSpec Head(const ModelConfig& c) {
  const int64_t d = c.d_model;
  const std::string norm = absl::StrCat("bert.encoder.layer.", c.num_layers - 1, ".output.LayerNorm.");
  BlobBuilder blob("head");
  blob.Ones(Role::kFinalNormScale, norm + "weight", {d}).Zeros(Role::kFinalNormShift, norm + "bias", {d});
  if (c.is_classifier()) {
    return blob.Normal(Role::kHeadDenseWeight, "bert.pooler.dense.weight", {d, d})
        .Zeros(Role::kHeadDenseBias, "bert.pooler.dense.bias", {d})
        .Normal(Role::kHeadTable, "classifier.weight", {c.num_classes, d})
        .Zeros(Role::kHeadBias, "classifier.bias", {c.num_classes})
        .Build();
  }
  const std::string transform = "cls.predictions.transform.";
  return blob.Normal(Role::kHeadDenseWeight, transform + "dense.weight", {d, d})
      .Zeros(Role::kHeadDenseBias, transform + "dense.bias", {d})
      .Ones(Role::kHeadDenseNormScale, transform + "LayerNorm.weight", {d})
      .Zeros(Role::kHeadDenseNormShift, transform + "LayerNorm.bias", {d})
      .Zeros(Role::kHeadBias, "cls.predictions.bias", {c.vocab})
      .Build();
}

ModelSpec Build(const ModelConfig& config) {
  const int64_t d = config.d_model;
  const std::string embeddings = "bert.embeddings.";
  ModelBuilder builder(config);
  const auto add_table = [&](const char* name, Role role, const std::string& tensor, int64_t rows) {
    return builder.AddBlob(BlobBuilder(name).Normal(role, embeddings + tensor, {rows, d}).Build());
  };
  const BlobId tokens = add_table("word_embeddings", Role::kTokenTable, "word_embeddings.weight", config.vocab);
  const BlobId positions =
      add_table("position_embeddings", Role::kPositionTable, "position_embeddings.weight", config.max_positions);
  const BlobId types =
      add_table("token_type_embeddings", Role::kTypeTable, "token_type_embeddings.weight", config.num_types);
  builder.AddLayer(LayerKind::kEmbedding, "embedding", {tokens, positions, types});
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const BlobId block = builder.AddBlob(Block(config, i));
    builder.AddLayer(LayerKind::kBlock, absl::StrCat("layer.", i), {block});
  }
  std::vector<BlobId> head = {builder.AddBlob(Head(config))};
  if (!config.is_classifier()) head.push_back(tokens);
  builder.AddLayer(LayerKind::kHead, "head", head);
  return builder.Build();
}

// ---- config.json ----

// What transformers calls a class that nobody gave a name.
std::string NumberedName(int64_t number) { return absl::StrCat("LABEL_", number); }

absl::Status ReadClassNames(const json& labels, ModelConfig& config) {
  bool are_numbered = true;
  for (size_t i = 0; i < labels.size(); ++i) {
    const json* name = FindMember(labels, absl::StrCat(i).c_str());
    if (name == nullptr || !name->is_string()) {
      return BadMember("id2label", labels, absl::StrCat("a name for each of 0 to ", labels.size() - 1));
    }
    config.class_names.push_back(name->get<std::string>());
    are_numbered = are_numbered && config.class_names.back() == NumberedName(static_cast<int64_t>(i));
  }
  if (are_numbered) config.class_names.clear();
  return absl::OkStatus();
}

// As transformers: so many labels as are named, or 2.
absl::Status ReadClasses(const json& object, ModelConfig& config) {
  if (const json* kind = FindMember(object, "problem_type");
      kind != nullptr && *kind != json("single_label_classification")) {
    return BadMember("problem_type", *kind, "\"single_label_classification\"");
  }
  if (const json* labels = FindMember(object, "id2label"); labels == nullptr) {
    EPS_ASSIGN_OR_RETURN(config.num_classes, ReadIntegerOr(object, "num_labels", 2));
  } else if (labels->is_object()) {
    config.num_classes = static_cast<int64_t>(labels->size());
    EPS_RETURN_IF_ERROR(ReadClassNames(*labels, config));
  } else {
    return BadMember("id2label", *labels, "an object");
  }
  if (config.num_classes < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_labels: found ", config.num_classes, ", want at least 2: classes, not a number"));
  }
  return absl::OkStatus();
}

absl::Status ReadTask(const json& object, ModelConfig& config) {
  const json* architectures = FindMember(object, "architectures");
  if (architectures == nullptr) return absl::OkStatus();
  if (*architectures == json::array({"BertForSequenceClassification"})) return ReadClasses(object, config);
  // A BertModel has no head: a classifier with a new one can be made of it, and else its tensors are found missing.
  for (const char* without_classes : {"BertForMaskedLM", "BertForPreTraining", "BertModel"}) {
    if (*architectures == json::array({without_classes})) return absl::OkStatus();
  }
  return BadMember(
      "architectures", *architectures,
      "[\"BertForMaskedLM\"], [\"BertForPreTraining\"], [\"BertForSequenceClassification\"] or [\"BertModel\"]");
}

absl::Status RequireOwnComputation(const json& object) {
  if (const json* activation = FindMember(object, "hidden_act"); activation != nullptr && *activation != json("gelu")) {
    return BadMember("hidden_act", *activation, "\"gelu\"");
  }
  if (const json* positions = FindMember(object, "position_embedding_type");
      positions != nullptr && *positions != json("absolute")) {
    return BadMember("position_embedding_type", *positions, "\"absolute\"");
  }
  EPS_RETURN_IF_ERROR(RequireFlag(object, "is_decoder", false));
  EPS_RETURN_IF_ERROR(RequireFlag(object, "add_cross_attention", false));
  return RequireFlag(object, "tie_word_embeddings", true);
}

absl::StatusOr<ModelConfig> FromJson(const json& object) {
  ModelConfig config;
  config.family = ModelFamily::kBert;
  EPS_ASSIGN_OR_RETURN(config.num_layers, ReadInteger(object, "num_hidden_layers"));
  EPS_ASSIGN_OR_RETURN(config.d_model, ReadInteger(object, "hidden_size"));
  EPS_ASSIGN_OR_RETURN(config.num_heads, ReadInteger(object, "num_attention_heads"));
  EPS_ASSIGN_OR_RETURN(config.d_ff, ReadInteger(object, "intermediate_size"));
  EPS_ASSIGN_OR_RETURN(config.max_positions, ReadInteger(object, "max_position_embeddings"));
  config.context = std::min(config.max_positions, kMaxContext);  // a run says how much of it it takes
  EPS_ASSIGN_OR_RETURN(config.vocab, ReadInteger(object, "vocab_size"));
  EPS_ASSIGN_OR_RETURN(config.num_types, ReadIntegerOr(object, "type_vocab_size", 2));
  config.layer_norm_eps = 1e-12;
  config.residual_dropout = config.attention_dropout = 0.1;
  EPS_RETURN_IF_ERROR(ReadNumber(object, "layer_norm_eps", config.layer_norm_eps));
  EPS_RETURN_IF_ERROR(ReadNumber(object, "hidden_dropout_prob", config.residual_dropout));
  EPS_RETURN_IF_ERROR(ReadNumber(object, "attention_probs_dropout_prob", config.attention_dropout));
  config.embedding_dropout = config.classifier_dropout = config.residual_dropout;
  EPS_RETURN_IF_ERROR(ReadNumber(object, "classifier_dropout", config.classifier_dropout));
  EPS_RETURN_IF_ERROR(ReadTask(object, config));
  EPS_RETURN_IF_ERROR(RequireOwnComputation(object));
  return config;
}

json ToJson(const ModelConfig& config) {
  json object = {
      {"architectures", {config.is_classifier() ? "BertForSequenceClassification" : "BertForMaskedLM"}},
      {"model_type", "bert"},
      {"num_hidden_layers", config.num_layers},
      {"hidden_size", config.d_model},
      {"num_attention_heads", config.num_heads},
      {"intermediate_size", config.d_ff},
      {"max_position_embeddings", config.max_positions},
      {"type_vocab_size", config.num_types},
      {"vocab_size", config.vocab},
      {"layer_norm_eps", config.layer_norm_eps},
      {"hidden_dropout_prob", config.residual_dropout},
      {"attention_probs_dropout_prob", config.attention_dropout},
      {"classifier_dropout", config.classifier_dropout},
      {"hidden_act", "gelu"},
      {"position_embedding_type", "absolute"},
      {"is_decoder", false},
      {"tie_word_embeddings", true},
      {"pad_token_id", nullptr},  // transformers' default, 0, would never learn
      {"torch_dtype", "float32"},
  };
  if (!config.is_classifier()) return object;
  object["problem_type"] = "single_label_classification";
  for (int64_t i = 0; i < config.num_classes; ++i) {
    const std::string name = config.class_names.empty() ? NumberedName(i) : config.class_names[static_cast<size_t>(i)];
    object["id2label"][absl::StrCat(i)] = name;
    object["label2id"][name] = i;
  }
  return object;
}

}  // namespace

const Family& BertFamily() {
  static const auto* const family = new Family{
      .id = ModelFamily::kBert,
      .model_types = {"bert"},
      .name_prefix = "bert.",
      // Heads of the pre-training that the model's own task has no use for, what is tied, and the positions' numbers.
      .ignored_suffixes = {".embeddings.position_ids", ".pooler.dense.weight", ".pooler.dense.bias",
                           ".seq_relationship.weight", ".seq_relationship.bias", ".predictions.bias",
                           ".predictions.decoder.weight", ".predictions.decoder.bias",
                           ".predictions.transform.dense.weight", ".predictions.transform.dense.bias",
                           ".predictions.transform.LayerNorm.weight", ".predictions.transform.LayerNorm.bias"},
      .older_suffixes = {{".LayerNorm.gamma", ".LayerNorm.weight"}, {".LayerNorm.beta", ".LayerNorm.bias"}},
      .tied_head_name = "cls.predictions.decoder.weight",
      .from_json = &FromJson,
      .to_json = &ToJson,
      .check = &Check,
      .build = &Build};
  return *family;
}

}  // namespace eps
