#include "eps_server/data/corpus_tokens.h"

#include <atomic>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/file_util.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/corpus/tokenize_corpus.h"
#include "common/formats/document_index_writer.h"
#include "common/tokenizer/tokenizer.h"
#include "eps_server/data/data_mark.h"
#include "nlohmann/json.hpp"

namespace eps::server {
namespace {

constexpr double kReportSeconds = 10;

absl::StatusOr<std::unique_ptr<Tokenizer>> TokenizerOf(const DataConfig& data) {
  if (data.tokenizer == TokenForm::kBytes) return MakeByteTokenizer();
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = LoadTokenizer(data.tokenizer_path);
  EPS_RETURN_IF_ERROR_WITH(tokenizer.status(), "data.tokenizer_path");
  return tokenizer;
}

// All that the token file depends on.
absl::StatusOr<nlohmann::json> Origin(const DataConfig& data, const Tokenizer& tokenizer, int token_bytes) {
  absl::StatusOr<DataMark> mark = MarkDataFile(data.path);
  EPS_RETURN_IF_ERROR_WITH(mark.status(), "data.path");
  return nlohmann::json{{"format", 1},
                        {"path", data.path},
                        {"num_bytes", mark->num_bytes},
                        {"sha256", mark->sha256},
                        {"tokenizer", tokenizer.fingerprint()},
                        {"chat_template", data.chat_template},
                        {"counts_all", data.counts_all},
                        {"columns", {data.text_column, data.second_text_column, data.label_column}},
                        {"token_bytes", token_bytes}};
}

bool IsMadeFrom(const std::string& origin_path, const nlohmann::json& origin) {
  const absl::StatusOr<std::string> text = ReadFile(origin_path, 1 << 16);
  return text.ok() && nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false) == origin;
}

absl::Status Tokenize(const DataConfig& data, const Tokenizer& tokenizer, const TokenizeOptions& options) {
  double reported = 0;
  const auto report = [&](const TokenizeProgress& progress) {
    if (progress.seconds < reported + kReportSeconds) return;
    reported = progress.seconds;
    LogInfo("data_tokenizing", {{"path", data.path},
                                {"bytes_done", progress.bytes_done},
                                {"bytes_total", progress.bytes_total},
                                {"tokens", progress.tokens}});
  };
  const std::atomic<bool> stop = false;
  const absl::StatusOr<TokenizeReport> done = TokenizeCorpus(options, tokenizer, report, stop);
  EPS_RETURN_IF_ERROR_WITH(done.status(), "data.path");
  LogInfo("data_tokenized", {{"path", data.path},
                             {"token_file", options.out},
                             {"documents", done->counts.documents},
                             {"tokens", done->counts.tokens},
                             {"counted_tokens", done->counts.counted_tokens},
                             {"chat_template", done->chat_template},
                             {"seconds", done->seconds}});
  return absl::OkStatus();
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
    mask.token = *token;
  }
  if (!mask.never.empty()) return mask;
  for (const char* special : {"[CLS]", "[SEP]", "[PAD]", "<s>", "</s>", "<pad>"}) {
    if (const std::optional<int32_t> id = tokenizer.TokenId(special); id.has_value()) mask.never.push_back(*id);
  }
  return mask;
}

}  // namespace

absl::StatusOr<RunConfig> WithTokenFile(const RunConfig& run, const std::string& folder, int threads) {
  const DataConfig& data = run.data;
  if (!data.needs_tokenizing()) return run;
  EPS_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, TokenizerOf(data));
  if (tokenizer->vocab() > run.model.vocab) {
    return absl::InvalidArgumentError(absl::StrCat("data.tokenizer_path: ", data.tokenizer_path, " has ids up to ",
                                                   tokenizer->vocab() - 1, ", the model a vocabulary of ",
                                                   run.model.vocab));
  }
  EPS_ASSIGN_OR_RETURN(const MaskConfig mask, MaskOf(run, *tokenizer));
  TokenizeOptions options;
  options.sources = {data.path};
  options.out = folder + "/tokens.bin";
  options.format = data.is_jsonl ? CorpusFormat::kJsonl : data.is_table ? CorpusFormat::kTsv : CorpusFormat::kText;
  options.columns = {.text = data.text_column, .second_text = data.second_text_column, .label = data.label_column};
  options.chat_template = data.chat_template;
  options.count_all = data.counts_all;
  options.token_bytes = tokenizer->vocab() <= 65536 ? 2 : 4;
  options.threads = threads;
  EPS_ASSIGN_OR_RETURN(const nlohmann::json origin, Origin(data, *tokenizer, options.token_bytes));

  const std::string origin_path = folder + "/tokens.json";
  if (IsMadeFrom(origin_path, origin)) {
    LogInfo("data_tokens_kept", {{"path", data.path}, {"token_file", options.out}});
  } else {
    EPS_RETURN_IF_ERROR(MakeDirs(folder));
    // First what says that the others are whole.
    std::error_code ignored;
    for (const std::string& path : {origin_path, DocumentIndexPath(options.out), options.out}) {
      std::filesystem::remove(path, ignored);
    }
    EPS_RETURN_IF_ERROR(Tokenize(data, *tokenizer, options));
    EPS_RETURN_IF_ERROR(WriteFileAtomically(origin_path, origin.dump(2) + "\n"));
  }
  RunConfig result = run;
  result.data = {.path = options.out,
                 .tokenizer = TokenForm::kTokenFile,
                 .token_bytes = options.token_bytes,
                 .documents = data.documents,
                 .order = data.order,
                 .seed = data.seed,
                 .mask = mask};
  return result;
}

}  // namespace eps::server
