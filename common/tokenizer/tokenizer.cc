#include <filesystem>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/file_util.h"
#include "common/base/status_macros.h"
#include "common/tokenizer/sentencepiece_tokenizer.h"
#include "common/tokenizer/tokenizer.h"
#include "common/tokenizer/tokenizer_json.h"

namespace eps {
namespace {

constexpr int64_t kMaxFileBytes = int64_t{1} << 28;  // 256 MiB; the largest known have 35 MB
constexpr char kJsonName[] = "tokenizer.json", kModelName[] = "tokenizer.model", kAddedName[] = "added_tokens.json";

// The file in the folder `path`, or `path` itself where it is none.
absl::StatusOr<std::string> FileOf(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) return path;
  for (const char* name : {kJsonName, kModelName}) {
    const std::string file = absl::StrCat(path, "/", name);
    if (std::filesystem::exists(file, error)) return file;
  }
  return absl::NotFoundError(
      absl::StrCat("\"", path, "\": neither ", kJsonName, " nor ", kModelName, " in this folder"));
}

// What the added_tokens.json beside the file holds; "": there is none.
absl::StatusOr<std::string> AddedTokensBeside(const std::string& file) {
  const std::filesystem::path path = std::filesystem::path(file).parent_path() / kAddedName;
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return "";
  return ReadFile(path.string(), kMaxFileBytes);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const std::string& path) {
  EPS_ASSIGN_OR_RETURN(const std::string file, FileOf(path));
  EPS_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(file, kMaxFileBytes));
  // No message of Protocol Buffers begins like a JSON object.
  const bool is_json = absl::EndsWith(file, ".json") || absl::StartsWith(absl::StripLeadingAsciiWhitespace(bytes), "{");
  std::string added;
  if (!is_json) {
    EPS_ASSIGN_OR_RETURN(added, AddedTokensBeside(file));
  }
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer =
      is_json ? TokenizerFromJson(bytes) : TokenizerFromSentencePiece(bytes, added);
  if (!tokenizer.ok()) return Annotate(tokenizer.status(), file);
  return tokenizer;
}

bool HasTokenizerFile(const std::string& path) {
  const absl::StatusOr<std::string> file = FileOf(path);
  std::error_code ignored;
  return file.ok() && std::filesystem::is_regular_file(*file, ignored);
}

}  // namespace eps
