#include "common/base/file_util.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace eps {
namespace {

bool IsDirectory(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

absl::Status WriteAndClose(FileDescriptor& file, const std::string& path, absl::string_view content) {
  EPS_RETURN_IF_ERROR(WriteAt(file, path, 0, content));
  if (fsync(file.get()) != 0) return FileError(errno, "sync", path);
  return Annotate(file.Close(), absl::StrCat("cannot close \"", path, "\""));
}

// The descriptor, or -1 with errno.
int OpenUninterrupted(const std::string& path, int flags) {
  int fd;
  do {
    fd = open(path.c_str(), flags | O_CLOEXEC, 0644);
  } while (fd < 0 && errno == EINTR);
  return fd;
}

// What is full, broken or used up here and now, and works again once somebody has made room. Abseil calls some of it
// RESOURCE_EXHAUSTED, which our programs keep for what does not fit, or bad input.
bool IsStateOfTheSystem(int error_number) {
  switch (error_number) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
    case ENOBUFS:
      return true;
    default:
      return false;
  }
}

absl::Status SystemError(int error_number, absl::string_view what) {
  const absl::Status status = absl::ErrnoToStatus(error_number, what);
  return IsStateOfTheSystem(error_number) ? absl::UnavailableError(status.message()) : status;
}

}  // namespace

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  if (this != &other) {
    if (is_open()) close(fd_);
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

FileDescriptor::~FileDescriptor() {
  if (is_open()) close(fd_);
}

absl::Status FileDescriptor::Close() {
  const int fd = std::exchange(fd_, -1);
  // After EINTR the descriptor is gone on Linux: closing again could close somebody else's.
  if (fd >= 0 && close(fd) != 0 && errno != EINTR) return SystemError(errno, "close");
  return absl::OkStatus();
}

absl::Status FileError(int error_number, absl::string_view action, const std::string& path) {
  return SystemError(error_number, absl::StrCat("cannot ", action, " \"", path, "\""));
}

absl::StatusOr<FileDescriptor> OpenFile(const std::string& path, int flags) {
  const int fd = OpenUninterrupted(path, flags);
  if (fd < 0) return FileError(errno, (flags & O_CREAT) != 0 ? "create" : "open", path);
  return FileDescriptor(fd);
}

absl::StatusOr<TemporaryFile> CreateTemporaryFile(const std::string& path) {
  static std::atomic<int64_t> counter{0};  // of this process: its threads may write the same file at once
  while (true) {
    std::string name = absl::StrCat(path, ".tmp.", getpid(), ".", counter.fetch_add(1));
    const int fd = OpenUninterrupted(name, O_RDWR | O_CREAT | O_EXCL);
    if (fd >= 0) return TemporaryFile{.file = FileDescriptor(fd), .path = std::move(name)};
    if (errno != EEXIST) return FileError(errno, "create", path);  // else it is of a process that had this number
  }
}

absl::StatusOr<std::string> ReadFile(const std::string& path, int64_t max_bytes) {
  struct stat info;
  if (stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat("\"", path, "\" is no regular file"));
  }
  EPS_ASSIGN_OR_RETURN(const FileDescriptor file, OpenFile(path, O_RDONLY));
  std::string content;
  char buffer[65536];
  for (;;) {
    const ssize_t n = read(file.get(), buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return FileError(errno, "read", path);
    if (n == 0) return content;
    content.append(buffer, static_cast<size_t>(n));
    if (static_cast<int64_t>(content.size()) > max_bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", path, "\" is longer than ", max_bytes, " bytes, the most that is read of it"));
    }
  }
}

absl::Status RemoveIfThere(const std::string& path) {
  if (unlink(path.c_str()) == 0 || errno == ENOENT) return absl::OkStatus();
  return FileError(errno, "remove", path);
}

absl::Status WriteAt(const FileDescriptor& file, const std::string& path, int64_t offset_bytes,
                     absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = pwrite(file.get(), bytes.data(), bytes.size(), offset_bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return FileError(errno, "write", path);
    if (n == 0) return FileError(ENOSPC, "write", path);
    bytes.remove_prefix(static_cast<size_t>(n));
    offset_bytes += n;
  }
  return absl::OkStatus();
}

absl::Status CheckReplaceable(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0 || S_ISREG(info.st_mode)) return absl::OkStatus();
  if (S_ISDIR(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat("cannot replace \"", path, "\": it is a folder"));
  }
  return absl::InvalidArgumentError(absl::StrCat("\"", path, "\" is no regular file and is not replaced by one"));
}

absl::Status WriteFileAtomically(const std::string& path, absl::string_view content) {
  EPS_RETURN_IF_ERROR(CheckReplaceable(path));
  EPS_ASSIGN_OR_RETURN(TemporaryFile temporary, CreateTemporaryFile(path));
  absl::Status status = WriteAndClose(temporary.file, path, content);
  if (status.ok() && rename(temporary.path.c_str(), path.c_str()) != 0) status = FileError(errno, "replace", path);
  if (!status.ok()) {
    unlink(temporary.path.c_str());
    return status;
  }
  return SyncDirectory(DirName(path));
}

absl::Status SyncDirectory(const std::string& path) {
  EPS_ASSIGN_OR_RETURN(const FileDescriptor directory, OpenFile(path, O_RDONLY | O_DIRECTORY));
  if (fsync(directory.get()) != 0) return FileError(errno, "sync", path);
  return absl::OkStatus();
}

absl::Status MakeDirs(const std::string& path) {
  for (size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    const std::string part = path.substr(0, end);
    if (mkdir(part.c_str(), 0755) != 0) {
      const int error_number = errno;
      // A file in its place is an error; a folder that another process made meanwhile is none. The
      // system may say EROFS or EACCES of a folder that is there.
      if (!IsDirectory(part)) return FileError(error_number, "make folder", part);
    }
    if (end == std::string::npos) return absl::OkStatus();
  }
}

absl::StatusOr<FileDescriptor> LockDirectory(const std::string& path) {
  EPS_ASSIGN_OR_RETURN(FileDescriptor folder, OpenFile(path, O_RDONLY | O_DIRECTORY));
  // Who only asks whether a folder is taken has it for an instant, and must not be taken for its owner.
  constexpr int kTries = 5;
  constexpr useconds_t kPauseMicroseconds = 5000;
  for (int tries = 1;; ++tries) {
    if (flock(folder.get(), LOCK_EX | LOCK_NB) == 0) return folder;
    if (errno != EWOULDBLOCK || tries == kTries) break;
    usleep(kPauseMicroseconds);
  }
  if (errno == EWOULDBLOCK) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is in use by another process"));
  }
  return FileError(errno, "lock", path);
}

absl::StatusOr<std::string> TemporaryFolder() {
  const char* chosen = getenv("TMPDIR");
  const std::string path = chosen != nullptr && *chosen != '\0' ? chosen : "/tmp";
  if (IsDirectory(path)) return path;
  return absl::NotFoundError(absl::StrCat("\"", path, "\", where temporary files go, is no folder; set TMPDIR"));
}

std::string DirName(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace eps
