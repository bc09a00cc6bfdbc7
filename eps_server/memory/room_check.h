#ifndef EPS_SERVER_MEMORY_ROOM_CHECK_H_
#define EPS_SERVER_MEMORY_ROOM_CHECK_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/base/memory_room.h"
#include "eps_server/memory/daemon_memory.h"

namespace eps::server {

// The daemon cannot have the `needed_bytes` that it takes as a whole, and why. RESOURCE_EXHAUSTED
absl::Status DoesNotFit(int64_t needed_bytes, absl::string_view why);

// Whether the daemon may take its memory: what it surely writes to is held against what its control group allows, as the
// kernel kills who writes to more. What is free now is an estimate, and what a virtual machine has may grow as it is used:
// of these it is warned alone (memory_is_short).
// Errors: RESOURCE_EXHAUSTED
absl::Status CheckRoom(const DaemonMemory& memory, const MemoryRoom& room);

}  // namespace eps::server

#endif  // EPS_SERVER_MEMORY_ROOM_CHECK_H_
