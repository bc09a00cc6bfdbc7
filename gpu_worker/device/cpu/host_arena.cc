#include "gpu_worker/device/cpu/host_arena.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace eps::worker::cpu {

absl::StatusOr<HostArena> HostArena::Map(int64_t num_bytes) {
  const int64_t mapped_bytes = num_bytes + kHugePageBytes;
  void* mapping =
      mmap(nullptr, static_cast<size_t>(mapped_bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot map ", num_bytes, " bytes of memory: ", std::strerror(errno)));
  }
  const uintptr_t address = reinterpret_cast<uintptr_t>(mapping);
  const uintptr_t start = (address + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  // Advice: without huge pages it is only slower.
  madvise(reinterpret_cast<void*>(start), static_cast<size_t>(num_bytes), MADV_HUGEPAGE);
  return HostArena(mapping, mapped_bytes, reinterpret_cast<char*>(start));
}

HostArena::HostArena(HostArena&& other) noexcept
    : mapping_(std::exchange(other.mapping_, nullptr)), mapped_bytes_(other.mapped_bytes_), start_(other.start_) {}

HostArena::~HostArena() {
  if (mapping_ != nullptr) munmap(mapping_, static_cast<size_t>(mapped_bytes_));
}

}  // namespace eps::worker::cpu
