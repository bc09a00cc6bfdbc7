#ifndef EPS_GPU_WORKER_TRANSPORT_GRPC_PULL_H_
#define EPS_GPU_WORKER_TRANSPORT_GRPC_PULL_H_

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/formats/chunk_header.h"
#include "common/model/model_spec.h"
#include "common/tensor/dtype.h"
#include "gpu_worker/transport/transport.h"
#include "grpcpp/client_context.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/byte_buffer.h"

namespace eps::worker {

// One call whose answer is chunks of a blob, in order.
//
// Threads: Start, then Wait, from one; Cancel from any, while Wait has not returned
class GrpcPull final : private grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  struct Request {
    uint64_t incarnation = 0;
    const BlobSpec* blob = nullptr;
    Version version;
    Dtype dtype = Dtype::kBf16;
    absl::Span<std::byte> destination;  // the whole blob
    int64_t first_chunk = 0;            // of those that are pulled
    int64_t end_chunk = 0;              // one after the last
  };
  explicit GrpcPull(Request request) : request_(request), next_chunk_(request.first_chunk) {}

  void Start(grpc::GenericStub& stub);
  // Blocks until every chunk is in its place. Errors: Transport::Pull's
  absl::StatusOr<PullTiming> Wait();
  void Cancel() { context_.TryCancel(); }

 private:
  using Clock = std::chrono::steady_clock;

  void OnReadInitialMetadataDone(bool ok) override;
  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  // Checks the header of chunk `chunk` of the blob.
  absl::Status Check(const ChunkHeader& header, int64_t chunk) const;
  void Fail(absl::Status status) ABSL_LOCKS_EXCLUDED(mu_);

  // Fixed after Start.
  const Request request_;
  Clock::time_point begin_;
  grpc::ClientContext context_;
  // Used by gRPC between a Start and its reaction.
  grpc::ByteBuffer outgoing_;
  grpc::ByteBuffer incoming_;

  Mutex mu_;
  CondVar done_changed_;
  int64_t next_chunk_ ABSL_GUARDED_BY(mu_);
  absl::Status first_error_ ABSL_GUARDED_BY(mu_);
  Clock::time_point answered_ ABSL_GUARDED_BY(mu_);
  bool done_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_TRANSPORT_GRPC_PULL_H_
