#ifndef EPS_COMMON_BASE_FILE_UTIL_H_
#define EPS_COMMON_BASE_FILE_UTIL_H_

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace eps {

// Owns an open file descriptor.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  ~FileDescriptor();

  bool is_open() const { return fd_ >= 0; }
  int get() const { return fd_; }
  // Hands the descriptor over to the caller.
  int Release() { return std::exchange(fd_, -1); }
  // Errors: the system's, without a name: the caller knows what it closed.
  absl::Status Close();

 private:
  int fd_ = -1;
};

// "cannot open "x.txt": No such file or directory", with the code that fits `error_number`:
// NOT_FOUND, ALREADY_EXISTS, PERMISSION_DENIED (a read-only disk too: whatever keeps a place from being written, another
// one has to be named), ...; UNAVAILABLE for a disk that is full or broken, and for too many open files or too little
// memory: never RESOURCE_EXHAUSTED, by which a program says that a run does not fit (exit_code.h). `action` is a verb.
absl::Status FileError(int error_number, absl::string_view action, const std::string& path);

// `flags` as for open(2); O_CLOEXEC is added, a new file gets mode 0644 less the umask. Errors: FileError's.
absl::StatusOr<FileDescriptor> OpenFile(const std::string& path, int flags);

// A new file beside `path`, in which something is written before it takes that name: PATH.tmp.PID.N, N the first that
// is free. What a killed process left under such a name stays.
struct TemporaryFile {
  FileDescriptor file;  // to be read and written
  std::string path;
};
// Errors: FileError's, naming `path`
absl::StatusOr<TemporaryFile> CreateTemporaryFile(const std::string& path);

// The whole file. Errors: FileError's · INVALID_ARGUMENT longer than `max_bytes`, or no file but a pipe or the like,
// whose reader might wait for ever
absl::StatusOr<std::string> ReadFile(const std::string& path, int64_t max_bytes = int64_t{1} << 30);

// After OK there is no file `path`, if there was one. Errors: FileError's.
absl::Status RemoveIfThere(const std::string& path);

// Writes all of `bytes` at `offset_bytes`, whatever the system takes at once. Errors: FileError's.
absl::Status WriteAt(const FileDescriptor& file, const std::string& path, int64_t offset_bytes,
                     absl::string_view bytes);

// A folder, a device or a pipe is not replaced by a file. Errors: INVALID_ARGUMENT it is one
absl::Status CheckReplaceable(const std::string& path);

// After OK, `path` holds `content` even after a power failure; at no moment does it hold a part of
// it: written beside, synced, renamed, the folder synced. Errors: CheckReplaceable's, FileError's; then
// `path` is as it was, or, where the folder alone could not be synced, holds `content` until a power failure; nothing
// else is left behind.
absl::Status WriteFileAtomically(const std::string& path, absl::string_view content);

// Makes renames and new files in folder `path` last.
absl::Status SyncDirectory(const std::string& path);

// Makes the folder and its parents; one that is there is fine. Errors: FileError's, naming the part
// that failed.
absl::Status MakeDirs(const std::string& path);

// Takes the folder for this process alone, as long as the result lives; the system lets go when the process dies. Tries
// for 20 ms, as who only asks whether it is taken has it for an instant.
// Errors: FAILED_PRECONDITION another process has it · FileError's
absl::StatusOr<FileDescriptor> LockDirectory(const std::string& path);

// Where temporary files go: $TMPDIR, else /tmp. Errors: NOT_FOUND naming it when it is no folder
absl::StatusOr<std::string> TemporaryFolder();

// "a/b/c" -> "a/b", "c" -> ".", "/c" -> "/".
std::string DirName(const std::string& path);

}  // namespace eps

#endif  // EPS_COMMON_BASE_FILE_UTIL_H_
