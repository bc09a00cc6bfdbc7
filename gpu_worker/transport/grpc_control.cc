#include "gpu_worker/transport/grpc_control.h"

#include <unistd.h>

#include <chrono>
#include <deque>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "common/base/host.h"
#include "common/base/mutex.h"
#include "common/base/protocol_version.h"
#include "common/base/status_macros.h"
#include "common/choices/choices.h"
#include "common/choices/choices_message.h"
#include "common/grpc/grpc_status.h"
#include "common/grpc/message_limits.h"
#include "common/grpc/proto_text.h"
#include "gpu_worker/transport/control_messages.h"
#include "gpu_worker/transport/grpc_channel.h"
#include "grpcpp/client_context.h"
#include "proto/control.grpc.pb.h"

namespace eps::worker {
namespace {

constexpr size_t kMaxFailureBytes = 4096;  // WorkerFailed.message, GroupFailed.message, Inferred.error

class GrpcControl final : public Control {
 public:
  GrpcControl(std::shared_ptr<grpc::Channel> channel, const Attachment& attachment, ControlCallbacks callbacks)
      : attachment_(attachment),
        heartbeat_every_(absl::ToChronoNanoseconds(attachment.lease / 3)),
        callbacks_(std::move(callbacks)),
        stub_(proto::Control::NewStub(std::move(channel))),
        stream_(stub_->Events(&context_)),
        sender_([this] { Send(); }),
        receiver_([this] { Receive(); }) {}

  ~GrpcControl() override {
    {
      MutexLock lock(mu_);
      closing_ = true;
      to_send_changed_.NotifyAll();
    }
    // What was reported still goes out, then the stream is closed from this side and the daemon ends it.
    sender_.join();
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(1);
    {
      MutexLock lock(mu_);
      while (!received_all_ && std::chrono::steady_clock::now() < deadline) {
        orders_changed_.WaitFor(mu_, std::chrono::milliseconds(100));
      }
    }
    context_.TryCancel();
    receiver_.join();
  }

  absl::StatusOr<Order> Next() override {
    MutexLock lock(mu_);
    while (orders_.empty() && failure_.ok()) orders_changed_.Wait(mu_);
    if (orders_.empty()) return failure_;
    Order order = std::move(orders_.front());
    orders_.pop_front();
    return order;
  }

  bool HasNext() const override {
    MutexLock lock(mu_);
    return !orders_.empty() || !failure_.ok();
  }

  void SendChoices(const Choices& choices) override {
    proto::WorkerEvent event;
    *event.mutable_choices() = ChoicesToProto(choices);
    Enqueue(std::move(event));
  }

  void SendReady(const MemoryReport& memory) override {
    proto::WorkerEvent event;
    event.mutable_ready()->set_device_arena_bytes(memory.device_arena_bytes);
    event.mutable_ready()->set_device_outside_bytes(memory.device_outside_bytes);
    event.mutable_ready()->set_host_bytes(memory.host_bytes);
    event.mutable_ready()->set_transport(memory.transport);
    event.mutable_ready()->set_group_kind(memory.group_kind);
    event.mutable_ready()->set_predicted_step_seconds(memory.predicted_step_seconds);
    Enqueue(std::move(event));
  }

  void SendPassDone(const PassReport& report) override {
    proto::WorkerEvent event;
    *event.mutable_pass_done() = ToProto(report);
    Enqueue(std::move(event));
  }

  void SendInferred(int64_t request_id, absl::StatusOr<std::vector<float>> logits) override {
    proto::WorkerEvent event;
    event.mutable_inferred()->set_request_id(request_id);
    if (logits.ok()) {
      event.mutable_inferred()->set_logits(logits->data(), logits->size() * sizeof(float));
    } else {
      event.mutable_inferred()->set_error(ProtoText(logits.status().ToString(), kMaxFailureBytes));
    }
    Enqueue(std::move(event));
  }

