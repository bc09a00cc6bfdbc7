#include "eps_server/service/event_stream.h"

#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/grpc/grpc_status.h"
#include "eps_server/service/worker_messages.h"

namespace eps::server {
namespace {

// A worker has a step, or the texts that it writes; of more than this it has read nothing for long.
constexpr size_t kMaxToSend = 1024;

constexpr size_t kMaxFailureBytes = 4096;  // WorkerFailed.message

void FillVnode(const VnodeBatch& batch, proto::VnodeData& data) {
  data.set_vnode(batch.vnode);
  data.set_tokens(batch.tokens.data(), batch.tokens.size() * sizeof(int32_t));
  data.set_labels(batch.labels.data(), batch.labels.size() * sizeof(int32_t));
}

class EventStream final : public grpc::ServerBidiReactor<proto::WorkerEvent, proto::DaemonEvent>, public EventChannel {
 public:
  EventStream(WorkerHost& host, uint64_t incarnation) : host_(host), incarnation_(incarnation) {}

  void Begin(std::shared_ptr<EventStream> self) {
    self_ = std::move(self);
    StartRead(&incoming_);
  }

  // EventChannel: called by the host, at any time, also after the stream's end.
  void SendAssignment(std::shared_ptr<const Assignment> assignment) override {
    proto::DaemonEvent event;
    proto::Assign& assign = *event.mutable_assign();
    assign.set_step(assignment->step.value());
    assign.set_counted_tokens(assignment->counted_tokens);
    for (const VnodeBatch& batch : assignment->vnodes) FillVnode(batch, *assign.add_vnodes());
    Send(std::move(event));
  }
  void SendFinish(bool ok, std::string reason) override {
    proto::DaemonEvent event;
    event.mutable_finish()->set_ok(ok);
    event.mutable_finish()->set_reason(std::move(reason));
    told_to_leave_ = true;
    Send(std::move(event));
  }
  void SendInfer(int64_t request_id, std::vector<int32_t> tokens) override {
    proto::DaemonEvent event;
    event.mutable_infer()->set_request_id(request_id);
    event.mutable_infer()->set_tokens(tokens.data(), tokens.size() * sizeof(int32_t));
    Send(std::move(event));
  }
  void Close(absl::Status why) override { End(std::move(why)); }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return End(absl::OkStatus());  // the worker has left; OnDone tells the host
    if (absl::Status status = Handle(incoming_); !status.ok()) return End(std::move(status));
    StartRead(&incoming_);
  }

  absl::Status Handle(const proto::WorkerEvent& event) {
    if (event.incarnation() != incarnation_) {
      return absl::FailedPreconditionError(
          absl::StrCat("incarnation: ", event.incarnation(), ", this daemon is ", incarnation_, ": attach anew"));
    }
    const WorkerId worker(event.worker_id());
    if (worker_ == WorkerId()) {
      if (!event.has_heartbeat()) return absl::InvalidArgumentError("event: the first one must be a heartbeat");
      EPS_RETURN_IF_ERROR(host_.Connect(worker, self_));
      worker_ = worker;
      return absl::OkStatus();
    }
    if (worker != worker_) {
      return absl::InvalidArgumentError(
          absl::StrCat("worker_id: ", worker.value(), ", this stream is ", worker_.value(), "'s"));
    }
    return Pass(event);
  }

  absl::Status Pass(const proto::WorkerEvent& event) {
    switch (event.event_case()) {
      case proto::WorkerEvent::kHeartbeat:
        return host_.Heartbeat(worker_);
      case proto::WorkerEvent::kReady: {
        EPS_ASSIGN_OR_RETURN(const WorkerMemory memory, ToMemory(event.ready()));
        return host_.Ready(worker_, memory);
      }
      case proto::WorkerEvent::kPassDone: {
        EPS_ASSIGN_OR_RETURN(PassTiming timing, ToTiming(event.pass_done()));
        return host_.PassDone(worker_, StepId(event.pass_done().step()), ToRecords(event.pass_done()),
                              std::move(timing));
      }
      case proto::WorkerEvent::kInferred:
        return host_.Inferred(worker_, event.inferred().request_id(), ToLogits(event.inferred()));
      case proto::WorkerEvent::kFailed:
        return absl::AbortedError(
            absl::StrCat("the worker says: ", event.failed().message().substr(0, kMaxFailureBytes)));
      default:
        return absl::InvalidArgumentError("event: none that this daemon knows");
    }
  }

  void Send(proto::DaemonEvent event) {
    event.set_incarnation(incarnation_);
    bool too_slow = false;
    {
      MutexLock lock(mu_);
      if (ended_) return;
      too_slow = to_send_.size() >= kMaxToSend;
      if (!too_slow) to_send_.push_back(std::move(event));
    }
    if (too_slow) return End(absl::AbortedError("the worker does not read what it is told"));
    WriteNext();
  }

  void WriteNext() {
    {
      MutexLock lock(mu_);
      if (writing_ || ended_ || to_send_.empty()) return;
      writing_ = true;
      outgoing_ = std::move(to_send_.front());
      to_send_.pop_front();
    }
    StartWrite(&outgoing_);
  }

  void OnWriteDone(bool ok) override {
    bool finish = false;
    {
      MutexLock lock(mu_);
      outgoing_.Clear();  // a step's tokens may be large
      writing_ = false;
      finish = ended_;
    }
    if (finish) return Finish(ToGrpc(end_));
    if (!ok) return End(absl::UnavailableError("the worker's connection is broken"));
    WriteNext();
  }

  // Ends the stream with its first reason, after the event that is being written.
  void End(absl::Status status) {
    {
      MutexLock lock(mu_);
      if (ended_) return;
      ended_ = true;
      end_ = std::move(status);
      if (writing_) return;
    }
    Finish(ToGrpc(end_));
  }

  void OnCancel() override { End(absl::UnavailableError("the worker's connection is broken")); }

  void OnDone() override {
    if (worker_ != WorkerId()) {
      const bool left_unasked = end_.ok() && !told_to_leave_;
      host_.Disconnect(worker_, left_unasked ? absl::UnavailableError("the worker has left") : end_);
    }
    self_.reset();
  }

  // Fixed after construction.
  WorkerHost& host_;
  const uint64_t incarnation_;
  // Used by gRPC between a Start and its reaction.
  proto::WorkerEvent incoming_;
  proto::DaemonEvent outgoing_;
  // Of the reading reaction, one at a time.
  WorkerId worker_;  // 0: the first message has not come yet

  std::atomic<bool> told_to_leave_ = false;  // atomic, because the host says it and OnDone asks

  Mutex mu_;
  std::deque<proto::DaemonEvent> to_send_ ABSL_GUARDED_BY(mu_);  // the host sends a few per step and worker
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status end_;  // written once, before ended_ is seen by whoever finishes

  std::shared_ptr<EventStream> self_;  // until OnDone
};

}  // namespace

grpc::ServerBidiReactor<proto::WorkerEvent, proto::DaemonEvent>* StartEventStream(WorkerHost& host,
                                                                                  uint64_t incarnation) {
  auto stream = std::make_shared<EventStream>(host, incarnation);
  EventStream* reactor = stream.get();
  reactor->Begin(std::move(stream));
  return reactor;
}

}  // namespace eps::server
