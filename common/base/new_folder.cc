#include "common/base/new_folder.h"

#include <unistd.h>

#include <filesystem>
#include <system_error>

#include "common/base/file_util.h"
#include "common/base/status_macros.h"

namespace eps {

absl::StatusOr<NewFolder> NewFolder::Make(const std::string& path) {
  std::error_code ignored;
  const bool is_there = std::filesystem::exists(path, ignored);
  EPS_RETURN_IF_ERROR(MakeDirs(path));
  NewFolder folder;
  if (!is_there) folder.made_ = path;
  return folder;
}

NewFolder::~NewFolder() {
  if (!made_.empty()) rmdir(made_.c_str());  // of one that is not empty nothing goes
}

}  // namespace eps
