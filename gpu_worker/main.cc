// gpu_worker: attaches to a daemon with a device and a memory cap, and relays.

#include <cstdint>
#include <cstdio>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/byte_size.h"
#include "common/base/exit_code.h"
#include "common/base/malloc_settings.h"
#include "gpu_worker/worker.h"

namespace eps::worker {
namespace {

int Report(const absl::Status& status) {
  if (status.ok()) return kExitDone;
  std::fprintf(stderr, "gpu_worker: %s\n", std::string(status.message()).c_str());
  switch (status.code()) {
    case absl::StatusCode::kResourceExhausted:
      return kExitDoesNotFit;
    case absl::StatusCode::kInvalidArgument:
      return kExitBadInput;
    default:
      return kExitFailed;
  }
}

int Main(int argc, char** argv) {
  SetUpMalloc();
  CLI::App app(
      "Computes for an eps_server: pulls one layer at a time into a device, runs it, pushes its gradient.\n"
      "Everything else, model and data included, comes from the daemon.");
  app.get_formatter()->column_width(34);
  WorkerOptions options;
  std::string device_memory;
  double reconnect_seconds = absl::ToDoubleSeconds(options.reconnect);
  app.add_option("--connect", options.address, "The daemon's gRPC address")->type_name("HOST:PORT")->required();
  app.add_option("--device", options.device, "cpu, cuda or cuda:I")->type_name("DEVICE")->capture_default_str();
  app.add_option("--device-memory", device_memory,
                 "Most device memory to use: bytes, or with KiB, MiB, GiB (default: what the plan can use, at most "
                 "half of the free memory)")
      ->type_name("SIZE");
  app.add_option("--threads", options.threads, "Threads that compute")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  app.add_option("--reconnect-seconds", reconnect_seconds, "How long to look for a daemon that is away")
      ->type_name("S")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1e6));
  app.footer("Exit codes: 0 done, 1 failed, 2 bad usage, 3 the run does not fit the device memory.");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitDone : kExitBadInput;
  }
  options.reconnect = absl::Seconds(reconnect_seconds);
  if (!device_memory.empty()) {
    const auto bytes = ParseByteSize(device_memory);
    if (!bytes.ok() || *bytes < 1) {
      std::fprintf(stderr, "gpu_worker: --device-memory: %s\n",
                   bytes.ok() ? "must be at least 1 byte" : std::string(bytes.status().message()).c_str());
      return kExitBadInput;
    }
    options.device_memory_bytes = *bytes;
  }
  return Report(RunWorker(options));
}

}  // namespace
}  // namespace eps::worker

int main(int argc, char** argv) { return eps::worker::Main(argc, argv); }
