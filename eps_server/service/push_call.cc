#include "eps_server/service/push_call.h"

#include <algorithm>
#include <cstddef>
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
#include "common/formats/sparse_chunk.h"
#include "common/grpc/byte_buffers.h"
#include "eps_server/service/incoming_contributions.h"
#include "eps_server/service/queued_stream.h"
#include "eps_server/service/worker_messages.h"
#include "proto/data_plane.pb.h"

namespace eps::server {
namespace {

// What was offered before reading paused may still be answered: at most IncomingContributions' limit.
class PushCall final : public QueuedStream<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  explicit PushCall(const DataServiceOptions& options) : options_(options), contributions_(*options.model) {}

  void Begin(std::shared_ptr<PushCall> self) {
    self_ = std::move(self);
    if (options_.aggregator == nullptr) {
      return End(absl::FailedPreconditionError("push: this daemon serves a checkpoint and trains nothing"));
    }
    ReadNext();
  }

 private:
  absl::Status Handle(grpc::ByteBuffer& buffer) override {
    absl::Status status = Take(buffer);
    if (!status.ok()) LogWarning("push_refused", {{"worker", worker_.value()}, {"error", status.ToString()}});
    return status;
  }

  absl::Status Take(const grpc::ByteBuffer& buffer) {
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
      gone = done_;
      if (admitted && !gone) contributions_.Admit(number);
      if (!admitted) contributions_.Drop(number);
    }
    if (gone && admitted) return options_.aggregator->Abandon(key);
    Reply(number, admitted ? proto::PushReply::ADMITTED : proto::PushReply::NOT_WANTED);
  }

  absl::Status HandleChunk(const ReceivedMessage& message) {
    EPS_ASSIGN_OR_RETURN(const ChunkHeader header, message.ParseChunk());
    if (options_.traffic != nullptr) options_.traffic->pushed_bytes += header.payload_bytes;
    if (!IsGradient(header.kind)) {
      return absl::InvalidArgumentError(absl::StrCat("chunk: kind: ", NameOf(header.kind), ", want gradient"));
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
    const auto copy = [&](absl::Span<std::byte> to) {
      message.CopyPayload(to.last(header.payload_bytes));
      return header.kind == ChunkKind::kSparseGradient ? UnpackSparseChunk(to, header.payload_bytes) : absl::OkStatus();
    };
    EPS_ASSIGN_OR_RETURN(
        const ChunkOutcome outcome,
        options_.aggregator->AddChunk(place.key, header.chunk, {.num_bytes = place.num_bytes, .copy = copy}));
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
    Send(ProtoMessage(reply));
  }

  absl::Status Broken() const override { return absl::CancelledError("push: the worker is gone"); }

  void OnDone() override {
    if (options_.aggregator != nullptr) {
      std::vector<ContributionKey> unfinished;
      {
        MutexLock lock(mu_);
        done_ = true;
        unfinished = contributions_.Unfinished();
      }
      for (const ContributionKey& key : unfinished) options_.aggregator->Abandon(key);
    }
    self_.reset();
  }

  // Fixed after construction. Not the service's own: an answer of the aggregator may come when that is gone.
  const DataServiceOptions options_;
  // Of the reading reaction, one at a time.
  WorkerId worker_;  // as its last offer says: for the log, nothing depends on it

  Mutex mu_;
  IncomingContributions contributions_ ABSL_GUARDED_BY(mu_);
  bool done_ ABSL_GUARDED_BY(mu_) = false;  // what was unfinished has been given back

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
