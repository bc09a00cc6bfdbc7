#ifndef EPS_SERVER_SERVICE_WORKER_HOST_H_
#define EPS_SERVER_SERVICE_WORKER_HOST_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "common/choices/choices.h"
#include "common/schedule/vnode_batch.h"
#include "eps_server/membership/membership.h"

namespace eps::server {

// The way to an attached worker. Methods never block and may be called after the stream has ended.
class EventChannel : public WorkerChannel {
 public:
  virtual void SendInfer(int64_t request_id, std::vector<int32_t> tokens) = 0;
};

// Whom the workers of this daemon work for: a run that is trained, or a checkpoint that is served. The service hands
// over what workers say, and decides nothing.
//
// Threads: safe; methods do not block
class WorkerHost {
 public:
  virtual ~WorkerHost() = default;
  virtual absl::Duration lease() const = 0;
  // Errors: as Coordinator's of the same names; for what does not belong to this kind of host FAILED_PRECONDITION
  virtual absl::StatusOr<WorkerId> Attach(WorkerInfo info) = 0;
  virtual absl::Status Connect(WorkerId worker, std::shared_ptr<EventChannel> channel) = 0;
  virtual absl::Status Heartbeat(WorkerId worker) = 0;
  virtual Choices HeldChoices(const std::string& device_model) const = 0;
  virtual absl::StatusOr<Choices> OfferChoices(WorkerId worker, Choices offered) = 0;
  virtual absl::Status Ready(WorkerId worker, WorkerMemory memory) = 0;
  virtual absl::Status PassDone(WorkerId worker, StepId step, std::vector<VnodeRecord> records, PassTiming timing) = 0;
  virtual absl::Status EvaluationDone(WorkerId worker, Version version, int64_t round, std::vector<VnodeRecord> records,
                                      PassTiming timing) = 0;
  virtual absl::Status ReportGroup(WorkerId worker, const GroupReport& report) = 0;
  virtual absl::Status Inferred(WorkerId worker, int64_t request_id, absl::StatusOr<std::vector<float>> logits) = 0;
  virtual absl::Status Leave(WorkerId worker) = 0;
  virtual void Disconnect(WorkerId worker, absl::Status why) = 0;
};

}  // namespace eps::server

#endif  // EPS_SERVER_SERVICE_WORKER_HOST_H_
