#include "cli/runs_folder.h"

#include <stdlib.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/file_util.h"
#include "common/base/status_macros.h"

namespace eps::cli {

absl::StatusOr<std::unique_ptr<RunsFolder>> RunsFolder::Make(const std::string& given, const std::string& name) {
  auto folder = std::unique_ptr<RunsFolder>(new RunsFolder());
  if (!given.empty()) {
    std::error_code ignored;
    if (std::filesystem::exists(given, ignored) && !std::filesystem::is_empty(given, ignored)) {
      return absl::AlreadyExistsError(absl::StrCat("--out ", given, ": not an empty folder"));
    }
    EPS_RETURN_IF_ERROR(MakeDirs(given));
    folder->path_ = given;
    folder->keep_ = true;
    return folder;
  }
  EPS_ASSIGN_OR_RETURN(folder->path_, TemporaryFolder());
  absl::StrAppend(&folder->path_, "/", name, "-XXXXXX");
  if (mkdtemp(folder->path_.data()) == nullptr) return FileError(errno, "make", std::exchange(folder->path_, ""));
  return folder;
}

RunsFolder::~RunsFolder() {
  std::error_code ignored;
  if (!keep_ && !path_.empty()) std::filesystem::remove_all(path_, ignored);
}

}  // namespace eps::cli
