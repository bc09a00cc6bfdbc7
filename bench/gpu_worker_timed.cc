// gpu_worker_timed: a gpu_worker that writes where its device's time went to the file that EPS_KERNEL_TIMES names
// (timed_device.h); bench/relay_bench.py puts it in gpu_worker's place.

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "bench/timed_device.h"
#include "common/base/exit_code.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/worker_main.h"

int main(int argc, char** argv) {
  const char* path = std::getenv("EPS_KERNEL_TIMES");
  if (path == nullptr) {
    std::fprintf(stderr, "gpu_worker: EPS_KERNEL_TIMES is not set\n");
    return eps::kExitBadInput;
  }
  return eps::worker::WorkerMain(
      argc, argv,
      {.alter_schedule = nullptr,
       .wrap_device = [path = std::string(path)](std::unique_ptr<eps::worker::Device> device) {
         return eps::worker::NewTimedDevice(std::move(device), path);
       }});
}
