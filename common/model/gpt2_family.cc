// GPT-2. Linear weights are (in, out), as Hugging Face's Conv1D has them.

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/families.h"
#include "common/model/hf_json.h"
#include "common/model/model_builder.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

using nlohmann::json;
using Role = TensorRole;

absl::Status Check(const ModelConfig& config) {
  EPS_RETURN_IF_ERROR(CheckCommonRanges(config));
  return CheckHeadsDivideWidth(config);
}

BlobSpec Block(const ModelConfig& config, int64_t index) {
  const int64_t d = config.d_model;
  const std::string prefix = absl::StrCat("transformer.h.", index, ".");
  const double residual_stddev = ResidualInitStddev(config);
  return BlobBuilder(absl::StrCat("h.", index))
      .Ones(Role::kAttentionNormScale, prefix + "ln_1.weight", {d})
      .Zeros(Role::kAttentionNormShift, prefix + "ln_1.bias", {d})
      .Normal(Role::kQkvWeight, prefix + "attn.c_attn.weight", {d, 3 * d})
      .Zeros(Role::kQkvBias, prefix + "attn.c_attn.bias", {3 * d})
      .Normal(Role::kAttentionOutWeight, prefix + "attn.c_proj.weight", {d, d}, residual_stddev)
      .Zeros(Role::kAttentionOutBias, prefix + "attn.c_proj.bias", {d})
      .Ones(Role::kMlpNormScale, prefix + "ln_2.weight", {d})
      .Zeros(Role::kMlpNormShift, prefix + "ln_2.bias", {d})
      .Normal(Role::kUpWeight, prefix + "mlp.c_fc.weight", {d, 4 * d})
      .Zeros(Role::kUpBias, prefix + "mlp.c_fc.bias", {4 * d})
      .Normal(Role::kDownWeight, prefix + "mlp.c_proj.weight", {4 * d, d}, residual_stddev)
      .Zeros(Role::kDownBias, prefix + "mlp.c_proj.bias", {d})
      .Build();
}

ModelSpec Build(const ModelConfig& config) {
  const int64_t d = config.d_model;
  ModelBuilder builder(config);
  const BlobId wte = builder.AddBlob(
      BlobBuilder("wte").Normal(Role::kTokenTable, "transformer.wte.weight", {config.vocab, d}).Build());
  const BlobId wpe = builder.AddBlob(
      BlobBuilder("wpe").Normal(Role::kPositionTable, "transformer.wpe.weight", {config.context, d}).Build());
  builder.AddLayer(LayerKind::kEmbedding, "embedding", {wte, wpe});
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const BlobId block = builder.AddBlob(Block(config, i));
    builder.AddLayer(LayerKind::kBlock, absl::StrCat("h.", i), {block});
  }
  const BlobId ln_f = builder.AddBlob(BlobBuilder("ln_f")
                                          .Ones(Role::kFinalNormScale, "transformer.ln_f.weight", {d})
                                          .Zeros(Role::kFinalNormShift, "transformer.ln_f.bias", {d})
                                          .Build());
  builder.AddLayer(LayerKind::kHead, "head", {ln_f, wte});
  return builder.Build();
}

absl::Status RequireOwnComputation(const json& object, int64_t d_model) {
  if (const json* architectures = FindMember(object, "architectures");
      architectures != nullptr && *architectures != json::array({"GPT2LMHeadModel"}) &&
      *architectures != json::array({"GPT2Model"})) {
    return BadMember("architectures", *architectures, "[\"GPT2LMHeadModel\"]: other heads are not ours");
  }
  if (const json* activation = FindMember(object, "activation_function");
      activation != nullptr && *activation != json("gelu_new") && *activation != json("gelu_pytorch_tanh")) {
    return BadMember("activation_function", *activation, "\"gelu_new\" or \"gelu_pytorch_tanh\"");
  }
  if (const json* inner = FindMember(object, "n_inner"); inner != nullptr && *inner != json(4 * d_model)) {
    return BadMember("n_inner", *inner, absl::StrCat("4 * n_embd = ", 4 * d_model));
  }
  EPS_RETURN_IF_ERROR(RequireFlag(object, "tie_word_embeddings", true));
  EPS_RETURN_IF_ERROR(RequireFlag(object, "scale_attn_weights", true));
  EPS_RETURN_IF_ERROR(RequireFlag(object, "scale_attn_by_inverse_layer_idx", false));
  EPS_RETURN_IF_ERROR(RequireFlag(object, "reorder_and_upcast_attn", false));
  return RequireFlag(object, "add_cross_attention", false);
}

absl::StatusOr<ModelConfig> FromJson(const json& object) {
  ModelConfig config;
  EPS_ASSIGN_OR_RETURN(config.num_layers, ReadInteger(object, "n_layer"));
  EPS_ASSIGN_OR_RETURN(config.d_model, ReadInteger(object, "n_embd"));
  EPS_ASSIGN_OR_RETURN(config.num_heads, ReadInteger(object, "n_head"));
  const bool has_positions = FindMember(object, "n_positions") != nullptr || FindMember(object, "n_ctx") == nullptr;
  EPS_ASSIGN_OR_RETURN(config.context, ReadInteger(object, has_positions ? "n_positions" : "n_ctx"));
  EPS_ASSIGN_OR_RETURN(config.vocab, ReadInteger(object, "vocab_size"));
  EPS_RETURN_IF_ERROR(ReadNumber(object, "layer_norm_epsilon", config.layer_norm_eps));
  EPS_RETURN_IF_ERROR(ReadNumber(object, "embd_pdrop", config.embedding_dropout));
  EPS_RETURN_IF_ERROR(ReadNumber(object, "attn_pdrop", config.attention_dropout));
  EPS_RETURN_IF_ERROR(ReadNumber(object, "resid_pdrop", config.residual_dropout));
  EPS_RETURN_IF_ERROR(Check(config));  // first, so that 4 * d_model cannot overflow
  EPS_RETURN_IF_ERROR(RequireOwnComputation(object, config.d_model));
  return config;
}

json ToJson(const ModelConfig& config) {
  return {
      {"architectures", {"GPT2LMHeadModel"}},
      {"model_type", "gpt2"},
      {"n_layer", config.num_layers},
      {"n_embd", config.d_model},
      {"n_head", config.num_heads},
      {"n_positions", config.context},
      {"n_ctx", config.context},
      {"vocab_size", config.vocab},
      {"layer_norm_epsilon", config.layer_norm_eps},
      {"embd_pdrop", config.embedding_dropout},
      {"attn_pdrop", config.attention_dropout},
      {"resid_pdrop", config.residual_dropout},
      {"activation_function", "gelu_new"},
      {"tie_word_embeddings", true},
      {"scale_attn_weights", true},
      {"scale_attn_by_inverse_layer_idx", false},
      {"reorder_and_upcast_attn", false},
      // Ours are bytes or ids without special ones; Hugging Face's defaults (50256) may lie beyond
      // the vocabulary.
      {"bos_token_id", nullptr},
      {"eos_token_id", nullptr},
      {"torch_dtype", "float32"},
  };
}

}  // namespace

const Family& Gpt2Family() {
  static const auto* const family = new Family{.id = ModelFamily::kGpt2,
                                               .model_types = {"gpt2"},
                                               .name_prefix = "transformer.",
                                               // The causal mask and its fill value.
                                               .ignored_suffixes = {".attn.bias", ".attn.masked_bias"},
                                               .from_json = &FromJson,
                                               .to_json = &ToJson,
                                               .check = &Check,
                                               .build = &Build};
  return *family;
}

}  // namespace eps
