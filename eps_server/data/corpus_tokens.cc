#include "eps_server/data/corpus_tokens.h"

#include <errno.h>

#include <atomic>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/file_util.h"
#include "common/base/log.h"
#include "common/base/long_work.h"
#include "common/base/new_folder.h"
#include "common/base/sha256.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "common/corpus/model_vocabulary.h"
#include "common/corpus/tokenize_corpus.h"
#include "common/formats/document_index_writer.h"
#include "common/tokenizer/tokenizer.h"
#include "common/tokenizer/tokenizer_settings.h"
#include "eps_server/data/data_mark.h"
#include "eps_server/data/token_sums.h"
#include "nlohmann/json.hpp"

namespace eps::server {
namespace {

constexpr int kFormat = 2, kFormerFormat = 1;  // of tokens.json
// In it, beside what the file was made from.
constexpr char kWrittenBy[] = "written_by";  // ChatTemplateChoice's name
constexpr char kSums[] = "sums";             // SumTokenFiles'; none: an earlier version wrote it

absl::StatusOr<std::unique_ptr<Tokenizer>> TokenizerOf(const DataConfig& data) {
  if (data.tokenizer == TokenForm::kBytes) return MakeByteTokenizer();
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = LoadTokenizer(data.tokenizer_path);
  EPS_RETURN_IF_ERROR_WITH(tokenizer.status(), absl::StrCat(data.field, ".tokenizer_path"));
  return tokenizer;
}

absl::StatusOr<TokenizerSettings> SettingsOf(const DataConfig& data) {
  if (data.tokenizer == TokenForm::kBytes) return TokenizerSettings();
  absl::StatusOr<TokenizerSettings> settings = ReadTokenizerSettings(data.tokenizer_path);
  EPS_RETURN_IF_ERROR_WITH(settings.status(), absl::StrCat(data.field, ".tokenizer_path"));
  return settings;
}

std::string TokenPath(const std::string& folder) { return folder + "/tokens.bin"; }
std::string OriginPath(const std::string& folder) { return folder + "/tokens.json"; }
// Of tokens that are not in place yet.
std::string NewTokenPath(const std::string& folder) { return folder + "/new.bin"; }
std::string NewOriginPath(const std::string& folder) { return folder + "/new.json"; }

std::string Sha256OfText(const std::string& text) {
  return Sha256Hex(absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()), text.size()));
}

// A path, or a name, may be of any bytes.
std::string InJson(const std::string& text) { return IsWellFormed(text) ? text : absl::CHexEscape(text); }

// All that the token file depends on.
absl::StatusOr<nlohmann::json> Origin(const DataConfig& data, const Tokenizer& tokenizer,
                                      const TokenizeOptions& options) {
  absl::StatusOr<DataMark> mark = MarkDataFile(data.path);
  EPS_RETURN_IF_ERROR_WITH(mark.status(), data.path_field);
  return nlohmann::json{
      {"format", kFormat},
      {"path", InJson(data.path)},
      {"num_bytes", mark->num_bytes},
      {"sha256", mark->sha256},
      {"tokenizer", tokenizer.fingerprint()},
      {"chat_template", data.chat_template},
      {"model_template", Sha256OfText(options.settings.chat_template)},
      {"bos", options.settings.bos_token.value_or("auto")},
      {"adds_bos", options.settings.adds_bos ? nlohmann::json(*options.settings.adds_bos) : nullptr},
      {"eos", options.settings.eos_token.value_or("auto")},
      {"counts_all", data.counts_all},
      {"specials_as_tokens", data.specials_as_tokens},
      {"skips_bad_lines", data.skips_bad_lines},
      {"columns", {InJson(data.text_column), InJson(data.second_text_column), InJson(data.label_column)}},
      {"has_table_header", data.has_table_header},
      {"token_bytes", options.token_bytes}};
}

// Whether the two say the same, as far as both say something.
bool AgreeInWhatBothSay(const nlohmann::json& former, const nlohmann::json& origin) {
  for (const auto& [key, value] : former.items()) {
    if (key != "format" && origin.contains(key) && origin[key] != value) return false;
  }
  return true;
}

