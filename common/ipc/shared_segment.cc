#include "common/ipc/shared_segment.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/byte_size.h"
#include "common/base/status_macros.h"

namespace eps {
namespace {

absl::Status NoMemory(int64_t num_bytes, int error_number) {
  return absl::ResourceExhaustedError(absl::StrCat("shared memory of ", num_bytes, " bytes (",
                                                   FormatByteSize(num_bytes), "): ", strerror(error_number)));
}

absl::StatusOr<absl::Span<std::byte>> MapFile(const FileDescriptor& file, int64_t num_bytes, bool writable) {
  const int access = writable ? PROT_READ | PROT_WRITE : PROT_READ;
  void* base = mmap(nullptr, static_cast<size_t>(num_bytes), access, MAP_SHARED, file.get(), 0);
  if (base == MAP_FAILED) return NoMemory(num_bytes, errno);
  // Advice only: without huge pages everything works, a little slower.
  madvise(base, static_cast<size_t>(num_bytes), MADV_HUGEPAGE);
  return absl::MakeSpan(static_cast<std::byte*>(base), static_cast<size_t>(num_bytes));
}

}  // namespace

absl::StatusOr<SharedSegment> SharedSegment::Create(const std::string& name, int64_t num_bytes, SegmentWriter writer) {
  EPS_CHECK(num_bytes > 0);
  FileDescriptor file(memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file.is_open()) {
    if (errno == EMFILE || errno == ENFILE || errno == ENOMEM) return NoMemory(num_bytes, errno);
    return absl::UnimplementedError(absl::StrCat("memfd_create: ", strerror(errno)));
  }
  if (ftruncate(file.get(), num_bytes) != 0) return NoMemory(num_bytes, errno);
  const bool we_write = writer != SegmentWriter::kReceiver;
  EPS_ASSIGN_OR_RETURN(const absl::Span<std::byte> bytes, MapFile(file, num_bytes, we_write));
  SharedSegment segment(std::move(file), bytes);
  // Who opens it anew, by a descriptor of it, may only read it. Not F_SEAL_FUTURE_WRITE: nobody could pin it then.
  if (writer == SegmentWriter::kCreator && fchmod(segment.file_.get(), S_IRUSR) != 0) {
    return absl::UnimplementedError(absl::StrCat("fchmod of shared memory: ", strerror(errno)));
  }
  if (fcntl(segment.file_.get(), F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) != 0) {
    return absl::UnimplementedError(absl::StrCat("memfd seals: ", strerror(errno)));
  }
  return segment;
}

absl::StatusOr<SharedSegment> SharedSegment::Map(FileDescriptor file, int64_t num_bytes, SegmentWriter writer) {
  struct stat status = {};
  if (fstat(file.get(), &status) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("shared memory: fstat: ", strerror(errno)));
  }
  if (num_bytes < 1 || status.st_size != num_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("shared memory: ", status.st_size, " bytes, want ", num_bytes));
  }
  const int seals = fcntl(file.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return absl::InvalidArgumentError("shared memory: not sealed against shrinking");
  }
  EPS_ASSIGN_OR_RETURN(const absl::Span<std::byte> bytes, MapFile(file, num_bytes, writer != SegmentWriter::kCreator));
  return SharedSegment(std::move(file), bytes);
}

absl::StatusOr<FileDescriptor> SharedSegment::ReadOnlyFile() const {
  FileDescriptor file(open(absl::StrCat("/proc/self/fd/", file_.get()).c_str(), O_RDONLY | O_CLOEXEC));
  if (file.is_open()) return file;
  const std::string message = absl::StrCat("shared memory, opened for reading: ", strerror(errno));
  if (errno == EMFILE || errno == ENFILE) return absl::ResourceExhaustedError(message);
  return absl::UnimplementedError(message);
}

absl::Status SharedSegment::Read(int64_t offset_bytes, absl::Span<std::byte> to) const {
  EPS_CHECK(offset_bytes >= 0 && offset_bytes + static_cast<int64_t>(to.size()) <= static_cast<int64_t>(bytes_.size()));
  while (!to.empty()) {
    const ssize_t got = pread(file_.get(), to.data(), to.size(), offset_bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      return absl::InternalError(
          absl::StrCat("shared memory, read at ", offset_bytes, ": ", got < 0 ? strerror(errno) : "it ends there"));
    }
    to.remove_prefix(static_cast<size_t>(got));
    offset_bytes += got;
  }
  return absl::OkStatus();
}

SharedSegment::SharedSegment(SharedSegment&& other) noexcept
    : file_(std::move(other.file_)), bytes_(std::exchange(other.bytes_, {})) {}

SharedSegment::~SharedSegment() {
  if (!bytes_.empty()) munmap(bytes_.data(), bytes_.size());
}

}  // namespace eps
