#include "eps_server/out_folder.h"

#include <filesystem>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace eps::server {

absl::Status OutFolder::Claim() {
  std::error_code ignored;
  const auto status = std::filesystem::status(path_, ignored);
  if (lock_.is_open() || !std::filesystem::exists(status)) return absl::OkStatus();
  if (!std::filesystem::is_directory(status)) {
    return absl::InvalidArgumentError(absl::StrCat("--out ", path_, ": not a folder"));
  }
  absl::StatusOr<FileDescriptor> lock = LockDirectory(path_);
  if (!lock.ok()) return Annotate(lock.status(), "--out");
  lock_ = *std::move(lock);
  return absl::OkStatus();
}

absl::Status OutFolder::Make() {
  EPS_ASSIGN_OR_RETURN(made_, NewFolder::Make(path_));
  return Claim();
}

}  // namespace eps::server
