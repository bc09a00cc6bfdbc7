#ifndef EPS_COMMON_BASE_PENDING_FILE_H_
#define EPS_COMMON_BASE_PENDING_FILE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/file_util.h"

namespace eps {

// A file in the making, which others see whole or not at all. It has no name until it is published, so that even a
// process that is killed leaves nothing behind; on a file system that has no nameless files it lies beside its place,
// under a name that ends in .tmp.PID.N, and only a kill leaves it there.
//
// For what is too long for WriteFileAtomically. Threads: one at a time.
class PendingFile {
 public:
  // In the folder of `path`, which nothing is done to before Publish. Errors: FileError's
  static absl::StatusOr<std::unique_ptr<PendingFile>> Create(const std::string& path);
  // What was not published is gone.
  ~PendingFile();
  PendingFile(const PendingFile&) = delete;
  PendingFile& operator=(const PendingFile&) = delete;

  const std::string& path() const { return path_; }
  int64_t num_bytes() const { return num_bytes_; }  // the end of what was written

  // Errors: FileError's
  absl::Status Append(absl::string_view bytes);
  absl::Status WriteAt(int64_t offset_bytes, absl::string_view bytes);
  // Appends all of `other`. Errors: FileError's
  absl::Status AppendAllOf(const PendingFile& other);
  // After OK the bytes are on the disk. Publish does it too: this is for who publishes several files, and wants what may
  // fail behind it before the first of them is seen. Errors: FileError's
  absl::Status Sync();
  // After OK, `path` is this file, even after a power failure; what was there before is replaced. Once.
  // Errors: FileError's; then `path` is as it was, unless what failed is to make the new name last: it may be this file
  // already, whole, and be lost in a power failure
  absl::Status Publish();

 private:
  PendingFile(std::string path, FileDescriptor file, std::string temporary)
      : path_(std::move(path)), file_(std::move(file)), temporary_(std::move(temporary)) {}
  absl::Status Published();  // what is left to do when it has its name

  const std::string path_;
  FileDescriptor file_;
  std::string temporary_;  // the name it has meanwhile; "": none
  int64_t num_bytes_ = 0;
};

}  // namespace eps

#endif  // EPS_COMMON_BASE_PENDING_FILE_H_
