#include "common/checkpoint/frozen_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/status/status.h"
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
  // A link that leads elsewhere would be linked itself, and every checkpoint would hang on what it leads to.
  if (!S_ISREG(found.st_mode)) return absl::FailedPreconditionError(absl::StrCat(path, ": is no regular file"));
  // Owner and mode are shared, too: neither of two users could change them without the other.
  if (found.st_uid != geteuid()) return absl::FailedPreconditionError(absl::StrCat(path, ": is another user's"));
  return Identity{.device = found.st_dev,
                  .inode = found.st_ino,
                  .num_bytes = found.st_size,
                  .modified_seconds = found.st_mtim.tv_sec,
                  .modified_nanoseconds = found.st_mtim.tv_nsec};
}

absl::StatusOr<FrozenFile> FrozenFile::Of(const std::string& folder) {
  std::string path = PathIn(folder);
  EPS_ASSIGN_OR_RETURN(const Identity identity, IdentityOf(path));
  // One that somebody copied there a moment ago may not be on disk.
  EPS_ASSIGN_OR_RETURN(const FileDescriptor file, OpenFile(path, O_RDONLY));
  if (fsync(file.get()) != 0) return FileError(errno, "sync", path);
  return FrozenFile(std::move(path), identity);
}

FrozenFile FrozenFile::In(const std::string& folder) const {
  FrozenFile renamed = *this;
  renamed.path_ = PathIn(folder);
  return renamed;
}

absl::StatusOr<FrozenFile::LinkResult> FrozenFile::LinkInto(const std::string& folder) const {
  const std::string path = PathIn(folder);
  LinkResult result;
  if (link(path_.c_str(), path.c_str()) != 0) {
    result.why_not = std::string(FileError(errno, "link", path_).message());
  } else {
    // Of the link, not of what it was made from: that may have been replaced between a look and the link.
    const absl::StatusOr<Identity> linked = IdentityOf(path);
    result.is_linked = linked.ok() && *linked == identity_;
    if (result.is_linked) return result;
    result.why_not = linked.ok() ? absl::StrCat(path_, ": is not what was written, or was written to since")
                                 : std::string(linked.status().message());
  }
  // Over a network a link may be made, and an error come back. Who writes the file anew would write into the shared
  // one.
  EPS_RETURN_IF_ERROR(RemoveIfThere(path));
  return result;
}

}  // namespace eps
