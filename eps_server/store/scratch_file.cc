#include "eps_server/store/scratch_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/byte_size.h"
#include "common/base/status_macros.h"

namespace eps::server {
namespace {

// Without a name from the start, or, where the file system makes no such files, without one a moment later.
absl::StatusOr<FileDescriptor> OpenUnnamed(const std::string& folder) {
  int fd;
  do {
    fd = open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  } while (fd < 0 && errno == EINTR);
  if (fd >= 0) return FileDescriptor(fd);
  if (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL) return FileError(errno, "make a file in", folder);
  EPS_ASSIGN_OR_RETURN(TemporaryFile named, CreateTemporaryFile(absl::StrCat(folder, "/eps-scratch")));
  EPS_RETURN_IF_ERROR(RemoveIfThere(named.path));
  return std::move(named.file);
}

absl::Status TakeRoom(const FileDescriptor& file, const std::string& folder, int64_t num_bytes) {
  int failed;
  do {
    failed = fallocate(file.get(), 0, 0, num_bytes);
  } while (failed != 0 && errno == EINTR);
  if (failed == 0) return absl::OkStatus();
  // Where the file system cannot promise room, writes find out.
  if (errno == EOPNOTSUPP && ftruncate(file.get(), num_bytes) == 0) return absl::OkStatus();
  const int error_number = errno;
  return FileError(error_number, absl::StrCat("take ", FormatByteSize(num_bytes), " in"), folder);
}

bool IsAligned(int64_t offset_bytes, const void* memory, size_t num_bytes) {
  constexpr auto kAlign = static_cast<uintptr_t>(ScratchFile::kAlignBytes);
  return static_cast<uintptr_t>(offset_bytes) % kAlign == 0 && reinterpret_cast<uintptr_t>(memory) % kAlign == 0 &&
         num_bytes % kAlign == 0;
}

}  // namespace

absl::StatusOr<ScratchFile> ScratchFile::Create(const std::string& folder, int64_t num_bytes) {
  EPS_CHECK(num_bytes > 0 && num_bytes % kAlignBytes == 0);
  EPS_ASSIGN_OR_RETURN(FileDescriptor file, OpenUnnamed(folder));
  EPS_RETURN_IF_ERROR(TakeRoom(file, folder, num_bytes));
  const int flags = fcntl(file.get(), F_GETFL);
  const bool is_direct = flags >= 0 && fcntl(file.get(), F_SETFL, flags | O_DIRECT) == 0;
  return ScratchFile(folder, std::move(file), is_direct);
}

bool ScratchFile::is_in_memory() const {
  struct statfs info {};
  return fstatfs(file_.get(), &info) == 0 && (info.f_type == TMPFS_MAGIC || info.f_type == RAMFS_MAGIC);
}

absl::Status ScratchFile::Read(int64_t offset_bytes, absl::Span<std::byte> to) const {
  EPS_CHECK(IsAligned(offset_bytes, to.data(), to.size()));
  while (!to.empty()) {
    const ssize_t n = pread(file_.get(), to.data(), to.size(), offset_bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return FileError(errno, absl::StrCat("read byte ", offset_bytes, " of a file in"), folder_);
    if (n == 0) return absl::DataLossError(absl::StrCat("a file in \"", folder_, "\" ends at byte ", offset_bytes));
    to.remove_prefix(static_cast<size_t>(n));
    offset_bytes += n;
  }
  return absl::OkStatus();
}

absl::Status ScratchFile::Write(int64_t offset_bytes, absl::Span<const std::byte> from) const {
  EPS_CHECK(IsAligned(offset_bytes, from.data(), from.size()));
  return Annotate(WriteAt(file_, folder_, offset_bytes, {reinterpret_cast<const char*>(from.data()), from.size()}),
                  absl::StrCat("byte ", offset_bytes, " of a file"));
}

}  // namespace eps::server