  void SendGroupFounded(uint64_t group, const std::string& token) override {
    proto::WorkerEvent event;
    event.mutable_group_founded()->set_group(group);
    event.mutable_group_founded()->set_token(token);
    Enqueue(std::move(event));
  }
  void SendGroupJoined(uint64_t group) override {
    proto::WorkerEvent event;
    event.mutable_group_joined()->set_group(group);
    Enqueue(std::move(event));
  }
  void SendGroupFailed(uint64_t group, const absl::Status& why) override {
    proto::WorkerEvent event;
    event.mutable_group_failed()->set_group(group);
    event.mutable_group_failed()->set_message(ProtoText(why.message(), kMaxFailureBytes));
    Enqueue(std::move(event));
  }

  void SendLeave() override {
    proto::WorkerEvent event;
    event.mutable_leave();
    Enqueue(std::move(event));
  }

  void SendFailed(absl::Status why) override {
    Enqueue(FailedEvent(why));
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(1);
    MutexLock lock(mu_);
    while ((!to_send_.empty() || sending_) && failure_.ok() && std::chrono::steady_clock::now() < deadline) {
      to_send_changed_.WaitFor(mu_, std::chrono::milliseconds(10));
    }
  }

  void Cancel(absl::Status reason) override {
    {
      MutexLock lock(mu_);
      lost_ = true;
      if (failure_.ok()) failure_ = std::move(reason);
      orders_changed_.NotifyAll();
      to_send_changed_.NotifyAll();
    }
    context_.TryCancel();
  }

  void CancelAndSay(absl::Status why) override {
    MutexLock lock(mu_);
    if (!failure_.ok()) return;  // nobody is there to hear it
    lost_ = true;
    says_last_word_ = true;
    to_send_.push_back(FailedEvent(why));
    failure_ = std::move(why);
    orders_changed_.NotifyAll();
    to_send_changed_.NotifyAll();
  }

 private:
  static proto::WorkerEvent FailedEvent(const absl::Status& why) {
    proto::WorkerEvent event;
    event.mutable_failed()->set_message(ProtoText(why.ToString(), kMaxFailureBytes));
    return event;
  }

  void Enqueue(proto::WorkerEvent event) {
    MutexLock lock(mu_);
    to_send_.push_back(std::move(event));
    to_send_changed_.NotifyAll();
  }

  // The stream's only writer: reports as they come, a heartbeat when there was none for a while and as the first.
  void Send() {
    bool open = true;
    bool first = true;
    while (open) {
      proto::WorkerEvent event;
      event.mutable_heartbeat();
      {
        MutexLock lock(mu_);
        sending_ = false;
        to_send_changed_.NotifyAll();
        const auto due = std::chrono::steady_clock::now() + heartbeat_every_;
        while (!first && to_send_.empty() && !closing_ && failure_.ok() && std::chrono::steady_clock::now() < due) {
          to_send_changed_.WaitFor(mu_, due - std::chrono::steady_clock::now());
        }
        const bool is_cut = !failure_.ok() && !says_last_word_;
        if (is_cut || (to_send_.empty() && (closing_ || says_last_word_) && !first)) break;
        if (!first && !to_send_.empty()) {
          event = std::move(to_send_.front());
          to_send_.pop_front();
        }
        sending_ = true;
      }
      first = false;
      event.set_incarnation(attachment_.incarnation);
      event.set_worker_id(attachment_.worker_id.value());
      open = stream_->Write(event);  // false: the stream is over; the receiver learns why
    }
    stream_->WritesDone();
    MutexLock lock(mu_);
    sending_ = false;
    to_send_.clear();
    to_send_changed_.NotifyAll();
  }

  void Receive() {
    proto::DaemonEvent event;
    while (stream_->Read(&event)) {
      absl::StatusOr<Order> order = ToOrder(event, attachment_);
      if (!order.ok()) {
        Fail(order.status());
        break;
      }
      if (const auto* end = std::get_if<EndGroupOrder>(&*order); end != nullptr && callbacks_.on_group_end) {
        callbacks_.on_group_end(end->group, absl::AbortedError(end->reason));
      }
      MutexLock lock(mu_);
      orders_.push_back(*std::move(order));
      orders_changed_.NotifyAll();
    }
    const absl::Status status = FromGrpc(stream_->Finish());
    Fail(status.ok() ? absl::UnavailableError("the daemon ended the event stream") : status);
    MutexLock lock(mu_);
    received_all_ = true;
    orders_changed_.NotifyAll();
  }

