#ifndef EPS_GPU_WORKER_WORKER_MAIN_H_
#define EPS_GPU_WORKER_WORKER_MAIN_H_

#include "gpu_worker/plan/schedule.h"

namespace eps::worker {

// The whole program: flags -> WorkerOptions -> RunWorker. Returns the exit code.
// alter: WorkerOptions's; not empty in a test's program alone.
int WorkerMain(int argc, char** argv, AlterSchedule alter = nullptr);

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_WORKER_MAIN_H_
