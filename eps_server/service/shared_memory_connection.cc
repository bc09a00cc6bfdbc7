#include "eps_server/service/shared_memory_connection.h"

#include <algorithm>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/log.h"
#include "common/base/monotonic_clock.h"
#include "common/base/status_macros.h"
#include "common/base/thread.h"
#include "common/ipc/unix_socket.h"
#include "common/model/model_spec.h"
#include "common/schedule/chunk_range.h"
#include "common/tensor/dtype.h"

namespace eps::server {
namespace {

// A worker says hello at once.
constexpr absl::Duration kHelloTime = absl::Seconds(5);
constexpr absl::Duration kTurn = absl::Milliseconds(100);
// A worker has one pull under way, for which it waits.
constexpr int kMaxPulls = 64;
// The part of an inbox that may be lent at once: with a quarter, steps that wait for updates took 9% longer (decision 20).
constexpr int64_t kMostLentPart = 2;
// Answers that the worker has not read: no more than it has offered, or one for each pull.
constexpr size_t kMaxQueued = size_t{1} << 17;

absl::Status Wrong(absl::string_view field, absl::string_view found, absl::string_view wanted) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", found, ", want ", wanted));
}

// Of a pull, a read or an offer: what the message says, which the blob may not have.
ChunkRange ChunksOf(const SharedMessage& message) { return {.first = message.chunk, .count = message.num_chunks}; }

ContributionKey ToKey(const SharedMessage& offer) {
  return {.step = StepId(offer.step),
          .blob = offer.blob,
          .use = offer.use,
          .node = offer.node,
          .chunks = ChunksOf(offer),
          .dtype = offer.dtype,
          .nonfinite_vnode = offer.nonfinite_vnode};
}

}  // namespace

SharedMemoryConnection::SharedMemoryConnection(const SharedMemoryOptions& options, FileDescriptor socket)
    : options_(options),
      layout_(*options.model, options.store->wire_dtype(), options.store->wire_versions()),
      socket_(std::move(socket)),
      contributions_(*options.model) {}

void SharedMemoryConnection::Run() {
  absl::Status status = ShakeHands();
  if (!status.ok()) {
    // Without the incarnation, here and in the reason: it is what a worker was told behind the doors of gRPC.
    const std::string refusal = EncodeSharedMessage({.kind = SharedMessageKind::kRefused, .refusal = status});
    // A peer that does not take it at once does not get it.
    if (socket_.is_open()) SendPacket(socket_, refusal, {}, absl::ZeroDuration()).IgnoreError();
    socket_ = FileDescriptor();  // the peer sees the end now
    LogEnd(status);
    return;
  }
  LogInfo("shared_memory_connected", {{"worker", worker_.value()}, {"inbox_bytes", inbox_->bytes().size()}});
  const auto inbox_bytes = static_cast<int64_t>(inbox_->bytes().size());
  if (options_.traffic != nullptr) options_.traffic->inbox_bytes += inbox_bytes;
  std::vector<std::thread> copiers = StartCopiers();
  status = channel_->Run([this](absl::string_view packet) {
    absl::Status handled = Handle(packet);
    if (!handled.ok()) End(handled);
    return handled;
  });
  End(status);  // for the copiers; the first reason stands
  options_.store->GiveUpWaits(this);
  for (std::thread& copier : copiers) copier.join();
  // Copiers are through, and who was lent something holds it himself. A worker that was killed may have left much in it.
  inbox_.reset();
  if (options_.traffic != nullptr) options_.traffic->inbox_bytes -= inbox_bytes;
  std::vector<ContributionKey> unfinished;
  absl::Status why;
  {
    MutexLock lock(mu_);
    unfinished = contributions_.Unfinished();
    why = end_;
  }
  // What is admitted from now on is abandoned where it is answered: ended_ is set.
  for (const ContributionKey& key : unfinished) options_.aggregator->Abandon(key);
  LogEnd(why);
}

void SharedMemoryConnection::LogEnd(const absl::Status& why) const {
  // A worker that ends, or another daemon that looks whether this one lives.
  if (absl::IsUnavailable(why)) {
    LogInfo("shared_memory_closed", {{"worker", worker_.value()}, {"reason", why.message()}});
  } else {
    LogWarning("shared_memory_refused", {{"worker", worker_.value()}, {"error", why.ToString()}});
  }
}

