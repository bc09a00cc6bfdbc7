#include "gpu_worker/transport/shared_memory_transport.h"

#include <array>
#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/base/stream_copy.h"
#include "common/formats/shared_message.h"
#include "common/formats/wire_layout.h"
#include "common/ipc/packet_channel.h"
#include "common/ipc/shared_segment.h"
#include "common/ipc/unix_socket.h"
#include "common/model/model_spec.h"
#include "common/schedule/chunk_range.h"
#include "common/tensor/dtype.h"
#include "gpu_worker/transport/inbox_memory.h"

namespace eps::worker {
namespace {

using Clock = std::chrono::steady_clock;

constexpr absl::Duration kWelcomeTime = absl::Seconds(5);
// Offers that the daemon has not read yet: it reads at once, or it hangs.
constexpr size_t kMaxQueued = size_t{1} << 17;
constexpr size_t kMaxReplyBytes = kSharedMessageBytes + kMaxRefusalBytes;

double SecondsSince(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

absl::Status Wrong(absl::string_view field, int64_t found, int64_t wanted) {
  return absl::DataLossError(absl::StrCat(field, ": the daemon sent ", found, ", want ", wanted));
}

class SharedMemoryTransport final : public Transport {
 public:
  SharedMemoryTransport(SharedMemoryTransportOptions options, SharedSegment weights, SharedSegment inbox,
                        std::unique_ptr<PacketChannel> channel)
      : options_(std::move(options)),
        layout_(*options_.model, options_.wire_dtype, options_.wire_versions),
        weights_(std::move(weights)),
        inbox_(std::make_shared<InboxMemory>(std::move(inbox), kStagingBytes)),
        channel_(std::move(channel)),
        reader_([this] { ReadUntilEnd(); }) {}

  ~SharedMemoryTransport() override {
    Cancel(absl::CancelledError("the transport was closed"));
    reader_.join();
  }

  const std::byte* InPlace(BlobId blob, Version version) const override {
    return weights_.bytes().data() + layout_.offset_bytes(blob, version);
  }

  // The daemon is told that `chunks` are read.
  absl::StatusOr<PullTiming> Await(BlobId blob, Version version, ChunkRange chunks) override {
    const Clock::time_point begin = Clock::now();
    // Only exactly this version: of the one before it, the daemon knows whether it was ever here.
    const bool published = layout_.LoadPublished(weights_.bytes(), blob) == version;
    uint32_t number = 0;
    {
      MutexLock lock(mu_);
      EPS_RETURN_IF_ERROR(first_error_);
      if (!published) {
        number = ++last_number_;
        pull_ = {.number = number, .blob = blob, .version = version, .done = false};
      }
    }
    if (published) {
      Send(OfWeights(SharedMessageKind::kRead, blob, version, chunks));
      return PullTiming{.version_wait_seconds = SecondsSince(begin)};
    }
    SharedMessage pull = OfWeights(SharedMessageKind::kPull, blob, version, chunks);
    pull.number = number;
    Send(std::move(pull));
    MutexLock lock(mu_);
    while (!pull_.done && first_error_.ok()) changed_.Wait(mu_);
    if (pull_.done) return PullTiming{.version_wait_seconds = SecondsSince(begin)};
    return first_error_;
  }

  absl::StatusOr<PullTiming> Pull(BlobId blob, Version version, ChunkRange chunks,
                                  absl::Span<std::byte> destination) override {
    const BlobSpec& spec = options_.model->blob(blob);
    const Dtype wire = options_.wire_dtype;
    EPS_CHECK(!chunks.empty() && static_cast<int64_t>(destination.size()) == spec.part_bytes(chunks, wire));
    EPS_ASSIGN_OR_RETURN(const PullTiming timing, Await(blob, version, chunks));
    StreamCopy(destination.data(), InPlace(blob, version) + spec.part_first_byte(chunks, wire), destination.size());
    return timing;
  }

  std::optional<PushMemory> NewPushMemory(int64_t num_bytes) override {
    // Taken before the look: the daemon may still read what a transport that failed had offered, and End lets go of it
    // only after it has set the error.
    std::optional<PushMemory> memory = inbox_->Take(num_bytes);
    MutexLock lock(mu_);
    if (!first_error_.ok()) return std::nullopt;
    return memory;
  }

  void Push(Contribution contribution) override {
    EPS_CHECK(!contribution.chunks.empty());
    EPS_CHECK(static_cast<int64_t>(contribution.payload.size()) ==
              options_.model->blob(contribution.blob).part_elems(contribution.chunks) * SizeOf(contribution.dtype));
    SharedMessage offer = {.kind = SharedMessageKind::kOffer,
                           .step = contribution.step.value(),
                           .blob = contribution.blob,
                           .use = contribution.use,
                           .node = contribution.node,
                           .dtype = contribution.dtype,
                           .nonfinite_vnode = contribution.nonfinite_vnode,
                           .chunk = static_cast<int32_t>(contribution.chunks.first),
                           .num_chunks = static_cast<int32_t>(contribution.chunks.count),
                           .offset_bytes = inbox_->OffsetOf(contribution.payload)};
    if (offer.offset_bytes % kInboxAlignBytes != 0) offer.offset_bytes = -1;
    {
      MutexLock lock(mu_);
      if (!first_error_.ok()) return;  // on_failure, or who cancelled it, knows why
      offer.number = ++last_number_;
      pending_.emplace(offer.number, Pending{.contribution = std::move(contribution),
                                             .staged = offer.offset_bytes < 0,
                                             .next_chunk = offer.chunk});
    }
    Send(std::move(offer));
  }

  absl::Status Flush() override {
    MutexLock lock(mu_);
    while (first_error_.ok() && !pending_.empty()) changed_.Wait(mu_);
    return first_error_;
  }

  void Cancel(absl::Status reason) override { End(std::move(reason)); }

 private:
  struct PullState {
    uint32_t number = 0;  // of the one under way, or the last
    BlobId blob;
    Version version;
    bool done = true;
  };
  struct Pending {
    Contribution contribution;
    bool staged = false;     // it lies elsewhere, and goes through the slots once it is admitted
    int64_t next_chunk = 0;  // to send, of the contribution's
  };

  static SharedMessage OfWeights(SharedMessageKind kind, BlobId blob, Version version, ChunkRange chunks) {
    return {.kind = kind,
            .step = version.value(),
            .blob = blob,
            .chunk = static_cast<int32_t>(chunks.first),
            .num_chunks = static_cast<int32_t>(chunks.count)};
  }

  void Send(SharedMessage message) {
    message.incarnation = options_.incarnation;
    channel_->Send(EncodeSharedMessage(message));
  }

  void ReadUntilEnd() {
    absl::Status status =
        Annotate(channel_->Run([this](absl::string_view packet) { return Handle(packet); }), "shared memory");
    // Before anybody who waits wakes up: whoever finds a pull failed is to find the reason told.
    if (first_error().ok() && options_.on_failure) options_.on_failure(status);
    End(std::move(status));
  }

  // The first one holds.
  void End(absl::Status reason) ABSL_LOCKS_EXCLUDED(mu_) {
    std::map<uint32_t, Pending> released;  // owners are let go outside of the lock
    {
      MutexLock lock(mu_);
      if (!first_error_.ok()) return;
      first_error_ = reason;
      released.swap(pending_);
      admitted_.clear();
      changed_.NotifyAll();
    }
    channel_->Close(std::move(reason));
  }

  absl::Status first_error() const ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    return first_error_;
  }

  absl::Status Handle(absl::string_view packet) {
    const absl::StatusOr<SharedMessage> message = DecodeSharedMessage(packet);
    if (!message.ok()) return absl::DataLossError(message.status().message());
    if (message->incarnation != options_.incarnation) return absl::AbortedError("the daemon was restarted");
    switch (message->kind) {
      case SharedMessageKind::kPulled:
        return HandlePulled(*message);
      case SharedMessageKind::kAdmitted:
        return HandleAdmitted(*message);
      case SharedMessageKind::kTaken:
        return HandleTaken(*message);
      case SharedMessageKind::kNotWanted:
      case SharedMessageKind::kComplete:
        return HandleSettled(*message);
      case SharedMessageKind::kRefused:
        return Annotate(message->refusal, "the daemon says");
      default:
        return absl::DataLossError(
            absl::StrCat("kind: the daemon sent ", static_cast<int>(message->kind), ", want an answer"));
    }
  }

  absl::Status HandlePulled(const SharedMessage& message) {
    MutexLock lock(mu_);
    if (pull_.done || message.number != pull_.number) return Wrong("pull", message.number, pull_.number);
    EPS_RETURN_IF_ERROR(CheckPulled(message));
    pull_.done = true;
    changed_.NotifyAll();
    return absl::OkStatus();
  }

  absl::Status CheckPulled(const SharedMessage& message) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (message.blob != pull_.blob) return Wrong("blob", message.blob.value(), pull_.blob.value());
    if (message.step != pull_.version.value()) return Wrong("version", message.step, pull_.version.value());
    const int64_t offset_bytes = layout_.offset_bytes(pull_.blob, pull_.version);
    if (message.offset_bytes != offset_bytes) return Wrong("offset", message.offset_bytes, offset_bytes);
    return absl::OkStatus();
  }

