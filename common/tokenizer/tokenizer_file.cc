#include "common/tokenizer/tokenizer_file.h"

#include <filesystem>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace eps {

absl::StatusOr<std::string> FindTokenizerFile(const std::string& path) {
  constexpr char kJsonName[] = "tokenizer.json", kModelName[] = "tokenizer.model";
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) return path;
  for (const char* name : {kJsonName, kModelName}) {
    const std::string file = absl::StrCat(path, "/", name);
    if (std::filesystem::exists(file, error)) return file;
  }
  return absl::NotFoundError(
      absl::StrCat("\"", path, "\": neither ", kJsonName, " nor ", kModelName, " in this folder"));
}

bool HasTokenizerFile(const std::string& path) {
  const absl::StatusOr<std::string> file = FindTokenizerFile(path);
  std::error_code ignored;
  return file.ok() && std::filesystem::is_regular_file(*file, ignored);
}

}  // namespace eps
