#include "gpu_worker/transport/grpc_pull.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"
#include "common/grpc/byte_buffers.h"
#include "common/grpc/grpc_status.h"
#include "proto/data_plane.pb.h"

namespace eps::worker {
namespace {

constexpr char kPullMethod[] = "/eps.proto.DataPlane/Pull";

absl::Status Wrong(absl::string_view field, absl::string_view found, absl::string_view wanted) {
  return absl::DataLossError(absl::StrCat(field, ": the daemon sent ", found, ", want ", wanted));
}

template <typename T>
absl::Status Expect(absl::string_view field, const T& found, const T& wanted) {
  return found == wanted ? absl::OkStatus() : Wrong(field, absl::StrCat(found), absl::StrCat(wanted));
}

}  // namespace

GrpcPull::GrpcPull(grpc::GenericStub& stub, uint64_t incarnation, Dtype wire) : incarnation_(incarnation), wire_(wire) {
  stub.PrepareBidiStreamingCall(&context_, kPullMethod, grpc::StubOptions(), this);
  AddHold();
  StartCall();
}

GrpcPull::~GrpcPull() {
  Cancel();
  MutexLock lock(mu_);
  while (!done_) changed_.Wait(mu_);
}

void GrpcPull::Start(const Request& request) {
  request_ = request;
  begin_ = Clock::now();
  {
    MutexLock lock(mu_);
    next_chunk_ = request.chunks.first;
    uncopied_chunks_ = request.chunks.count;
    if (ended_) return;  // Wait says why
    writing_ = reading_ = true;
  }
  proto::PullRequest message;
  message.set_incarnation(incarnation_);
  message.set_blob(request.blob->id.value());
  message.set_version(request.version.value());
  message.set_first_chunk(static_cast<int32_t>(request.chunks.first));
  message.set_num_chunks(static_cast<int32_t>(request.chunks.count));
  outgoing_ = ProtoMessage(message);
  StartWrite(&outgoing_);
  StartRead(&incoming_);
}

absl::StatusOr<PullTiming> GrpcPull::Wait() {
  MutexLock lock(mu_);
  while (!IsComplete() && !done_) changed_.Wait(mu_);
  if (!IsComplete()) {
    EPS_RETURN_IF_ERROR(first_error_);
    return Wrong("chunks", absl::StrCat(next_chunk_ - request_.chunks.first), absl::StrCat(request_.chunks.count));
  }
  return PullTiming{.version_wait_seconds = version_wait_seconds_};
}

void GrpcPull::Cancel() {
  bool drop_hold = false;
  {
    MutexLock lock(mu_);
    drop_hold = End();
  }
  context_.TryCancel();
  if (drop_hold) RemoveHold();
}

bool GrpcPull::End() {
  ended_ = true;
  // While something is under way its reaction still comes, and drops the hold.
  return !writing_ && !reading_ && std::exchange(held_, false);
}

void GrpcPull::EndReading(absl::Status error) {
  const bool ended_by_daemon = error.ok();
  bool drop_hold = false;
  {
    MutexLock lock(mu_);
    if (first_error_.ok()) first_error_ = std::move(error);
    reading_ = false;
    drop_hold = End();
  }
  if (!ended_by_daemon) context_.TryCancel();  // otherwise its status is on the way, which this would hide
  if (drop_hold) RemoveHold();
}

void GrpcPull::OnWriteDone(bool ok) {
  bool drop_hold = false;
  {
    MutexLock lock(mu_);
    writing_ = false;
    if (!ok || ended_) drop_hold = End();
    if (IsComplete()) changed_.NotifyAll();
  }
  if (drop_hold) RemoveHold();
}

void GrpcPull::OnReadDone(bool ok) {
  if (!ok) return EndReading(absl::OkStatus());  // the end of the stream, or an error: OnDone says which
  auto message = ReceivedMessage::Create(incoming_);
  incoming_.Clear();
  if (!message.ok()) return EndReading(message.status());
  auto header = message->ParseChunk();
  if (!header.ok()) return EndReading(absl::DataLossError(header.status().message()));
  int64_t chunk;
  {
    MutexLock lock(mu_);
    chunk = next_chunk_++;
    if (chunk == request_.chunks.first) version_wait_seconds_ = VersionWaitSeconds(*header);
  }
  if (absl::Status status = Check(*header, chunk); !status.ok()) return EndReading(std::move(status));
  const bool last = chunk + 1 == request_.chunks.end();
  if (!last) StartRead(&incoming_);  // another thread may take the next chunk while this one is copied
  const ChunkRange before = {.first = request_.chunks.first, .count = chunk - request_.chunks.first};
  const int64_t offset_bytes = request_.blob->part_bytes(before, wire_);
  message->CopyPayload(request_.destination.subspan(static_cast<size_t>(offset_bytes), header->payload_bytes));
  bool drop_hold = false;
  {
    MutexLock lock(mu_);
    --uncopied_chunks_;
    if (last) {
      reading_ = false;
      if (ended_) drop_hold = End();
    }
    if (IsComplete()) changed_.NotifyAll();
  }
  if (drop_hold) RemoveHold();
}

double GrpcPull::VersionWaitSeconds(const ChunkHeader& first) const {
  // Only the daemon knows what part of the time until the first chunk was not the link's. It cannot have been more.
  const std::chrono::duration<double> until_now = Clock::now() - begin_;
  return std::min(static_cast<double>(first.version_wait_micros) * 1e-6, until_now.count());
}

absl::Status GrpcPull::Check(const ChunkHeader& header, int64_t chunk) const {
  if (header.kind != PulledKind(*request_.blob)) {
    return Wrong("kind", NameOf(header.kind), NameOf(PulledKind(*request_.blob)));
  }
  if (const Dtype dtype = request_.blob->value_dtype(wire_); header.dtype != dtype) {
    return Wrong("dtype", DtypeName(header.dtype), DtypeName(dtype));
  }
  if (header.incarnation != incarnation_) return absl::AbortedError("the daemon was restarted");
  EPS_RETURN_IF_ERROR(Expect("blob", header.blob.value(), request_.blob->id.value()));
  EPS_RETURN_IF_ERROR(Expect("version", header.step, request_.version.value()));
  EPS_RETURN_IF_ERROR(Expect("chunk", int64_t{header.chunk}, chunk));
  if (chunk != request_.chunks.first) {
    EPS_RETURN_IF_ERROR(Expect("version_wait_micros", header.version_wait_micros, int64_t{0}));
  }
  return Expect("payload_bytes", int64_t{header.payload_bytes}, request_.blob->chunk_bytes(chunk, wire_));
}

void GrpcPull::OnDone(const grpc::Status& status) {
  MutexLock lock(mu_);
  if (first_error_.ok()) first_error_ = FromGrpc(status);
  done_ = true;
  changed_.NotifyAll();  // under the lock: this object may go right after
}

}  // namespace eps::worker
