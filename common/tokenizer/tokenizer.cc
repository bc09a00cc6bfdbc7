#include <filesystem>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "common/base/file_util.h"
#include "common/base/git_lfs.h"
#include "common/base/status_macros.h"
#include "common/tokenizer/sentencepiece_tokenizer.h"
#include "common/tokenizer/tokenizer.h"
#include "common/tokenizer/tokenizer_file.h"
#include "common/tokenizer/tokenizer_json.h"

namespace eps {
namespace {

constexpr int64_t kMaxFileBytes = int64_t{1} << 28;  // 256 MiB; the largest known have 35 MB
constexpr char kAddedName[] = "added_tokens.json", kConfigName[] = "tokenizer_config.json";

// What the file of that name beside `file` holds; "": there is none.
absl::StatusOr<std::string> ReadBeside(const std::string& file, const char* name) {
  const std::filesystem::path path = std::filesystem::path(file).parent_path() / name;
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return "";
  return ReadFile(path.string(), kMaxFileBytes);
}

absl::StatusOr<std::unique_ptr<Tokenizer>> FromBytes(const std::string& file, const std::string& bytes) {
  EPS_RETURN_IF_ERROR(CheckNoGitLfsPointer(bytes));
  // No message of Protocol Buffers begins like a JSON object.
  const bool is_json = absl::EndsWith(file, ".json") || absl::StartsWith(absl::StripLeadingAsciiWhitespace(bytes), "{");
  EPS_ASSIGN_OR_RETURN(const std::string beside, ReadBeside(file, is_json ? kConfigName : kAddedName));
  return is_json ? TokenizerFromJson(bytes, beside) : TokenizerFromSentencePiece(bytes, beside);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const std::string& path) {
  EPS_ASSIGN_OR_RETURN(const std::string file, FindTokenizerFile(path));
  EPS_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(file, kMaxFileBytes));
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = FromBytes(file, bytes);
  EPS_RETURN_IF_ERROR_WITH(tokenizer.status(), file);
  return tokenizer;
}

}  // namespace eps
