#ifndef EPS_GPU_WORKER_GROUP_EMULATED_NCCL_H_
#define EPS_GPU_WORKER_GROUP_EMULATED_NCCL_H_

#include <memory>

#include "gpu_worker/group/nccl_api.h"

namespace eps::worker {

// NCCL among devices on the emulator in one process, for tests, each with one of these. As the library's: a communicator
// joins once all ranks have begun, transfers run in the stream and wait for the peer's, and nobody is told that a peer has
// aborted: what was to come of that one ends, with rubbish, as if it had come.
//
// A device's exchanges run one at a time, in the order in which they are issued, whatever their streams. Those that
// still wait for their turn when their communicator is aborted are dropped.
//
// Each is in progress until State was asked a few times, and until then another one is refused: INTERNAL.
//
// Ends the program by EPS_CHECK where NCCL's results would be undefined: lengths that do not meet.
std::unique_ptr<NcclApi> NewEmulatedNccl();

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_GROUP_EMULATED_NCCL_H_
