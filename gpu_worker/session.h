#ifndef EPS_GPU_WORKER_SESSION_H_
#define EPS_GPU_WORKER_SESSION_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/choices/choices.h"
#include "common/model/model_spec.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/device/kernels.h"
#include "gpu_worker/device_backend.h"
#include "gpu_worker/group/group_seat.h"
#include "gpu_worker/plan/relay_plan.h"
#include "gpu_worker/relay/relay_executor.h"
#include "gpu_worker/telemetry/worker_page.h"
#include "gpu_worker/transport/control.h"
#include "gpu_worker/transport/transport.h"
#include "gpu_worker/worker_options.h"

namespace eps::worker {

// The two connections of a session fail together: what breaks one cancels the other, so that nobody waits for a daemon
// that is gone. Keeps the first error.
//
// Threads: safe
class Link {
 public:
  // What is watched from now on; of a link that has failed it is cancelled at once.
  void Watch(Transport* transport, Control* control) ABSL_LOCKS_EXCLUDED(mu_);
  // Before what is watched is destroyed.
  void Unwatch() ABSL_LOCKS_EXCLUDED(mu_) { Watch(nullptr, nullptr); }
  void Fail(absl::Status why) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status failure() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void CancelBoth() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable Mutex mu_;
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
  Transport* transport_ ABSL_GUARDED_BY(mu_) = nullptr;
  Control* control_ ABSL_GUARDED_BY(mu_) = nullptr;
};

// RESOURCE_EXHAUSTED says to the user of a worker that its device's memory is too small. What else ran out, the host's
// memory or files, is INTERNAL.
absl::Status NotOfTheDevice(absl::Status status);

// One attachment to a daemon process, from plan to finish. It shares nothing with the one before.
class Session {
 public:
  // Plans the run and makes device, connections and executor; says Ready, or offers choices and says it in Run.
  // `page` shows what the session does, and outlives it.
  // Errors: as RunWorker; RESOURCE_EXHAUSTED only of the device's memory, saying how much would do. Those behind the
  // connection were reported to the daemon
  static absl::StatusOr<std::unique_ptr<Session>> Open(const WorkerOptions& options, const DeviceBackend& backend,
                                                       Attachment attachment, WorkerPage& page);
  ~Session();

  struct End {
    absl::Status status;       // OK: the daemon said that the run is done
    bool link_failed = false;  // the error came over the wire: attaching anew may help
  };
  // Carries orders out until there are no more.
  End Run();

 private:
  Session(const WorkerOptions& options, Attachment attachment, WorkerPage& page)
      : options_(options), attachment_(std::move(attachment)), page_(page) {}

  absl::Status Connect(const DeviceBackend& backend);
  // The connections fail together, and the group with them. Any thread.
  void LoseLink(absl::Status why);
  absl::Status Prepare(const DeviceBackend& backend);
  int64_t ArenaCap(const KernelSizes& kernels) const;
  // Follows what holds for this device model and says Ready, or says what this device would choose.
  absl::Status Choose();
  absl::Status Follow(const Choices& choices);
  void SayOutsideMemory();
  void SayReady();
  // Shared memory or gRPC, by the run's choice, or the user's.
  absl::Status OpenTransport(const RelayPlan& plan, bool pins_weights);
  absl::Status Carry(const Order& order);  // no FinishOrder
  absl::Status Carry(const Assignment& assignment);
  // In a group that has ended: the daemon is told, and gives the step's vnodes out anew.
  absl::Status GiveUp(uint64_t group, const absl::Status& why);
  absl::Status Carry(const InferOrder& order);
  absl::Status Carry(const FormGroupOrder& order);
  absl::Status Carry(const EndGroupOrder& order);
  absl::Status Carry(const ChoicesOrder& order);

  // Fixed after Open. Rising order of use: the later ones point to the earlier ones.
  const WorkerOptions options_;
  const Attachment attachment_;
  WorkerPage& page_;
  ModelSpec model_;
  Link link_;
  std::unique_ptr<GroupSeat> seat_;  // whose group the connections end with themselves
  std::string transport_name_;       // "grpc", "shared_memory"
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Control> control_;
  std::unique_ptr<Device> device_;  // may have pinned the transport's memory
  std::unique_ptr<RelayExecutor> executor_;
  MemoryReport memory_;
  // Of the thread of Open and Run: choices were offered, and those that hold have not come.
  bool awaits_choices_ = false;
};

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_SESSION_H_