// Of a run that goes on, whose data may have been moved.
nlohmann::json WithoutPath(nlohmann::json origin) {
  origin.erase("path");
  return origin;
}

// Of a run that goes on: the template of the token file's conversations (WithTokenFile) where it is there with its index,
// was made from `origin`, and is as it was written; nullopt: it has to be made. Errors: CANCELLED by `work`
absl::StatusOr<std::optional<std::string>> FindMade(const std::string& folder, const nlohmann::json& origin,
                                                    LongWork* work) {
  const std::optional<std::string> none;
  std::error_code ignored;
  const std::string tokens = TokenPath(folder);
  for (const std::string& path : {tokens, DocumentIndexPath(tokens)}) {
    if (!std::filesystem::is_regular_file(path, ignored)) return none;
  }
  const absl::StatusOr<std::string> text = ReadFile(OriginPath(folder), 1 << 16);
  if (!text.ok()) return none;
  nlohmann::json made = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!made.is_object()) return none;
  const nlohmann::json written_by = made.value(kWrittenBy, nlohmann::json());
  const nlohmann::json sums = made.value(kSums, nlohmann::json());
  made.erase(kWrittenBy);
  made.erase(kSums);
  const bool is_former = made.value("format", nlohmann::json()) == kFormerFormat;
  if (!is_former && !written_by.is_string()) return none;
  const bool is_same =
      is_former ? AgreeInWhatBothSay(WithoutPath(made), origin) : WithoutPath(std::move(made)) == WithoutPath(origin);
  if (!is_same) return none;
  EPS_ASSIGN_OR_RETURN(const std::string damage, FindDamage(tokens, sums, work));
  if (!damage.empty()) {
    LogWarning("data_tokens_damaged", {{"token_file", tokens}, {"reason", damage}, {"made_anew", "true"}});
    return none;
  }
  return std::make_optional(is_former ? std::string() : written_by.get<std::string>());
}

// Errors: TokenizeCorpus's, naming data's field
absl::StatusOr<TokenizeReport> Tokenize(const DataConfig& data, const Tokenizer& tokenizer,
                                        const TokenizeOptions& options, LongWork* work) {
  if (work != nullptr) work->Begin(absl::StrCat("tokenizing \"", data.path, "\""));
  const std::atomic<bool> never = false;
  const std::atomic<bool>& stop = work != nullptr ? work->is_cancelled() : never;
  const auto report = [work](const TokenizeProgress& progress) {
    if (work != nullptr) work->Reach(progress.bytes_done, progress.bytes_total).IgnoreError();  // `stop` says the same
  };
  absl::StatusOr<TokenizeReport> done = TokenizeCorpus(options, tokenizer, report, stop);
  EPS_RETURN_IF_ERROR_WITH(done.status(), data.path_field);
  LogInfo("data_tokenized", {{"path", data.path},
                             {"token_file", TokenPath(DirName(options.out))},
                             {"documents", done->counts.documents},
                             {"tokens", done->counts.tokens},
                             {"counted_tokens", done->counts.counted_tokens},
                             {"chat_template", done->chat_template},
                             {"chat_template_chosen", done->chat_template_reason},
                             {"specials_as_text", done->notes.specials_as_text},
                             {"replaced_surrogates", done->notes.replaced_surrogates},
                             {"replaced_bytes", done->notes.replaced_bytes},
                             {"skipped_lines", done->notes.skipped_lines},
                             {"seconds", done->seconds}});
  if (done->notes.replaced_bytes > 0) {
    LogWarning(
        "data_not_utf8",
        {{"replaced_bytes", done->notes.replaced_bytes}, {"first", done->notes.first_replaced}, {"remedy", kToUtf8}});
  }
  for (const std::string& reason : done->notes.skip_reasons) LogWarning("data_line_skipped", {{"reason", reason}});
  return done;
}

absl::Status Rename(const std::string& from, const std::string& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) return FileError(errno, "rename", from);
  return absl::OkStatus();
}

