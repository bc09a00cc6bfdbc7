#include "eps_server/service/push_call.h"

#include <algorithm>
#include <cstddef>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/base/log.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/formats/chunk_header.h"
#include "common/grpc/byte_buffers.h"
#include "common/grpc/grpc_status.h"
#include "eps_server/service/incoming_contributions.h"
#include "eps_server/service/worker_messages.h"
#include "proto/data_plane.pb.h"

namespace eps::server {
namespace {

// A worker that offers and does not read what it is answered is not read from either. What was offered before that may
// still be answered: at most IncomingContributions' limit.
constexpr size_t kMaxReplies = 1024;

class PushCall final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  explicit PushCall(const DataServiceOptions& options) : options_(options), contributions_(*options.model) {}

  void Begin(std::shared_ptr<PushCall> self) {
    self_ = std::move(self);
    if (options_.aggregator == nullptr) {
      return End(absl::FailedPreconditionError("push: this daemon serves a checkpoint and trains nothing"));
    }
    StartRead(&incoming_);
  }

 private:
  void OnReadDone(bool ok) override {
    // The worker has closed its side, or is gone; OnDone gives back what it left unfinished.
    if (!ok) return End(absl::OkStatus());
    absl::Status status = Handle(incoming_);
    incoming_.Clear();
    if (!status.ok()) {
      LogWarning("push_refused", {{"worker", worker_.value()}, {"error", status.ToString()}});
      return End(status);
    }
    // The next message is read when this one is held: what is not read, gRPC's flow control keeps at the worker.
    {
      MutexLock lock(mu_);
      reading_paused_ = replies_.size() >= kMaxReplies;
      if (reading_paused_) return;
    }
    StartRead(&incoming_);
  }

  absl::Status Handle(const grpc::ByteBuffer& buffer) {
    EPS_ASSIGN_OR_RETURN(const ReceivedMessage message, ReceivedMessage::Create(buffer));
    return message.is_offer() ? HandleOffer(message) : HandleChunk(message);
  }

  absl::Status HandleOffer(const ReceivedMessage& message) {
    proto::Offer offer;
    EPS_RETURN_IF_ERROR(message.ParseOffer(offer));
    worker_ = WorkerId(offer.worker_id());
    EPS_ASSIGN_OR_RETURN(const ContributionKey key, ToKey(offer, options_.incarnation));
    {
      MutexLock lock(mu_);
      EPS_RETURN_IF_ERROR(contributions_.Offer(offer.contribution(), key));
    }
    // Answered now or much later; the answer may find the stream gone.
    options_.aggregator->Offer(key, [call = self_, number = offer.contribution(),
                                     key](absl::StatusOr<Verdict> verdict) { call->OnVerdict(number, key, verdict); });
    return absl::OkStatus();
  }

  void OnVerdict(uint32_t number, const ContributionKey& key, const absl::StatusOr<Verdict>& verdict) {
    if (!verdict.ok()) return End(Annotate(verdict.status(), "offer"));
    const bool admitted = *verdict == Verdict::kAdmitted;
    bool gone = false;
    {
      MutexLock lock(mu_);
      gone = ended_;
      if (admitted && !gone) contributions_.Admit(number);
      if (!admitted) contributions_.Drop(number);
    }
    if (gone && admitted) return options_.aggregator->Abandon(key);
    Reply(number, admitted ? proto::PushReply::ADMITTED : proto::PushReply::NOT_WANTED);
  }

  absl::Status HandleChunk(const ReceivedMessage& message) {
    EPS_ASSIGN_OR_RETURN(const ChunkHeader header, message.ParseChunk());
    if (options_.traffic != nullptr) options_.traffic->pushed_bytes += header.payload_bytes;
    if (header.kind != ChunkKind::kGradient) {
      return absl::InvalidArgumentError("chunk: kind: weights, want gradient");
    }
    if (header.incarnation != options_.incarnation) {
      return absl::InvalidArgumentError(
          absl::StrCat("chunk: incarnation: ", header.incarnation, ", this daemon is ", options_.incarnation));
    }
    IncomingContributions::Place place;
    {
      MutexLock lock(mu_);
      EPS_ASSIGN_OR_RETURN(place, contributions_.Take(header));
    }
    if (!place.wanted) return absl::OkStatus();
    payload_.resize(header.payload_bytes);
    message.CopyPayload(absl::MakeSpan(payload_));
    EPS_ASSIGN_OR_RETURN(const ChunkOutcome outcome, options_.aggregator->AddChunk(place.key, header.chunk, payload_));
    if (outcome.complete || place.last) {
      {
        MutexLock lock(mu_);
        contributions_.Complete(header.contribution);
      }
      Reply(header.contribution, outcome.complete ? proto::PushReply::COMPLETE : proto::PushReply::NOT_WANTED);
    }
    return absl::OkStatus();
  }

  void Reply(uint32_t number, proto::PushReply::Verdict verdict) {
    proto::PushReply reply;
    reply.set_contribution(number);
    reply.set_verdict(verdict);
    {
      MutexLock lock(mu_);
      if (ended_) return;
      replies_.push_back(ProtoMessage(reply));
    }
    WriteNext();
  }

  void WriteNext() {
    bool read_on = false;
    {
      MutexLock lock(mu_);
      if (writing_ || ended_ || replies_.empty()) return;
      writing_ = true;
      outgoing_ = std::move(replies_.front());
      replies_.pop_front();
      read_on = reading_paused_ && replies_.size() <= kMaxReplies / 2;
      if (read_on) reading_paused_ = false;
    }
    StartWrite(&outgoing_);
    if (read_on) StartRead(&incoming_);
  }

  void OnWriteDone(bool ok) override {
    bool finish = false;
    {
      MutexLock lock(mu_);
      writing_ = false;
      finish = ended_;
    }
    if (finish) return Finish(ToGrpc(end_));
    if (!ok) return End(absl::CancelledError("push: the stream is broken"));
    WriteNext();
  }

  // Ends the stream with its first reason, after the reply that is being written.
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

  void OnCancel() override { End(absl::CancelledError("push: the worker is gone")); }

  void OnDone() override {
    if (options_.aggregator != nullptr) {
      std::vector<ContributionKey> unfinished;
      {
        MutexLock lock(mu_);
        unfinished = contributions_.Unfinished();
      }
      for (const ContributionKey& key : unfinished) options_.aggregator->Abandon(key);
    }
    self_.reset();
  }

  // Fixed after construction.
  const DataServiceOptions& options_;
  // Used by gRPC between a Start and its reaction.
  grpc::ByteBuffer incoming_;
  grpc::ByteBuffer outgoing_;
  // Of the reading reaction, one at a time. A chunk in one piece: at most 1 MiB a stream, and it stays in cache.
  std::vector<std::byte> payload_;
  WorkerId worker_;  // as its last offer says: for the log, nothing depends on it

  Mutex mu_;
  IncomingContributions contributions_ ABSL_GUARDED_BY(mu_);
  std::deque<grpc::ByteBuffer> replies_ ABSL_GUARDED_BY(mu_);
  bool reading_paused_ ABSL_GUARDED_BY(mu_) = false;  // until the worker has read some replies
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status end_;  // written once, before ended_ is seen by whoever finishes

  std::shared_ptr<PushCall> self_;  // until OnDone
};

}  // namespace

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* StartPushCall(const DataServiceOptions& options) {
  auto call = std::make_shared<PushCall>(options);
  PushCall* reactor = call.get();
  reactor->Begin(std::move(call));
  return reactor;
}

}  // namespace eps::server
