#include "common/spec/run_spec_check.h"

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"
#include "common/choices/choices.h"
#include "common/schedule/group_limits.h"
#include "common/schedule/loss_scale.h"
#include "common/tensor/dtype.h"

namespace eps {
namespace {

// The value of an optional proto field, or nullopt.
#define EPS_FIELD(message, name) ((message).has_##name() ? std::make_optional((message).name()) : std::nullopt)

constexpr int64_t kMaxSteps = 1'000'000'000'000;
constexpr int64_t kMaxTokensPerStep = int64_t{1} << 40;
constexpr int64_t kMaxCheckpointBufferBytes = int64_t{1} << 50;

// Checks one value after the other and keeps the first error. An absent field's default is checked
// too: 0 where the field is required.
class Checker {
 public:
  const absl::Status& status() const { return status_; }

  void Fail(absl::string_view field, absl::string_view what) {
    if (status_.ok()) status_ = absl::InvalidArgumentError(absl::StrCat(field, ": ", what));
  }

  template <typename T>
  T Integer(absl::string_view field, std::optional<T> given, T absent, int64_t min, int64_t max) {
    const T value = given.value_or(absent);
    if (value < min) Fail(field, absl::StrCat(value, ", must be at least ", min));
    if (value > max) Fail(field, absl::StrCat(value, ", must be at most ", max));
    return value;
  }

  // All comparisons fail for NaN.
  double Positive(absl::string_view field, std::optional<double> given, double absent) {
    const double value = given.value_or(absent);
    if (!(value >= kMinFloat && value <= kMaxFloat))
      Fail(field, absl::StrCat(value, ", must be greater than 0, and a normal number in fp32"));
    return value;
  }
  double NotNegative(absl::string_view field, std::optional<double> given, double absent) {
    const double value = given.value_or(absent);
    if (!(value >= 0 && value <= kMaxFloat))
      Fail(field, absl::StrCat(value, ", must be at least 0 and finite in fp32"));
    return value;
  }
  double BelowOne(absl::string_view field, std::optional<double> given, double absent) {
    const double value = given.value_or(absent);
    if (!(value >= 0 && value < 1)) Fail(field, absl::StrCat(value, ", must be at least 0 and less than 1"));
    return value;
  }

