#ifndef EPS_SERVER_STORE_SCRATCH_FILE_H_
#define EPS_SERVER_STORE_SCRATCH_FILE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/file_util.h"

namespace eps::server {

// Room on a disk for one process: a file without a name, which is gone with the process, however that ends. (Where the file
// system makes no such files, as NFS, it has one for a moment, and what removes it later is the file system's.)
//
// Where the file system can, reads and writes go past the page cache (O_DIRECT): what is read once a step would push out of
// it whatever else the machine keeps there, and a kernel that runs short of clean pages would stop whoever writes, at a
// moment of its own choosing.
//
// Threads: all methods are safe
class ScratchFile {
 public:
  static constexpr int64_t kAlignBytes = 4096;  // of offsets, lengths and memory: what O_DIRECT asks for anywhere

  // Takes the room at once, so that a disk that is too small says so at the start. Makes no folder.
  // Errors: FileError's, naming the folder · UNAVAILABLE the disk has no room, with what is wanted
  static absl::StatusOr<ScratchFile> Create(const std::string& folder, int64_t num_bytes);

  // Errors: FileError's, naming the folder and the offset · DATA_LOSS the file is shorter than it was made
  absl::Status Read(int64_t offset_bytes, absl::Span<std::byte> to) const;
  absl::Status Write(int64_t offset_bytes, absl::Span<const std::byte> from) const;

  bool is_direct() const { return is_direct_; }
  // The folder's file system is memory, and no disk.
  bool is_in_memory() const;

 private:
  ScratchFile(std::string folder, FileDescriptor file, bool is_direct)
      : folder_(std::move(folder)), file_(std::move(file)), is_direct_(is_direct) {}

  std::string folder_;
  FileDescriptor file_;
  bool is_direct_;
};

}  // namespace eps::server

#endif  // EPS_SERVER_STORE_SCRATCH_FILE_H_
