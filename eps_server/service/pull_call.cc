#include "eps_server/service/pull_call.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/formats/chunk_header.h"
#include "common/grpc/byte_buffers.h"
#include "common/grpc/grpc_status.h"
#include "common/model/model_spec.h"
#include "common/schedule/chunk_range.h"
#include "common/tensor/dtype.h"
#include "proto/data_plane.pb.h"

namespace eps::server {
namespace {

class PullCall final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  explicit PullCall(const DataServiceOptions& options) : options_(options) {}

  void Begin(std::shared_ptr<PullCall> self) {
    self_ = std::move(self);
    Read();
  }

 private:
  void OnReadDone(bool ok) override {
    EndOperation();
    if (!ok) return End(absl::OkStatus());  // the worker has closed its side, or is gone
    absl::Status status = Check(incoming_);
    incoming_.Clear();
    if (!status.ok()) return End(status);
    asked_ = options_.clock();
    // The store may keep this for a long time: it holds the call, not the stream.
    options_.store->WhenPublished(
        BlobId(request_.blob()), Version(request_.version()),
        [call = self_](absl::Status status) { call->OnPublished(status); }, this);
    if (ended()) options_.store->GiveUpWaits(this);  // cancelled before that wait was there
  }

  absl::Status Check(const grpc::ByteBuffer& message) {
    EPS_RETURN_IF_ERROR_WITH(ParseProto(message, request_), "pull");
    if (request_.incarnation() != options_.incarnation) {
      return absl::FailedPreconditionError(absl::StrCat("incarnation: ", request_.incarnation(), ", this daemon is ",
                                                        options_.incarnation, ": attach anew"));
    }
    const int64_t num_blobs = static_cast<int64_t>(options_.model->blobs.size());
    if (request_.blob() < 0 || request_.blob() >= num_blobs) {
      return absl::NotFoundError(absl::StrCat("blob: ", request_.blob(), ", the model has ", num_blobs));
    }
    if (request_.version() < 0 || request_.version() > options_.last_version.value()) {
      return absl::InvalidArgumentError(
          absl::StrCat("version: ", request_.version(), ", want 0 to ", options_.last_version.value()));
    }
    const BlobSpec& blob = options_.model->blob(BlobId(request_.blob()));
    ChunkRange chunks = {.first = request_.first_chunk(), .count = request_.num_chunks()};
    if (chunks.count == 0) chunks.count = blob.num_chunks() - chunks.first;
    EPS_RETURN_IF_ERROR(CheckChunks(blob, chunks));
    chunk_ = chunks.first;
    end_chunk_ = chunks.end();
    return absl::OkStatus();
  }

  void OnPublished(const absl::Status& status) {
    if (!status.ok()) return End(status);
    version_wait_micros_ = std::max<int64_t>(0, absl::ToInt64Microseconds(options_.clock() - asked_));
    wire_ = options_.store->Wire(BlobId(request_.blob()), Version(request_.version()));
    WriteNext();
  }

  void WriteNext() {
    const BlobId blob(request_.blob());
    const BlobSpec& spec = options_.model->blob(blob);
    if (chunk_ == end_chunk_) return Read();
    // So many versions later the buffer is another one's.
    if (options_.store->published(blob).value() >= request_.version() + options_.store->wire_versions()) {
      return End(absl::AbortedError(absl::StrCat("version ", request_.version(), " was overwritten")));
    }
    const Dtype wire = options_.store->wire_dtype();
    const ChunkRange chunk = {.first = chunk_, .count = 1};
    const auto payload = wire_.subspan(static_cast<size_t>(spec.part_first_byte(chunk, wire)),
                                       static_cast<size_t>(spec.part_bytes(chunk, wire)));
    const ChunkHeader header = {.kind = PulledKind(spec),
                                .dtype = spec.value_dtype(wire),
                                .incarnation = options_.incarnation,
                                .step = request_.version(),
                                .blob = blob,
                                .chunk = static_cast<int32_t>(chunk_),
                                .payload_bytes = static_cast<uint32_t>(payload.size()),
                                .version_wait_micros = std::exchange(version_wait_micros_, 0)};
    ++chunk_;
    if (options_.traffic != nullptr) options_.traffic->pulled_bytes += static_cast<int64_t>(payload.size());
    message_ = ChunkMessage(header, payload);
    Write();
  }

  void Read() {
    if (BeginOperation()) StartRead(&incoming_);
  }
  void Write() {
    if (BeginOperation()) StartWrite(&message_);
  }

  // False: the stream was cancelled meanwhile, is finished, and takes no more.
  bool BeginOperation() {
    MutexLock lock(mu_);
    if (!ended_) operating_ = true;
    return !ended_;
  }
  void EndOperation() {
    MutexLock lock(mu_);
    operating_ = false;
  }

  void End(const absl::Status& status) {
    {
      MutexLock lock(mu_);
      if (ended_) return;
      ended_ = true;
    }
    Finish(ToGrpc(status));
  }

  bool ended() {
    MutexLock lock(mu_);
    return ended_;
  }

  void OnWriteDone(bool ok) override {
    EndOperation();
    if (!ok) return End(absl::CancelledError("pull: the stream is broken"));
    WriteNext();
  }

  void OnCancel() override {
    {
      // Looked at and ended at once: a version that is published meanwhile must not start a write after Finish.
      MutexLock lock(mu_);
      if (operating_ || ended_) return;  // the reaction to what is under way comes, and ends it
      ended_ = true;
    }
    options_.store->GiveUpWaits(this);
    Finish(ToGrpc(absl::CancelledError("pull: cancelled")));
  }

  void OnDone() override { self_.reset(); }

  const DataServiceOptions options_;  // not the service's own: an answer of the store may come when that is gone
  // Used by gRPC between a Start and its reaction.
  grpc::ByteBuffer incoming_;
  grpc::ByteBuffer message_;
  // The pull that is served. Of one thread at a time: who has read, who publishes, then who has written.
  proto::PullRequest request_;
  absl::Duration asked_;             // on options_.clock
  int64_t version_wait_micros_ = 0;  // until the first chunk has said it
  absl::Span<const std::byte> wire_;
  int64_t chunk_ = 0;      // the next one
  int64_t end_chunk_ = 0;  // one after the last

  Mutex mu_;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  bool operating_ ABSL_GUARDED_BY(mu_) = false;  // a read or a write is under way

  std::shared_ptr<PullCall> self_;  // until OnDone
};

}  // namespace

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* StartPullCall(const DataServiceOptions& options) {
  auto call = std::make_shared<PullCall>(options);
  PullCall* reactor = call.get();
  reactor->Begin(std::move(call));
  return reactor;
}

}  // namespace eps::server
