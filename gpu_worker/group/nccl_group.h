#ifndef EPS_GPU_WORKER_GROUP_NCCL_GROUP_H_
#define EPS_GPU_WORKER_GROUP_NCCL_GROUP_H_

#include <memory>

#include "gpu_worker/group/group.h"
#include "gpu_worker/group/nccl_api.h"

namespace eps::worker {

// Groups over NCCL, of workers on one host: one communicator for both lanes. NCCL wants one order of exchanges on all
// ranks, and on a GPU each of them waits for its peers: so the threads of the two streams issue them in turns, in the order
// in which they were enqueued. NCCL lets each begin when the one before has ended, also in another stream.
//
// The members also hold a link (MemberLink): NCCL does not see that a process on the same host is gone. When it ends, the
// communicators are aborted, and kernels that wait for the lost member end. A kernel that was aborted lets those of its
// peers end too, as if they had got their bytes: so a page that the members share is marked before, and status looks
// there.
//
// A stream that fails drops its exchanges. The group ends then, within some tenths of a second, where nobody ends it
// before with the cause.
//
// The token: the communicator's id, a byte with its length before it, then the link's.
std::unique_ptr<GroupMaker> NewNcclGroupMaker(std::shared_ptr<NcclApi> api);

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_GROUP_NCCL_GROUP_H_
