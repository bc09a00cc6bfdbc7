// gpu_worker: attaches to a daemon with a device and a memory cap, and relays.

#include <cstdint>
#include <cstdio>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/exit_code.h"
#include "common/base/flags.h"
#include "common/base/malloc_settings.h"
#include "common/base/status_macros.h"
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
    case absl::StatusCode::kUnimplemented:
      return kExitBadInput;
    default:
      return kExitFailed;
  }
}

absl::Status Probe(const WorkerOptions& options) {
  EPS_ASSIGN_OR_RETURN(const DeviceProperties device, ProbeDevice(options));
  std::printf("%s: %s, %d threads\n", device.name.c_str(), device.model.c_str(), device.threads);
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  SetUpMalloc();
  CLI::App app(
      "Computes for an eps_server: pulls one layer at a time into a device, runs it, pushes its gradient.\n"
      "Everything else, model and data included, comes from the daemon.");
  app.get_formatter()->column_width(34);
  WorkerOptions options;
  bool probe = false;
  double reconnect_seconds = absl::ToDoubleSeconds(options.reconnect);
  auto* connect = app.add_option("--connect", options.address, "The daemon's gRPC address")
                      ->type_name("HOST:PORT")
                      ->check(IsAddress());
  app.add_option("--device", options.device, "cpu, cuda or cuda:I")->type_name("DEVICE")->capture_default_str();
  app.add_option("--device-memory", options.device_memory_bytes,
                 "Most device memory to use: bytes, or with KiB, MiB, GiB (default: what the plan can use, at most "
                 "half of the free memory)")
      ->type_name("SIZE")
      ->transform(AsByteSize());
  app.add_option("--threads", options.threads, "Threads that compute")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  app.add_option("--reconnect-seconds", reconnect_seconds, "How long to look for a daemon that is away")
      ->type_name("S")
      ->capture_default_str()
      ->check(NumberIn(0, 1e6));
  app.add_flag("--probe", probe, "Only start the device, say what it is, and end")->excludes(connect);
  app.footer("Exit codes: 0 done, 1 failed, 2 bad usage, 3 the run does not fit the device memory.");
  try {
    app.parse(argc, argv);
    if (!probe && options.address.empty()) throw CLI::RequiredError("--connect");
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitDone : kExitBadInput;
  }
  options.reconnect = absl::Seconds(reconnect_seconds);
  return Report(probe ? Probe(options) : RunWorker(options));
}

}  // namespace
}  // namespace eps::worker

int main(int argc, char** argv) { return eps::worker::Main(argc, argv); }