absl::StatusOr<SharedMessage> SharedMemoryConnection::ReceiveHello() {
  EPS_RETURN_IF_ERROR(CheckPeerUser(socket_));
  // In short turns, so that a peer that says nothing does not hold up the end of the daemon.
  const absl::Duration deadline = SteadyNow() + kHelloTime;
  absl::StatusOr<Packet> packet = absl::DeadlineExceededError("");
  while (absl::IsDeadlineExceeded(packet.status()) && SteadyNow() < deadline && !ended()) {
    packet = ReceivePacket(socket_, kSharedMessageBytes, std::min(deadline - SteadyNow(), kTurn));
  }
  {
    MutexLock lock(mu_);
    EPS_RETURN_IF_ERROR(end_);
  }
  EPS_RETURN_IF_ERROR_WITH(packet.status(), "hello");
  EPS_ASSIGN_OR_RETURN(const SharedMessage hello, DecodeSharedMessage(packet->bytes));
  if (hello.kind != SharedMessageKind::kHello && hello.kind != SharedMessageKind::kHelloToPin) {
    return Wrong("hello: kind", absl::StrCat(static_cast<int>(hello.kind)), "1 or 6: it comes first");
  }
  worker_ = WorkerId(hello.step);
  if (hello.incarnation != options_.incarnation) {
    return absl::FailedPreconditionError(
        absl::StrCat("hello: incarnation: ", hello.incarnation, " is not this daemon's: attach anew"));
  }
  if (hello.offset_bytes < kStagingBytes || hello.offset_bytes > options_.max_inbox_bytes) {
    return Wrong("hello: inbox bytes", absl::StrCat(hello.offset_bytes),
                 absl::StrCat(kStagingBytes, " to ", options_.max_inbox_bytes));
  }
  return hello;
}

absl::Status SharedMemoryConnection::ShakeHands() {
  EPS_ASSIGN_OR_RETURN(const SharedMessage hello, ReceiveHello());
  EPS_ASSIGN_OR_RETURN(SharedSegment inbox,
                       SharedSegment::Create("eps-inbox", hello.offset_bytes, SegmentWriter::kReceiver));
  inbox_ = std::make_shared<const SharedSegment>(std::move(inbox));
  const std::string welcome = EncodeSharedMessage({.kind = SharedMessageKind::kWelcome,
                                                   .incarnation = options_.incarnation,
                                                   .step = layout_.segment_bytes(),
                                                   .offset_bytes = hello.offset_bytes});
  const SharedSegment& weights = *options_.store->wire_segment();
  EPS_ASSIGN_OR_RETURN(const FileDescriptor reader, weights.ReadOnlyFile());
  const FileDescriptor& shown = hello.kind == SharedMessageKind::kHelloToPin ? weights.file() : reader;
  EPS_RETURN_IF_ERROR(SendPacket(socket_, welcome, {shown.get(), inbox_->file().get()}, kHelloTime));
  EPS_ASSIGN_OR_RETURN(channel_, PacketChannel::Create(std::move(socket_), {.max_packet_bytes = kSharedMessageBytes,
                                                                            .max_queued = kMaxQueued}));
  MutexLock lock(mu_);
  connected_ = true;
  return end_;  // Close may have come meanwhile
}

absl::Status SharedMemoryConnection::Handle(absl::string_view packet) {
  EPS_ASSIGN_OR_RETURN(const SharedMessage message, DecodeSharedMessage(packet));
  if (message.incarnation != options_.incarnation) {
    return Wrong("incarnation", absl::StrCat(message.incarnation), absl::StrCat(options_.incarnation));
  }
  switch (message.kind) {
    case SharedMessageKind::kPull:
      return Annotate(HandlePull(message), "pull");
    case SharedMessageKind::kOffer:
      return Annotate(HandleOffer(message), "offer");
    case SharedMessageKind::kChunk:
      return Annotate(HandleChunk(message), "chunk");
    case SharedMessageKind::kRead:
      return Annotate(HandleRead(message), "read");
    default:
      return Wrong("kind", absl::StrCat(static_cast<int>(message.kind)), "2 to 5");
  }
}

absl::Status SharedMemoryConnection::CheckWeights(const SharedMessage& message) const {
  const int64_t num_blobs = static_cast<int64_t>(options_.model->blobs.size());
  if (message.blob.value() >= num_blobs) {
    return absl::NotFoundError(absl::StrCat("blob: ", message.blob.value(), ", the model has ", num_blobs));
  }
  if (message.step > options_.last_version.value()) {
    return Wrong("version", absl::StrCat(message.step), absl::StrCat("0 to ", options_.last_version.value()));
  }
  return CheckChunks(options_.model->blob(message.blob), ChunksOf(message));
}