  absl::Status HandleSettled(const SharedMessage& message) {
    std::optional<Pending> released;  // its owner is let go outside of the lock
    MutexLock lock(mu_);
    const auto found = pending_.find(message.number);
    if (found == pending_.end()) {
      if (!first_error_.ok()) return first_error_;
      return absl::DataLossError(
          absl::StrCat("the daemon answered contribution ", message.number, ", which is not there"));
    }
    released = std::move(found->second);
    pending_.erase(found);
    if (pending_.empty()) changed_.NotifyAll();
    return absl::OkStatus();
  }

  absl::Status HandleAdmitted(const SharedMessage& message) {
    {
      MutexLock lock(mu_);
      const auto found = pending_.find(message.number);
      if (found == pending_.end() || !found->second.staged) {
        if (!first_error_.ok()) return first_error_;
        return absl::DataLossError(absl::StrCat("the daemon asks for contribution ", message.number));
      }
      admitted_.push_back(message.number);
    }
    FillSlots();
    return absl::OkStatus();
  }

  absl::Status HandleTaken(const SharedMessage& message) {
    {
      MutexLock lock(mu_);
      const int64_t slot = message.offset_bytes / kStagingSlotBytes;
      if (message.offset_bytes < 0 || slot >= kStagingSlots || !slot_in_use_[static_cast<size_t>(slot)]) {
        return absl::DataLossError(absl::StrCat("the daemon gives back ", message.offset_bytes, ", no slot in use"));
      }
      slot_in_use_[static_cast<size_t>(slot)] = false;
    }
    FillSlots();
    return absl::OkStatus();
  }

