#include "common/spec/data_check.h"

#include <cstdint>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace eps {
namespace {

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

void WriteMask(const MaskConfig& mask, proto::Mask& out) {
  out.set_share(mask.share);
  if (mask.token >= 0) out.set_token(mask.token);
  for (const int32_t id : mask.never) out.add_never(id);
}

}  // namespace

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

}  // namespace eps
