#include "cli/checkpoint_path.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "common/run_folder/run_folder.h"

namespace eps::cli {

std::string CheckpointPath(const std::string& out, const std::string& path) {
  if (out.empty() || path.empty()) return path;
  std::string here =
      absl::StrCat(RunFolder(out).checkpoints().path(), "/", std::filesystem::path(path).filename().string());
  std::error_code ignored;
  return std::filesystem::is_directory(here, ignored) ? here : path;
}

}  // namespace eps::cli
