#ifndef EPS_GPU_WORKER_GROUP_NCCL_GROUP_H_
#define EPS_GPU_WORKER_GROUP_NCCL_GROUP_H_

#include <memory>

#include "gpu_worker/group/group.h"
#include "gpu_worker/group/nccl_api.h"

namespace eps::worker {

// Groups over NCCL, of workers on one host: a communicator for each lane, as their exchanges are issued from two threads in
// orders of their own. The members also hold a link (MemberLink): NCCL does not see that a process on the same host is
// gone. When it ends, the communicators are aborted, and kernels that wait for the lost member end.
//
// The token: both communicators' ids, then the link's.
std::unique_ptr<GroupMaker> NewNcclGroupMaker(std::shared_ptr<NcclApi> api);

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_GROUP_NCCL_GROUP_H_
