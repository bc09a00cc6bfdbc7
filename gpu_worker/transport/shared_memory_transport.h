#ifndef EPS_GPU_WORKER_TRANSPORT_SHARED_MEMORY_TRANSPORT_H_
#define EPS_GPU_WORKER_TRANSPORT_SHARED_MEMORY_TRANSPORT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/model/model_spec.h"
#include "common/tensor/dtype.h"
#include "gpu_worker/transport/transport.h"

namespace eps::worker {

struct SharedMemoryTransportOptions {
  std::string socket_path;   // of the daemon; from Attach, as are the next two
  uint64_t incarnation = 0;  // of the daemon process
  WorkerId worker_id;
  const ModelSpec* model = nullptr;  // outlives the transport
  Dtype wire_dtype = Dtype::kBf16;
  int wire_versions = 0;      // required: PrecisionConfig's
  bool pins_weights = false;  // DeviceBackend's
  int64_t push_bytes = 0;     // of contributions under way: what NewPushMemory hands out, at most
  // Called when it fails by itself, perhaps while nobody waits for it: with the first error, from any thread, once.
  std::function<void(absl::Status)> on_failure = nullptr;
};

// The data plane through memory that the daemon, a process of the same user on this host, shares (docs/formats.md).
// Weights are read in place; a contribution in memory of NewPushMemory is not copied on this side; any other one goes
// through a few slots, a chunk at a time.
//
// When the daemon is gone every wait ends with UNAVAILABLE; what was mapped stays valid, so that a kernel that reads
// weights at that moment reads valid memory.
//
// Errors: NOT_FOUND, UNAVAILABLE, PERMISSION_DENIED, DEADLINE_EXCEEDED the socket cannot be reached from here ·
//         FAILED_PRECONDITION it is another daemon's · INVALID_ARGUMENT, INTERNAL the two do not understand each other ·
//         RESOURCE_EXHAUSTED
absl::StatusOr<std::unique_ptr<Transport>> ConnectSharedMemory(SharedMemoryTransportOptions options);

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_TRANSPORT_SHARED_MEMORY_TRANSPORT_H_
