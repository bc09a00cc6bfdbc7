#include "common/formats/mapped_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/file_util.h"

namespace eps {

absl::StatusOr<std::unique_ptr<MappedFile>> MappedFile::Open(const std::string& path) {
  // O_NONBLOCK: opening a pipe must not wait for its writer.
  absl::StatusOr<FileDescriptor> file = OpenFile(path, O_RDONLY | O_NONBLOCK);
  if (!file.ok()) return file.status();
  struct stat info;
  if (fstat(file->get(), &info) != 0) return FileError(errno, "stat", path);
  if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError(absl::StrCat("\"", path, "\" is not a regular file"));
  if (info.st_size == 0) return absl::InvalidArgumentError(absl::StrCat("\"", path, "\" is empty"));
  const auto num_bytes = static_cast<size_t>(info.st_size);
  void* start = mmap(nullptr, num_bytes, PROT_READ, MAP_SHARED, file->get(), 0);
  if (start == MAP_FAILED) return FileError(errno, "map", path);
  return std::unique_ptr<MappedFile>(
      new MappedFile(path, *std::move(file), {static_cast<const std::byte*>(start), num_bytes}));
}

absl::Status MappedFile::ReadAt(int64_t offset_bytes, absl::Span<std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t read = pread(file_.get(), bytes.data(), bytes.size(), offset_bytes);
    if (read < 0 && errno == EINTR) continue;
    if (read < 0) return FileError(errno, "read", path_);
    if (read == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", path_, "\" has become shorter: it ends at byte ", offset_bytes, " of ", bytes_.size()));
    }
    offset_bytes += read;
    bytes.remove_prefix(static_cast<size_t>(read));
  }
  return absl::OkStatus();
}

void MappedFile::Release(int64_t offset_bytes, int64_t num_bytes) const {
  const int64_t page_bytes = sysconf(_SC_PAGESIZE);
  const int64_t begin = offset_bytes / page_bytes * page_bytes;
  // Advice only. Of a shared mapping of a file it discards nothing but the pages' presence here.
  madvise(const_cast<std::byte*>(bytes_.data()) + begin, static_cast<size_t>(offset_bytes + num_bytes - begin),
          MADV_DONTNEED);
}

MappedFile::~MappedFile() { munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size()); }

}  // namespace eps
