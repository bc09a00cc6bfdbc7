#include "eps_server/service/event_stream.h"

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/choices/choices.h"
#include "common/choices/choices_message.h"
#include "common/grpc/proto_text.h"
#include "eps_server/service/queued_stream.h"
#include "eps_server/service/worker_messages.h"

namespace eps::server {
namespace {

constexpr size_t kMaxFailureBytes = 4096;  // WorkerFailed.message

void FillVnode(const VnodeBatch& batch, proto::VnodeData& data) {
  data.set_vnode(batch.vnode);
  data.set_tokens(batch.tokens.data(), batch.tokens.size() * sizeof(int32_t));
  data.set_labels(batch.labels.data(), batch.labels.size() * sizeof(int32_t));
  data.set_types(batch.types.data(), batch.types.size() * sizeof(int32_t));
  data.set_document_first(batch.document_first.data(), batch.document_first.size() * sizeof(int32_t));
}

void FillGroup(const GroupVnodes& from, proto::AssignedGroup& group) {
  group.set_group(from.group);
  group.set_rank(from.rank);
  for (const std::vector<int>& vnodes : from.vnodes) {
    group.add_members()->mutable_vnodes()->Add(vnodes.begin(), vnodes.end());
  }
}

class EventStream final : public QueuedStream<proto::WorkerEvent, proto::DaemonEvent>, public EventChannel {
 public:
  EventStream(WorkerHost& host, uint64_t incarnation) : host_(host), incarnation_(incarnation) {}

  void Begin(std::shared_ptr<EventStream> self) {
    self_ = std::move(self);
    ReadNext();
  }

  // EventChannel: called by the host, at any time, also after the stream's end.
  void SendAssignment(std::shared_ptr<const Assignment> assignment) override {
    proto::DaemonEvent event;
    proto::Assign& assign = *event.mutable_assign();
    assign.set_step(assignment->step.value());
    assign.set_counted_tokens(assignment->counted_tokens);
    assign.set_loss_scale(assignment->loss_scale);
    for (const LayerId layer : assignment->dropped) assign.add_dropped_layers(layer.value());
    for (const VnodeBatch& batch : assignment->vnodes) FillVnode(batch, *assign.add_vnodes());
    if (assignment->evaluation_round.has_value()) assign.set_evaluation_round(*assignment->evaluation_round);
    if (assignment->group.has_value()) FillGroup(*assignment->group, *assign.mutable_group());
    Tell(std::move(event));
  }
  void SendGroupOrder(const GroupOrder& order) override {
    proto::DaemonEvent event;
    switch (order.kind) {
      case GroupOrder::Kind::kFound:
        event.mutable_found_group()->set_group(order.group);
        event.mutable_found_group()->set_size(order.size);
        break;
      case GroupOrder::Kind::kJoin:
        event.mutable_join_group()->set_group(order.group);
        event.mutable_join_group()->set_rank(order.rank);
        event.mutable_join_group()->set_size(order.size);
        event.mutable_join_group()->set_token(order.token);
        break;
      case GroupOrder::Kind::kEnd:
        event.mutable_end_group()->set_group(order.group);
        event.mutable_end_group()->set_reason(ProtoText(order.reason));
        break;
    }
    Tell(std::move(event));
  }
  void SendFinish(FinishNotice notice) override {
    proto::DaemonEvent event;
    event.mutable_finish()->set_ok(notice.ok);
    event.mutable_finish()->set_reason(ProtoText(notice.reason));
    event.mutable_finish()->set_run_may_go_on(notice.run_may_go_on);
    told_to_leave_ = true;
    Tell(std::move(event));
  }
  void SendInfer(int64_t request_id, std::vector<int32_t> tokens) override {
    proto::DaemonEvent event;
    event.mutable_infer()->set_request_id(request_id);
    event.mutable_infer()->set_tokens(tokens.data(), tokens.size() * sizeof(int32_t));
    Tell(std::move(event));
  }
  void Close(absl::Status why) override { End(std::move(why)); }

 private:
  absl::Status Handle(proto::WorkerEvent& event) override {
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
      case proto::WorkerEvent::kChoices: {
        EPS_ASSIGN_OR_RETURN(Choices offered, ChoicesFromProto(event.choices().choices()));
        EPS_ASSIGN_OR_RETURN(const Choices held, host_.OfferChoices(worker_, std::move(offered)));
        proto::DaemonEvent answer;
        *answer.mutable_choices() = ChoicesToProto(held);
        Tell(std::move(answer));
        return absl::OkStatus();
      }
      case proto::WorkerEvent::kReady: {
        EPS_ASSIGN_OR_RETURN(const WorkerMemory memory, ToMemory(event.ready()));
        return host_.Ready(worker_, memory);
      }
      case proto::WorkerEvent::kPassDone: {
        EPS_ASSIGN_OR_RETURN(PassTiming timing, ToTiming(event.pass_done()));
        const proto::PassDone& done = event.pass_done();
        if (done.has_evaluation_round()) {
          return host_.EvaluationDone(worker_, Version(done.step()), done.evaluation_round(), ToRecords(done),
                                      std::move(timing));
        }
        return host_.PassDone(worker_, StepId(done.step()), ToRecords(done), std::move(timing));
      }
      case proto::WorkerEvent::kInferred:
        return host_.Inferred(worker_, event.inferred().request_id(), ToLogits(event.inferred()));
      case proto::WorkerEvent::kGroupFounded:
      case proto::WorkerEvent::kGroupJoined:
      case proto::WorkerEvent::kGroupFailed:
        return host_.ReportGroup(worker_, ToGroupReport(event));
      case proto::WorkerEvent::kLeave:
        return host_.Leave(worker_);
      case proto::WorkerEvent::kFailed:
        return absl::AbortedError(
            absl::StrCat("the worker says: ", event.failed().message().substr(0, kMaxFailureBytes)));
      default:
        return absl::InvalidArgumentError("event: none that this daemon knows");
    }
  }

  void Tell(proto::DaemonEvent event) {
    event.set_incarnation(incarnation_);
    // It has a step, or the texts that it writes: of so many events it has read nothing for long.
    if (Send(std::move(event)) > kMaxQueued) End(absl::AbortedError("the worker does not read what it is told"));
  }

  absl::Status Broken() const override { return absl::UnavailableError("the worker's connection is broken"); }

  void OnDone() override {
    if (worker_ != WorkerId()) {
      const bool left_unasked = end().ok() && !told_to_leave_;
      const absl::Status why = is_broken() ? Broken() : absl::UnavailableError("the worker has left");
      host_.Disconnect(worker_, left_unasked ? why : end());
    }
    self_.reset();
  }

  // Fixed after construction.
  WorkerHost& host_;
  const uint64_t incarnation_;
  // Of the reading reaction, one at a time.
  WorkerId worker_;  // 0: the first message has not come yet

  std::atomic<bool> told_to_leave_ = false;  // atomic, because the host says it and OnDone asks

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
