#include "common/spec/model_check.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"
#include "common/model/lora.h"
#include "common/model/model_spec.h"
#include "common/numeric/quantized.h"
#include "common/spec/checker.h"

namespace eps {
namespace {

using Scaling = RotaryConfig::Scaling;

Scaling ScalingOf(proto::RopeScaling::Type type) {
  switch (type) {
    case proto::RopeScaling::LINEAR:
      return Scaling::kLinear;
    case proto::RopeScaling::LLAMA3:
      return Scaling::kLlama3;
    case proto::RopeScaling::YARN:
      return Scaling::kYarn;
    case proto::RopeScaling::DYNAMIC:
      return Scaling::kDynamic;
    default:
      return Scaling::kLinear;  // numbers that are no type's never get here
  }
}

RotaryConfig RotaryOf(const proto::Model& model) {
  RotaryConfig rotary;
  rotary.theta = EPS_FIELD(model, rope_theta).value_or(rotary.theta);
  if (!model.has_rope_scaling()) return rotary;
  const proto::RopeScaling& scaling = model.rope_scaling();
  rotary.scaling = ScalingOf(scaling.type());
  rotary.factor = EPS_FIELD(scaling, factor).value_or(rotary.factor);
  rotary.low_freq_factor = EPS_FIELD(scaling, low_freq_factor).value_or(rotary.low_freq_factor);
  rotary.high_freq_factor = EPS_FIELD(scaling, high_freq_factor).value_or(rotary.high_freq_factor);
  rotary.original_context = EPS_FIELD(scaling, original_context).value_or(rotary.original_context);
  rotary.beta_fast = EPS_FIELD(scaling, beta_fast).value_or(rotary.beta_fast);
  rotary.beta_slow = EPS_FIELD(scaling, beta_slow).value_or(rotary.beta_slow);
  rotary.truncate = EPS_FIELD(scaling, truncate).value_or(rotary.truncate);
  rotary.attention_factor = EPS_FIELD(scaling, attention_factor).value_or(rotary.attention_factor);
  return rotary;
}

ExpertsConfig ExpertsOf(const proto::Experts& experts) {
  ExpertsConfig config = {.num = experts.num(), .per_token = experts.per_token(), .balance = experts.balance()};
  config.normalizes = EPS_FIELD(experts, normalize).value_or(config.normalizes);
  return config;
}

void SetBertShape(const proto::Model& model, ModelConfig& config) {
  config.family = ModelFamily::kBert;
  config.d_ff = model.d_ff();
  config.max_positions = EPS_FIELD(model, max_positions).value_or(config.context);
  config.num_types = EPS_FIELD(model, types).value_or(2);
}

void SetLlamaShape(const proto::Model& model, ModelConfig& config) {
  config.family = ModelFamily::kLlama;
  config.num_kv_heads = EPS_FIELD(model, kv_heads).value_or(config.num_heads);
  config.d_head = EPS_FIELD(model, head_dim).value_or(config.d_model / std::max<int64_t>(config.num_heads, 1));
  config.d_ff = model.d_ff();
  config.tied_head = model.tied_head();
  config.qkv_bias = model.qkv_bias();
  config.out_bias = model.out_bias();
  config.qk_norm = model.qk_norm();
  config.sliding_window = model.sliding_window();
  config.max_positions = EPS_FIELD(model, max_positions).value_or(config.context);
  config.rotary = RotaryOf(model);
  if (model.has_experts()) config.experts = ExpertsOf(model.experts());
}

ModelConfig ShapeOf(const proto::Model& model) {
  ModelConfig config;
  config.num_layers = model.layers();
  config.d_model = model.d_model();
  config.num_heads = model.heads();
  config.context = model.context();
  config.vocab = model.vocab();
  config.layer_norm_eps = EPS_FIELD(model, layer_norm_eps).value_or(config.layer_norm_eps);
  if (model.family() == proto::Model::LLAMA) SetLlamaShape(model, config);
  if (model.family() == proto::Model::BERT) SetBertShape(model, config);
  return config;
}

absl::string_view FirstOfLlamaShape(const proto::Model& model) {
  return FirstGiven({{"kv_heads", model.has_kv_heads()},
                     {"head_dim", model.has_head_dim()},
                     {"tied_head", model.has_tied_head()},
                     {"qkv_bias", model.has_qkv_bias()},
                     {"out_bias", model.has_out_bias()},
                     {"qk_norm", model.has_qk_norm()},
                     {"sliding_window", model.has_sliding_window()},
                     {"rope_theta", model.has_rope_theta()},
                     {"rope_scaling", model.has_rope_scaling()},
                     {"experts.num", model.experts().has_num()},
                     {"experts.per_token", model.experts().has_per_token()},
                     {"experts.normalize", model.experts().has_normalize()}});
}
absl::string_view FirstOfLlama(const proto::Model& model) {
  const absl::string_view of_shape = FirstOfLlamaShape(model);
  if (!of_shape.empty()) return of_shape;
  return FirstGiven({{"experts.balance", model.experts().has_balance()}});
}
absl::string_view FirstOfBert(const proto::Model& model) {
  return FirstGiven({{"types", model.has_types()},
                     {"classes", model.has_classes()},
                     {"class_names", model.class_names_size() > 0},
                     {"classifier_dropout", model.has_classifier_dropout()}});
}
absl::string_view FirstOfBoth(const proto::Model& model) {  // of LLAMA and BERT
  return FirstGiven({{"d_ff", model.has_d_ff()}, {"max_positions", model.has_max_positions()}});
}

// Fields of another scaling of positions than the one that is meant.
absl::Status RefuseOtherScalings(const proto::RopeScaling& scaling) {
  const bool is_llama3 = scaling.type() == proto::RopeScaling::LLAMA3,
             is_yarn = scaling.type() == proto::RopeScaling::YARN;
  const auto refuse = [](absl::string_view field, absl::string_view owner) {
    if (field.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("model.rope_scaling.", field, ": given, but it is of type: ", owner));
  };
  if (!is_llama3) {
    EPS_RETURN_IF_ERROR(refuse(FirstGiven({{"low_freq_factor", scaling.has_low_freq_factor()},
                                           {"high_freq_factor", scaling.has_high_freq_factor()}}),
                               "LLAMA3"));
  }
  if (!is_yarn) {
    EPS_RETURN_IF_ERROR(refuse(FirstGiven({{"beta_fast", scaling.has_beta_fast()},
                                           {"beta_slow", scaling.has_beta_slow()},
                                           {"truncate", scaling.has_truncate()},
                                           {"attention_factor", scaling.has_attention_factor()}}),
                               "YARN"));
  }
  if (is_llama3 || is_yarn) return absl::OkStatus();
  return refuse(FirstGiven({{"original_context", scaling.has_original_context()}}), "LLAMA3 or YARN");
}

// Fields of another family than the one that is meant.
absl::Status RefuseOtherFamilies(const proto::Model& model, ModelFamily family) {
  const auto refuse = [](absl::string_view field, absl::string_view owner) {
    if (field.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("model.", field, ": given, but it is of family: ", owner));
  };
  if (family != ModelFamily::kLlama) EPS_RETURN_IF_ERROR(refuse(FirstOfLlama(model), "LLAMA"));
  if (family != ModelFamily::kBert) EPS_RETURN_IF_ERROR(refuse(FirstOfBert(model), "BERT"));
  if (family == ModelFamily::kGpt2) EPS_RETURN_IF_ERROR(refuse(FirstOfBoth(model), "LLAMA or BERT"));
  return RefuseOtherScalings(model.rope_scaling());
}

// What has no default, where no folder says it.
absl::Status RequireShape(const proto::Model& model) {
  const bool is_gpt2 = model.family() != proto::Model::LLAMA && model.family() != proto::Model::BERT;
  for (const GivenField& field :
       {GivenField{"layers", model.has_layers()}, GivenField{"d_model", model.has_d_model()},
        GivenField{"heads", model.has_heads()}, GivenField{"context", model.has_context()},
        GivenField{"vocab", model.has_vocab()}, GivenField{"d_ff", model.has_d_ff() || is_gpt2}}) {
    if (!field.given) return absl::InvalidArgumentError(absl::StrCat("model.", field.name, ": missing"));
  }
  if (!model.has_experts()) return absl::OkStatus();
  for (const GivenField& field :
       {GivenField{"num", model.experts().has_num()}, GivenField{"per_token", model.experts().has_per_token()}}) {
    if (!field.given) return absl::InvalidArgumentError(absl::StrCat("model.experts.", field.name, ": missing"));
  }
  return absl::OkStatus();
}

// The shape stands in the folder; a second one in the RunSpec could only contradict it.
absl::Status RefuseShapeBesideFrom(const proto::Model& model, ModelFamily family) {
  absl::string_view field = FirstGiven({{"family", model.has_family()},
                                        {"layers", model.has_layers()},
                                        {"d_model", model.has_d_model()},
                                        {"heads", model.has_heads()},
                                        {"context", model.has_context() && family == ModelFamily::kGpt2},
                                        {"vocab", model.has_vocab()},
                                        {"layer_norm_eps", model.has_layer_norm_eps()}});
  if (field.empty()) field = FirstOfLlamaShape(model);
  if (field.empty()) field = FirstOfBoth(model);
  if (field.empty() && model.has_types()) field = "types";
  if (field.empty()) return RefuseOtherFamilies(model, family);
  return absl::InvalidArgumentError(absl::StrCat("model.", field,
                                                 ": given beside model.from, which says it already; beside "
                                                 "model.from only init_seed, lora, freeze and dropouts may stand",
                                                 family == ModelFamily::kGpt2 ? ""
                                                 : family == ModelFamily::kLlama
                                                     ? ", context and experts.balance"
                                                     : ", context, classes and class_names"));
}

absl::StatusOr<ModelConfig> BaseModel(const proto::Model& model, const CheckContext& context, const std::string& from) {
  if (from.empty() || context.read_model == nullptr) {
    const ModelConfig config = ShapeOf(model);
    EPS_RETURN_IF_ERROR(RefuseOtherFamilies(model, config.family));
    EPS_RETURN_IF_ERROR(RequireShape(model));
    return config;
  }
  absl::StatusOr<ModelConfig> config = context.read_model(from);
  EPS_RETURN_IF_ERROR_WITH(config.status(), "model.from");
  EPS_RETURN_IF_ERROR(RefuseShapeBesideFrom(model, config->family));
  config->context = EPS_FIELD(model, context).value_or(config->context);
  if (model.has_experts() && !config->experts.are_on()) {
    return absl::InvalidArgumentError("model.experts: given, and model.from has none; leave it out");
  }
  config->experts.balance = model.experts().balance();
  return config;
}

void WriteLlama(const ModelConfig& model, proto::Model& out) {
  out.set_family(proto::Model::LLAMA);
  out.set_kv_heads(model.num_kv_heads);
  out.set_head_dim(model.d_head);
  out.set_d_ff(model.d_ff);
  out.set_tied_head(model.tied_head);
  out.set_qkv_bias(model.qkv_bias);
  out.set_out_bias(model.out_bias);
  out.set_qk_norm(model.qk_norm);
  out.set_sliding_window(model.sliding_window);
  out.set_max_positions(model.max_positions);
  const RotaryConfig& rotary = model.rotary;
  out.set_rope_theta(rotary.theta);
  if (model.experts.are_on()) {
    proto::Experts& experts = *out.mutable_experts();
    experts.set_num(model.experts.num);
    experts.set_per_token(model.experts.per_token);
    experts.set_normalize(model.experts.normalizes);
    experts.set_balance(model.experts.balance);
  }
  if (rotary.scaling == Scaling::kNone) return;
  proto::RopeScaling& scaling = *out.mutable_rope_scaling();
  scaling.set_factor(rotary.factor);
  switch (rotary.scaling) {
    case Scaling::kNone:
    case Scaling::kLinear:
      break;
    case Scaling::kDynamic:
      scaling.set_type(proto::RopeScaling::DYNAMIC);
      break;
    case Scaling::kLlama3:
      scaling.set_type(proto::RopeScaling::LLAMA3);
      scaling.set_low_freq_factor(rotary.low_freq_factor);
      scaling.set_high_freq_factor(rotary.high_freq_factor);
      scaling.set_original_context(rotary.original_context);
      break;
    case Scaling::kYarn:
      scaling.set_type(proto::RopeScaling::YARN);
      scaling.set_beta_fast(rotary.beta_fast);
      scaling.set_beta_slow(rotary.beta_slow);
      scaling.set_truncate(rotary.truncate);
      scaling.set_attention_factor(rotary.attention_factor);
      scaling.set_original_context(rotary.original_context);
      break;
  }
}

void WriteBert(const ModelConfig& model, proto::Model& out) {
  out.set_family(proto::Model::BERT);
  out.set_d_ff(model.d_ff);
  out.set_max_positions(model.max_positions);
  out.set_types(model.num_types);
  if (model.is_classifier()) out.set_classes(model.num_classes);
  for (const std::string& name : model.class_names) out.add_class_names(name);
  out.set_classifier_dropout(model.classifier_dropout);
}

// Those of the RunSpec in place of the folder's, whose names go with its head. A run that goes on keeps its names, and
// has none if it was begun before there were any.
absl::Status CheckClasses(const proto::Model& model, const RunConfig* resumed, Checker& check, ModelConfig& config) {
  const std::vector<std::string> names(model.class_names().begin(), model.class_names().end());
  if (model.has_classes()) {
    const int64_t least = model.has_from() ? 2 : 0;
    const auto num_classes = check.Integer<int64_t>("model.classes", model.classes(), 0, least, 65536);
    if (num_classes != config.num_classes) config.class_names.clear();
    config.num_classes = num_classes;
  }
  if (names.empty() && resumed != nullptr && resumed->model.num_classes == config.num_classes) {
    config.class_names = resumed->model.class_names;
  }
  if (names.empty()) return check.status();
  const std::set<std::string> given(names.begin(), names.end());
  const std::set<std::string> of_folder(config.class_names.begin(), config.class_names.end());
  if (names != config.class_names && given == of_folder) {
    return absl::InvalidArgumentError(absl::StrCat("model.class_names: those of model.from in another order, which is ",
                                                   absl::StrJoin(config.class_names, ", "), "; leave them out"));
  }
  config.class_names = names;
  if (!model.has_classes()) config.num_classes = static_cast<int64_t>(names.size());
  return check.status();
}

LoraConfig LoraOf(const proto::Lora& lora) {
  LoraConfig config = {.rank = lora.rank(),
                       .alpha = EPS_FIELD(lora, alpha).value_or(static_cast<double>(lora.rank())),
                       .dropout = lora.dropout(),
                       .rank_stabilized = lora.rank_stabilized()};
  config.targets.assign(lora.targets().begin(), lora.targets().end());
  return config;
}

// Whether it is no more than what a run may say of adapters that it begins with.
bool IsDropoutAlone(const proto::Lora& lora) {
  return lora.has_dropout() && !lora.has_rank() && !lora.has_alpha() && !lora.has_rank_stabilized() &&
         lora.targets().empty();
}

// Those of the RunSpec, or those that the folder has.
absl::Status CheckLora(const proto::Model& model, ModelConfig& config) {
  if (!model.has_lora()) return absl::OkStatus();
  if (config.lora.is_on() && IsDropoutAlone(model.lora())) {
    config.lora.dropout = model.lora().dropout();
    return CheckLoraRanges("model.lora", config.lora);
  }
  if (config.lora.is_on()) {
    return absl::InvalidArgumentError(
        "model.lora: given, and model.from has adapters, which go on as they are, but for their dropout; leave the "
        "rest out, or begin from an export of that folder, in which they are merged into the weights (eps export)");
  }
  if (!model.lora().has_rank()) return absl::InvalidArgumentError("model.lora.rank: missing");
  config.lora = LoraOf(model.lora());
  return CheckLoraRanges("model.lora", config.lora);
}

void WriteLora(const LoraConfig& lora, proto::Model& out) {
  if (!lora.is_on()) return;
  proto::Lora& to = *out.mutable_lora();
  to.set_rank(lora.rank);
  to.set_alpha(lora.alpha);
  if (lora.dropout > 0) to.set_dropout(lora.dropout);
  if (lora.rank_stabilized) to.set_rank_stabilized(true);
  for (const std::string& target : lora.targets) to.add_targets(target);
}

}  // namespace

absl::Status CheckModel(const proto::RunSpec& spec, const CheckContext& context, RunConfig& config) {
  const proto::Model& model = spec.model();
  if (!spec.has_model()) {
    return absl::InvalidArgumentError("model: missing; give from, or layers, d_model, heads, context and vocab");
  }
  if (model.has_from() && model.from().empty()) return absl::InvalidArgumentError("model.from: is empty");
  if (model.has_from()) config.model_from = context.absolute_path(model.from());
  EPS_ASSIGN_OR_RETURN(config.model, BaseModel(model, context, config.model_from));
  Checker check;
  // Checked here and not only as what it becomes, so that the error names the field that was
  // written.
  if (model.has_dropout()) check.BelowOne("model.dropout", model.dropout(), 0);
  EPS_RETURN_IF_ERROR(CheckClasses(model, context.resumed, check, config.model));
  ModelConfig& out = config.model;
  const auto all = EPS_FIELD(model, dropout);
  const bool is_of_all = !model.has_embedding_dropout() || !model.has_residual_dropout();
  if (out.family == ModelFamily::kLlama && is_of_all && all.value_or(0) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.dropout: ", *all, ", this family has it in attention alone: model.attention_dropout"));
  }
  out.embedding_dropout = EPS_FIELD(model, embedding_dropout).value_or(all.value_or(out.embedding_dropout));
  out.attention_dropout = EPS_FIELD(model, attention_dropout).value_or(all.value_or(out.attention_dropout));
  out.residual_dropout = EPS_FIELD(model, residual_dropout).value_or(all.value_or(out.residual_dropout));
  if (out.family == ModelFamily::kBert) {
    out.classifier_dropout = EPS_FIELD(model, classifier_dropout).value_or(all.value_or(out.classifier_dropout));
  }
  out.init_seed = model.init_seed();
  EPS_RETURN_IF_ERROR(CheckLora(model, out));
  out.freeze.assign(model.freeze().begin(), model.freeze().end());
  if (spec.precision().frozen() == proto::Frozen::MXINT8) out.frozen_format = QuantizedFormat::kMxInt8;
  if (spec.precision().frozen() == proto::Frozen::NF4) out.frozen_format = QuantizedFormat::kNf4;
  return BuildModel(out).status();  // the ranges
}

void WriteModel(const RunConfig& config, proto::Model& out) {
  const ModelConfig& model = config.model;
  out.set_family(proto::Model::GPT2);
  if (!config.model_from.empty()) out.set_from(config.model_from);
  WriteLora(model.lora, out);
  for (const std::string& pattern : model.freeze) out.add_freeze(pattern);
  out.set_layers(model.num_layers);
  out.set_d_model(model.d_model);
  out.set_heads(model.num_heads);
  out.set_context(model.context);
  out.set_vocab(model.vocab);
  out.set_init_seed(model.init_seed);
  out.set_embedding_dropout(model.embedding_dropout);
  out.set_attention_dropout(model.attention_dropout);
  out.set_residual_dropout(model.residual_dropout);
  out.set_layer_norm_eps(model.layer_norm_eps);
  if (model.family == ModelFamily::kLlama) WriteLlama(model, out);
  if (model.family == ModelFamily::kBert) WriteBert(model, out);
}

}  // namespace eps
