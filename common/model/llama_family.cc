// The Llama family: Llama, Mistral, Mixtral, Qwen2, Qwen3, with experts too. Linear weights are (out, in), as
// torch.nn.Linear has them.

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/families.h"
#include "common/model/llama_json.h"
#include "common/model/model_builder.h"

namespace eps {
namespace {

using Role = TensorRole;
using Scaling = RotaryConfig::Scaling;

// ---- ranges ----

absl::Status CheckPositive(absl::string_view field, double value, double least) {
  if (value >= least && value < HUGE_VAL) return absl::OkStatus();  // NaN fails
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", value, ", must be at least ", least, " and finite"));
}

constexpr int64_t kMaxOriginalContext = int64_t{1} << 30;

absl::Status CheckYarn(const RotaryConfig& rotary) {
  EPS_RETURN_IF_ERROR(CheckPositive("model.rope_theta", rotary.theta, 1.0001));  // pairs are counted by its logarithm
  EPS_RETURN_IF_ERROR(CheckPositive("model.rope_scaling.beta_slow", rotary.beta_slow, 1e-6));
  EPS_RETURN_IF_ERROR(CheckPositive("model.rope_scaling.beta_fast", rotary.beta_fast, rotary.beta_slow));
  EPS_RETURN_IF_ERROR(CheckPositive("model.rope_scaling.attention_factor", rotary.attention_factor, 0));
  return CheckRange("model.rope_scaling.original_context", rotary.original_context, kMaxOriginalContext);
}

absl::Status CheckRotary(const RotaryConfig& rotary) {
  EPS_RETURN_IF_ERROR(CheckPositive("model.rope_theta", rotary.theta, 1));
  EPS_RETURN_IF_ERROR(CheckPositive("model.rope_scaling.factor", rotary.factor, 1));
  if (rotary.scaling == Scaling::kYarn) return CheckYarn(rotary);
  if (rotary.scaling != Scaling::kLlama3) return absl::OkStatus();
  EPS_RETURN_IF_ERROR(CheckPositive("model.rope_scaling.low_freq_factor", rotary.low_freq_factor, 1e-6));
  EPS_RETURN_IF_ERROR(CheckPositive("model.rope_scaling.high_freq_factor", rotary.high_freq_factor, 1e-6));
  if (rotary.low_freq_factor >= rotary.high_freq_factor) {
    return absl::InvalidArgumentError(absl::StrCat("model.rope_scaling.low_freq_factor: ", rotary.low_freq_factor,
                                                   ", must be below high_freq_factor ", rotary.high_freq_factor));
  }
  return CheckRange("model.rope_scaling.original_context", rotary.original_context, kMaxOriginalContext);
}

constexpr double kMaxBalance = 1000;  // beside a loss of some nats

absl::Status CheckExperts(const ExpertsConfig& experts) {
  if (experts == ExpertsConfig{}) return absl::OkStatus();
  EPS_RETURN_IF_ERROR(CheckRange("model.experts.num", experts.num, kMaxExperts));
  EPS_RETURN_IF_ERROR(CheckRange("model.experts.per_token", experts.per_token, experts.num));
  if (experts.balance >= 0 && experts.balance <= kMaxBalance) return absl::OkStatus();  // NaN fails
  return absl::InvalidArgumentError(
      absl::StrCat("model.experts.balance: ", experts.balance, ", must be between 0 and ", kMaxBalance));
}

absl::Status Check(const ModelConfig& config) {
  EPS_RETURN_IF_ERROR(CheckCommonRanges(config));
  EPS_RETURN_IF_ERROR(CheckMaxPositions(config, int64_t{1} << 30));
  EPS_RETURN_IF_ERROR(CheckRange("model.kv_heads", config.num_kv_heads, config.num_heads));
  EPS_RETURN_IF_ERROR(CheckRange("model.head_dim", config.d_head, kMaxHeadDim));
  EPS_RETURN_IF_ERROR(CheckRange("model.d_ff", config.d_ff, kMaxWidth));
  if (config.num_heads % config.num_kv_heads != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.kv_heads: ", config.num_kv_heads, " does not divide model.heads ", config.num_heads));
  }
  if (config.d_head % 2 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.head_dim: ", config.d_head, ", must be even: rotary positions turn pairs"));
  }
  if (config.num_heads * config.d_head > kMaxWidth) {
    return absl::InvalidArgumentError(absl::StrCat("model.heads: ", config.num_heads, " of ", config.d_head,
                                                   " are wider than ", kMaxWidth, " together"));
  }
  if (config.sliding_window < 0 || config.sliding_window > kMaxWidth) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.sliding_window: ", config.sliding_window, ", must be between 0 and ", kMaxWidth));
  }
  for (const auto& [field, rate] : {std::pair("model.embedding_dropout", config.embedding_dropout),
                                    std::pair("model.residual_dropout", config.residual_dropout)}) {
    if (rate != 0) return absl::InvalidArgumentError(absl::StrCat(field, ": ", rate, ", this family has none"));
  }
  EPS_RETURN_IF_ERROR(CheckExperts(config.experts));
  return CheckRotary(config.rotary);
}

// ---- tensors ----

// What the feed-forward part's tensors are called, before ".weight".
struct MlpNames {
  absl::string_view router, expert, gate, up, down;
};
constexpr MlpNames kPlainNames = {"mlp.gate", "mlp.experts.", "gate_proj", "up_proj", "down_proj"};
constexpr MlpNames kMixtralNames = {"block_sparse_moe.gate", "block_sparse_moe.experts.", "w1", "w3", "w2"};

// An expert's matrices one behind the other, and so evenly for all of them.
void AddExperts(const ModelConfig& c, const std::string& prefix, double residual_stddev, BlobBuilder& blob) {
  const MlpNames& names = IsMixtral(c) ? kMixtralNames : kPlainNames;
  const auto weight = [](const std::string& module) { return module + ".weight"; };
  blob.Normal(Role::kRouterWeight, weight(absl::StrCat(prefix, names.router)), {c.experts.num, c.d_model});
  for (int64_t e = 0; e < c.experts.num; ++e) {
    const std::string expert = absl::StrCat(prefix, names.expert, e, ".");
    blob.OfExpert(e, Role::kGateWeight, weight(absl::StrCat(expert, names.gate)), {c.d_ff, c.d_model});
    blob.OfExpert(e, Role::kUpWeight, weight(absl::StrCat(expert, names.up)), {c.d_ff, c.d_model});
    blob.OfExpert(e, Role::kDownWeight, weight(absl::StrCat(expert, names.down)), {c.d_model, c.d_ff}, residual_stddev);
  }
}

BlobSpec Block(const ModelConfig& c, int64_t index) {
  const int64_t d = c.d_model, q = c.num_heads * c.d_head, kv = c.num_kv_heads * c.d_head;
  const std::string prefix = absl::StrCat("model.layers.", index, ".");
  const std::string attention = prefix + "self_attn.", mlp = prefix + "mlp.";
  const double residual_stddev = ResidualInitStddev(c);
  BlobBuilder blob(absl::StrCat("layers.", index));
  blob.Ones(Role::kAttentionNormScale, prefix + "input_layernorm.weight", {d});
  // One behind the other, so that they are one product where the alignment leaves no gap; so are gate and up.
  blob.Normal(Role::kQueryWeight, attention + "q_proj.weight", {q, d});
  blob.Normal(Role::kKeyWeight, attention + "k_proj.weight", {kv, d});
  blob.Normal(Role::kValueWeight, attention + "v_proj.weight", {kv, d});
  if (c.qkv_bias) {
    blob.Zeros(Role::kQueryBias, attention + "q_proj.bias", {q});
    blob.Zeros(Role::kKeyBias, attention + "k_proj.bias", {kv});
    blob.Zeros(Role::kValueBias, attention + "v_proj.bias", {kv});
  }
  if (c.qk_norm) {
    blob.Ones(Role::kQueryNormScale, attention + "q_norm.weight", {c.d_head});
    blob.Ones(Role::kKeyNormScale, attention + "k_norm.weight", {c.d_head});
  }
  blob.Normal(Role::kAttentionOutWeight, attention + "o_proj.weight", {d, q}, residual_stddev);
  if (c.out_bias) blob.Zeros(Role::kAttentionOutBias, attention + "o_proj.bias", {d});
  blob.Ones(Role::kMlpNormScale, prefix + "post_attention_layernorm.weight", {d});
  if (c.experts.are_on()) {
    AddExperts(c, prefix, residual_stddev, blob);
    return blob.Build();
  }
  blob.Normal(Role::kGateWeight, mlp + "gate_proj.weight", {c.d_ff, d});
  blob.Normal(Role::kUpWeight, mlp + "up_proj.weight", {c.d_ff, d});
  blob.Normal(Role::kDownWeight, mlp + "down_proj.weight", {d, c.d_ff}, residual_stddev);
  return blob.Build();
}

ModelSpec Build(const ModelConfig& config) {
  const int64_t d = config.d_model;
  ModelBuilder builder(config);
  const BlobId tokens = builder.AddBlob(
      BlobBuilder("embed_tokens").Normal(Role::kTokenTable, "model.embed_tokens.weight", {config.vocab, d}).Build());
  builder.AddLayer(LayerKind::kEmbedding, "embedding", {tokens});
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const BlobId block = builder.AddBlob(Block(config, i));
    builder.AddLayer(LayerKind::kBlock, absl::StrCat("layers.", i), {block});
  }
  const BlobId norm =
      builder.AddBlob(BlobBuilder("norm").Ones(Role::kFinalNormScale, "model.norm.weight", {d}).Build());
  const BlobId table =
      config.tied_head
          ? tokens
          : builder.AddBlob(
                BlobBuilder("lm_head").Normal(Role::kHeadTable, "lm_head.weight", {config.vocab, d}).Build());
  builder.AddLayer(LayerKind::kHead, "head", {norm, table});
  return builder.Build();
}

}  // namespace

const Family& LlamaFamily() {
  static const auto* const family = new Family{
      .id = ModelFamily::kLlama,
      .model_types = {"llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", std::string(kOwnLlamaType)},
      .own_model_type = std::string(kOwnLlamaType),
      .name_prefix = "model.",
      .ignored_suffixes = {".rotary_emb.inv_freq"},
      .from_json = &LlamaFromJson,
      .to_json = &LlamaToJson,
      .check = &Check,
      .build = &Build};
  return *family;
}

}  // namespace eps
