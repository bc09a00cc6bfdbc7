#include "common/security/secret_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/file_util.h"
#include "common/base/status_macros.h"

namespace eps {
namespace {

constexpr int64_t kMaxSecretBytes = 64 << 10;

absl::Status CheckOwnerAlone(const struct stat& info, const std::string& path) {
  if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError(absl::StrCat(path, ": not a file"));
  if (info.st_uid != geteuid() && info.st_uid != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": belongs to user ", info.st_uid, ", who could change it; want one of user ", geteuid()));
  }
  if ((info.st_mode & 077) != 0) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": mode ", absl::StrFormat("%04o", info.st_mode & 07777),
                                                      " lets others read it; do: chmod 600 ", path));
  }
  if (info.st_size > kMaxSecretBytes) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", info.st_size, " bytes, want at most ", kMaxSecretBytes));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> ReadSecretFile(const std::string& path) {
  // Not blocking: opening a pipe would wait for somebody who writes.
  EPS_ASSIGN_OR_RETURN(const FileDescriptor file, OpenFile(path, O_RDONLY | O_NONBLOCK));
  struct stat info = {};
  if (fstat(file.get(), &info) != 0) return FileError(errno, "look at", path);
  EPS_RETURN_IF_ERROR(CheckOwnerAlone(info, path));
  std::string content(static_cast<size_t>(info.st_size), '\0');
  size_t have = 0;
  while (have < content.size()) {
    const ssize_t got = read(file.get(), content.data() + have, content.size() - have);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FileError(errno, "read", path);
    if (got == 0) break;
    have += static_cast<size_t>(got);
  }
  content.resize(have);
  return content;
}

absl::Status WriteSecretFile(const std::string& path, absl::string_view content) {
  EPS_ASSIGN_OR_RETURN(FileDescriptor file, OpenFile(path, O_WRONLY | O_CREAT | O_EXCL));
  const absl::Status written = [&]() -> absl::Status {
    // Before a byte is in it.
    if (fchmod(file.get(), 0600) != 0) return FileError(errno, "set the mode of", path);
    EPS_RETURN_IF_ERROR(WriteAt(file, path, 0, content));
    if (fsync(file.get()) != 0) return FileError(errno, "sync", path);
    EPS_RETURN_IF_ERROR_WITH(file.Close(), path);
    return absl::OkStatus();
  }();
  if (!written.ok()) unlink(path.c_str());
  return written;
}

}  // namespace eps