 private:
  // The optimizer computes in fp32, where denormals are zero.
  static constexpr double kMinFloat = std::numeric_limits<float>::min();
  static constexpr double kMaxFloat = std::numeric_limits<float>::max();
  absl::Status status_;
};

// ---- Model

RotaryConfig RotaryOf(const proto::Model& model) {
  RotaryConfig rotary;
  rotary.theta = EPS_FIELD(model, rope_theta).value_or(rotary.theta);
  if (!model.has_rope_scaling()) return rotary;
  const proto::RopeScaling& scaling = model.rope_scaling();
  const bool is_llama3 = scaling.type() == proto::RopeScaling::LLAMA3;
  rotary.scaling = is_llama3 ? RotaryConfig::Scaling::kLlama3 : RotaryConfig::Scaling::kLinear;
  rotary.factor = EPS_FIELD(scaling, factor).value_or(rotary.factor);
  if (!is_llama3) return rotary;
  rotary.low_freq_factor = EPS_FIELD(scaling, low_freq_factor).value_or(rotary.low_freq_factor);
  rotary.high_freq_factor = EPS_FIELD(scaling, high_freq_factor).value_or(rotary.high_freq_factor);
  rotary.original_context = EPS_FIELD(scaling, original_context).value_or(rotary.original_context);
  return rotary;
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

struct GivenField {
  absl::string_view name;
  bool given;
};
// The first that is given; "" if none is.
absl::string_view FirstGiven(std::initializer_list<GivenField> fields) {
  for (const GivenField& field : fields) {
    if (field.given) return field.name;
  }
  return "";
}

absl::string_view FirstOfLlama(const proto::Model& model) {
  return FirstGiven({{"kv_heads", model.has_kv_heads()},
                     {"head_dim", model.has_head_dim()},
                     {"tied_head", model.has_tied_head()},
                     {"qkv_bias", model.has_qkv_bias()},
                     {"out_bias", model.has_out_bias()},
                     {"qk_norm", model.has_qk_norm()},
                     {"sliding_window", model.has_sliding_window()},
                     {"rope_theta", model.has_rope_theta()},
                     {"rope_scaling", model.has_rope_scaling()}});
}
absl::string_view FirstOfBert(const proto::Model& model) {
  return FirstGiven({{"types", model.has_types()},
                     {"classes", model.has_classes()},
                     {"classifier_dropout", model.has_classifier_dropout()}});
}
absl::string_view FirstOfBoth(const proto::Model& model) {  // of LLAMA and BERT
  return FirstGiven({{"d_ff", model.has_d_ff()}, {"max_positions", model.has_max_positions()}});
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
  if (field.empty()) field = FirstOfLlama(model);
  if (field.empty()) field = FirstOfBoth(model);
  if (field.empty() && model.has_types()) field = "types";
  if (field.empty()) return RefuseOtherFamilies(model, family);
  return absl::InvalidArgumentError(absl::StrCat("model.", field,
                                                 ": given beside model.from, which says it already; beside "
                                                 "model.from only init_seed, freeze and dropouts may stand",
                                                 family == ModelFamily::kGpt2    ? ""
                                                 : family == ModelFamily::kLlama ? ", and context"
                                                                                 : ", context and classes"));
}

absl::StatusOr<ModelConfig> BaseModel(const proto::Model& model, const CheckContext& context, const std::string& from) {
  if (from.empty() || context.read_model == nullptr) {
    const ModelConfig config = ShapeOf(model);
    EPS_RETURN_IF_ERROR(RefuseOtherFamilies(model, config.family));
    return config;
  }
  absl::StatusOr<ModelConfig> config = context.read_model(from);
  EPS_RETURN_IF_ERROR_WITH(config.status(), "model.from");
  EPS_RETURN_IF_ERROR(RefuseShapeBesideFrom(model, config->family));
  config->context = EPS_FIELD(model, context).value_or(config->context);
  return config;
}

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
  if (model.has_classes()) {
    const int64_t least = model.has_from() ? 2 : 0;
    config.model.num_classes = check.Integer<int64_t>("model.classes", model.classes(), 0, least, 65536);
  }
  EPS_RETURN_IF_ERROR(check.status());
  ModelConfig& out = config.model;
  const auto all = EPS_FIELD(model, dropout);
  out.embedding_dropout = EPS_FIELD(model, embedding_dropout).value_or(all.value_or(out.embedding_dropout));
  out.attention_dropout = EPS_FIELD(model, attention_dropout).value_or(all.value_or(out.attention_dropout));
  out.residual_dropout = EPS_FIELD(model, residual_dropout).value_or(all.value_or(out.residual_dropout));
  if (out.family == ModelFamily::kBert) {
    out.classifier_dropout = EPS_FIELD(model, classifier_dropout).value_or(all.value_or(out.classifier_dropout));
  }
  out.init_seed = model.init_seed();
  out.freeze.assign(model.freeze().begin(), model.freeze().end());
  return BuildModel(out).status();  // the ranges
}

// ---- Data and batch

proto::Data::Documents ToProto(DocumentMode documents) {
  switch (documents) {
    case DocumentMode::kJoined:
      return proto::Data::JOINED;
    case DocumentMode::kPacked:
      return proto::Data::PACKED;
    case DocumentMode::kPadded:
      return proto::Data::PADDED;
  }
  return proto::Data::JOINED;
}

DocumentMode FromProto(proto::Data::Documents documents) {
  switch (documents) {
    case proto::Data::PACKED:
      return DocumentMode::kPacked;
    case proto::Data::PADDED:
      return DocumentMode::kPadded;
    default:
      return DocumentMode::kJoined;
  }
}

proto::Data::Tokenizer ToProto(TokenForm tokenizer) {
  switch (tokenizer) {
    case TokenForm::kBytes:
      return proto::Data::BYTES;
    case TokenForm::kTokenFile:
      return proto::Data::TOKEN_IDS;
    case TokenForm::kModel:
      return proto::Data::MODEL;
  }
  return proto::Data::BYTES;
}

bool IsJsonl(absl::string_view path) { return absl::EndsWith(path, ".jsonl") || absl::EndsWith(path, ".ndjson"); }
bool IsTable(absl::string_view path) { return absl::EndsWith(path, ".tsv"); }

TokenForm TokenFormOf(const proto::Data& data, const std::string& model_from, const CheckContext& context) {
  if (data.has_tokenizer()) {
    switch (data.tokenizer()) {
      case proto::Data::TOKEN_IDS:
        return TokenForm::kTokenFile;
      case proto::Data::MODEL:
        return TokenForm::kModel;
      default:
        return TokenForm::kBytes;
    }
  }
  if (absl::EndsWith(data.path(), ".bin") || data.has_token_bytes()) return TokenForm::kTokenFile;
  const bool model_has_one =
      !model_from.empty() && context.has_tokenizer != nullptr && context.has_tokenizer(model_from);
  return data.has_tokenizer_path() || model_has_one ? TokenForm::kModel : TokenForm::kBytes;
}

void CheckTokenizer(const proto::Data& data, const std::string& model_from, const CheckContext& context, Checker& check,
                    DataConfig& out) {
  out.tokenizer = TokenFormOf(data, model_from, context);
  if (out.tokenizer != TokenForm::kTokenFile && data.has_token_bytes()) {
    check.Fail(absl::StrCat(out.field, ".token_bytes"),
               absl::StrCat("given, but ", out.field, ".tokenizer is ",
                            proto::Data::Tokenizer_Name(ToProto(out.tokenizer)), "; use tokenizer: TOKEN_IDS"));
  }
  out.token_bytes = EPS_FIELD(data, token_bytes).value_or(2);
  if (out.token_bytes != 2 && out.token_bytes != 4) {
    check.Fail(absl::StrCat(out.field, ".token_bytes"), absl::StrCat(out.token_bytes, ", must be 2 or 4"));
  }
  if (out.tokenizer == TokenForm::kModel) {
    out.tokenizer_path = data.has_tokenizer_path() ? context.absolute_path(data.tokenizer_path()) : model_from;
    if (out.tokenizer_path.empty())
      check.Fail(absl::StrCat(out.field, ".tokenizer_path"), "missing; or give model.from");
  } else if (data.has_tokenizer_path()) {
    check.Fail(absl::StrCat(out.field, ".tokenizer_path"),
               absl::StrCat("given, but ", out.field, ".tokenizer is not MODEL"));
  }
}

void CheckDocuments(const proto::Data& data, Objective objective, Checker& check, DataConfig& out) {
  const bool has_classes = objective == Objective::kClasses;
  const proto::Data::Documents usual = has_classes    ? proto::Data::PADDED
                                       : out.is_jsonl ? proto::Data::PACKED
                                                      : proto::Data::JOINED;
  out.documents = FromProto(EPS_FIELD(data, documents).value_or(usual));
  if ((out.is_jsonl || out.is_table) && out.tokenizer == TokenForm::kTokenFile) {
    check.Fail(
        absl::StrCat(out.field, ".tokenizer"),
        absl::StrCat("TOKEN_IDS, but ", out.path_field, " is ", out.is_jsonl ? "JSONL" : "a table", " by its ending"));
  }
  if (has_classes && out.documents != DocumentMode::kPadded) {
    check.Fail(absl::StrCat(out.field, ".documents"), "a classifier takes PADDED ones");
  }
  if (has_classes && !out.is_table && out.tokenizer != TokenForm::kTokenFile) {
    check.Fail(out.path_field, "a classifier takes a table (.tsv), or a token file that `eps tokenize` made of one");
  }
  if (!has_classes && out.is_table) {
    check.Fail(out.path_field, "a table (.tsv) is for a classifier: family: BERT with classes");
  }
  if (out.is_jsonl && !out.has_documents()) {
    check.Fail(absl::StrCat(out.field, ".documents"),
               absl::StrCat("JOINED, but ", out.path_field, " is JSONL: its documents are PACKED or PADDED"));
  }
  if (out.has_documents() && out.tokenizer == TokenForm::kBytes && !out.is_jsonl && !out.is_table) {
    check.Fail(absl::StrCat(out.field, ".documents"),
               "bytes have none; they are of JSONL, and of token files with an index of them, which "
               "`eps tokenize` writes");
  }
  if (!out.is_jsonl && (data.has_chat_template() || data.has_count())) {
    check.Fail(absl::StrCat(out.field, data.has_count() ? ".count" : ".chat_template"),
               absl::StrCat("given, but ", out.path_field, " is not JSONL by its ending"));
  }
  out.chat_template = EPS_FIELD(data, chat_template).value_or(out.chat_template);
  out.counts_all = data.count() == proto::Data::ALL;
}

void CheckColumns(const proto::Data& data, Checker& check, DataConfig& out) {
  const absl::string_view given = FirstGiven({{"text_column", data.has_text_column()},
                                              {"second_text_column", data.has_second_text_column()},
                                              {"label_column", data.has_label_column()}});
  if (!given.empty() && !out.is_table) {
    check.Fail(absl::StrCat("data.", given), "given, but data.path is no table by its ending (.tsv)");
  }
  if (!given.empty() && (data.text_column().empty() || data.label_column().empty())) {
    check.Fail(data.text_column().empty() ? "data.text_column" : "data.label_column",
               absl::StrCat("missing beside data.", given));
  }
  out.text_column = data.text_column();
  out.second_text_column = data.second_text_column();
  out.label_column = data.label_column();
}

void CheckMask(const proto::Data& data, const RunConfig& run, Checker& check, DataConfig& out) {
  if (run.objective() != Objective::kMaskedTokens) {
    if (data.has_mask()) check.Fail("data.mask", "given, but the model predicts no masked tokens");
    return;
  }
  const proto::Mask& mask = data.mask();
  out.mask.share = check.BelowOne("data.mask.share", EPS_FIELD(mask, share), out.mask.share);
  if (out.mask.share == 0) check.Fail("data.mask.share", "0, must be greater than 0 and less than 1");
  const int64_t last = run.model.vocab - 1;
  if (mask.has_token()) {
    out.mask.token = static_cast<int32_t>(check.Integer<int64_t>("data.mask.token", mask.token(), 0, 0, last));
  } else if (!out.needs_tokenizing()) {
    check.Fail("data.mask.token", "missing; the id of the mask token, as nothing here is tokenized that would say it");
  }
  for (const int64_t id : mask.never()) {
    out.mask.never.push_back(static_cast<int32_t>(check.Integer<int64_t>("data.mask.never", id, 0, 0, last)));
  }
}

// run: its model.
void CheckData(const proto::Data& data, const RunConfig& run, const CheckContext& context, Checker& check,
               DataConfig& out) {
  if (data.path().empty()) {
    check.Fail(out.path_field, "missing");
    return;
  }
  out.path = context.absolute_path(data.path());
  out.is_jsonl = IsJsonl(data.path());
  out.is_table = IsTable(data.path());
  CheckTokenizer(data, run.model_from, context, check, out);
  CheckDocuments(data, run.objective(), check, out);
  CheckColumns(data, check, out);
  CheckMask(data, run, check, out);
  out.order = data.order() == proto::Data::SHUFFLED ? DataOrder::kShuffled : DataOrder::kSequential;
  out.seed = data.seed();
}

// `data` as if it were `source`'s alone: what it leaves out is data's, where that makes sense for its file.
proto::Data DataOf(const proto::Source& source, proto::Data data, const std::string& model_from,
                   const CheckContext& context) {
  data.clear_sources();
  data.set_path(source.path());
  if (source.has_tokenizer()) data.set_tokenizer(source.tokenizer());
  const bool says_ids = data.has_tokenizer() && data.tokenizer() == proto::Data::TOKEN_IDS;
  if (!says_ids && !absl::EndsWith(source.path(), ".bin")) data.clear_token_bytes();  // it would make it ids
  if (source.has_token_bytes()) data.set_token_bytes(source.token_bytes());
  if (source.has_tokenizer_path()) data.set_tokenizer_path(source.tokenizer_path());
  const TokenForm form = TokenFormOf(data, model_from, context);
  if (form != TokenForm::kModel && !source.has_tokenizer_path()) data.clear_tokenizer_path();
  const bool is_jsonl = IsJsonl(source.path());
  if (is_jsonl ? data.documents() == proto::Data::JOINED : form == TokenForm::kBytes) data.clear_documents();
  if (source.has_documents()) data.set_documents(source.documents());
  if (!is_jsonl) {
    data.clear_chat_template();
    data.clear_count();
  }
  if (!IsTable(source.path())) {
    data.clear_text_column();
    data.clear_second_text_column();
    data.clear_label_column();
  }
  if (source.has_chat_template()) data.set_chat_template(source.chat_template());
  if (source.has_count()) data.set_count(source.count());
  return data;
}

void CheckSources(const proto::Data& data, const CheckContext& context, Checker& check, RunConfig& config) {
  constexpr int kMaxSources = 256;
  if (data.has_path()) check.Fail("data.sources", "given beside data.path; give one of the two");
  if (data.sources_size() > kMaxSources) {
    check.Fail("data.sources", absl::StrCat(data.sources_size(), ", must be at most ", kMaxSources));
    return;
  }
  config.data.order = data.order() == proto::Data::SHUFFLED ? DataOrder::kShuffled : DataOrder::kSequential;
  config.data.seed = data.seed();
  for (int i = 0; i < data.sources_size(); ++i) {
    const proto::Source& source = data.sources(i);
    DataSource& out = config.sources.emplace_back();
    out.data.field = absl::StrCat("data.sources[", i, "]");
    out.data.path_field = absl::StrCat(out.data.field, ".path");
    CheckData(DataOf(source, data, config.model_from, context), config, context, check, out.data);
    out.weight = check.Positive(absl::StrCat(out.data.field, ".weight"), EPS_FIELD(source, weight), 1);
    if (out.data.has_documents() && !config.data.has_documents()) config.data.documents = out.data.documents;
  }
  config.data.mask = config.sources.front().data.mask;
  for (const DataSource& source : config.sources) {
    if (!source.data.is_table) continue;
    config.data.text_column = source.data.text_column;
    config.data.second_text_column = source.data.second_text_column;
    config.data.label_column = source.data.label_column;
  }
}

// data: checked.
void CheckEvaluation(const proto::Evaluation& evaluation, const DataConfig& data, const CheckContext& context,
                     Checker& check, EvaluationConfig& out) {
  out.every_steps =
      check.Integer<int64_t>("evaluation.every_steps", EPS_FIELD(evaluation, every_steps), 0, 1, kMaxSteps);
  if (evaluation.has_samples()) {
    out.samples = check.Integer<int64_t>("evaluation.samples", evaluation.samples(), 0, 1, kMaxSteps);
  }
  if (evaluation.has_path() == evaluation.has_held_out()) {
    check.Fail("evaluation",
               evaluation.has_path() ? "path and held_out are given; give one of them" : "give path, or held_out");
    return;
  }
  if (evaluation.has_held_out()) {
    out.held_out = evaluation.held_out();
    if (!(out.held_out > 0 && out.held_out < 1)) {  // not for NaN
      check.Fail("evaluation.held_out", absl::StrCat(out.held_out, ", must be greater than 0 and less than 1"));
    }
    return;
  }
  if (evaluation.path().empty()) return check.Fail("evaluation.path", "is empty");
  out.path = context.absolute_path(evaluation.path());
  if (IsJsonl(out.path) != data.is_jsonl || IsTable(out.path) != data.is_table) {
    const absl::string_view form = IsJsonl(out.path)   ? "JSONL"
                                   : IsTable(out.path) ? "a table"
                                                       : "no JSONL and no table";
    check.Fail("evaluation.path",
               absl::StrCat(evaluation.path(), " is ", form, " by its ending, other than ", data.path_field));
  }
}

void CheckBatch(const proto::Batch& batch, Checker& check, BatchConfig& out) {
  out.virtual_nodes = check.Integer("batch.virtual_nodes", EPS_FIELD(batch, virtual_nodes), 1, 1, 65536);
  out.micro_batches = check.Integer("batch.micro_batches", EPS_FIELD(batch, micro_batches), 1, 1, 1 << 20);
  out.micro_batch = check.Integer("batch.micro_batch", EPS_FIELD(batch, micro_batch), 1, 1, 65536);
}

// Keeps tokens of a step and places of samples far from overflow: 2^16 * 2^20 * 2^16 sequences
// alone do not overflow.
absl::Status CheckProducts(const RunConfig& config) {
  const int64_t sequences = config.batch.sequences_per_step();
  if (sequences > kMaxTokensPerStep / config.model.context) {
    return absl::InvalidArgumentError(absl::StrCat("batch: ", sequences, " sequences of ", config.model.context,
                                                   " tokens per step, must be at most ", kMaxTokensPerStep, " tokens"));
  }
  if (config.steps > (std::numeric_limits<int64_t>::max() / 4) / sequences) {
    return absl::InvalidArgumentError(
        absl::StrCat("steps: ", config.steps, " of ", sequences, " sequences each, must be fewer than 2^61 sequences"));
  }
  return absl::OkStatus();
}

// ---- Optimizer

void CheckRule(const proto::Optimizer& optimizer, Checker& check, OptimizerConfig& out) {
  if (optimizer.has_sgd()) {
    const proto::Sgd& sgd = optimizer.sgd();
    out.rule = OptimizerRule::kSgd;
    out.momentum = check.BelowOne("optimizer.sgd.momentum", EPS_FIELD(sgd, momentum), 0);
    out.weight_decay = check.NotNegative("optimizer.sgd.weight_decay", EPS_FIELD(sgd, weight_decay), 0);
    return;
  }
  const proto::AdamW& adamw = optimizer.adamw();
  out.rule = OptimizerRule::kAdamW;
  out.beta1 = check.BelowOne("optimizer.adamw.beta1", EPS_FIELD(adamw, beta1), 0.9);
  out.beta2 = check.BelowOne("optimizer.adamw.beta2", EPS_FIELD(adamw, beta2), 0.999);
  out.eps = check.Positive("optimizer.adamw.eps", EPS_FIELD(adamw, eps), 1e-8);
  out.weight_decay = check.NotNegative("optimizer.adamw.weight_decay", EPS_FIELD(adamw, weight_decay), 0.01);
}

void CheckSchedule(const proto::Schedule& schedule, Checker& check, OptimizerConfig& out) {
  out.peak_learning_rate = check.Positive("optimizer.schedule.peak", EPS_FIELD(schedule, peak), 0);
  out.final_learning_rate = check.NotNegative("optimizer.schedule.final", EPS_FIELD(schedule, final), 0);
  out.warmup_steps =
      check.Integer<int64_t>("optimizer.schedule.warmup_steps", EPS_FIELD(schedule, warmup_steps), 0, 0, kMaxSteps);
  if (schedule.has_final() && !schedule.has_decay()) {
    check.Fail("optimizer.schedule.final", "given without optimizer.schedule.decay; add decay: LINEAR or COSINE");
  }
  switch (schedule.decay()) {
    case proto::Schedule::LINEAR:
      out.decay = ScheduleDecay::kLinear;
      break;
    case proto::Schedule::COSINE:
      out.decay = ScheduleDecay::kCosine;
      break;
    default:
      out.decay = ScheduleDecay::kConstant;
  }
}

void CheckClip(const proto::Clip& clip, Checker& check, OptimizerConfig& out) {
  if (!clip.has_mode()) check.Fail("optimizer.clip.mode", "missing, must be EXACT, PER_BLOB or LAGGED");
  switch (clip.mode()) {
    case proto::Clip::EXACT:
      out.clip = ClipMode::kExact;
      break;
    case proto::Clip::PER_BLOB:
      out.clip = ClipMode::kPerBlob;
      break;
    case proto::Clip::LAGGED:
      out.clip = ClipMode::kLagged;
      break;
    default:
      out.clip = ClipMode::kNone;
      out.clip_norm = check.NotNegative("optimizer.clip.norm", EPS_FIELD(clip, norm), 0);
      return;
  }
  out.clip_norm = check.Positive("optimizer.clip.norm", EPS_FIELD(clip, norm), 0);
}

// ---- Precision, relay, transport, checkpoint

void CheckLossScale(const proto::LossScale& scale, Checker& check, LossScaleRule& out) {
  out.first = check.Positive("precision.loss_scale.initial", EPS_FIELD(scale, initial), out.first);
  if (!IsLossScale(out.first)) {
    check.Fail("precision.loss_scale.initial", absl::StrCat(out.first, ", must be ", kLossScaleRange));
  }
  out.growth_interval = check.Integer<int64_t>("precision.loss_scale.growth_interval",
                                               EPS_FIELD(scale, growth_interval), out.growth_interval, 0, kMaxSteps);
}

void CheckPrecision(const proto::Precision& precision, Checker& check, PrecisionConfig& out) {
  const auto dtype = [](std::optional<proto::Precision::Format> given) {
    const proto::Precision::Format format = given.value_or(proto::Precision::BF16);
    return format == proto::Precision::FP32   ? Dtype::kF32
           : format == proto::Precision::BF16 ? Dtype::kBf16
                                              : Dtype::kF16;
  };
  out.wire = dtype(EPS_FIELD(precision, wire));
  out.gradients = dtype(EPS_FIELD(precision, gradients));
  out.algorithms = precision.algorithms() == proto::Precision::FASTEST ? ChoiceRule::kFastest : ChoiceRule::kFirst;
  if (precision.has_moments() && precision.moments() != proto::Precision::FP32) {
    check.Fail("precision.moments",
               absl::StrCat(proto::Precision::Format_Name(precision.moments()), " is not available yet; use FP32"));
  }
  out.tf32 = precision.tf32();
  if (out.tf32 && out.wire != Dtype::kF32) {
    check.Fail("precision.tf32", "is of products of FP32 operands; give precision.wire: FP32, or leave it out");
  }
  if (out.wire == Dtype::kF16 || out.gradients == Dtype::kF16) {
    CheckLossScale(precision.loss_scale(), check, out.loss_scale.emplace());
  } else if (precision.has_loss_scale()) {
    check.Fail("precision.loss_scale", "has a meaning only where precision.wire or precision.gradients is FP16");
  }
}

void CheckRelay(const proto::Relay& relay, Checker& check, RelayConfig& out) {
  out.inner = relay.inner() == proto::Relay::Inner::KEEP        ? InnerPolicy::kKeep
              : relay.inner() == proto::Relay::Inner::RECOMPUTE ? InnerPolicy::kRecompute
                                                                : InnerPolicy::kAuto;
  out.boundaries = relay.boundaries() == proto::Relay::Boundary::HOST     ? BoundaryPolicy::kHost
                   : relay.boundaries() == proto::Relay::Boundary::DEVICE ? BoundaryPolicy::kDevice
                                                                          : BoundaryPolicy::kAuto;
  out.resident = relay.resident();
  if (out.boundaries == BoundaryPolicy::kDevice && !out.resident) {
    check.Fail("relay.boundaries", "DEVICE is not available yet without relay.resident: true; use AUTO or HOST");
  }
  out.weight_slots = check.Integer("relay.weight_slots", EPS_FIELD(relay, weight_slots), 2, 1, 64);
  out.group_members = check.Integer("relay.group_members", EPS_FIELD(relay, group_members), 1, 1, kMaxGroupMembers);
}

TransportChoice ToTransport(proto::Transport::Choice choice) {
  return choice == proto::Transport::GRPC            ? TransportChoice::kGrpc
         : choice == proto::Transport::SHARED_MEMORY ? TransportChoice::kSharedMemory
                                                     : TransportChoice::kAuto;
}

void CheckCheckpoint(const proto::Checkpoint& checkpoint, Checker& check, CheckpointConfig& out) {
  out.every_steps =
      check.Integer<int64_t>("checkpoint.every_steps", EPS_FIELD(checkpoint, every_steps), 0, 0, kMaxSteps);
  out.keep = check.Integer("checkpoint.keep", EPS_FIELD(checkpoint, keep), 2, 1, 1'000'000);
  out.buffer_bytes = check.Integer<int64_t>("checkpoint.buffer_bytes", EPS_FIELD(checkpoint, buffer_bytes), 0, 0,
                                            kMaxCheckpointBufferBytes);
  out.last = EPS_FIELD(checkpoint, last).value_or(true);
}

#undef EPS_FIELD

// ---- Back to a RunSpec

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
  if (rotary.scaling == RotaryConfig::Scaling::kNone) return;
  proto::RopeScaling& scaling = *out.mutable_rope_scaling();
  scaling.set_factor(rotary.factor);
  if (rotary.scaling == RotaryConfig::Scaling::kLinear) return;
  scaling.set_type(proto::RopeScaling::LLAMA3);
  scaling.set_low_freq_factor(rotary.low_freq_factor);
  scaling.set_high_freq_factor(rotary.high_freq_factor);
  scaling.set_original_context(rotary.original_context);
}

void WriteBert(const ModelConfig& model, proto::Model& out) {
  out.set_family(proto::Model::BERT);
  out.set_d_ff(model.d_ff);
  out.set_max_positions(model.max_positions);
  out.set_types(model.num_types);
  if (model.is_classifier()) out.set_classes(model.num_classes);
  out.set_classifier_dropout(model.classifier_dropout);
}

void WriteModel(const RunConfig& config, proto::Model& out) {
  const ModelConfig& model = config.model;
  out.set_family(proto::Model::GPT2);
  if (!config.model_from.empty()) out.set_from(config.model_from);
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

void WriteMask(const MaskConfig& mask, proto::Mask& out) {
  out.set_share(mask.share);
  if (mask.token >= 0) out.set_token(mask.token);
  for (const int32_t id : mask.never) out.add_never(id);
}

void WriteData(const RunConfig& run, const DataConfig& data, proto::Data& out) {
  out.set_path(data.path);
  out.set_tokenizer(ToProto(data.tokenizer));
  if (data.tokenizer == TokenForm::kTokenFile) out.set_token_bytes(data.token_bytes);
  if (data.tokenizer == TokenForm::kModel) out.set_tokenizer_path(data.tokenizer_path);
  out.set_documents(ToProto(data.documents));
  if (data.is_jsonl) {
    out.set_chat_template(data.chat_template);
    out.set_count(data.counts_all ? proto::Data::ALL : proto::Data::ANSWERS);
  }
  if (run.objective() == Objective::kMaskedTokens) WriteMask(data.mask, *out.mutable_mask());
  if (!data.text_column.empty()) out.set_text_column(data.text_column);
  if (!data.second_text_column.empty()) out.set_second_text_column(data.second_text_column);
  if (!data.label_column.empty()) out.set_label_column(data.label_column);
  out.set_order(data.order == DataOrder::kShuffled ? proto::Data::SHUFFLED : proto::Data::SEQUENTIAL);
  out.set_seed(data.seed);
}

// In place of what `out` says of a file.
// What is the same for all of them stands in `out`.
void WriteSources(const RunConfig& run, proto::Data& out) {
  out.clear_path();
  out.clear_tokenizer();
  out.clear_token_bytes();
  out.clear_documents();
  out.clear_tokenizer_path();
  out.clear_chat_template();
  out.clear_count();
  for (const DataSource& source : run.sources) {
    proto::Data data;
    WriteData(run, source.data, data);
    proto::Source& to = *out.add_sources();
    to.set_path(data.path());
    to.set_weight(source.weight);
    to.set_tokenizer(data.tokenizer());
    to.set_documents(data.documents());
    if (data.has_token_bytes()) to.set_token_bytes(data.token_bytes());
    if (data.has_tokenizer_path()) to.set_tokenizer_path(data.tokenizer_path());
    if (data.has_chat_template()) to.set_chat_template(data.chat_template());
    if (data.has_count()) to.set_count(data.count());
  }
}

void WriteEvaluation(const EvaluationConfig& evaluation, proto::Evaluation& out) {
  if (evaluation.path.empty()) {
    out.set_held_out(evaluation.held_out);
  } else {
    out.set_path(evaluation.path);
  }
  out.set_every_steps(evaluation.every_steps);
  if (evaluation.samples > 0) out.set_samples(evaluation.samples);
}

proto::Schedule::Decay ToProto(ScheduleDecay decay) {
  switch (decay) {
    case ScheduleDecay::kConstant:
      return proto::Schedule::CONSTANT;
    case ScheduleDecay::kLinear:
      return proto::Schedule::LINEAR;
    case ScheduleDecay::kCosine:
      return proto::Schedule::COSINE;
  }
  return proto::Schedule::CONSTANT;
}

proto::Clip::Mode ToProto(ClipMode mode) {
  switch (mode) {
    case ClipMode::kNone:
      return proto::Clip::NONE;
    case ClipMode::kExact:
      return proto::Clip::EXACT;
    case ClipMode::kPerBlob:
      return proto::Clip::PER_BLOB;
    case ClipMode::kLagged:
      return proto::Clip::LAGGED;
  }
  return proto::Clip::NONE;
}

void WriteOptimizer(const OptimizerConfig& optimizer, proto::Optimizer& out) {
  if (optimizer.rule == OptimizerRule::kAdamW) {
    proto::AdamW& adamw = *out.mutable_adamw();
    adamw.set_beta1(optimizer.beta1);
    adamw.set_beta2(optimizer.beta2);
    adamw.set_eps(optimizer.eps);
    adamw.set_weight_decay(optimizer.weight_decay);
  } else {
    out.mutable_sgd()->set_momentum(optimizer.momentum);
    out.mutable_sgd()->set_weight_decay(optimizer.weight_decay);
  }
  proto::Schedule& schedule = *out.mutable_schedule();
  schedule.set_peak(optimizer.peak_learning_rate);
  schedule.set_warmup_steps(optimizer.warmup_steps);
  schedule.set_decay(ToProto(optimizer.decay));
  schedule.set_final(optimizer.final_learning_rate);
  out.mutable_clip()->set_mode(ToProto(optimizer.clip));
  out.mutable_clip()->set_norm(optimizer.clip_norm);
}

void WriteRelay(const RelayConfig& relay, proto::Relay& out) {
  out.set_inner(relay.inner == InnerPolicy::kKeep        ? proto::Relay::Inner::KEEP
                : relay.inner == InnerPolicy::kRecompute ? proto::Relay::Inner::RECOMPUTE
                                                         : proto::Relay::Inner::AUTO);
  out.set_boundaries(relay.boundaries == BoundaryPolicy::kHost     ? proto::Relay::Boundary::HOST
                     : relay.boundaries == BoundaryPolicy::kDevice ? proto::Relay::Boundary::DEVICE
                                                                   : proto::Relay::Boundary::AUTO);
  out.set_resident(relay.resident);
  out.set_weight_slots(relay.weight_slots);
  out.set_group_members(relay.group_members);
}

proto::Precision::Format ToProto(Dtype dtype) {
  return dtype == Dtype::kF32    ? proto::Precision::FP32
         : dtype == Dtype::kBf16 ? proto::Precision::BF16
                                 : proto::Precision::FP16;
}

}  // namespace

absl::StatusOr<RunConfig> CheckRunSpec(const proto::RunSpec& spec, const CheckContext& context) {
  RunConfig config;
  EPS_RETURN_IF_ERROR(CheckModel(spec, context, config));
  Checker check;
  if (spec.data().sources_size() > 0) {
    CheckSources(spec.data(), context, check, config);
  } else {
    CheckData(spec.data(), config, context, check, config.data);
  }
  CheckBatch(spec.batch(), check, config.batch);
  CheckRule(spec.optimizer(), check, config.optimizer);
  CheckSchedule(spec.optimizer().schedule(), check, config.optimizer);
  if (spec.optimizer().has_clip()) CheckClip(spec.optimizer().clip(), check, config.optimizer);
  CheckPrecision(spec.precision(), check, config.precision);
  if (config.precision.loss_scale.has_value() &&
      (config.optimizer.clip == ClipMode::kPerBlob || config.optimizer.clip == ClipMode::kLagged)) {
    check.Fail("optimizer.clip.mode",
               "updates before the whole gradient is in, which FP16 rules out; use EXACT or NONE");
  }
  CheckRelay(spec.relay(), check, config.relay);
  config.transport = ToTransport(spec.transport());
  CheckCheckpoint(spec.checkpoint(), check, config.checkpoint);
  config.steps = check.Integer<int64_t>("steps", spec.steps(), 0, 1, kMaxSteps);
  if (spec.has_evaluation()) {
    CheckEvaluation(spec.evaluation(), config.all_sources().front().data, context, check, config.evaluation);
  }
  EPS_RETURN_IF_ERROR(check.status());
  EPS_RETURN_IF_ERROR(CheckProducts(config));
  return config;
}

proto::RunSpec ToRunSpec(const RunConfig& config) {
  proto::RunSpec spec;
  WriteModel(config, *spec.mutable_model());
  WriteData(config, config.data, *spec.mutable_data());
  if (!config.sources.empty()) WriteSources(config, *spec.mutable_data());
  spec.mutable_batch()->set_virtual_nodes(config.batch.virtual_nodes);
  spec.mutable_batch()->set_micro_batches(config.batch.micro_batches);
  spec.mutable_batch()->set_micro_batch(config.batch.micro_batch);
  WriteOptimizer(config.optimizer, *spec.mutable_optimizer());
  spec.mutable_precision()->set_wire(ToProto(config.precision.wire));
  spec.mutable_precision()->set_gradients(ToProto(config.precision.gradients));
  spec.mutable_precision()->set_moments(proto::Precision::FP32);
  spec.mutable_precision()->set_algorithms(
      config.precision.algorithms == ChoiceRule::kFastest ? proto::Precision::FASTEST : proto::Precision::FIRST);
  spec.mutable_precision()->set_tf32(config.precision.tf32);
  if (const std::optional<LossScaleRule>& rule = config.precision.loss_scale; rule.has_value()) {
    spec.mutable_precision()->mutable_loss_scale()->set_initial(rule->first);
    spec.mutable_precision()->mutable_loss_scale()->set_growth_interval(rule->growth_interval);
  }
  WriteRelay(config.relay, *spec.mutable_relay());
  spec.set_transport(config.transport == TransportChoice::kGrpc           ? proto::Transport::GRPC
                     : config.transport == TransportChoice::kSharedMemory ? proto::Transport::SHARED_MEMORY
                                                                          : proto::Transport::AUTO);
  spec.mutable_checkpoint()->set_every_steps(config.checkpoint.every_steps);
  spec.mutable_checkpoint()->set_keep(config.checkpoint.keep);
  spec.mutable_checkpoint()->set_buffer_bytes(config.checkpoint.buffer_bytes);
  spec.mutable_checkpoint()->set_last(config.checkpoint.last);
  spec.set_steps(config.steps);
  if (config.evaluation.is_on()) WriteEvaluation(config.evaluation, *spec.mutable_evaluation());
  return spec;
}

}  // namespace eps
