#ifndef EPS_SERVER_MEMORY_OFFLOAD_SPEED_H_
#define EPS_SERVER_MEMORY_OFFLOAD_SPEED_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace eps::server {

// What a disk reads and writes a second, in all, while both go on as they do where the optimizer's state lies on it: pages
// of 2.5 MiB, four at once, each read and written again. Takes two seconds or so, and at most most_bytes of the disk, or
// 1 GiB where that is less.
// Errors: ScratchFile's · FAILED_PRECONDITION its files are read through the page cache, whose speed that would be ·
//         UNAVAILABLE nothing was written in a second
absl::StatusOr<double> MeasureOffloadBytesPerSecond(const std::string& folder, int64_t most_bytes);

}  // namespace eps::server

#endif  // EPS_SERVER_MEMORY_OFFLOAD_SPEED_H_
