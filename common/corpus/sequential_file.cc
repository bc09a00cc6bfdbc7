#include "common/corpus/sequential_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace eps {

absl::StatusOr<std::unique_ptr<SequentialFile>> SequentialFile::Open(const std::string& path) {
  // O_NONBLOCK: a pipe without a writer would block the open.
  EPS_ASSIGN_OR_RETURN(FileDescriptor file, OpenFile(path, O_RDONLY | O_NONBLOCK));
  struct stat info;
  if (fstat(file.get(), &info) != 0) return FileError(errno, "stat", path);
  if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError(absl::StrCat("\"", path, "\" is not a regular file"));
  return std::unique_ptr<SequentialFile>(new SequentialFile(path, std::move(file), info.st_size));
}

absl::StatusOr<size_t> SequentialFile::Read(char* bytes, size_t max_bytes) {
  ssize_t n;
  do {
    n = read(file_.get(), bytes, max_bytes);
  } while (n < 0 && errno == EINTR);
  if (n < 0) return FileError(errno, "read", path_);
  return static_cast<size_t>(n);
}

}  // namespace eps
