#include "gpu_worker/transport/grpc_pull.h"

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

void GrpcPull::Start(grpc::GenericStub& stub) {
  proto::PullRequest request;
  request.set_incarnation(request_.incarnation);
  request.set_blob(request_.blob->id.value());
  request.set_version(request_.version.value());
  request.set_first_chunk(static_cast<int32_t>(request_.first_chunk));
  request.set_num_chunks(static_cast<int32_t>(request_.end_chunk - request_.first_chunk));
  outgoing_ = ProtoMessage(request);

  begin_ = Clock::now();
  stub.PrepareBidiStreamingCall(&context_, kPullMethod, grpc::StubOptions(), this);
  StartWriteLast(&outgoing_, grpc::WriteOptions());
  StartRead(&incoming_);
  StartCall();
}

absl::StatusOr<PullTiming> GrpcPull::Wait() {
  MutexLock lock(mu_);
  while (!done_) done_changed_.Wait(mu_);
  EPS_RETURN_IF_ERROR(first_error_);
  if (next_chunk_ != request_.end_chunk) {
    return Wrong("chunks", absl::StrCat(next_chunk_ - request_.first_chunk),
                 absl::StrCat(request_.end_chunk - request_.first_chunk));
  }
  const auto seconds = [](Clock::duration d) { return std::chrono::duration<double>(d).count(); };
  return PullTiming{.version_wait_seconds = seconds(answered_ - begin_),
                    .transfer_seconds = seconds(Clock::now() - answered_)};
}

// The daemon sends them ahead of the first chunk, when it has the version.
void GrpcPull::OnReadInitialMetadataDone(bool) {
  MutexLock lock(mu_);
  answered_ = Clock::now();
}

void GrpcPull::OnReadDone(bool ok) {
  if (!ok) return;  // the end of the stream, or an error: OnDone says which
  auto message = ReceivedMessage::Create(incoming_);
  incoming_.Clear();
  if (!message.ok()) return Fail(Annotate(message.status(), "pull"));
  auto header = message->ParseChunk();
  if (!header.ok()) return Fail(Annotate(absl::DataLossError(header.status().message()), "pull"));
  int64_t chunk;
  {
    MutexLock lock(mu_);
    chunk = next_chunk_++;
  }
  if (absl::Status status = Check(*header, chunk); !status.ok()) return Fail(status);
  StartRead(&incoming_);  // another thread may take the next chunk while this one is copied
  message->CopyPayload(request_.destination.subspan(static_cast<size_t>(chunk * kChunkElems * SizeOf(request_.dtype)),
                                                    header->payload_bytes));
}

absl::Status GrpcPull::Check(const ChunkHeader& header, int64_t chunk) const {
  if (chunk >= request_.end_chunk) {
    return Wrong("chunk", absl::StrCat(header.chunk), absl::StrCat("none after ", request_.end_chunk - 1));
  }
  if (header.kind != ChunkKind::kWeights) return Wrong("kind", "gradient", "weights");
  if (header.dtype != request_.dtype) {
    return Wrong("dtype", DtypeName(header.dtype), DtypeName(request_.dtype));
  }
  if (header.incarnation != request_.incarnation) return absl::AbortedError("pull: the daemon was restarted");
  EPS_RETURN_IF_ERROR(Expect("blob", header.blob.value(), request_.blob->id.value()));
  EPS_RETURN_IF_ERROR(Expect("version", header.step, request_.version.value()));
  EPS_RETURN_IF_ERROR(Expect("chunk", int64_t{header.chunk}, chunk));
  return Expect("payload_bytes", int64_t{header.payload_bytes},
                request_.blob->chunk_elems(chunk) * SizeOf(request_.dtype));
}

void GrpcPull::Fail(absl::Status status) {
  {
    MutexLock lock(mu_);
    if (first_error_.ok()) first_error_ = std::move(status);
  }
  context_.TryCancel();
}

void GrpcPull::OnDone(const grpc::Status& status) {
  MutexLock lock(mu_);
  if (first_error_.ok()) first_error_ = FromGrpc(status);
  done_ = true;
  done_changed_.NotifyAll();  // under the lock: Run's frame, and with it this object, may go right after
}

}  // namespace eps::worker
