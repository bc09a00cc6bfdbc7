// gpu_worker_with_faults: a gpu_worker that relays wrongly, as EPS_INJECT_FAULT says (relay_faults.h); without it as always.

#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "common/base/exit_code.h"
#include "gpu_worker/faults/relay_faults.h"
#include "gpu_worker/worker_main.h"

int main(int argc, char** argv) {
  const char* text = std::getenv("EPS_INJECT_FAULT");
  if (text == nullptr) return eps::worker::WorkerMain(argc, argv);
  auto fault = eps::worker::ParseRelayFault(text);
  if (!fault.ok()) {
    std::fprintf(stderr, "gpu_worker: EPS_INJECT_FAULT: %s\n", std::string(fault.status().message()).c_str());
    return eps::kExitBadInput;
  }
  return eps::worker::WorkerMain(argc, argv, {.alter_schedule = *std::move(fault)});
}
