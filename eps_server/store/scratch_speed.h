#ifndef EPS_SERVER_STORE_SCRATCH_SPEED_H_
#define EPS_SERVER_STORE_SCRATCH_SPEED_H_

#include <string>

#include "absl/status/statusor.h"

namespace eps::server {

// What a disk reads and writes a second, in all, while both go on as they do where the optimizer's state lies on it: pages
// of 2.5 MiB, four at once, each read and written again. Takes two seconds or so, and up to 1 GiB of the disk.
// Errors: ScratchFile's
absl::StatusOr<double> MeasureScratchBytesPerSecond(const std::string& folder);

}  // namespace eps::server

#endif  // EPS_SERVER_STORE_SCRATCH_SPEED_H_
