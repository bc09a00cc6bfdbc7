#include "common/model/hf_config.h"

#include <cstdint>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/json_text.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 32;  // what is read lies in the first level; what others add to it is seldom below the third

// A value from outside may be long and need not be UTF-8.
std::string Show(const json& value) {
  constexpr size_t kMaxShown = 80;
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
  if (text.size() > kMaxShown) text = text.substr(0, kMaxShown) + "...";
  return text;
}

absl::Status Bad(absl::string_view key, const json& found, absl::string_view wanted) {
  return absl::InvalidArgumentError(absl::StrCat(key, ": ", Show(found), ", must be ", wanted));
}

// Null when the key is absent; a JSON null counts as absent, as it does for Hugging Face.
const json* Find(const json& object, const char* key) {
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

absl::StatusOr<int64_t> ReadInteger(const json& object, const char* key) {
  const json* value = Find(object, key);
  if (value == nullptr) return absl::InvalidArgumentError(absl::StrCat(key, ": missing"));
  if (!value->is_number_integer() ||
      (value->is_number_unsigned() && value->get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()})) {
    return Bad(key, *value, "a whole number");
  }
  return value->get<int64_t>();
}

absl::Status ReadNumber(const json& object, const char* key, double& number) {
  const json* value = Find(object, key);
  if (value == nullptr) return absl::OkStatus();
  if (!value->is_number()) return Bad(key, *value, "a number");
  number = value->get<double>();
  return absl::OkStatus();
}

absl::Status RequireFlag(const json& object, const char* key, bool wanted) {
  const json* value = Find(object, key);
  if (value == nullptr || *value == json(wanted)) return absl::OkStatus();
  return Bad(key, *value, wanted ? "true" : "false");
}

absl::Status RequireOwnComputation(const json& object, int64_t d_model) {
  const json* type = Find(object, "model_type");
  if (type == nullptr) return absl::InvalidArgumentError("model_type: missing, must be \"gpt2\"");
  if (*type != json("gpt2")) return Bad("model_type", *type, "\"gpt2\"");
  if (const json* activation = Find(object, "activation_function");
      activation != nullptr && *activation != json("gelu_new") && *activation != json("gelu_pytorch_tanh")) {
    return Bad("activation_function", *activation, "\"gelu_new\" or \"gelu_pytorch_tanh\"");
  }
  if (const json* inner = Find(object, "n_inner"); inner != nullptr && *inner != json(4 * d_model)) {
    return Bad("n_inner", *inner, absl::StrCat("4 * n_embd = ", 4 * d_model));
  }
  EPS_RETURN_IF_ERROR(RequireFlag(object, "tie_word_embeddings", true));
  EPS_RETURN_IF_ERROR(RequireFlag(object, "scale_attn_weights", true));
  EPS_RETURN_IF_ERROR(RequireFlag(object, "scale_attn_by_inverse_layer_idx", false));
  EPS_RETURN_IF_ERROR(RequireFlag(object, "reorder_and_upcast_attn", false));
  return RequireFlag(object, "add_cross_attention", false);
}

}  // namespace

absl::StatusOr<Gpt2Config> Gpt2ConfigFromJson(const std::string& text) {
  EPS_ASSIGN_OR_RETURN(const json object, ParseJson(text, kMaxDepth));
  if (!object.is_object()) return absl::InvalidArgumentError("not a JSON object");
  Gpt2Config config;
  EPS_ASSIGN_OR_RETURN(config.num_layers, ReadInteger(object, "n_layer"));
  EPS_ASSIGN_OR_RETURN(config.d_model, ReadInteger(object, "n_embd"));
  EPS_ASSIGN_OR_RETURN(config.num_heads, ReadInteger(object, "n_head"));
  const bool has_positions = Find(object, "n_positions") != nullptr || Find(object, "n_ctx") == nullptr;
  EPS_ASSIGN_OR_RETURN(config.context, ReadInteger(object, has_positions ? "n_positions" : "n_ctx"));
  EPS_ASSIGN_OR_RETURN(config.vocab, ReadInteger(object, "vocab_size"));
  EPS_RETURN_IF_ERROR(ReadNumber(object, "layer_norm_epsilon", config.layer_norm_eps));
  EPS_RETURN_IF_ERROR(ReadNumber(object, "embd_pdrop", config.embedding_dropout));
  EPS_RETURN_IF_ERROR(ReadNumber(object, "attn_pdrop", config.attention_dropout));
  EPS_RETURN_IF_ERROR(ReadNumber(object, "resid_pdrop", config.residual_dropout));
  EPS_RETURN_IF_ERROR(BuildGpt2(config).status());  // ranges; first, so that 4 * d_model cannot overflow
  EPS_RETURN_IF_ERROR(RequireOwnComputation(object, config.d_model));
  return config;
}

std::string Gpt2ConfigToJson(const Gpt2Config& config) {
  const json object = {
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
  return object.dump(2) + "\n";
}

}  // namespace eps
