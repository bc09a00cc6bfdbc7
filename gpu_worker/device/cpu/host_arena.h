#ifndef EPS_GPU_WORKER_DEVICE_CPU_HOST_ARENA_H_
#define EPS_GPU_WORKER_DEVICE_CPU_HOST_ARENA_H_

#include <cstdint>

#include "absl/status/statusor.h"

namespace eps::worker::cpu {

inline constexpr int64_t kHugePageBytes = int64_t{2} << 20;

// An arena in the host's memory: one private mapping, its start at a multiple of a huge page, touched as it is used.
class HostArena {
 public:
  // Errors: RESOURCE_EXHAUSTED it cannot be mapped
  static absl::StatusOr<HostArena> Map(int64_t num_bytes);
  HostArena(HostArena&& other) noexcept;
  ~HostArena();

  char* start() const { return start_; }

 private:
  HostArena(void* mapping, int64_t mapped_bytes, char* start)
      : mapping_(mapping), mapped_bytes_(mapped_bytes), start_(start) {}

  void* mapping_;
  int64_t mapped_bytes_;
  char* start_;
};

}  // namespace eps::worker::cpu

#endif  // EPS_GPU_WORKER_DEVICE_CPU_HOST_ARENA_H_
