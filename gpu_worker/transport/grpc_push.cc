#include "gpu_worker/transport/grpc_push.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/formats/sparse_chunk.h"
#include "common/grpc/byte_buffers.h"
#include "common/grpc/grpc_status.h"

namespace eps::worker {
namespace {

constexpr char kPushMethod[] = "/eps.proto.DataPlane/Push";

}  // namespace

GrpcPush::GrpcPush(grpc::GenericStub& stub, uint64_t incarnation, WorkerId worker_id, const ModelSpec& model,
                   std::function<void(absl::Status)> on_failure)
    : incarnation_(incarnation), worker_id_(worker_id), model_(model), on_failure_(std::move(on_failure)) {
  stub.PrepareBidiStreamingCall(context_.get(), kPushMethod, grpc::StubOptions(), this);
  AddHold();
  StartRead(&incoming_);
  StartCall();
}

GrpcPush::~GrpcPush() {
  Cancel(absl::CancelledError("the transport was closed"));
  MutexLock lock(mu_);
  while (!done_) changed_.Wait(mu_);
}

void GrpcPush::Push(Contribution contribution) {
  {
    MutexLock lock(mu_);
    if (!first_error_.ok()) return;  // on_failure_, or who cancelled it, knows why
    const uint32_t number = ++last_number_;
    const int64_t first_chunk = contribution.chunks.first;
    pending_.emplace(number, Pending{std::move(contribution), first_chunk});
    offers_.push_back(number);
  }
  SendNext();
}

absl::Status GrpcPush::Flush() {
  MutexLock lock(mu_);
  while (first_error_.ok() && !pending_.empty()) changed_.Wait(mu_);
  return first_error_;
}

void GrpcPush::Cancel(absl::Status reason) {
  {
    MutexLock lock(mu_);
    cancelled_ = true;
  }
  Stop(std::move(reason));
}

void GrpcPush::Stop(absl::Status reason) {
  std::map<uint32_t, Pending> released;  // owners are let go outside of the lock
  std::shared_ptr<grpc::ClientContext> context;
  bool drop_hold = false;
  {
    MutexLock lock(mu_);
    if (first_error_.ok()) first_error_ = std::move(reason);
    context = context_;
    released.swap(pending_);
    offers_.clear();
    admitted_.clear();
    drop_hold = End();
    changed_.NotifyAll();
  }
  if (context != nullptr) context->TryCancel();
  if (drop_hold) RemoveHold();
}

bool GrpcPush::End() {
  ended_ = true;
  // While a message is under way its reaction still comes, and drops the hold.
  return !writing_ && std::exchange(held_, false);
}

void GrpcPush::SendNext() {
  std::optional<Outgoing> next;
  {
    MutexLock lock(mu_);
    if (writing_ || ended_) return;
    next = Next();
    if (!next.has_value()) return;
    writing_ = true;
  }
  // Only the one who set writing_ comes here. Without the lock, as packing a chunk reads all of it.
  grpc::ByteBuffer message = MessageOf(*std::move(next));
  outgoing_.Swap(&message);
  StartWrite(&outgoing_);
}

std::optional<GrpcPush::Outgoing> GrpcPush::Next() {
  if (!offers_.empty()) {
    const uint32_t number = offers_.front();
    offers_.pop_front();
    return OfferOf(number);
  }
  while (!admitted_.empty()) {
    const uint32_t number = admitted_.front();
    auto it = pending_.find(number);
    if (it != pending_.end() && it->second.next_chunk < it->second.contribution.chunks.end()) {
      return NextChunk(number, it->second);
    }
    admitted_.pop_front();  // all sent, or not wanted any more
  }
  return std::nullopt;
}

proto::Offer GrpcPush::OfferOf(uint32_t number) const {
  const Contribution& contribution = pending_.at(number).contribution;
  proto::Offer offer;
  offer.set_incarnation(incarnation_);
  offer.set_contribution(number);
  offer.set_step(contribution.step.value());
  offer.set_blob(contribution.blob.value());
  offer.set_use(contribution.use);
  offer.set_node_first(contribution.node.first);
  offer.set_node_count(contribution.node.count);
  offer.set_dtype(static_cast<uint32_t>(contribution.dtype));
  offer.set_nonfinite_vnode(contribution.nonfinite_vnode);
  offer.set_worker_id(worker_id_.value());
  offer.set_first_chunk(static_cast<int32_t>(contribution.chunks.first));
  offer.set_num_chunks(static_cast<int32_t>(contribution.chunks.count));
  return offer;
}

GrpcPush::OutgoingChunk GrpcPush::NextChunk(uint32_t number, Pending& pending) const {
  const Contribution& contribution = pending.contribution;
  const int64_t chunk = pending.next_chunk++;
  const int64_t elem_bytes = SizeOf(contribution.dtype);
  const auto payload =
      contribution.payload.subspan(static_cast<size_t>((chunk - contribution.chunks.first) * kChunkElems * elem_bytes),
                                   static_cast<size_t>(model_.blob(contribution.blob).chunk_elems(chunk) * elem_bytes));
  return {.header = {.kind = ChunkKind::kGradient,
                     .dtype = contribution.dtype,
                     .incarnation = incarnation_,
                     .step = contribution.step.value(),
                     .blob = contribution.blob,
                     .use = contribution.use,
                     .node = contribution.node,
                     .chunk = static_cast<int32_t>(chunk),
                     .payload_bytes = static_cast<uint32_t>(payload.size()),
                     .nonfinite_vnode = contribution.nonfinite_vnode,
                     .contribution = number},
          .payload = payload,
          .owner = contribution.owner};
}

grpc::ByteBuffer GrpcPush::MessageOf(Outgoing next) {
  if (const auto* offer = std::get_if<proto::Offer>(&next); offer != nullptr) return OfferMessage(*offer);
  auto& chunk = std::get<OutgoingChunk>(next);
  std::optional<std::vector<std::byte>> packed = PackSparseChunk(chunk.payload);
  if (!packed.has_value()) return ChunkMessage(chunk.header, chunk.payload, std::move(chunk.owner));
  const auto owner = std::make_shared<std::vector<std::byte>>(*std::move(packed));
  chunk.header.kind = ChunkKind::kSparseGradient;
  chunk.header.payload_bytes = static_cast<uint32_t>(owner->size());
  return ChunkMessage(chunk.header, *owner, owner);
}

void GrpcPush::OnWriteDone(bool ok) {
  bool drop_hold = false;
  {
    MutexLock lock(mu_);
    outgoing_.Clear();
    writing_ = false;
    if (!ok || ended_) drop_hold = End();
  }
  if (drop_hold) {
    RemoveHold();
  } else {
    SendNext();
  }
}

void GrpcPush::OnReadDone(bool ok) {
  if (!ok) {
    bool drop_hold = false;
    {
      MutexLock lock(mu_);
      drop_hold = End();
    }
    if (drop_hold) RemoveHold();
    return;
  }
  proto::PushReply reply;
  absl::Status status = ParseProto(incoming_, reply);
  incoming_.Clear();
  if (status.ok()) status = Apply(reply);
  if (!status.ok()) return Stop(std::move(status));
  StartRead(&incoming_);
  SendNext();
}

absl::Status GrpcPush::Apply(const proto::PushReply& reply) {
  std::optional<Pending> released;  // its owner is let go outside of the lock
  MutexLock lock(mu_);
  const auto it = pending_.find(reply.contribution());
  switch (reply.verdict()) {
    case proto::PushReply::ADMITTED:
      if (it != pending_.end()) admitted_.push_back(reply.contribution());
      return absl::OkStatus();
    case proto::PushReply::NOT_WANTED:
    case proto::PushReply::COMPLETE:
      if (it != pending_.end()) {
        released = std::move(it->second);
        pending_.erase(it);
      }
      if (pending_.empty()) changed_.NotifyAll();
      return absl::OkStatus();
    default:
      return absl::InternalError(absl::StrCat("push: verdict ", static_cast<int>(reply.verdict()), " is unknown"));
  }
}

void GrpcPush::OnDone(const grpc::Status& status) {
  absl::Status why;
  bool is_told;
  std::shared_ptr<grpc::ClientContext> context;
  {
    MutexLock lock(mu_);
    context = std::move(context_);
    if (first_error_.ok()) {
      first_error_ = status.ok() ? absl::UnavailableError("push: the daemon ended the stream") : FromGrpc(status);
    }
    why = first_error_;
    is_told = !cancelled_;
  }
  if (is_told && on_failure_) on_failure_(why);
  context.reset();
  std::map<uint32_t, Pending> released;
  MutexLock lock(mu_);
  released.swap(pending_);
  done_ = true;
  changed_.NotifyAll();
}

}  // namespace eps::worker