void SharedMemoryConnection::CountPulled(const SharedMessage& message) const {
  if (options_.traffic == nullptr) return;
  options_.traffic->pulled_bytes +=
      options_.model->blob(message.blob).part_bytes(ChunksOf(message), options_.store->wire_dtype());
}

absl::Status SharedMemoryConnection::HandleRead(const SharedMessage& message) const {
  EPS_RETURN_IF_ERROR(CheckWeights(message));
  CountPulled(message);
  return absl::OkStatus();
}

absl::Status SharedMemoryConnection::HandlePull(const SharedMessage& message) {
  EPS_RETURN_IF_ERROR(CheckWeights(message));
  {
    MutexLock lock(mu_);
    if (pulls_ == kMaxPulls) return absl::ResourceExhaustedError(absl::StrCat(kMaxPulls, " are under way"));
    ++pulls_;
  }
  // The store may keep this for a long time: it holds the connection, not the socket.
  options_.store->WhenPublished(
      message.blob, Version(message.step),
      [self = shared_from_this(), message](absl::Status status) { self->OnPublished(message, status); }, this);
  return absl::OkStatus();
}

void SharedMemoryConnection::OnPublished(const SharedMessage& pull, const absl::Status& status) {
  {
    MutexLock lock(mu_);
    --pulls_;
  }
  if (!status.ok()) return End(Annotate(status, "pull"));
  CountPulled(pull);
  Reply({.kind = SharedMessageKind::kPulled,
         .step = pull.step,
         .blob = pull.blob,
         .number = pull.number,
         .offset_bytes = layout_.offset_bytes(pull.blob, Version(pull.step))});
}

// The payload lies in the inbox, behind the slots for staging, or it is not there at all.
absl::Status SharedMemoryConnection::CheckPayload(const SharedMessage& offer) const {
  if (offer.offset_bytes == -1) return absl::OkStatus();
  const int64_t num_blobs = static_cast<int64_t>(options_.model->blobs.size());
  if (offer.blob.value() >= num_blobs) {
    return Wrong("blob", absl::StrCat(offer.blob.value()), absl::StrCat("below ", num_blobs));
  }
  const BlobSpec& blob = options_.model->blob(offer.blob);
  EPS_RETURN_IF_ERROR(CheckChunks(blob, ChunksOf(offer)));
  const int64_t num_bytes = blob.part_elems(ChunksOf(offer)) * SizeOf(offer.dtype);
  const auto inbox_bytes = static_cast<int64_t>(inbox_->bytes().size());
  if (offer.offset_bytes < kStagingBytes || offer.offset_bytes % kInboxAlignBytes != 0 ||
      num_bytes > inbox_bytes - offer.offset_bytes) {
    return Wrong("offset", absl::StrCat(offer.offset_bytes),
                 absl::StrCat("-1, or a multiple of ", kInboxAlignBytes, " from ", kStagingBytes, " on with ",
                              num_bytes, " bytes before the inbox ends at ", inbox_bytes));
  }
  return absl::OkStatus();
}

absl::Status SharedMemoryConnection::HandleOffer(const SharedMessage& message) {
  if (options_.aggregator == nullptr) {
    return absl::FailedPreconditionError("this daemon serves a checkpoint and trains nothing");
  }
  EPS_RETURN_IF_ERROR(CheckPayload(message));
  const ContributionKey key = ToKey(message);
  {
    MutexLock lock(mu_);
    EPS_RETURN_IF_ERROR(contributions_.Offer(message.number, key));
  }
  // Answered now or much later; the answer may find the connection gone.
  options_.aggregator->Offer(
      key, [self = shared_from_this(), number = message.number, key, offset_bytes = message.offset_bytes](
               absl::StatusOr<Verdict> verdict) { self->OnVerdict(number, key, offset_bytes, verdict); });
  return absl::OkStatus();
}

