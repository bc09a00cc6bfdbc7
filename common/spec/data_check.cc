#include "common/spec/data_check.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"
#include "common/corpus/chat_template_names.h"
#include "common/corpus/data_form.h"
#include "common/spec/data_file.h"

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

proto::Data::Format FormatOf(const DataConfig& data) {
  return data.is_jsonl ? proto::Data::JSONL : data.is_table ? proto::Data::TSV : proto::Data::TEXT;
}

DataForm FormOf(const DataConfig& data) {
  return data.is_jsonl ? DataForm::kJsonl : data.is_table ? DataForm::kTable : DataForm::kText;
}

// As versions without `format` had it, which said in all that they wrote whether a file holds token ids.
DataForm FormerFormOfName(absl::string_view path) {
  if (absl::EndsWith(path, ".jsonl") || absl::EndsWith(path, ".ndjson")) return DataForm::kJsonl;
  return absl::EndsWith(path, ".tsv") ? DataForm::kTable : DataForm::kText;
}

DataForm FormOfName(absl::string_view path, const CheckContext& context) {
  return context.is_serialized ? FormerFormOfName(path) : DataFormOfName(path);
}

DataForm FormOf(const proto::Data& data, const CheckContext& context) {
  if (!data.has_format()) return FormOfName(data.path(), context);
  return data.format() == proto::Data::JSONL ? DataForm::kJsonl
         : data.format() == proto::Data::TSV ? DataForm::kTable
                                             : DataForm::kText;
}

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
  if (FormOf(data, context) == DataForm::kTokenIds || data.has_token_bytes()) return TokenForm::kTokenFile;
  const bool model_has_one =
      !model_from.empty() && context.has_tokenizer != nullptr && context.has_tokenizer(model_from);
  return data.has_tokenizer_path() || model_has_one ? TokenForm::kModel : TokenForm::kBytes;
}

// What `data` leaves open is as it was in `run`. The model's own tokenizer is still that, wherever the model lies now.
void KeepFormer(const RunConfig& run, const DataConfig& was, proto::Data& data) {
  if (!data.has_tokenizer() && !data.has_token_bytes() && !data.has_tokenizer_path()) {
    data.set_tokenizer(ToProto(was.tokenizer));
    const bool is_models_own = was.tokenizer_path == run.model_from;
    if (was.tokenizer == TokenForm::kModel && !is_models_own) data.set_tokenizer_path(was.tokenizer_path);
  }
  const bool are_ids = data.has_token_bytes() || (data.has_tokenizer() && data.tokenizer() == proto::Data::TOKEN_IDS);
  if (are_ids && !data.has_token_bytes()) data.set_token_bytes(was.token_bytes);
  if (!are_ids && !data.has_format()) data.set_format(FormatOf(was));
  if (!data.has_documents()) data.set_documents(ToProto(was.documents));
}

// Whether a file that begins so is what it is taken for. said: what the RunSpec says of it, and it is believed where it
// says it: a file of format TEXT may look like anything else, and one of tokenizer BYTES may have any bytes.
absl::Status CheckLooks(const proto::Data& said, DataForm form, absl::string_view beginning) {
  if (said.has_format() && said.format() == proto::Data::TEXT) return absl::OkStatus();
  EPS_RETURN_IF_ERROR(CheckBeginning(form == DataForm::kTokenIds ? DataForm::kText : form, beginning));
  const bool takes_any_bytes = said.has_tokenizer() && said.tokenizer() == proto::Data::BYTES;
  return takes_any_bytes ? absl::OkStatus() : CheckCharacters(beginning);
}

// Says that `field`.format: TEXT would take the file after all; "" of one that is certainly not meant as text.
std::string TextHint(const DataFile& file, absl::string_view field, absl::string_view what) {
  return HasKnownSignature(file.beginning) ? "" : absl::StrCat("; ", field, ".format: TEXT takes ", what);
}