void DropNew(const std::string& folder) {
  std::error_code ignored;
  for (const std::string& left :
       {NewOriginPath(folder), NewTokenPath(folder), DocumentIndexPath(NewTokenPath(folder))}) {
    std::filesystem::remove(left, ignored);
  }
}

// Puts the new files in place of those in `folder`: what says that these are whole goes first, and comes last.
absl::Status AcceptNew(const std::string& folder) {
  std::error_code error;
  std::filesystem::remove(OriginPath(folder), error);
  if (error) return FileError(error.value(), "remove", OriginPath(folder));
  EPS_RETURN_IF_ERROR(Rename(DocumentIndexPath(NewTokenPath(folder)), DocumentIndexPath(TokenPath(folder))));
  EPS_RETURN_IF_ERROR(Rename(NewTokenPath(folder), TokenPath(folder)));
  EPS_RETURN_IF_ERROR(Rename(NewOriginPath(folder), OriginPath(folder)));
  return SyncDirectory(folder);
}

// Makes new files in `folder`, beside those that are there. Gives the template of its conversations.
absl::StatusOr<std::string> MakeNew(const DataConfig& data, const Tokenizer& tokenizer, TokenizeOptions options,
                                    const std::string& folder, nlohmann::json origin, LongWork* work) {
  EPS_ASSIGN_OR_RETURN(const NewFolder made, NewFolder::Make(folder));
  options.out = NewTokenPath(folder);
  EPS_ASSIGN_OR_RETURN(const TokenizeReport report, Tokenize(data, tokenizer, options, work));
  origin[kWrittenBy] = report.chat_template;
  EPS_ASSIGN_OR_RETURN(origin[kSums], SumTokenFiles(options.out, work));
  EPS_RETURN_IF_ERROR(WriteFileAtomically(NewOriginPath(folder), origin.dump(2) + "\n"));
  return report.chat_template;
}

// `folder`, and the folders in it.
std::vector<std::string> TokenFolders(const std::string& folder) {
  std::vector<std::string> folders = {folder};
  std::error_code error;
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    std::error_code ignored;
    if (entry->is_directory(ignored)) folders.push_back(entry->path().string());
  }
  return folders;
}

// All but `out`.
absl::StatusOr<TokenizeOptions> OptionsOf(const DataConfig& data, const Tokenizer& tokenizer, int threads) {
  TokenizeOptions options;
  options.sources = {data.path};
  options.format = data.is_jsonl ? CorpusFormat::kJsonl : data.is_table ? CorpusFormat::kTsv : CorpusFormat::kText;
  options.columns = {.has_header = data.has_table_header,
                     .text = data.text_column,
                     .second_text = data.second_text_column,
                     .label = data.label_column};
  options.chat_template = data.chat_template;
  options.count_all = data.counts_all;
  options.specials = data.specials_as_tokens ? Tokenizer::Specials::kAsTokens : Tokenizer::Specials::kAsText;
  options.skips_bad_lines = data.skips_bad_lines;
  EPS_ASSIGN_OR_RETURN(options.settings, SettingsOf(data));
  options.token_bytes = tokenizer.vocab() <= 65536 ? 2 : 4;
  options.threads = threads;
  return options;
}

// What run_spec.proto says of a mask where it is not given.
absl::StatusOr<MaskConfig> MaskOf(const RunConfig& run, const Tokenizer& tokenizer) {
  MaskConfig mask = run.data.mask;
  if (run.objective() != Objective::kMaskedTokens) return mask;
  if (mask.token < 0) {
    std::optional<int32_t> token = tokenizer.TokenId("[MASK]");
    if (!token.has_value()) token = tokenizer.TokenId("<mask>");
    if (!token.has_value()) {
      return absl::InvalidArgumentError("data.mask.token: missing; the tokenizer has no [MASK] and no <mask>");
    }
    EPS_RETURN_IF_ERROR_WITH(CheckModelHas({*token}, run.model.vocab, tokenizer), "data.mask.token");
    mask.token = *token;
  }
  if (!mask.never.empty()) return mask;
  for (const char* special : {"[CLS]", "[SEP]", "[PAD]", "<s>", "</s>", "<pad>"}) {
    if (const std::optional<int32_t> id = tokenizer.TokenId(special); id.has_value()) mask.never.push_back(*id);
  }
  return mask;
}

}  // namespace