  // Sends the next chunks of what is admitted, while there are slots. Only of the reading thread, so that chunks are in
  // order.
  void FillSlots() {
    while (true) {
      SharedMessage message = {.kind = SharedMessageKind::kChunk};
      absl::Span<const std::byte> chunk;
      std::shared_ptr<void> owner;  // the daemon may have it all from another worker while we copy
      {
        MutexLock lock(mu_);
        const std::optional<size_t> slot = FreeSlot();
        if (!slot.has_value() || !NextChunk(message, chunk, owner)) return;
        slot_in_use_[*slot] = true;
        message.offset_bytes = static_cast<int64_t>(*slot) * kStagingSlotBytes;
      }
      const auto place = inbox_->Staging(message.offset_bytes, static_cast<int64_t>(chunk.size()));
      std::memcpy(place.data(), chunk.data(), chunk.size());
      Send(std::move(message));
    }
  }

  std::optional<size_t> FreeSlot() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    for (size_t slot = 0; slot < slot_in_use_.size(); ++slot) {
      if (!slot_in_use_[slot]) return slot;
    }
    return std::nullopt;
  }

  bool NextChunk(SharedMessage& message, absl::Span<const std::byte>& chunk, std::shared_ptr<void>& owner)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    while (!admitted_.empty()) {
      const auto found = pending_.find(admitted_.front());
      if (found == pending_.end() || found->second.next_chunk == found->second.contribution.chunks.end()) {
        admitted_.pop_front();
        continue;
      }
      Pending& pending = found->second;
      const Contribution& contribution = pending.contribution;
      const int64_t elem_bytes = SizeOf(contribution.dtype);
      const int64_t offset_bytes = (pending.next_chunk - contribution.chunks.first) * kChunkElems * elem_bytes;
      const int64_t num_bytes = options_.model->blob(contribution.blob).chunk_elems(pending.next_chunk) * elem_bytes;
      chunk = contribution.payload.subspan(static_cast<size_t>(offset_bytes), static_cast<size_t>(num_bytes));
      owner = contribution.owner;
      message.number = found->first;
      message.chunk = static_cast<int32_t>(pending.next_chunk++);
      return true;
    }
    return false;
  }

  // Fixed after construction.
  const SharedMemoryTransportOptions options_;
  const WireLayout layout_;
  const SharedSegment weights_;
  const std::shared_ptr<InboxMemory> inbox_;
  const std::unique_ptr<PacketChannel> channel_;

  mutable Mutex mu_;
  CondVar changed_;
  absl::Status first_error_ ABSL_GUARDED_BY(mu_);
  PullState pull_ ABSL_GUARDED_BY(mu_);
  std::map<uint32_t, Pending> pending_ ABSL_GUARDED_BY(mu_);  // by number, until COMPLETE or NOT_WANTED
  std::deque<uint32_t> admitted_ ABSL_GUARDED_BY(mu_);        // whose chunks are to be staged
  std::array<bool, kStagingSlots> slot_in_use_ ABSL_GUARDED_BY(mu_) = {};
  uint32_t last_number_ ABSL_GUARDED_BY(mu_) = 0;

  std::thread reader_;  // last: it uses all of the above
};

