#include "common/formats/model_folder_files.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/file_util.h"
#include "common/base/status_macros.h"

namespace eps {
namespace {

constexpr int64_t kMaxFileBytes = int64_t{1} << 28;  // 256 MiB; a tokenizer.json of 256,000 tokens has 34 MB

constexpr const char* kModelNames[] = {"config.json", kGenerationConfigFile};
constexpr const char* kVocabularies[] = {"tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt",
                                         "spiece.model"};
constexpr const char* kTokenizerNames[] = {
    "tokenizer.json",    "tokenizer.model",  "vocab.json",         "vocab.txt",          "spiece.model",   "merges.txt",
    "added_tokens.json", kSpecialTokensFile, kTokenizerConfigFile, "chat_template.json", kChatTemplateFile};

absl::Status ReadInto(const std::string& folder, const char* name, ModelFiles& files) {
  absl::StatusOr<std::string> bytes = ReadFile(absl::StrCat(folder, "/", name), kMaxFileBytes);
  if (absl::IsNotFound(bytes.status())) return absl::OkStatus();
  EPS_RETURN_IF_ERROR(bytes.status());
  files[name] = *std::move(bytes);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelFiles> ReadModelFiles(const std::string& folder) {
  std::map<std::string, absl::Status> left_out;
  ModelFiles files = ReadModelFiles(folder, left_out);
  if (!left_out.empty()) return left_out.begin()->second;
  return files;
}

ModelFiles ReadModelFiles(const std::string& folder, std::map<std::string, absl::Status>& left_out) {
  ModelFiles files;
  const auto take = [&](const char* name) {
    if (absl::Status status = ReadInto(folder, name, files); !status.ok()) left_out[name] = std::move(status);
  };
  for (const char* name : kModelNames) take(name);
  for (const char* name : kTokenizerNames) take(name);
  return files;
}

absl::Span<const char* const> TokenizerFileNames() { return kTokenizerNames; }

absl::Span<const char* const> VocabularyFileNames() { return kVocabularies; }

bool HasTokenizer(const ModelFiles& files) {
  return std::any_of(std::begin(kVocabularies), std::end(kVocabularies),
                     [&files](const char* name) { return files.contains(name); });
}

absl::Status WriteModelFiles(const ModelFiles& files, const std::string& folder) {
  for (const auto& [name, bytes] : files) {
    EPS_RETURN_IF_ERROR(WriteFileAtomically(absl::StrCat(folder, "/", name), bytes));
  }
  return absl::OkStatus();
}

}  // namespace eps
