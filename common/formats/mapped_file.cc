#include "common/formats/mapped_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

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
  if (!S_ISREG(info.st_mode))
    return absl::InvalidArgumentError(absl::StrCat("\"", path, "\" is not a regular file"));
  if (info.st_size == 0) return absl::InvalidArgumentError(absl::StrCat("\"", path, "\" is empty"));
  const auto num_bytes = static_cast<size_t>(info.st_size);
  void* start = mmap(nullptr, num_bytes, PROT_READ, MAP_SHARED, file->get(), 0);
  if (start == MAP_FAILED) return FileError(errno, "map", path);
  return std::unique_ptr<MappedFile>(
      new MappedFile(path, {static_cast<const std::byte*>(start), num_bytes}));
}

MappedFile::~MappedFile() { munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size()); }

}  // namespace eps