// Whether a token file may be one. Its index knows better, where there is one.
void CheckIds(const DataFile& file, absl::string_view path_field, Checker& check) {
  if (file.index.has_value()) return;
  const absl::Status looks_right = CheckBeginning(DataForm::kTokenIds, file.beginning);
  if (!looks_right.ok()) check.Fail(path_field, absl::StrCat(file.path, " ", looks_right.message()));
}

// Whether the file is what it is taken for.
void CheckForm(const proto::Data& data, const DataFile& file, DataForm form, Checker& check, DataConfig& out) {
  if (out.tokenizer == TokenForm::kTokenFile) {
    if (data.has_format()) check.Fail(absl::StrCat(out.field, ".format"), "given, but the file holds token ids");
    CheckIds(file, out.path_field, check);
    return;
  }
  if (form == DataForm::kTokenIds && out.tokenizer == TokenForm::kModel) {
    check.Fail(absl::StrCat(out.field, ".tokenizer"),
               absl::StrCat("MODEL, but ", out.path_field,
                            " holds token ids by its ending (.bin): leave it out; of a text with such a name, say ",
                            out.field, ".format: TEXT"));
  }
  const absl::Status looks_right = CheckLooks(data, form, file.beginning);
  if (looks_right.ok()) return;
  check.Fail(out.path_field,
             absl::StrCat(data.path(), " ", looks_right.message(), TextHint(file, out.field, "it as it is")));
}

// Whether a file of token ids that begins so has ids of 4 bytes, which are below 65,536 as those of most vocabularies: of 2
// bytes every second one would be 0, and the others would not.
bool LooksLikeFourBytes(absl::string_view beginning) {
  constexpr size_t kFewest = 32;
  size_t ids = 0, not_zero = 0;
  for (size_t at = 0; at + 4 <= beginning.size(); at += 4, ++ids) {
    if (beginning[at + 2] != 0 || beginning[at + 3] != 0) return false;
    if (beginning[at] != 0 || beginning[at + 1] != 0) ++not_zero;
  }
  return ids >= kFewest && not_zero >= ids / 2;
}

// The bytes of a token id.
void CheckTokenBytes(const proto::Data& data, const DataFile& file, Checker& check, DataConfig& out) {
  const std::string field = absl::StrCat(out.field, ".token_bytes");
  out.token_bytes = EPS_FIELD(data, token_bytes).value_or(file.index.has_value() ? file.index->token_bytes : 2);
  if (out.token_bytes != 2 && out.token_bytes != 4)
    check.Fail(field, absl::StrCat(out.token_bytes, ", must be 2 or 4"));
  const bool is_guess = out.tokenizer == TokenForm::kTokenFile && !data.has_token_bytes() && !file.index.has_value();
  if (is_guess && LooksLikeFourBytes(file.beginning)) {
    check.Fail(field, absl::StrCat("not given, and every second id of ", file.path,
                                   " is 0 where ids have 2 bytes, as if they had 4: say 4, or 2 if it is so"));
  }
  if (file.index.has_value() && out.token_bytes != file.index->token_bytes) {
    check.Fail(field, absl::StrCat(out.token_bytes, ", but ", file.index_path(), " is of ids of ",
                                   file.index->token_bytes, " bytes; leave it out"));
  }
}

