#ifndef EPS_GPU_WORKER_WORKER_OPTIONS_H_
#define EPS_GPU_WORKER_WORKER_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "common/spec/run_config.h"
#include "common/telemetry/trace_log.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/leave_request.h"
#include "gpu_worker/plan/profile.h"
#include "gpu_worker/plan/schedule.h"
#include "gpu_worker/relay/forward_witness.h"
#include "gpu_worker/transport/grpc_channel.h"

namespace eps::worker {

// What a program of a test or a benchmark has of its own; empty in gpu_worker.
struct WorkerHooks {
  AlterSchedule alter_schedule = nullptr;
  std::function<std::unique_ptr<Device>(std::unique_ptr<Device>)> wrap_device = nullptr;  // once, as it is made
};

struct WorkerOptions {
  std::string address;  // HOST:PORT of the daemon
  CredentialsSource credentials = NoCredentials;
  std::string device = "cpu";
  // The arena's cap. 0: what the plan can use, at most the device's default (DeviceBackend), which is its part of half of
  // the free memory (cpu), or of nine tenths of the GPU's (cuda).
  int64_t device_memory_bytes = 0;
  // It is the device's default, which what libraries hold beside the arena comes out of.
  bool is_default_memory = false;
  int64_t host_stash_bytes = 0;  // PlanRequest's
  int host_workers = 1;          // that were started together on this host, this one included
  int host_turn = 0;             // which of them this one is, from 0: whose GPU is whose, and how many share one
  int threads = 1;               // that compute
  std::optional<TransportChoice> transport = std::nullopt;  // in place of the run's own
  std::string metrics_listen = "127.0.0.1:0";               // the HTTP page
  bool metrics_any_address = false;                         // of which others than this host may be reached
  std::string health_listen = "";                           // of grpc.health.v1, as metrics_listen; "": not served
  absl::Duration reconnect = absl::Seconds(30);             // a daemon that cannot be reached for so long is gone
  bool until_done = false;                           // one that ends, and whose run may go on, is away, and looked for
  std::shared_ptr<const Profile> profile = nullptr;  // what the plan is made from; null: nominal figures
  std::string profile_file = "";                     // where that was read; for the log
  ForwardWitness* witness = nullptr;                 // these two outlive the worker; null: none
  TraceLog* trace = nullptr;
  LeaveRequest* leave = nullptr;  // how it is asked to leave; outlives the worker; null: not at all
  WorkerHooks hooks = {};
};

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_WORKER_OPTIONS_H_
