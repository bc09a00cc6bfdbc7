// The Llama family: Llama, Mistral, Mixtral, Qwen2, Qwen3, with experts too. Linear weights are (out, in), as torch.nn.Linear has them.

#include <algorithm>
#include <cmath>
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
using Scaling = RotaryConfig::Scaling;

// ---- ranges ----

absl::Status CheckPositive(absl::string_view field, double value, double least) {
  if (value >= least && value < HUGE_VAL) return absl::OkStatus();  // NaN fails
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", value, ", must be at least ", least, " and finite"));
}

constexpr int64_t kMaxOriginalContext = int64_t{1} << 30;

// Of a mix of parts that no other program has, so that none takes it for a model that it knows.
constexpr char kOwnModelType[] = "eps_llama";

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

absl::Status CheckExperts(const ExpertsConfig& experts) {
  if (experts == ExpertsConfig{}) return absl::OkStatus();
  EPS_RETURN_IF_ERROR(CheckRange("model.experts.num", experts.num, kMaxExperts));
  EPS_RETURN_IF_ERROR(CheckRange("model.experts.per_token", experts.per_token, experts.num));
  return CheckPositive("model.experts.balance", experts.balance, 0);
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

const MlpNames& MlpNamesOf(const ModelConfig& config);

// An expert's matrices one behind the other, and so evenly for all of them.
void AddExperts(const ModelConfig& c, const std::string& prefix, double residual_stddev, BlobBuilder& blob) {
  const MlpNames& names = MlpNamesOf(c);
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

// ---- config.json ----

absl::Status ReadLlama3(const json& scaling, RotaryConfig& rotary) {
  rotary.scaling = Scaling::kLlama3;
  EPS_RETURN_IF_ERROR(ReadNumber(scaling, "low_freq_factor", rotary.low_freq_factor));
  EPS_RETURN_IF_ERROR(ReadNumber(scaling, "high_freq_factor", rotary.high_freq_factor));
  EPS_ASSIGN_OR_RETURN(rotary.original_context, ReadInteger(scaling, "original_max_position_embeddings"));
  return absl::OkStatus();
}

// transformers took max_position_embeddings over the original ones for the factor in some versions, whatever `factor`
// said; here, as in its version 5, llama.cpp and vLLM, `factor` counts where it is given.
absl::Status ReadYarn(const json& scaling, int64_t max_positions, RotaryConfig& rotary) {
  rotary.scaling = Scaling::kYarn;
  EPS_ASSIGN_OR_RETURN(rotary.original_context,
                       ReadIntegerOr(scaling, "original_max_position_embeddings", max_positions));
  if (FindMember(scaling, "factor") == nullptr) {
    rotary.factor =
        static_cast<double>(max_positions) / static_cast<double>(std::max<int64_t>(rotary.original_context, 1));
  }
  EPS_RETURN_IF_ERROR(ReadNumber(scaling, "beta_fast", rotary.beta_fast));
  EPS_RETURN_IF_ERROR(ReadNumber(scaling, "beta_slow", rotary.beta_slow));
  EPS_RETURN_IF_ERROR(ReadFlag(scaling, "truncate", rotary.truncate));
  for (const char* key : {"mscale", "mscale_all_dim"}) {  // DeepSeek's, which attention_factor follows from
    if (const json* found = FindMember(scaling, key)) return BadMember(key, *found, "absent; say attention_factor");
  }
  EPS_RETURN_IF_ERROR(ReadNumber(scaling, "attention_factor", rotary.attention_factor));
  if (const json* found = FindMember(scaling, "attention_factor"); found != nullptr && rotary.attention_factor <= 0) {
    return BadMember("attention_factor", *found, "greater than 0, or absent");
  }
  return absl::OkStatus();
}

// Its errors name the member alone.
absl::Status ReadScaling(const json& scaling, int64_t max_positions, RotaryConfig& rotary) {
  for (const auto& [key, value] : scaling.items()) {
    if (value.is_object()) return BadMember(key, value, "a number, a word or absent: all layers turn alike here");
  }
  double rotated = 1;
  EPS_RETURN_IF_ERROR(ReadNumber(scaling, "partial_rotary_factor", rotated));
  if (rotated != 1) return BadMember("partial_rotary_factor", scaling["partial_rotary_factor"], "1");
  EPS_RETURN_IF_ERROR(ReadNumber(scaling, "rope_theta", rotary.theta));
  const json* type = FindMember(scaling, "rope_type");
  if (type == nullptr) type = FindMember(scaling, "type");  // its older name
  if (type == nullptr || *type == json("default")) return absl::OkStatus();
  EPS_RETURN_IF_ERROR(ReadNumber(scaling, "factor", rotary.factor));
  if (*type == json("yarn")) return ReadYarn(scaling, max_positions, rotary);
  if (*type == json("llama3")) {
    EPS_RETURN_IF_ERROR(ReadLlama3(scaling, rotary));
  } else if (*type == json("linear")) {
    rotary.scaling = Scaling::kLinear;
  } else if (*type == json("dynamic")) {
    rotary.scaling = Scaling::kDynamic;
  } else {
    return BadMember("rope_type", *type, "\"default\", \"linear\", \"llama3\", \"yarn\" or \"dynamic\"");
  }
  // No default: other programs refuse it, too.
  return FindMember(scaling, "factor") != nullptr ? absl::OkStatus() : absl::InvalidArgumentError("factor: missing");
}

// One of the two forms, `name`, with a theta that it may have or not.
absl::Status ReadRotaryForm(const json& scaling, const std::string& name, int64_t max_positions, RotaryConfig& rotary) {
  if (!scaling.is_object()) return BadMember(name, scaling, "an object");
  const absl::Status status = ReadScaling(scaling, max_positions, rotary);
  return status.ok() ? status : absl::InvalidArgumentError(absl::StrCat(name, ".", status.message()));
}

// Under rope_parameters with its theta, as transformers writes it from version 5 on, or rope_scaling beside rope_theta.
// Where both are there they must say the same: programs differ in which of them they take.
absl::Status ReadRotary(const json& object, int64_t max_positions, RotaryConfig& rotary) {
  const json* theta = FindMember(object, "rope_theta");
  const json* scaling = FindMember(object, "rope_scaling");
  const json* parameters = FindMember(object, "rope_parameters");
  EPS_RETURN_IF_ERROR(ReadNumber(object, "rope_theta", rotary.theta));
  const RotaryConfig unscaled = rotary;
  if (scaling != nullptr) EPS_RETURN_IF_ERROR(ReadRotaryForm(*scaling, "rope_scaling", max_positions, rotary));
  if (parameters == nullptr) return absl::OkStatus();
  const RotaryConfig older = rotary;
  rotary = unscaled;
  EPS_RETURN_IF_ERROR(ReadRotaryForm(*parameters, "rope_parameters", max_positions, rotary));
  if (theta != nullptr && rotary.theta != older.theta) {
    return BadMember("rope_theta", *theta, absl::StrCat("absent or ", rotary.theta, ", which rope_parameters has"));
  }
  if (scaling == nullptr) return absl::OkStatus();
  RotaryConfig of_scaling = older;
  if (FindMember(*scaling, "rope_theta") == nullptr) of_scaling.theta = rotary.theta;
  if (of_scaling == rotary) return absl::OkStatus();
  return BadMember("rope_scaling", *scaling, "absent, or the same as rope_parameters");
}

json RotaryToJson(const RotaryConfig& rotary) {
  json scaling = {{"factor", rotary.factor}};
  switch (rotary.scaling) {
    case Scaling::kNone:
      return nullptr;
    case Scaling::kLinear:
      scaling["rope_type"] = "linear";
      break;
    case Scaling::kDynamic:
      scaling["rope_type"] = "dynamic";
      break;
    case Scaling::kLlama3:
      scaling["rope_type"] = "llama3";
      scaling["low_freq_factor"] = rotary.low_freq_factor;
      scaling["high_freq_factor"] = rotary.high_freq_factor;
      scaling["original_max_position_embeddings"] = rotary.original_context;
      break;
    case Scaling::kYarn:
      scaling["rope_type"] = "yarn";
      scaling["beta_fast"] = rotary.beta_fast;
      scaling["beta_slow"] = rotary.beta_slow;
      if (rotary.attention_factor > 0) scaling["attention_factor"] = rotary.attention_factor;
      scaling["truncate"] = rotary.truncate;
      scaling["original_max_position_embeddings"] = rotary.original_context;
      break;
  }
  return scaling;
}

struct Variant {
  absl::string_view type;
  absl::string_view classes;  // of transformers, before what they are for

  std::string architecture() const { return absl::StrCat(classes, "ForCausalLM"); }
};
constexpr Variant kLlama = {"llama", "Llama"}, kMistral = {"mistral", "Mistral"}, kQwen2 = {"qwen2", "Qwen2"},
                  kQwen3 = {"qwen3", "Qwen3"}, kMixtral = {"mixtral", "Mixtral"}, kQwen3Moe = {"qwen3_moe", "Qwen3Moe"},
                  kOwn = {kOwnModelType, "EpsLlama"};

const Variant& VariantOfType(absl::string_view type) {
  for (const Variant* variant : {&kMistral, &kQwen2, &kQwen3, &kMixtral, &kQwen3Moe, &kOwn}) {
    if (type == variant->type) return *variant;
  }
  return kLlama;
}

// The one that has all that a model's numbers ask for, and nothing else.
const Variant& VariantOf(const ModelConfig& config) {
  const bool has_window = config.sliding_window > 0;
  const bool has_biases = config.qkv_bias && config.out_bias, has_none = !config.qkv_bias && !config.out_bias;
  if (config.experts.are_on()) {
    if (config.qk_norm) return has_biases || has_none ? kQwen3Moe : kOwn;
    return has_none && config.experts.normalizes ? kMixtral : kOwn;
  }
  if (config.qk_norm) return has_biases || has_none ? kQwen3 : kOwn;
  if (has_none) return has_window ? kMistral : kLlama;
  if (has_biases) return has_window ? kOwn : kLlama;
  return config.qkv_bias ? kQwen2 : kOwn;
}

const MlpNames& MlpNamesOf(const ModelConfig& config) {
  return &VariantOf(config) == &kMixtral ? kMixtralNames : kPlainNames;
}

// Qwen2's and Qwen3's window, which their transformers give to the layers from max_window_layers on.
absl::Status ReadQwenWindow(const json& object, ModelConfig& config) {
  bool has_window = false;
  EPS_RETURN_IF_ERROR(ReadFlag(object, "use_sliding_window", has_window));
  const bool is_none = object.contains("sliding_window") && FindMember(object, "sliding_window") == nullptr;
  if (!has_window || is_none) return absl::OkStatus();
  EPS_ASSIGN_OR_RETURN(const int64_t window, ReadIntegerOr(object, "sliding_window", 4096));  // transformers' defaults
  EPS_ASSIGN_OR_RETURN(const int64_t first_layer, ReadIntegerOr(object, "max_window_layers", 28));
  if (window < 1) return BadMember("sliding_window", object["sliding_window"], "at least 1, or null");
  if (first_layer >= config.num_layers) return absl::OkStatus();
  config.sliding_window = window;
  if (first_layer == 0) return absl::OkStatus();
  return BadMember("max_window_layers", first_layer,
                   absl::StrCat("0, or at least num_hidden_layers, ", config.num_layers,
                                ", where use_sliding_window is true: every layer has the window here, or none has"));
}

// Of the types that have experts. transformers' own default numbers are those of one size.
absl::Status ReadExperts(const json& object, const char* num_key, ModelConfig& config) {
  EPS_ASSIGN_OR_RETURN(config.experts.num, ReadInteger(object, num_key));
  EPS_ASSIGN_OR_RETURN(config.experts.per_token, ReadInteger(object, "num_experts_per_tok"));
  EPS_RETURN_IF_ERROR(ReadFlag(object, "norm_topk_prob", config.experts.normalizes));
  return config.experts.num > 0 ? absl::OkStatus() : BadMember(num_key, object[num_key], "at least 1");
}

absl::Status ReadMixtral(const json& object, ModelConfig& config) {
  EPS_RETURN_IF_ERROR(ReadExperts(object, "num_local_experts", config));
  config.experts.normalizes = true;  // it has no key for it
  EPS_ASSIGN_OR_RETURN(config.sliding_window, ReadIntegerOr(object, "sliding_window", 0));
  double noise = 0;
  EPS_RETURN_IF_ERROR(ReadNumber(object, "router_jitter_noise", noise));
  return noise == 0 ? absl::OkStatus() : BadMember("router_jitter_noise", object["router_jitter_noise"], "0");
}

// Every layer has experts here.
absl::Status ReadQwen3Moe(const json& object, ModelConfig& config) {
  config.experts.normalizes = false;  // transformers' default
  EPS_RETURN_IF_ERROR(ReadExperts(object, "num_experts", config));
  EPS_ASSIGN_OR_RETURN(config.d_ff, ReadInteger(object, "moe_intermediate_size"));
  EPS_ASSIGN_OR_RETURN(const int64_t step, ReadIntegerOr(object, "decoder_sparse_step", 1));
  if (step != 1) return BadMember("decoder_sparse_step", object["decoder_sparse_step"], "1: experts in every layer");
  const json* dense = FindMember(object, "mlp_only_layers");
  if (dense == nullptr || (dense->is_array() && dense->empty())) return absl::OkStatus();
  return BadMember("mlp_only_layers", *dense, "absent or []: experts in every layer");
}

// What our own type says, all of it by keys.
absl::Status ReadOwnVariant(const json& object, ModelConfig& config) {
  EPS_RETURN_IF_ERROR(ReadFlag(object, "qkv_bias", config.qkv_bias));
  EPS_RETURN_IF_ERROR(ReadFlag(object, "out_bias", config.out_bias));
  EPS_RETURN_IF_ERROR(ReadFlag(object, "qk_norm", config.qk_norm));
  EPS_ASSIGN_OR_RETURN(config.sliding_window, ReadIntegerOr(object, "sliding_window", 0));
  if (FindMember(object, "num_experts") != nullptr) EPS_RETURN_IF_ERROR(ReadExperts(object, "num_experts", config));
  const Variant& variant = VariantOf(config);
  if (&variant == &kOwn) return absl::OkStatus();
  return BadMember("model_type", object["model_type"],
                   absl::StrCat("\"", variant.type, "\", which has this attention"));
}

// What a model type has that no key says.
absl::Status ReadVariant(const json& object, const std::string& type, ModelConfig& config) {
  if (type == kOwnModelType) return ReadOwnVariant(object, config);
  if (type == "mistral") {
    // transformers' default; a null is none.
    const int64_t absent = object.contains("sliding_window") ? 0 : 4096;
    EPS_ASSIGN_OR_RETURN(config.sliding_window, ReadIntegerOr(object, "sliding_window", absent));
    return absl::OkStatus();
  }
  if (type == "llama") {
    EPS_RETURN_IF_ERROR(RequireFlag(object, "use_sliding_window", false));
    EPS_RETURN_IF_ERROR(ReadFlag(object, "attention_bias", config.qkv_bias));
    config.out_bias = config.qkv_bias;
    return RequireFlag(object, "mlp_bias", false);
  }
  if (type == "mixtral") return ReadMixtral(object, config);
  if (type == "qwen3_moe") EPS_RETURN_IF_ERROR(ReadQwen3Moe(object, config));
  EPS_RETURN_IF_ERROR(ReadQwenWindow(object, config));
  config.qk_norm = type == "qwen3" || type == "qwen3_moe";
  if (type == "qwen2") {
    config.qkv_bias = true;
    return RequireFlag(object, "attention_bias", false);  // its biases have no key
  }
  EPS_RETURN_IF_ERROR(ReadFlag(object, "attention_bias", config.qkv_bias));
  config.out_bias = config.qkv_bias;
  return absl::OkStatus();
}

// The language model, or the same without its head, as files of a tied one may have it.
absl::Status RequireOwnArchitecture(const json& object, const std::string& type) {
  const json* architectures = FindMember(object, "architectures");
  if (architectures == nullptr) return absl::OkStatus();
  const Variant& variant = VariantOfType(type);
  for (const std::string& ours : {variant.architecture(), absl::StrCat(variant.classes, "Model")}) {
    if (*architectures == json::array({ours})) return absl::OkStatus();
  }
  return BadMember("architectures", *architectures,
                   absl::StrCat("[\"", variant.architecture(), "\"]: other heads are not ours"));
}

absl::Status RequireOwnComputation(const json& object, const std::string& type, const ModelConfig& config) {
  EPS_RETURN_IF_ERROR(RequireOwnArchitecture(object, type));
  if (const json* chunks = FindMember(object, "dual_chunk_attention_config"); chunks != nullptr) {
    return BadMember("dual_chunk_attention_config", *chunks,
                     "absent: take it out to train on samples within original_max_position_embeddings");
  }
  if (const json* activation = FindMember(object, "hidden_act");
      activation != nullptr && *activation != json("silu") && *activation != json("swish")) {
    return BadMember("hidden_act", *activation, "\"silu\"");
  }
  double rotated = 1;
  EPS_RETURN_IF_ERROR(ReadNumber(object, "partial_rotary_factor", rotated));
  if (rotated != 1) return BadMember("partial_rotary_factor", object["partial_rotary_factor"], "1");
  const json* layers = FindMember(object, "layer_types");
  if (layers == nullptr) return absl::OkStatus();
  const json kind = config.sliding_window > 0 ? json("sliding_attention") : json("full_attention");
  for (const json& layer : *layers) {
    if (layer != kind) return BadMember("layer_types", layer, absl::StrCat(kind.dump(), " in every layer"));
  }
  return absl::OkStatus();
}

absl::StatusOr<ModelConfig> FromJson(const json& object) {
  const std::string type = object["model_type"].get<std::string>();
  ModelConfig config;
  config.family = ModelFamily::kLlama;
  EPS_ASSIGN_OR_RETURN(config.num_layers, ReadInteger(object, "num_hidden_layers"));
  EPS_ASSIGN_OR_RETURN(config.d_model, ReadInteger(object, "hidden_size"));
  EPS_ASSIGN_OR_RETURN(config.num_heads, ReadInteger(object, "num_attention_heads"));
  EPS_ASSIGN_OR_RETURN(config.max_positions, ReadInteger(object, "max_position_embeddings"));
  config.context = std::min(config.max_positions, kMaxContext);  // a run says how much of it it takes
  EPS_ASSIGN_OR_RETURN(config.vocab, ReadInteger(object, "vocab_size"));
  // Of a Qwen3 with experts it is that of layers without.
  if (type != "qwen3_moe") {
    EPS_ASSIGN_OR_RETURN(config.d_ff, ReadInteger(object, "intermediate_size"));
  }
  // transformers' own defaults of the other types are numbers of one size of them: absent is an error there.
  const bool is_llama = type == "llama", is_qwen3 = type == "qwen3" || type == "qwen3_moe";
  EPS_ASSIGN_OR_RETURN(config.num_kv_heads, is_llama ? ReadIntegerOr(object, "num_key_value_heads", config.num_heads)
                                                     : ReadInteger(object, "num_key_value_heads"));
  EPS_RETURN_IF_ERROR(CheckCommonRanges(config));
  const int64_t usual = config.d_model / config.num_heads;
  EPS_ASSIGN_OR_RETURN(config.d_head,
                       is_qwen3 ? ReadInteger(object, "head_dim") : ReadIntegerOr(object, "head_dim", usual));
  config.layer_norm_eps = 1e-6;
  EPS_RETURN_IF_ERROR(ReadNumber(object, "rms_norm_eps", config.layer_norm_eps));
  EPS_RETURN_IF_ERROR(ReadNumber(object, "attention_dropout", config.attention_dropout));
  config.tied_head = false;
  EPS_RETURN_IF_ERROR(ReadFlag(object, "tie_word_embeddings", config.tied_head));
  EPS_RETURN_IF_ERROR(ReadRotary(object, config.max_positions, config.rotary));
  EPS_RETURN_IF_ERROR(ReadVariant(object, type, config));
  EPS_RETURN_IF_ERROR(RequireOwnComputation(object, type, config));
  return config;
}

// What ReadVariant reads, but for transformers' defaults of a Qwen. Where a Qwen has no window, max_window_layers is written
// all the same: in a source that says `use_sliding_window`, a grown model's further layers would have one.
void WriteVariant(const ModelConfig& config, const Variant& variant, json& object) {
  const bool is_qwen3 = &variant == &kQwen3 || &variant == &kQwen3Moe, is_qwen = &variant == &kQwen2 || is_qwen3;
  if (&variant == &kLlama || (is_qwen3 && config.qkv_bias)) object["attention_bias"] = config.qkv_bias;
  if (!is_qwen && &variant != &kLlama) object["sliding_window"] = config.sliding_window;
  if (is_qwen) object["max_window_layers"] = config.sliding_window > 0 ? 0 : config.num_layers;
  if (is_qwen && config.sliding_window > 0) {
    object["use_sliding_window"] = true;
    object["sliding_window"] = config.sliding_window;
  }
  if (&variant == &kMixtral && config.sliding_window == 0) object["sliding_window"] = nullptr;
  if (config.experts.are_on()) {
    object[&variant == &kMixtral ? "num_local_experts" : "num_experts"] = config.experts.num;
    object["num_experts_per_tok"] = config.experts.per_token;
    if (&variant != &kMixtral) object["norm_topk_prob"] = config.experts.normalizes;
    if (&variant == &kQwen3Moe) object["moe_intermediate_size"] = config.d_ff;
  }
  if (&variant != &kOwn) return;
  object["qkv_bias"] = config.qkv_bias;
  object["out_bias"] = config.out_bias;
  object["qk_norm"] = config.qk_norm;
}

json ToJson(const ModelConfig& config) {
  const Variant& variant = VariantOf(config);
  json object = {
      {"architectures", {variant.architecture()}},
      {"model_type", std::string(variant.type)},
      {"num_hidden_layers", config.num_layers},
      {"hidden_size", config.d_model},
      {"num_attention_heads", config.num_heads},
      {"num_key_value_heads", config.num_kv_heads},
      {"head_dim", config.d_head},
      {"intermediate_size", config.d_ff},
      {"max_position_embeddings", config.max_positions},
      {"vocab_size", config.vocab},
      {"rms_norm_eps", config.layer_norm_eps},
      {"attention_dropout", config.attention_dropout},
      {"hidden_act", "silu"},
      {"rope_theta", config.rotary.theta},
      {"rope_scaling", RotaryToJson(config.rotary)},
      {"tie_word_embeddings", config.tied_head},
      // transformers' defaults may lie beyond the vocabulary.
      {"bos_token_id", nullptr},
      {"eos_token_id", nullptr},
      {"torch_dtype", "float32"},
  };
  WriteVariant(config, variant, object);
  return object;
}

}  // namespace

const Family& LlamaFamily() {
  static const auto* const family =
      new Family{.id = ModelFamily::kLlama,
                 .model_types = {"llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", kOwnModelType},
                 .own_model_type = kOwnModelType,
                 .name_prefix = "model.",
                 .ignored_suffixes = {".rotary_emb.inv_freq"},
                 .from_json = &FromJson,
                 .to_json = &ToJson,
                 .check = &Check,
                 .build = &Build};
  return *family;
}

}  // namespace eps
