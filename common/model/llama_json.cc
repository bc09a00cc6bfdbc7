#include "common/model/llama_json.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"
#include "common/model/families.h"
#include "common/model/hf_json.h"
#include "common/model/rotary_json.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

using nlohmann::json;

struct Variant {
  absl::string_view type;
  absl::string_view classes;  // of transformers, before what they are for

  std::string architecture() const { return absl::StrCat(classes, "ForCausalLM"); }
};
constexpr Variant kLlama = {"llama", "Llama"}, kMistral = {"mistral", "Mistral"}, kQwen2 = {"qwen2", "Qwen2"},
                  kQwen3 = {"qwen3", "Qwen3"}, kMixtral = {"mixtral", "Mixtral"}, kQwen3Moe = {"qwen3_moe", "Qwen3Moe"},
                  kOwn = {kOwnLlamaType, "EpsLlama"};

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

// Qwen2's and Qwen3's window, which their transformers give to the layers from max_window_layers on.
absl::Status ReadQwenWindow(const json& object, ModelConfig& config) {
  const bool has_experts = config.experts.are_on();
  bool has_window = false;
  EPS_RETURN_IF_ERROR(ReadFlag(object, "use_sliding_window", has_window));
  const bool is_none = object.contains("sliding_window") && FindMember(object, "sliding_window") == nullptr;
  if (!has_window || is_none) return absl::OkStatus();
  EPS_ASSIGN_OR_RETURN(const int64_t window, ReadIntegerOr(object, "sliding_window", 4096));  // transformers' defaults
  EPS_ASSIGN_OR_RETURN(const int64_t first_layer, ReadIntegerOr(object, "max_window_layers", 28));
  if (window < 1) return BadMember("sliding_window", object["sliding_window"], "at least 1, or null");
  if (has_experts && first_layer != 0) {
    return BadMember("max_window_layers", first_layer,
                     "0, where use_sliding_window is true: programs differ in whether they look at it");
  }
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
  return config.experts.num > 0 ? absl::OkStatus() : BadMember(num_key, object[num_key], "at least 1");
}

absl::Status ReadMixtral(const json& object, ModelConfig& config) {
  EPS_RETURN_IF_ERROR(ReadExperts(object, "num_local_experts", config));
  EPS_ASSIGN_OR_RETURN(config.sliding_window, ReadIntegerOr(object, "sliding_window", 0));
  double noise = 0;
  EPS_RETURN_IF_ERROR(ReadNumber(object, "router_jitter_noise", noise));
  return noise == 0 ? absl::OkStatus() : BadMember("router_jitter_noise", object["router_jitter_noise"], "0");
}

// Every layer has experts here.
absl::Status ReadQwen3Moe(const json& object, ModelConfig& config) {
  config.experts.normalizes = false;  // transformers' default
  EPS_RETURN_IF_ERROR(ReadExperts(object, "num_experts", config));
  EPS_RETURN_IF_ERROR(ReadFlag(object, "norm_topk_prob", config.experts.normalizes));
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
  if (FindMember(object, "num_experts") != nullptr) {
    EPS_RETURN_IF_ERROR(ReadExperts(object, "num_experts", config));
    EPS_RETURN_IF_ERROR(ReadFlag(object, "norm_topk_prob", config.experts.normalizes));
  }
  const Variant& variant = VariantOf(config);
  if (&variant == &kOwn) return absl::OkStatus();
  return BadMember("model_type", object["model_type"], absl::StrCat("\"", variant.type, "\", which has this mix"));
}

// What a model type has that no key says.
absl::Status ReadVariant(const json& object, const std::string& type, ModelConfig& config) {
  if (type == kOwnLlamaType) return ReadOwnVariant(object, config);
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

}  // namespace

absl::StatusOr<ModelConfig> LlamaFromJson(const json& object) {
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
  const bool is_mixtral = type == "mixtral";  // its defaults are its own
  config.layer_norm_eps = is_mixtral ? 1e-5 : 1e-6;
  if (is_mixtral) config.rotary.theta = 1e6;
  EPS_RETURN_IF_ERROR(ReadNumber(object, "rms_norm_eps", config.layer_norm_eps));
  EPS_RETURN_IF_ERROR(ReadNumber(object, "attention_dropout", config.attention_dropout));
  config.tied_head = false;
  EPS_RETURN_IF_ERROR(ReadFlag(object, "tie_word_embeddings", config.tied_head));
  EPS_RETURN_IF_ERROR(ReadRotary(object, config.max_positions, config.rotary));
  EPS_RETURN_IF_ERROR(ReadVariant(object, type, config));
  EPS_RETURN_IF_ERROR(RequireOwnComputation(object, type, config));
  return config;
}

json LlamaToJson(const ModelConfig& config) {
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

bool IsMixtral(const ModelConfig& config) { return &VariantOf(config) == &kMixtral; }

}  // namespace eps
