#ifndef EPS_SERVER_SERVICE_TRAINING_HOST_H_
#define EPS_SERVER_SERVICE_TRAINING_HOST_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/choices/choices.h"
#include "eps_server/service/worker_host.h"
#include "eps_server/step/coordinator.h"

namespace eps::server {

// Workers of a training run: everything goes to its coordinator, which outlives this.
class TrainingHost final : public WorkerHost {
 public:
  explicit TrainingHost(Coordinator& coordinator) : coordinator_(coordinator) {}

  absl::Duration lease() const override { return coordinator_.lease(); }
  absl::StatusOr<WorkerId> Attach(WorkerInfo info) override { return coordinator_.Attach(std::move(info)); }
  absl::Status Connect(WorkerId worker, std::shared_ptr<EventChannel> channel) override {
    return coordinator_.Connect(worker, std::move(channel));
  }
  absl::Status Heartbeat(WorkerId worker) override { return coordinator_.Heartbeat(worker); }
  Choices HeldChoices(const std::string& device_model) const override { return coordinator_.HeldChoices(device_model); }
  absl::StatusOr<Choices> OfferChoices(WorkerId worker, Choices offered) override {
    return coordinator_.OfferChoices(worker, std::move(offered));
  }
  absl::Status Ready(WorkerId worker, WorkerMemory memory) override { return coordinator_.Ready(worker, memory); }
  absl::Status PassDone(WorkerId worker, StepId step, std::vector<VnodeRecord> records, PassTiming timing) override {
    return coordinator_.PassDone(worker, step, std::move(records), std::move(timing));
  }
  absl::Status EvaluationDone(WorkerId worker, Version version, int64_t round, std::vector<VnodeRecord> records,
                              PassTiming timing) override {
    return coordinator_.EvaluationDone(worker, version, round, std::move(records), std::move(timing));
  }
  absl::Status ReportGroup(WorkerId worker, const GroupReport& report) override {
    return coordinator_.ReportGroup(worker, report);
  }
  absl::Status Inferred(WorkerId, int64_t, absl::StatusOr<std::vector<float>>) override {
    return absl::FailedPreconditionError("event: inferred: this daemon trains");
  }
  absl::Status Leave(WorkerId worker) override { return coordinator_.Leave(worker); }
  void Disconnect(WorkerId worker, absl::Status why) override { coordinator_.Disconnect(worker, std::move(why)); }

 private:
  Coordinator& coordinator_;
};

}  // namespace eps::server

#endif  // EPS_SERVER_SERVICE_TRAINING_HOST_H_
