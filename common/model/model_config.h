#ifndef EPS_COMMON_MODEL_MODEL_CONFIG_H_
#define EPS_COMMON_MODEL_MODEL_CONFIG_H_

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/numeric/quantized.h"

namespace eps {

enum class ModelFamily {
  kGpt2,   // layer norms, learned positions, GELU, tied head
  kLlama,  // RMS norms, rotary positions, SwiGLU, shared key/value heads, experts: also Mistral, Mixtral, Qwen2, Qwen3
  kBert,   // layer norms behind the sums, attention both ways, types of tokens; a head of masked tokens, or of classes
};

// Angles of rotary positions: position * theta^(-2i / head_dim) for pair i, then scaled.
// Source: Su et al., arXiv:2104.09864; the scalings as Hugging Face's rope_type names them.
struct RotaryConfig {
  enum class Scaling {
    kNone,
    kLinear,   // every angle over `factor`
    kLlama3,   // slow angles over `factor`, fast ones as they are, a ramp between the two bounds
    kYarn,     // the same by pairs in place of angles, and longer queries and keys (Peng et al., arXiv:2309.00071)
    kDynamic,  // as they are up to max_positions, which no sample goes beyond
  };
  double theta = 10000;
  Scaling scaling = Scaling::kNone;
  double factor = 1;
  // kLlama3 only. An angle is slow with a wavelength over original_context / low_freq_factor, fast with one below
  // original_context / high_freq_factor.
  double low_freq_factor = 1, high_freq_factor = 4;
  int64_t original_context = 8192;  // kLlama3 and kYarn
  // kYarn only. Pairs that turn beta_fast times and more within original_context are fast, those that turn beta_slow times
  // and less slow; with `truncate` the ramp between begins and ends at whole pairs. Cosines and sines are multiplied by
  // attention_factor; 0: by 0.1 ln(factor) + 1, the paper's eq. 22.
  double beta_fast = 32, beta_slow = 1;
  double attention_factor = 0;
  bool truncate = true;

  friend bool operator==(const RotaryConfig&, const RotaryConfig&) = default;
};

// Adapters of low rank beside products of the blocks: y = x W^T + b becomes that + scale() (x A^T) B^T, with A (rank, in) and
// B (out, rank), which begins as zeros. Source: Hu et al., LoRA, arXiv:2106.09685, section 4.1, eq. 3.
struct LoraConfig {
  int64_t rank = 0;  // 0: there are none
  double alpha = 0;
  double dropout = 0;            // [0, 1), of what enters A; products of one input share it
  bool rank_stabilized = false;  // Kalajdzievski, arXiv:2312.03732, theorem 3.2
  // Which products, by what their modules' names end with, as PEFT's target_modules: "q_proj", "attn.c_proj". Empty: all.
  std::vector<std::string> targets;

  bool is_on() const { return rank > 0; }
  double scale() const {
    return alpha / (rank_stabilized ? std::sqrt(static_cast<double>(rank)) : static_cast<double>(rank));
  }

  friend bool operator==(const LoraConfig&, const LoraConfig&) = default;
};

// A mixture of experts in place of each block's feed-forward part: a token goes through `per_token` of `num` SwiGLUs of width
// d_ff, those to which a router gives most, and takes the weighted sum of what they give. Each token is routed alone, and none
// is left out, however many choose the same.
// Source: Shazeer et al., arXiv:1701.06538; as in Mixtral (Jiang et al., arXiv:2401.04088) and Qwen3 (arXiv:2505.09388).
struct ExpertsConfig {
  int64_t num = 0;         // 0: one feed-forward part for all tokens
  int64_t per_token = 0;   // 1 to num
  bool normalizes = true;  // a token's weights are over their sum; else its probabilities as they are
  // What an even load counts beside the loss, in each block (Fedus et al., arXiv:2101.03961, eq. 4 to 6): of how the model
  // is trained.
  double balance = 0;

  bool are_on() const { return num > 0; }

  friend bool operator==(const ExpertsConfig&, const ExpertsConfig&) = default;
};

// The numbers that make a model of one of the families. All are >= 1 unless said otherwise.
struct ModelConfig {
  ModelFamily family = ModelFamily::kGpt2;
  int64_t num_layers = 0;  // transformer blocks
  int64_t d_model = 0;     // GPT-2: a multiple of num_heads
  int64_t num_heads = 0;
  int64_t context = 0;  // T, tokens per sample; GPT-2: rows of the position table
  int64_t vocab = 0;
  double layer_norm_eps = 1e-5;  // of layer norms and RMS norms
  double embedding_dropout = 0;  // [0, 1); Llama: 0, as is residual_dropout
  double attention_dropout = 0;
  double residual_dropout = 0;
  uint64_t init_seed = 0;

  // Not GPT-2, which has 0 and what the functions below say.
  int64_t max_positions = 0;  // of config.json, >= context; BERT: rows of the position table
  int64_t d_ff = 0;

  // Llama family only; the others have 0, false and the defaults.
  int64_t num_kv_heads = 0;  // divides num_heads
  int64_t d_head = 0;        // even; heads may be wider or narrower together than d_model
  bool tied_head = true;     // the head's table is the token table
  bool qkv_bias = false;
  bool out_bias = false;       // of attention's output product; only with qkv_bias
  bool qk_norm = false;        // an RMS norm over each head of queries and keys, before the rotation
  int64_t sliding_window = 0;  // columns that a row attends to, its own included; 0: all before it
  RotaryConfig rotary;
  ExpertsConfig experts;

  // BERT only; the others have 0.
  int64_t num_types = 0;                 // of tokens: rows of their table
  int64_t num_classes = 0;               // of a classifier, >= 2; 0: the head predicts masked tokens
  double classifier_dropout = 0;         // [0, 1), of what the classes are computed from
  std::vector<std::string> class_names;  // of class 0, 1, ...: one each, or none at all

  // Every family: adapters (common/model/lora.h), and which tensors are frozen, as patterns over their names
  // (common/model/freeze.h); with adapters all others are, unless the patterns say otherwise.
  LoraConfig lora;
  std::vector<std::string> freeze;
  // precision.frozen: in which frozen matrices of the blocks, but for adapters', travel and lie in the daemon. Empty: in
  // precision.wire, as all else.
  std::optional<QuantizedFormat> frozen_format;

  bool is_classifier() const { return num_classes > 0; }
  int64_t num_outputs() const { return is_classifier() ? num_classes : vocab; }  // logits of a row
  int64_t labels_per_sample() const { return is_classifier() ? 1 : context; }
  // Of matrices that multiply rows: (out, in), as torch.nn.Linear has them; else (in, out).
  bool has_out_in_weights() const { return family != ModelFamily::kGpt2; }
  int64_t kv_heads() const { return family == ModelFamily::kLlama ? num_kv_heads : num_heads; }
  int64_t head_dim() const { return family == ModelFamily::kLlama ? d_head : d_model / num_heads; }
  int64_t ff_width() const { return family == ModelFamily::kGpt2 ? 4 * d_model : d_ff; }

  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;
};

}  // namespace eps

#endif  // EPS_COMMON_MODEL_MODEL_CONFIG_H_