void SharedMemoryConnection::OnVerdict(uint32_t number, const ContributionKey& key, int64_t offset_bytes,
                                       const absl::StatusOr<Verdict>& verdict) {
  if (!verdict.ok()) return End(Annotate(verdict.status(), "offer"));
  const bool admitted = *verdict == Verdict::kAdmitted;
  bool gone = false;
  {
    MutexLock lock(mu_);
    gone = ended_;
    if (!admitted) contributions_.Drop(number);
    if (admitted && !gone) {
      contributions_.Admit(number);
      if (offset_bytes >= 0) {
        copies_.push_back({.number = number, .key = key, .offset_bytes = offset_bytes, .next_chunk = key.chunks.first});
        copies_changed_.NotifyOne();
      }
    }
  }
  if (gone && admitted) return options_.aggregator->Abandon(key);
  if (!admitted) Reply({.kind = SharedMessageKind::kNotWanted, .number = number});
  if (admitted && offset_bytes < 0) Reply({.kind = SharedMessageKind::kAdmitted, .number = number});
}

absl::Status SharedMemoryConnection::HandleChunk(const SharedMessage& message) {
  if (message.offset_bytes < 0 || message.offset_bytes >= kStagingBytes ||
      message.offset_bytes % kStagingSlotBytes != 0) {
    return Wrong("offset", absl::StrCat(message.offset_bytes),
                 absl::StrCat("a multiple of ", kStagingSlotBytes, " below ", kStagingBytes));
  }
  MutexLock lock(mu_);
  const absl::StatusOr<ContributionKey> key = contributions_.Find(message.number);
  EPS_RETURN_IF_ERROR(key.status());
  bool& in_use = slot_in_use_[static_cast<size_t>(message.offset_bytes / kStagingSlotBytes)];
  if (in_use) return Wrong("offset", absl::StrCat(message.offset_bytes), "a slot that was given back");
  in_use = true;
  copies_.push_back({.number = message.number,
                     .key = *key,
                     .offset_bytes = message.offset_bytes,
                     .next_chunk = message.chunk,
                     .staged = true});
  copies_changed_.NotifyOne();
  return absl::OkStatus();
}

std::vector<std::thread> SharedMemoryConnection::StartCopiers() {
  std::vector<std::thread> copiers;
  for (int i = 0; i < options_.copiers; ++i) {
    absl::StatusOr<std::thread> copier = StartThread([this] { CopyUntilEnd(); });
    if (!copier.ok()) {
      if (copiers.empty()) End(copier.status());  // with fewer than were asked for it is slower, and that is all
      break;
    }
    copiers.push_back(*std::move(copier));
  }
  return copiers;
}

void SharedMemoryConnection::CopyUntilEnd() {
  while (true) {
    const absl::StatusOr<std::optional<TakenChunk>> chunk = NextChunk();
    if (!chunk.ok()) return End(chunk.status());
    if (!chunk->has_value()) return;
    if (absl::Status status = HandOver(**chunk); !status.ok()) return End(status);
  }
}

absl::StatusOr<std::optional<SharedMemoryConnection::TakenChunk>> SharedMemoryConnection::NextChunk() {
  MutexLock lock(mu_);
  while (true) {
    while (copies_.empty() && !ended_) copies_changed_.Wait(mu_);
    if (ended_) return std::nullopt;
    EPS_ASSIGN_OR_RETURN(const std::optional<TakenChunk> chunk, TakeChunk());
    if (!copies_.empty()) copies_changed_.NotifyOne();  // another one helps
    if (chunk.has_value()) return chunk;
  }
}

absl::StatusOr<std::optional<SharedMemoryConnection::TakenChunk>> SharedMemoryConnection::TakeChunk() {
  Copy& copy = copies_.front();
  const BlobSpec& blob = options_.model->blob(copy.key.blob);
  if (copy.next_chunk >= blob.num_chunks()) {
    return Wrong("chunk", absl::StrCat(copy.next_chunk), absl::StrCat("below ", blob.num_chunks()));
  }
  TakenChunk taken = {.number = copy.number,
                      .key = copy.key,
                      .chunk = copy.next_chunk,
                      .offset_bytes = copy.offset_bytes,
                      .num_bytes = blob.chunk_elems(copy.next_chunk) * SizeOf(copy.key.dtype),
                      .staged = copy.staged};
  const ChunkHeader header = {.kind = ChunkKind::kGradient,
                              .dtype = copy.key.dtype,
                              .incarnation = options_.incarnation,
                              .step = copy.key.step.value(),
                              .blob = copy.key.blob,
                              .use = copy.key.use,
                              .node = copy.key.node,
                              .chunk = static_cast<int32_t>(taken.chunk),
                              .payload_bytes = static_cast<uint32_t>(taken.num_bytes),
                              .nonfinite_vnode = copy.key.nonfinite_vnode,
                              .contribution = copy.number};
  EPS_ASSIGN_OR_RETURN(const IncomingContributions::Place place, contributions_.Take(header));
  taken.wanted = place.wanted;
  copy.offset_bytes += taken.num_bytes;
  ++copy.next_chunk;
  if (copy.staged || place.last || !place.wanted) copies_.pop_front();
  if (!place.wanted) return taken.staged ? std::optional(taken) : std::nullopt;
  Reading& reading = reading_[taken.number];
  ++reading.under_way;
  reading.all_taken = place.last;
  return taken;
}