  // The stream has failed by itself: says so first, so that whoever learns it from Next finds it known.
  void Fail(absl::Status why) {
    {
      MutexLock lock(mu_);
      if (lost_) return;
      lost_ = true;
    }
    callbacks_.on_lost(why);
    Cancel(std::move(why));
  }

  // Fixed after construction.
  const Attachment attachment_;
  const std::chrono::nanoseconds heartbeat_every_;
  const ControlCallbacks callbacks_;
  grpc::ClientContext context_;
  const std::unique_ptr<proto::Control::Stub> stub_;
  const std::unique_ptr<grpc::ClientReaderWriter<proto::WorkerEvent, proto::DaemonEvent>> stream_;

  mutable Mutex mu_;
  CondVar orders_changed_;
  CondVar to_send_changed_;
  std::deque<Order> orders_ ABSL_GUARDED_BY(mu_);
  std::deque<proto::WorkerEvent> to_send_ ABSL_GUARDED_BY(mu_);
  bool sending_ ABSL_GUARDED_BY(mu_) = false;
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  bool received_all_ ABSL_GUARDED_BY(mu_) = false;
  bool lost_ ABSL_GUARDED_BY(mu_) = false;
  bool says_last_word_ ABSL_GUARDED_BY(mu_) = false;  // after failure_, what is to be sent goes out all the same
  absl::Status failure_ ABSL_GUARDED_BY(mu_);

  // Last: they use all of the above.
  std::thread sender_;
  std::thread receiver_;
};

}  // namespace

absl::StatusOr<AttachAnswer> GrpcAttach(const std::string& address, const Introduction& introduction,
                                        absl::Duration timeout, std::shared_ptr<grpc::ChannelCredentials> credentials) {
  const auto stub =
      proto::Control::NewStub(NewControlChannel(address, static_cast<int>(kRunMessageBytes), std::move(credentials)));
  proto::AttachRequest request;
  request.set_protocol_version(kProtocolVersion);
  request.set_device_name(introduction.device_name);
  request.set_device_model(introduction.device_model);
  request.set_device_cap_bytes(introduction.device_cap_bytes);
  request.set_process_id(getpid());
  request.set_threads(static_cast<uint32_t>(introduction.threads));
  request.set_metrics_address(introduction.metrics_address);
  request.set_host_name(HostName());
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  proto::AttachReply reply;
  const auto begin = std::chrono::steady_clock::now();
  absl::Status attached = FromGrpc(stub->Attach(&context, request, &reply));
  const auto end = std::chrono::steady_clock::now();
  if (absl::IsUnimplemented(attached)) attached = Annotate(attached, "a gRPC server is there, but no eps_server");
  EPS_RETURN_IF_ERROR_WITH(attached, absl::StrCat("attach to ", address));
  if (!reply.starting().empty()) return StartingDaemon{reply.starting()};
  auto attachment = ToAttachment(reply);
  EPS_RETURN_IF_ERROR_WITH(attachment.status(), absl::StrCat("attach to ", address, ": its answer"));
  attachment->clock_offset = ClockOffset(begin, std::chrono::nanoseconds(reply.clock_nanos()), end);
  return *std::move(attachment);
}

absl::StatusOr<std::unique_ptr<Control>> OpenGrpcControl(const std::string& address, const Attachment& attachment,
                                                         ControlCallbacks callbacks,
                                                         std::shared_ptr<grpc::ChannelCredentials> credentials) {
  EPS_ASSIGN_OR_RETURN(const int max_message_bytes, MaxControlMessageBytes(attachment.run));
  return std::unique_ptr<Control>(std::make_unique<GrpcControl>(
      NewControlChannel(address, max_message_bytes, std::move(credentials)), attachment, std::move(callbacks)));
}

}  // namespace eps::worker
