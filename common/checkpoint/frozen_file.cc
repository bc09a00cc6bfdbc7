#include "common/checkpoint/frozen_file.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "common/base/file_util.h"
#include "common/base/status_macros.h"

namespace eps {
namespace {

std::string PathIn(const std::string& folder) { return absl::StrCat(folder, "/", kFrozenFile); }

}  // namespace

absl::StatusOr<FrozenFile::Identity> FrozenFile::IdentityOf(const std::string& path) {
  struct stat found;
  if (lstat(path.c_str(), &found) != 0) return FileError(errno, "stat", path);
  return Identity{.device = found.st_dev,
                  .inode = found.st_ino,
                  .num_bytes = found.st_size,
                  .modified_seconds = found.st_mtim.tv_sec,
                  .modified_nanoseconds = found.st_mtim.tv_nsec};
}

absl::StatusOr<FrozenFile> FrozenFile::Of(const std::string& folder, FileSum sum) {
  std::string path = PathIn(folder);
  EPS_ASSIGN_OR_RETURN(const Identity identity, IdentityOf(path));
  return FrozenFile(std::move(path), std::move(sum), identity);
}

absl::StatusOr<bool> FrozenFile::LinkInto(const std::string& folder) const {
  const std::string path = PathIn(folder);
  // Whatever the reason, the file can be written anew; a disk that is the reason says so then.
  if (link(path_.c_str(), path.c_str()) != 0) return false;
  // Of the link, not of what it was made from: that may have been replaced between a look and the link.
  if (const absl::StatusOr<Identity> linked = IdentityOf(path); linked.ok() && *linked == identity_) return true;
  EPS_RETURN_IF_ERROR(RemoveIfThere(path));  // else who writes the file anew would write into the other one
  return false;
}

}  // namespace eps