absl::Status SharedMemoryConnection::HandOver(const TakenChunk& chunk) {
  if (chunk.wanted) {
    if (options_.traffic != nullptr) options_.traffic->pushed_bytes += chunk.num_bytes;
    const auto copy = [this, &chunk](absl::Span<std::byte> to) { return inbox_->Read(chunk.offset_bytes, to); };
    EPS_ASSIGN_OR_RETURN(
        const ChunkOutcome outcome,
        options_.aggregator->AddChunk(chunk.key, chunk.chunk,
                                      {.num_bytes = chunk.num_bytes, .copy = copy, .lent = Lend(chunk)}));
    EndRead(chunk.number, outcome.complete);
  }
  if (!chunk.staged) return absl::OkStatus();
  {
    MutexLock lock(mu_);
    slot_in_use_[static_cast<size_t>(chunk.offset_bytes / kStagingSlotBytes)] = false;
  }
  Reply({.kind = SharedMessageKind::kTaken, .number = chunk.number, .offset_bytes = chunk.offset_bytes});
  return absl::OkStatus();
}

std::shared_ptr<const std::byte> SharedMemoryConnection::Lend(const TakenChunk& chunk) {
  if (chunk.staged) return nullptr;  // its slot is wanted
  const auto most_bytes = (static_cast<int64_t>(inbox_->bytes().size()) - kStagingBytes) / kMostLentPart;
  MutexLock lock(mu_);
  if (lent_bytes_ + chunk.num_bytes > most_bytes) return nullptr;
  lent_bytes_ += chunk.num_bytes;
  ++reading_.at(chunk.number).under_way;
  // By whoever has it last, which may be after the end of the connection.
  const auto give_back = [self = shared_from_this(), inbox = inbox_, number = chunk.number,
                          num_bytes = chunk.num_bytes](const std::byte*) {
    {
      MutexLock lock(self->mu_);
      self->lent_bytes_ -= num_bytes;
    }
    self->EndRead(number, /*complete=*/false);
  };
  return {inbox_->bytes().data() + chunk.offset_bytes, give_back};
}

void SharedMemoryConnection::EndRead(uint32_t number, bool complete) {
  {
    MutexLock lock(mu_);
    const auto reading = reading_.find(number);
    reading->second.complete |= complete;
    complete = reading->second.complete;
    // Also before the last chunk, when another worker sent the same: nothing more of it is taken.
    if (complete) contributions_.Complete(number);
    if (--reading->second.under_way > 0) return;
    const bool answered = complete || reading->second.all_taken;
    reading_.erase(reading);
    if (!answered || ended_) return;  // after the end nobody hears an answer, and Run abandons what is not complete
    contributions_.Complete(number);
  }
  Reply({.kind = complete ? SharedMessageKind::kComplete : SharedMessageKind::kNotWanted, .number = number});
}

void SharedMemoryConnection::Reply(SharedMessage message) {
  message.incarnation = options_.incarnation;
  channel_->Send(EncodeSharedMessage(message));
}

void SharedMemoryConnection::End(const absl::Status& status) {
  bool connected = false;
  {
    MutexLock lock(mu_);
    if (ended_) return;
    ended_ = true;
    end_ = status;
    connected = connected_;
    copies_.clear();
    copies_changed_.NotifyAll();
  }
  if (!connected) return;
  channel_->Close(status,
                  EncodeSharedMessage(
                      {.kind = SharedMessageKind::kRefused, .incarnation = options_.incarnation, .refusal = status}));
}

void SharedMemoryConnection::Close(absl::Status reason) { End(reason); }

bool SharedMemoryConnection::ended() const {
  MutexLock lock(mu_);
  return ended_;
}

}  // namespace eps::server
