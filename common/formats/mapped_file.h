#ifndef EPS_COMMON_FORMATS_MAPPED_FILE_H_
#define EPS_COMMON_FORMATS_MAPPED_FILE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/file_util.h"

namespace eps {

// A whole file, memory-mapped for reading. Safe to read from several threads. Who shortens a file
// while it is mapped ends this process with SIGBUS: files are replaced by renaming.
class MappedFile {
 public:
  // Errors: NOT_FOUND, PERMISSION_DENIED, ... as the system says · INVALID_ARGUMENT a folder, a
  // pipe, an empty file
  static absl::StatusOr<std::unique_ptr<MappedFile>> Open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  absl::Span<const std::byte> bytes() const { return bytes_; }
  // Copies bytes out without mapping their pages: who reads a large file once takes none of its memory so.
  // Errors: the system's · INVALID_ARGUMENT the file has become shorter
  absl::Status ReadAt(int64_t offset_bytes, absl::Span<std::byte> bytes) const;
  // Takes these pages out of the process's resident memory; reading them again brings them back.
  void Release(int64_t offset_bytes, int64_t num_bytes) const;

 private:
  MappedFile(std::string path, FileDescriptor file, absl::Span<const std::byte> bytes)
      : path_(std::move(path)), file_(std::move(file)), bytes_(bytes) {}

  // Fixed after construction.
  std::string path_;
  FileDescriptor file_;
  absl::Span<const std::byte> bytes_;
};

}  // namespace eps

#endif  // EPS_COMMON_FORMATS_MAPPED_FILE_H_
