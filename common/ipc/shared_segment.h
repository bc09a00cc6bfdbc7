#ifndef EPS_COMMON_IPC_SHARED_SEGMENT_H_
#define EPS_COMMON_IPC_SHARED_SEGMENT_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/file_util.h"

namespace eps {

// Which side writes; one that does not maps read-only. kBoth is for peers that trust each other.
//
// kCreator keeps mistakes out, not enemies: others of the same user are given ReadOnlyFile(), and may be given file() for a
// reason, as a GPU's runtime pins only what its process has mapped writable.
enum class SegmentWriter { kCreator, kReceiver, kBoth };

// Memory that two processes share: a memfd of an exact size, sealed against growing, shrinking and further seals, so
// that no peer can make an access fault.
//
// It has no name in any file system and lives until the last process lets go of it: a reader whose peer has died still
// reads valid memory. Huge pages where the system allows them for shared memory
// (/sys/kernel/mm/transparent_hugepage/shmem_enabled).
class SharedSegment {
 public:
  // Zeroed; pages are taken when they are first touched. `name` is for /proc/PID/maps; num_bytes at least 1.
  // Errors: RESOURCE_EXHAUSTED, with what was needed · UNIMPLEMENTED the system has no memfd
  static absl::StatusOr<SharedSegment> Create(const std::string& name, int64_t num_bytes, SegmentWriter writer);

  // Maps what a peer has sent. Errors: INVALID_ARGUMENT another size, or not sealed against shrinking ·
  // RESOURCE_EXHAUSTED it cannot be mapped
  static absl::StatusOr<SharedSegment> Map(FileDescriptor file, int64_t num_bytes, SegmentWriter writer);

  SharedSegment(SharedSegment&& other) noexcept;
  SharedSegment& operator=(SharedSegment&&) = delete;
  ~SharedSegment();

  // Read-only on the side that does not write: a store there faults.
  absl::Span<std::byte> bytes() const { return bytes_; }
  const FileDescriptor& file() const { return file_; }
  // A descriptor of a segment of kCreator with which nothing can be written, and which gives no other that can, but to root.
  // Errors: UNIMPLEMENTED there is no /proc · RESOURCE_EXHAUSTED too many open files
  absl::StatusOr<FileDescriptor> ReadOnlyFile() const;

  // Copies what lies there. Unlike bytes(), it maps no page: what is read so is not counted as this process's resident
  // memory, and costs no page faults. `to` lies within the segment.
  //
  // Errors: INTERNAL the system's reason
  // Cost:   of a segment in small pages 1.15 to 1.2 times as fast as a copy from bytes() whose pages are let go of behind
  //         it, in pieces of whatever size (one thread and two, 2 cores of a virtual machine, 2026-11-24)
  absl::Status Read(int64_t offset_bytes, absl::Span<std::byte> to) const;

 private:
  SharedSegment(FileDescriptor file, absl::Span<std::byte> bytes) : file_(std::move(file)), bytes_(bytes) {}

  FileDescriptor file_;
  absl::Span<std::byte> bytes_;
};

}  // namespace eps

#endif  // EPS_COMMON_IPC_SHARED_SEGMENT_H_