absl::StatusOr<SharedMessage> ReadWelcome(const Packet& packet, const SharedMemoryTransportOptions& options) {
  EPS_ASSIGN_OR_RETURN(const SharedMessage message, DecodeSharedMessage(packet.bytes));
  if (message.kind == SharedMessageKind::kRefused) return Annotate(message.refusal, "the daemon says");
  if (message.incarnation != options.incarnation) return absl::FailedPreconditionError("it is another daemon's");
  if (message.kind != SharedMessageKind::kWelcome || packet.files.size() != 2) {
    return absl::InternalError(absl::StrCat("the daemon answered with kind ", static_cast<int>(message.kind), " and ",
                                            packet.files.size(), " descriptors"));
  }
  return message;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> ConnectSharedMemory(SharedMemoryTransportOptions options) {
  EPS_ASSIGN_OR_RETURN(FileDescriptor socket, ConnectLocal(options.socket_path));
  const int64_t inbox_bytes = kStagingBytes + options.push_bytes;
  const std::string hello =
      EncodeSharedMessage({.kind = options.pins_weights ? SharedMessageKind::kHelloToPin : SharedMessageKind::kHello,
                           .incarnation = options.incarnation,
                           .step = options.worker_id.value(),
                           .offset_bytes = inbox_bytes});
  EPS_RETURN_IF_ERROR(SendPacket(socket, hello, {}, kWelcomeTime));
  EPS_ASSIGN_OR_RETURN(Packet packet, ReceivePacket(socket, kMaxReplyBytes, kWelcomeTime));
  EPS_RETURN_IF_ERROR(ReadWelcome(packet, options).status());
  // The sizes are what we know from the run, whatever the daemon says.
  const WireLayout layout(*options.model, options.wire_dtype, options.wire_versions);
  EPS_ASSIGN_OR_RETURN(SharedSegment weights,
                       SharedSegment::Map(std::move(packet.files[0]), layout.segment_bytes(),
                                          options.pins_weights ? SegmentWriter::kBoth : SegmentWriter::kCreator));
  EPS_ASSIGN_OR_RETURN(SharedSegment inbox,
                       SharedSegment::Map(std::move(packet.files[1]), inbox_bytes, SegmentWriter::kReceiver));
  EPS_ASSIGN_OR_RETURN(auto channel, PacketChannel::Create(std::move(socket), {.peer = "the daemon",
                                                                               .max_packet_bytes = kMaxReplyBytes,
                                                                               .max_queued = kMaxQueued}));
  return std::make_unique<SharedMemoryTransport>(std::move(options), std::move(weights), std::move(inbox),
                                                 std::move(channel));
}

}  // namespace eps::worker