absl::StatusOr<RunConfig> WithTokenFile(const RunConfig& run, const std::string& folder, int threads,
                                        FormerTokens former, LongWork* work) {
  const DataConfig& data = run.data;
  if (!data.needs_tokenizing()) return run;
  EPS_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, TokenizerOf(data));
  if (absl::Status fits = CheckModelHasMost(*tokenizer, run.model.vocab); !fits.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(data.field, ".tokenizer_path: ", data.tokenizer_path, " ", fits.message()));
  }
  EPS_ASSIGN_OR_RETURN(const MaskConfig mask, MaskOf(run, *tokenizer));
  EPS_ASSIGN_OR_RETURN(TokenizeOptions options, OptionsOf(data, *tokenizer, threads));
  options.vocab = run.model.vocab;
  options.pairs = run.objective() == Objective::kPreferences;
  EPS_ASSIGN_OR_RETURN(const nlohmann::json origin, Origin(data, *tokenizer, options));
  DropNew(folder);  // of a process that was killed
  std::string token_path = TokenPath(folder);
  std::optional<std::string> chat_template;
  // A new run reads its data itself: a mark looks at parts of a large file alone, and does not see every edit.
  if (former == FormerTokens::kKept) {
    EPS_ASSIGN_OR_RETURN(chat_template, FindMade(folder, origin, work));
  }
  if (chat_template.has_value()) {
    LogInfo("data_tokens_kept", {{"path", data.path}, {"token_file", token_path}});
  } else {
    EPS_ASSIGN_OR_RETURN(chat_template, MakeNew(data, *tokenizer, options, folder, origin, work));
    if (former == FormerTokens::kReplaced) {
      EPS_RETURN_IF_ERROR(AcceptNew(folder));
    } else {
      token_path = NewTokenPath(folder);
    }
  }
  RunConfig result = run;
  result.data = {.field = data.field,
                 .path_field = data.path_field,
                 .path = token_path,
                 .made_from = data.path,
                 .tokenizer = TokenForm::kTokenFile,
                 .token_bytes = options.token_bytes,
                 .chat_template = *std::move(chat_template),
                 .documents = data.documents,
                 .keeps_uncounted = data.keeps_uncounted,
                 .order = data.order,
                 .seed = data.seed,
                 .mask = mask,
                 // By which an error finds a row of the user's own table.
                 .text_column = data.text_column,
                 .second_text_column = data.second_text_column,
                 .label_column = data.label_column,
                 .has_table_header = data.has_table_header};
  return result;
}

absl::StatusOr<RunConfig> WithTokenFiles(const RunConfig& run, const std::string& folder, int threads,
                                         FormerTokens former, LongWork* work) {
  if (run.sources.empty()) return WithTokenFile(run, folder, threads, former, work);
  EPS_ASSIGN_OR_RETURN(const NewFolder made, NewFolder::Make(folder));
  RunConfig result = run;
  for (size_t i = 0; i < run.sources.size(); ++i) {
    RunConfig one = run;
    one.data = run.sources[i].data;
    EPS_ASSIGN_OR_RETURN(one, WithTokenFile(one, absl::StrCat(folder, "/", i), threads, former, work));
    result.sources[i].data = one.data;
  }
  return result;
}

bool HoldsNewTokens(const std::string& folder) {
  std::error_code ignored;
  for (const std::string& one : TokenFolders(folder)) {
    if (std::filesystem::exists(NewOriginPath(one), ignored)) return true;
  }
  return false;
}

absl::Status AcceptNewTokens(const std::string& folder) {
  for (const std::string& one : TokenFolders(folder)) {
    std::error_code ignored;
    if (std::filesystem::exists(NewOriginPath(one), ignored)) EPS_RETURN_IF_ERROR(AcceptNew(one));
  }
  return absl::OkStatus();
}

void DropNewTokens(const std::string& folder) {
  for (const std::string& one : TokenFolders(folder)) DropNew(one);
}

}  // namespace eps::server
