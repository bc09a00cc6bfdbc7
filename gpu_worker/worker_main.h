#ifndef EPS_GPU_WORKER_WORKER_MAIN_H_
#define EPS_GPU_WORKER_WORKER_MAIN_H_

#include "gpu_worker/worker_options.h"

namespace eps::worker {

// The whole program: flags -> WorkerOptions -> RunWorker. Returns the exit code.
// hooks: WorkerOptions's; not empty in a test's or a benchmark's program alone.
int WorkerMain(int argc, char** argv, WorkerHooks hooks = {});

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_WORKER_MAIN_H_
