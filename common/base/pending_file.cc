#include "common/base/pending_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace eps {
namespace {

constexpr size_t kCopyBytes = 1 << 20;

}  // namespace

absl::StatusOr<std::unique_ptr<PendingFile>> PendingFile::Create(const std::string& path) {
  const std::string folder = DirName(path);
  int fd;
  do {
    fd = open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0644);
  } while (fd < 0 && errno == EINTR);
  if (fd >= 0) return std::unique_ptr<PendingFile>(new PendingFile(path, FileDescriptor(fd), ""));
  // Old systems say EISDIR or ENOENT; what is wrong with the folder itself shows again.
  EPS_ASSIGN_OR_RETURN(TemporaryFile temporary, CreateTemporaryFile(path));
  return std::unique_ptr<PendingFile>(new PendingFile(path, std::move(temporary.file), std::move(temporary.path)));
}

PendingFile::~PendingFile() {
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

absl::Status PendingFile::Append(absl::string_view bytes) { return WriteAt(num_bytes_, bytes); }

absl::Status PendingFile::WriteAt(int64_t offset_bytes, absl::string_view bytes) {
  EPS_RETURN_IF_ERROR(eps::WriteAt(file_, path_, offset_bytes, bytes));
  num_bytes_ = std::max(num_bytes_, offset_bytes + static_cast<int64_t>(bytes.size()));
  return absl::OkStatus();
}

absl::Status PendingFile::AppendAllOf(const PendingFile& other) {
  std::vector<char> buffer(std::min<size_t>(kCopyBytes, static_cast<size_t>(other.num_bytes_)));
  for (int64_t offset = 0; offset < other.num_bytes_;) {
    const ssize_t n = pread(other.file_.get(), buffer.data(), buffer.size(), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return FileError(errno, "read", path_);
    if (n == 0) return absl::InternalError(absl::StrCat("\"", path_, "\": a part of it ends at byte ", offset));
    EPS_RETURN_IF_ERROR(Append(absl::string_view(buffer.data(), static_cast<size_t>(n))));
    offset += n;
  }
  return absl::OkStatus();
}

absl::Status PendingFile::Sync() {
  if (fsync(file_.get()) != 0) return FileError(errno, "sync", path_);
  return absl::OkStatus();
}

absl::Status PendingFile::Publish() {
  EPS_RETURN_IF_ERROR(Sync());
  if (temporary_.empty()) {
    const std::string self = absl::StrCat("/proc/self/fd/", file_.get());
    const auto link_as = [&self](const std::string& name) {
      return linkat(AT_FDCWD, self.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) == 0;
    };
    if (link_as(path_)) return Published();
    if (errno != EEXIST) return FileError(errno, "create", path_);
    // Only a free name can be given. What has taken it is replaced by way of a second one, which was nobody's a moment
    // ago.
    EPS_ASSIGN_OR_RETURN(const TemporaryFile placeholder, CreateTemporaryFile(path_));
    unlink(placeholder.path.c_str());
    if (!link_as(placeholder.path)) return FileError(errno, "create", path_);
    temporary_ = placeholder.path;
  }
  if (rename(temporary_.c_str(), path_.c_str()) != 0) return FileError(errno, "replace", path_);
  temporary_.clear();
  return Published();
}

absl::Status PendingFile::Published() {
  EPS_RETURN_IF_ERROR_WITH(file_.Close(), path_);
  return SyncDirectory(DirName(path_));
}

}  // namespace eps
