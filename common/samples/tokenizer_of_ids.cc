#include "common/samples/tokenizer_of_ids.h"

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/formats/document_index_header.h"
#include "common/formats/document_index_writer.h"
#include "common/tokenizer/tokenizer.h"

namespace eps {
namespace {

// Data of the run with an index, which says what made them.
struct Ids {
  DataConfig data;
  std::string fingerprint;
};

std::vector<Ids> FindIds(const RunConfig& run) {
  std::vector<DataConfig> files;
  for (const DataSource& source : run.all_sources()) files.push_back(source.data);
  if (run.evaluation.is_on() && !run.evaluation.path.empty()) files.push_back(run.evaluation_data());
  std::vector<Ids> ids;
  for (const DataConfig& data : files) {
    if (data.tokenizer != TokenForm::kTokenFile) continue;
    const absl::StatusOr<DocumentIndexHeader> index = ReadDocumentIndexHeader(DocumentIndexPath(data.path));
    if (index.ok()) ids.push_back({data, index->tokenizer_fingerprint});
  }
  return ids;
}

// Those of tokenizer_path; the evaluation's is one of them.
std::set<std::string> FindOtherPaths(const RunConfig& run) {
  std::set<std::string> paths;
  for (const DataSource& source : run.all_sources()) {
    if (source.data.tokenizer == TokenForm::kModel) paths.insert(source.data.tokenizer_path);
  }
  paths.erase(run.model_from);
  return paths;
}

// data, evaluated: the first and the last of the run's files with an index.
absl::Status CheckTokenizerOfEvaluation(const RunConfig& run, const Ids& data, const Ids& evaluated) {
  const bool are_both = evaluated.data.path == run.evaluation.path && data.data.path != run.evaluation.path;
  if (!are_both || data.fingerprint == evaluated.fingerprint) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("evaluation.path: the ids of ", evaluated.data.path,
                                                 " are of another tokenizer (", evaluated.fingerprint,
                                                 ", says its index) than those of ", data.data.path, " (",
                                                 data.fingerprint, "): make them anew with `eps tokenize`"));
}

}  // namespace

absl::Status CheckTokenizerOfIds(const RunConfig& run) {
  const std::vector<Ids> files = FindIds(run);
  if (files.empty()) return absl::OkStatus();
  if (run.model_from.empty()) return CheckTokenizerOfEvaluation(run, files.front(), files.back());
  const absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = LoadTokenizer(run.model_from);
  if (!tokenizer.ok()) return absl::OkStatus();
  const std::string& fingerprint = (*tokenizer)->fingerprint();
  for (const Ids& ids : files) {
    if (ids.fingerprint == fingerprint) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(ids.data.path_field, ": the ids of ", ids.data.path, " are of another tokenizer (",
                     ids.fingerprint, ", says its index) than that of model.from, ", run.model_from, " (", fingerprint,
                     "): make them anew with `eps tokenize --tokenizer ", run.model_from, "`"));
  }
  return absl::OkStatus();
}

void WarnOfOtherTokenizers(const RunConfig& run) {
  const std::set<std::string> paths = FindOtherPaths(run);
  if (run.model_from.empty() || paths.empty()) return;
  const absl::StatusOr<std::unique_ptr<Tokenizer>> own = LoadTokenizer(run.model_from);
  if (!own.ok()) return;
  for (const std::string& path : paths) {
    const absl::StatusOr<std::unique_ptr<Tokenizer>> told = LoadTokenizer(path);
    if (!told.ok() || (*told)->fingerprint() == (*own)->fingerprint()) continue;
    LogWarning("data_tokenizer_is_not_the_models", {{"tokenizer_path", path}, {"model_from", run.model_from}});
  }
}

}  // namespace eps
