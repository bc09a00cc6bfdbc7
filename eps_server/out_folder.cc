#include "eps_server/out_folder.h"

#include <errno.h>
#include <sys/stat.h>

#include <filesystem>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/log.h"
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

absl::Status OutFolder::Reclaim() {
  EPS_RETURN_IF_ERROR(MakeDirs(path_));
  struct stat taken = {}, there = {};
  if (fstat(lock_.get(), &taken) != 0) return FileError(errno, "look at", path_);
  if (stat(path_.c_str(), &there) != 0) return FileError(errno, "look at", path_);
  if (taken.st_dev == there.st_dev && taken.st_ino == there.st_ino) return absl::OkStatus();
  LogWarning("out_folder_replaced", {{"path", path_}, {"why", "it was moved or removed while the run was writing"}});
  absl::StatusOr<FileDescriptor> lock = LockDirectory(path_);
  if (!lock.ok()) return Annotate(lock.status(), "--out: its folder was moved, and the one in its place is another's");
  lock_ = *std::move(lock);
  return absl::OkStatus();
}

absl::Status OutFolder::Make() {
  EPS_ASSIGN_OR_RETURN(made_, NewFolder::Make(path_));
  return Claim();
}

}  // namespace eps::server