void CheckTokenizer(const proto::Data& data, const std::string& model_from, const DataFile& file,
                    const CheckContext& context, Checker& check, DataConfig& out) {
  out.tokenizer = TokenFormOf(data, model_from, context);
  if (out.tokenizer != TokenForm::kTokenFile && data.has_token_bytes()) {
    check.Fail(absl::StrCat(out.field, ".token_bytes"),
               absl::StrCat("given, but ", out.field, ".tokenizer is ",
                            proto::Data::Tokenizer_Name(ToProto(out.tokenizer)), "; use tokenizer: TOKEN_IDS"));
  }
  CheckTokenBytes(data, file, check, out);
  if (out.tokenizer == TokenForm::kBytes && !data.has_tokenizer() && !model_from.empty() &&
      context.has_tokenizer != nullptr) {
    check.Fail(
        absl::StrCat(out.field, ".tokenizer"),
        absl::StrCat("missing: ", model_from,
                     ", model.from, has neither tokenizer.json nor tokenizer.model; put one there (AutoTokenizer of "
                     "transformers writes one from other files: from_pretrained(FOLDER).save_pretrained(FOLDER)), "
                     "give ",
                     out.field, ".tokenizer_path, or say tokenizer: BYTES, where a byte is a token"));
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

// Documents of a token file that would be read as one long text.
void CheckJoined(const DataFile& file, absl::string_view field, Checker& check) {
  if (file.may_be_joined()) return;
  check.Fail(field, absl::StrCat(
                        "JOINED, but by ", file.index_path(), " ",
                        file.index->counts_all ? "no document of it may be cut" : "some of its tokens are not counted",
                        ", which would be lost; leave it out, or give PACKED or PADDED"));
}

void CheckDocuments(const proto::Data& data, const DataFile& file, Objective objective, Checker& check,
                    DataConfig& out) {
  const bool has_classes = objective == Objective::kClasses, has_pairs = objective == Objective::kPreferences;
  const proto::Data::Documents usual = has_classes || has_pairs                ? proto::Data::PADDED
                                       : out.is_jsonl || !file.may_be_joined() ? proto::Data::PACKED
                                                                               : proto::Data::JOINED;
  out.documents = FromProto(EPS_FIELD(data, documents).value_or(usual));
  if (!out.has_documents()) CheckJoined(file, absl::StrCat(out.field, ".documents"), check);
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
  if (has_pairs && out.documents != DocumentMode::kPadded) {
    check.Fail(absl::StrCat(out.field, ".documents"), "pairs of answers (preferences) are PADDED");
  }
  if (has_pairs && data.count() == proto::Data::ALL) {
    check.Fail(absl::StrCat(out.field, ".count"), "ALL, but of pairs (preferences) the answers are counted");
  }
  if (has_pairs && !out.is_jsonl && out.tokenizer != TokenForm::kTokenFile) {
    check.Fail(out.path_field,
               "`preferences` wants JSONL with pairs of answers, or a token file that `eps tokenize` made of it");
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

// Not of a run that goes on: of data that hold no conversations it may have any.
void CheckChatTemplate(const DataFile& file, const CheckContext& context, Checker& check, const DataConfig& out) {
  const bool is_known = out.chat_template == "auto" ||
                        std::count(std::begin(kChatTemplateNames), std::end(kChatTemplateNames), out.chat_template) > 0;
  if (is_known || file.was != nullptr || context.is_serialized) return;
  check.Fail(absl::StrCat(out.field, ".chat_template"),
             absl::StrCat("\"", absl::CHexEscape(out.chat_template), "\", must be auto, ",
                          absl::StrJoin(kChatTemplateNames, ", ")));
}

// Whether uncounted parts of documents stay: `data` is the RunSpec's.
bool KeepsUncounted(const proto::Data& data, const CheckContext& context) {
  if (data.has_uncounted()) return data.uncounted() == proto::Data::KEPT;
  return context.resumed != nullptr ? context.resumed->data.keeps_uncounted : context.is_serialized;
}

// Whether parts of documents may have nothing that is counted, and `uncounted` says what becomes of them.
bool HasPartsUncounted(const RunConfig& run, const DataConfig& data) {
  return data.has_documents() && run.objective() != Objective::kClasses && run.objective() != Objective::kPreferences;
}

// How what stands in the file is taken.
void CheckReading(const proto::Data& data, const RunConfig& run, const CheckContext& context, Checker& check,
                  DataConfig& out) {
  if (data.has_special_tokens() && (!out.needs_tokenizing() || out.is_table)) {
    check.Fail(absl::StrCat(out.field, ".special_tokens"),
               absl::StrCat("given, but ", out.path_field, " is neither JSONL nor text for a tokenizer"));
  }
  if (data.has_bad_lines() && !out.is_jsonl && !out.is_table) {
    check.Fail(absl::StrCat(out.field, ".bad_lines"),
               absl::StrCat("given, but ", out.path_field, " is neither JSONL nor a table"));
  }
  const bool has_parts = HasPartsUncounted(run, out);
  const bool is_new = !context.is_serialized && context.resumed == nullptr;
  if (data.has_uncounted() && !has_parts && is_new && run.sources.empty()) {
    check.Fail("data.uncounted", absl::StrCat("given, but of ", out.path_field, " no documents are packed or padded"));
  }
  out.keeps_uncounted = has_parts && KeepsUncounted(data, context);
  out.specials_as_tokens = data.special_tokens() == proto::Data::AS_TOKENS;
  out.skips_bad_lines = data.bad_lines() == proto::Data::SKIP;
}

void CheckColumns(const proto::Data& data, Checker& check, DataConfig& out) {
  const absl::string_view given = FirstGiven({{"text_column", data.has_text_column()},
                                              {"second_text_column", data.has_second_text_column()},
                                              {"label_column", data.has_label_column()},
                                              {"table_header", data.has_table_header() && !data.table_header()}});
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
  out.has_table_header = EPS_FIELD(data, table_header).value_or(true);
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

// Whether nothing is lost of a file that is read as one long text.
bool MayBeJoined(const std::string& path, TokenForm form, const CheckContext& context) {
  Checker ignored;  // what is wrong is found when it is looked at again, as what it is
  const DataFile file = LookAtDataFile(path, form, "", context, ignored);
  return file.was != nullptr ? !file.was->has_documents() : file.may_be_joined();
}

// `data` as if it were `source`'s alone: what it leaves out is data's, where that makes sense for its file.
proto::Data DataOf(const proto::Source& source, proto::Data data, const std::string& model_from,
                   const CheckContext& context) {
  data.clear_sources();
  data.set_path(source.path());
  if (source.has_format()) data.set_format(source.format());
  const DataForm name_form = FormOf(data, context);
  if (source.has_tokenizer()) data.set_tokenizer(source.tokenizer());
  const bool says_ids = data.has_tokenizer() && data.tokenizer() == proto::Data::TOKEN_IDS;
  if (!says_ids && name_form != DataForm::kTokenIds) data.clear_token_bytes();  // it would make it ids
  if (source.has_token_bytes()) data.set_token_bytes(source.token_bytes());
  if (source.has_tokenizer_path()) data.set_tokenizer_path(source.tokenizer_path());
  const TokenForm form = TokenFormOf(data, model_from, context);
  if (form != TokenForm::kModel && !source.has_tokenizer_path()) data.clear_tokenizer_path();
  const bool is_jsonl = name_form == DataForm::kJsonl;
  const bool may_be_joined = !is_jsonl && MayBeJoined(source.path(), form, context);
  if (may_be_joined ? form == TokenForm::kBytes : data.documents() == proto::Data::JOINED) data.clear_documents();
  if (source.has_documents()) data.set_documents(source.documents());
  if (!is_jsonl) {
    data.clear_chat_template();
    data.clear_count();
  }
  const bool is_table = name_form == DataForm::kTable;
  if (!is_jsonl && !is_table) data.clear_bad_lines();
  if (!is_jsonl && (form != TokenForm::kModel || is_table)) data.clear_special_tokens();
  if (!is_table) {
    data.clear_text_column();
    data.clear_second_text_column();
    data.clear_label_column();
    data.clear_table_header();
  }
  if (source.has_chat_template()) data.set_chat_template(source.chat_template());
  if (source.has_count()) data.set_count(source.count());
  return data;
}

// Its ending says what the data's does; where the RunSpec says what the data are, it need not. said: of the data
void CheckEvaluationForm(const std::string& path, const proto::Data& said, const DataConfig& data, Checker& check) {
  if (said.has_format()) return;
  const auto form_of_name = [](absl::string_view name) {
    const DataForm form = DataFormOfName(name);
    return form == DataForm::kTokenIds ? DataForm::kText : form;
  };
  const DataForm form = form_of_name(path), of_data = FormOf(data);
  if (form == of_data || form_of_name(data.path) != of_data) return;
  const absl::string_view name = form == DataForm::kJsonl   ? "JSONL"
                                 : form == DataForm::kTable ? "a table"
                                                            : "no JSONL and no table";
  check.Fail("evaluation.path", absl::StrCat(path, " is ", name, " by its ending, other than ", data.path_field));
}

void CheckEvaluationIndex(const DataFile& file, const DataConfig& data, Checker& check) {
  if (file.index.has_value() && file.index->token_bytes != data.token_bytes) {
    check.Fail("evaluation.path", absl::StrCat(file.index_path(), " is of ids of ", file.index->token_bytes,
                                               " bytes, and ", data.path_field, " of ", data.token_bytes));
  }
  if (!data.has_documents()) CheckJoined(file, "evaluation.path", check);
}

// What the RunSpec says of the data, it says of this file too.
void CheckEvaluationFile(const std::string& path, const proto::Data& data, const RunConfig& config,
                         const CheckContext& context, Checker& check, EvaluationConfig& out) {
  const DataConfig of_data = config.all_sources().front().data;
  const DataFile file = LookAtDataFile(path, of_data.tokenizer, "evaluation.path", context, check);
  out.path = file.path;
  if (context.resumed != nullptr && context.resumed->evaluation.path == out.path) return;  // taken as it was
  const proto::Data said = data.sources_size() > 0 ? DataOf(data.sources(0), data, config.model_from, context) : data;
  if (!context.is_serialized) CheckEvaluationForm(path, said, of_data, check);
  if (of_data.tokenizer == TokenForm::kTokenFile) {
    CheckIds(file, "evaluation.path", check);
    return CheckEvaluationIndex(file, of_data, check);
  }
  const absl::Status looks_right = CheckLooks(said, FormOf(of_data), file.beginning);
  if (looks_right.ok()) return;
  const bool is_text = FormOf(of_data) == DataForm::kText;
  check.Fail("evaluation.path",
             absl::StrCat(path, " ", looks_right.message(),
                          is_text ? TextHint(file, of_data.field, "it and the data as they are") : ""));
}

void WriteMask(const MaskConfig& mask, proto::Mask& out) {
  out.set_share(mask.share);
  if (mask.token >= 0) out.set_token(mask.token);
  for (const int32_t id : mask.never) out.add_never(id);
}

}  // namespace

void CheckData(proto::Data data, const RunConfig& run, const CheckContext& context, Checker& check, DataConfig& out) {
  if (data.path().empty()) {
    check.Fail(out.path_field, "missing");
    return;
  }
  const DataFile file =
      LookAtDataFile(data.path(), TokenFormOf(data, run.model_from, context), out.path_field, context, check);
  if (file.was != nullptr) KeepFormer(*context.resumed, *file.was, data);
  const DataForm form = FormOf(data, context);
  out.path = file.path;
  out.is_jsonl = form == DataForm::kJsonl;
  out.is_table = form == DataForm::kTable;
  CheckTokenizer(data, run.model_from, file, context, check, out);
  CheckForm(data, file, form, check, out);
  CheckDocuments(data, file, run.objective(), check, out);
  CheckChatTemplate(file, context, check, out);
  CheckReading(data, run, context, check, out);
  CheckColumns(data, check, out);
  CheckMask(data, run, check, out);
  out.order = data.order() == proto::Data::SHUFFLED ? DataOrder::kShuffled : DataOrder::kSequential;
  out.seed = data.seed();
}

void CheckSources(const proto::Data& data, const CheckContext& context, Checker& check, RunConfig& config) {
  constexpr int kMaxSources = 256;
  if (data.has_path()) check.Fail("data.sources", "given beside data.path; give one of the two");
  if (data.has_format()) check.Fail("data.format", "given beside data.sources; each source has its own");
  if (data.sources_size() > kMaxSources) {
    check.Fail("data.sources", absl::StrCat(data.sources_size(), ", must be at most ", kMaxSources));
    return;
  }
  config.data.order = data.order() == proto::Data::SHUFFLED ? DataOrder::kShuffled : DataOrder::kSequential;
  config.data.seed = data.seed();
  config.data.specials_as_tokens = data.special_tokens() == proto::Data::AS_TOKENS;
  config.data.skips_bad_lines = data.bad_lines() == proto::Data::SKIP;
  for (int i = 0; i < data.sources_size(); ++i) {
    const proto::Source& source = data.sources(i);
    DataSource& out = config.sources.emplace_back();
    out.data.field = absl::StrCat("data.sources[", i, "]");
    out.data.path_field = absl::StrCat(out.data.field, ".path");
    CheckData(DataOf(source, data, config.model_from, context), config, context, check, out.data);
    out.weight = check.Positive(absl::StrCat(out.data.field, ".weight"), EPS_FIELD(source, weight), 1);
    if (out.data.has_documents() && !config.data.has_documents()) config.data.documents = out.data.documents;
    config.data.keeps_uncounted |= out.data.keeps_uncounted;
  }
  if (data.has_uncounted() && !config.data.has_documents() && !context.is_serialized && context.resumed == nullptr) {
    check.Fail("data.uncounted", "given, but of no source documents are packed or padded");
  }
  config.data.mask = config.sources.front().data.mask;
  for (const DataSource& source : config.sources) {
    if (!source.data.is_table) continue;
    config.data.text_column = source.data.text_column;
    config.data.second_text_column = source.data.second_text_column;
    config.data.label_column = source.data.label_column;
    config.data.has_table_header = source.data.has_table_header;
  }
}

void CheckEvaluation(const proto::Evaluation& evaluation, const proto::Data& data, const RunConfig& config,
                     const CheckContext& context, Checker& check, EvaluationConfig& out) {
  out.every_steps =
      check.Integer<int64_t>("evaluation.every_steps", EPS_FIELD(evaluation, every_steps), 0, 1, kMaxSteps);
  if (evaluation.has_samples()) {
    out.samples = check.Integer<int64_t>("evaluation.samples", evaluation.samples(), 0, 1, kMaxSteps);
  }
  out.at_start = evaluation.at_start();
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
  CheckEvaluationFile(evaluation.path(), data, config, context, check, out);
}

void WriteData(const RunConfig& run, const DataConfig& data, proto::Data& out) {
  out.set_path(data.path);
  out.set_tokenizer(ToProto(data.tokenizer));
  if (data.tokenizer == TokenForm::kTokenFile) {
    out.set_token_bytes(data.token_bytes);
  } else {
    out.set_format(FormatOf(data));
  }
  if (data.tokenizer == TokenForm::kModel) out.set_tokenizer_path(data.tokenizer_path);
  out.set_documents(ToProto(data.documents));
  if (HasPartsUncounted(run, data)) {
    out.set_uncounted(data.keeps_uncounted ? proto::Data::KEPT : proto::Data::LEFT_OUT);
  }
  if (data.is_jsonl) {
    out.set_chat_template(data.chat_template);
    out.set_count(data.counts_all ? proto::Data::ALL : proto::Data::ANSWERS);
  }
  if (data.specials_as_tokens) out.set_special_tokens(proto::Data::AS_TOKENS);
  if (data.skips_bad_lines) out.set_bad_lines(proto::Data::SKIP);
  if (run.objective() == Objective::kMaskedTokens) WriteMask(data.mask, *out.mutable_mask());
  if (!data.text_column.empty()) out.set_text_column(data.text_column);
  if (!data.second_text_column.empty()) out.set_second_text_column(data.second_text_column);
  if (!data.label_column.empty()) out.set_label_column(data.label_column);
  if (!data.has_table_header) out.set_table_header(false);
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
  out.clear_format();
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
    if (data.has_format()) to.set_format(data.format());
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
  if (evaluation.at_start) out.set_at_start(true);
}

}  // namespace eps
