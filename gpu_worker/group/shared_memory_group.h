#ifndef EPS_GPU_WORKER_GROUP_SHARED_MEMORY_GROUP_H_
#define EPS_GPU_WORKER_GROUP_SHARED_MEMORY_GROUP_H_

#include <memory>

#include "gpu_worker/group/group.h"

namespace eps::worker {

// Groups of workers whose devices' memory the host can address (the cpu device), over shared memory: a ring for each
// lane and each ordered pair of members, 128 KiB each. Rank 0 has the memory and listens on a Unix socket of its user;
// the token is the socket's path. Each member keeps its connection to rank 0, whose end is that member's end.
//
// Memory: one segment of 2 lanes * n^2 rings, 16 MiB for 8 members, which rank 0 makes and all map; a member has no ring to
//         itself to fill, so that 2 * n * (n - 1) of them are ever touched, 14 MiB
// Cost:   two copies a byte
std::unique_ptr<GroupMaker> NewSharedMemoryGroupMaker();

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_GROUP_SHARED_MEMORY_GROUP_H_
